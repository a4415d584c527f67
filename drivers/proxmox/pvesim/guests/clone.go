package guests

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// Cloning is what one clone is to do.
type Cloning struct {
	Newid                         int
	Name, Description             string
	Pool, Storage, Format, Target string
	Full                          string // As given: "", "0" or "1".
	Snapshot                      string
	Running                       bool
}

// IsFull says whether a clone is a copy: a template is cloned by links unless asked otherwise.
func (cl Cloning) IsFull(g *core.Guest) bool {
	if cl.Full == "" {
		return g.Conf["template"] != "1"
	}
	return cl.Full == "1"
}

// CloningOf reads what a call asks for.
func CloningOf(c *core.Call, g *core.Guest) Cloning {
	cl := Cloning{
		Newid: c.Num("newid", 0), Name: c.In["name"] + c.In["hostname"], Description: c.In["description"], Pool: c.In["pool"],
		Storage: c.In["storage"], Format: c.In["format"], Target: c.In["target"], Full: c.In["full"], Snapshot: c.In["snapname"],
		Running: g.Run != nil,
	}
	if cl.Target == g.Node || cl.Target == "localhost" {
		cl.Target = ""
	}
	return cl
}

// Check makes the checks that come first, of VMs and of containers.
func (cl Cloning) Check(w *core.World, g *core.Guest) error {
	if cl.Pool != "" && w.Access.Pools[cl.Pool] == nil {
		return perl.Forbidden("pool '" + cl.Pool + "' does not exist")
	}
	if cl.Target != "" && w.Nodes[cl.Target] == nil {
		return perl.Fail("no such cluster node '%s'", cl.Target)
	}
	if cl.Storage != "" {
		st, err := w.Store(cl.Storage)
		switch {
		case err != nil:
			return err
		case g.Kind == "qemu" && !st.Holds("images"):
			return perl.BadParam("storage", "storage '"+cl.Storage+"' does not support vm images")
		case cl.Target != "" && !st.Shared:
			return perl.Fail("can't clone to non-shared storage '%s'", cl.Storage)
		}
	}
	if err := w.NeedQuorum(); err != nil {
		return err
	}
	if w.Guests[g.Vmid] != g {
		return core.Missing(g.Node, g.Kind, g.Vmid)
	}
	return g.CheckLock()
}

// Source is the configuration to copy: that in force, or a snapshot's.
func (cl Cloning) Source(g *core.Guest) (property.Config, error) {
	if cl.Snapshot == "" {
		return g.Conf, nil
	}
	if s := g.Snapshot(cl.Snapshot); s != nil {
		return s.Conf, nil
	}
	return nil, perl.Fail("snapshot '%s' does not exist", cl.Snapshot)
}
