package guests

import (
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Cloning describes one clone.
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
func (cl Cloning) Source(g *core.Guest) (perl.Config, error) {
	if cl.Snapshot == "" {
		return g.Conf, nil
	}
	if s := g.Snapshot(cl.Snapshot); s != nil {
		return s.Conf, nil
	}
	return nil, perl.Fail("snapshot '%s' does not exist", cl.Snapshot)
}

// Copy makes the copy of one volume for another guest: by a link, or whole on the storage
// that was asked for. what is what messages call it.
func (cl Cloning) Copy(w *core.World, node, what, key, volid string, vmid int, linked bool, log func(string, ...any),
	whole func(*core.Store, *core.Volume) (*core.Volume, error),
) (string, *core.Volume, error) {
	storage, name, _ := core.VolumeID(volid)
	st, err := w.Store(storage)
	if err != nil {
		return "", nil, err
	}
	source := st.Find(node, name)
	if source == nil {
		return "", nil, perl.Fail("volume '%s' does not exist", volid)
	}
	var v *core.Volume
	if linked {
		log("create linked clone of %s %s (%s)", what, key, volid)
		v, err = linkDisk(w, st, node, source, vmid, log)
	} else {
		log("create full clone of %s %s (%s)", strings.ReplaceAll(what, " ", ""), key, volid) // PVE writes mountpoint here.
		if cl.Storage != "" {
			storage = cl.Storage
			st, err = w.Store(storage)
		}
		if err == nil {
			v, err = whole(st, source)
		}
	}
	if err != nil {
		return "", nil, err
	}
	return storage + ":" + v.Name, v, nil
}

// Finish copies the volumes that keys have, by one, and writes the configuration of the clone.
// When one cannot be copied, those before it are freed.
func (cl Cloning) Finish(w *core.World, g, copied *core.Guest, conf perl.Config, keys []string, one func(key string) (volid, value string, err error)) error {
	var made []string
	slices.Sort(keys)
	for _, key := range keys {
		volid, value, err := one(key)
		if err != nil {
			for _, volid := range made {
				_ = core.Free(w, copied.Node, volid)
			}
			return err
		}
		made = append(made, volid)
		conf[key] = value
	}
	copied.Conf = conf
	w.Cloned(g, copied)
	if cl.Target != "" {
		copied.Node = cl.Target
	}
	w.Write(copied)
	return nil
}
