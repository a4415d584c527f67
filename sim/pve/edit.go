package pve

import (
	"cmp"
	"fmt"
	"maps"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/host"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Edit changes a host without the API, as from the console of the node: no rights, locks or digests are checked. It
// is valid inside the function that Host.Edit calls.
type Edit struct{ w *core.World }

// Edit lets do change the host, at one moment.
func (h *Host) Edit(do func(*Edit)) {
	h.withWorld(func(w *core.World) { do(&Edit{w}) })
}

// withWorld runs do on the current world.
func (h *Host) withWorld(do func(*core.World)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.w.Advance(h.clock.now())
	do(h.w)
	h.publish()
}

// guest finds a guest that must be there: a test that edits nothing is wrong.
func (e *Edit) guest(vmid int) *core.Guest {
	g := e.w.Guests[vmid]
	if g == nil {
		panic(fmt.Sprintf("pve: edit of guest %d, which does not exist", vmid))
	}
	return g
}

// Set writes a configuration key; an empty value removes it.
func (e *Edit) Set(vmid int, key, value string) {
	g := e.guest(vmid)
	if value == "" {
		delete(g.Conf, key)
	} else {
		g.Conf[key] = value
	}
	e.w.Write(g)
}

// Pend lets a value of a configuration key wait for the next full restart, or its deletion
// if the value is empty, as a change of a running guest does that PVE cannot make at once.
func (e *Edit) Pend(vmid int, key, value string) {
	g := e.guest(vmid)
	going := g.Deletions()
	delete(g.Pend, key)
	delete(going, key)
	if value == "" {
		going[key] = false
	} else {
		g.Pend[key] = value
	}
	g.SetDeletions(going)
	guests.CleanupPending(g)
	e.w.Write(g)
}

// Start lets a guest run; one that runs stays as it is.
func (e *Edit) Start(vmid int) {
	if g := e.guest(vmid); g.Run == nil {
		guests.PowerOn(e.w, g)
	}
}

// Stop ends a guest's process, as a shutdown from inside or a crash does.
// Waiting changes go on waiting.
func (e *Edit) Stop(vmid int) {
	if g := e.guest(vmid); g.Run != nil {
		guests.PowerOff(e.w, g, nil)
	}
}

// QMP sets what QEMU says of a VM that runs: paused, io-error, suspended, prelaunch, …;
// "running" lets its processors run.
func (e *Edit) QMP(vmid int, status string) {
	g := e.guest(vmid)
	if g.Run == nil {
		panic(fmt.Sprintf("pve: edit of the processors of guest %d, which does not run", vmid))
	}
	if g.Run.Qmp = status; status == "running" {
		g.Run.Qmp = ""
	}
	e.w.Touch(g)
}

// Hang lets the system of a running VM react to no shutdown any more, until its next start.
func (e *Edit) Hang(vmid int) {
	if g := e.guest(vmid); g.Run != nil {
		g.Run.System = false
	}
}

// Delete removes a guest with its disks, and its HA resource: of a guest that has one
// PVE demands --purge (PVE/API2/Qemu.pm, destroy_vm; PVE/API2/LXC.pm too).
func (e *Edit) Delete(vmid int) {
	g := e.guest(vmid)
	guests.Purge(e.w, g)
	guests.FreeDisks(e.w, g, true, func(string, ...any) {})
	e.w.Remove(g)
}

// Add adds a guest that was not made through this API. Node and Kind default to the entry node and qemu; an
// existing guest is replaced.
func (e *Edit) Add(g Guest) {
	g.Node = cmp.Or(g.Node, e.w.Cfg.Node)
	g.Kind = cmp.Or(g.Kind, "qemu")
	if e.w.Nodes[g.Node] == nil || perl.ConfigParams[g.Kind] == nil {
		panic(fmt.Sprintf("pve: edit adds a guest of kind %s to node %s, one of which does not exist", g.Kind, g.Node))
	}
	added := core.NewGuest(g.Node, g.Kind, g.VMID)
	maps.Copy(added.Conf, g.Config)
	if g.Lock != "" {
		added.Conf["lock"] = g.Lock
	}
	e.w.Add(added)
	e.w.Write(added)
	if g.Pool != "" {
		host.JoinPool(e.w, g.Pool, g.VMID)
	}
	if g.Running {
		guests.PowerOn(e.w, added)
	}
}

// Lock sets the lock of a guest, as a task that crashed leaves it; an empty one
// is qm unlock.
func (e *Edit) Lock(vmid int, lock string) { e.Set(vmid, "lock", lock) }

// Crash kills the running tasks of a guest without any cleaning up: a lock that
// they set stays, and their status is unknown.
func (e *Edit) Crash(vmid int) { e.running(vmid, (*core.Task).Crash) }

// Lose lets the running tasks of a guest die without a trace: a lock that they
// set stays, and their ids are unknown.
func (e *Edit) Lose(vmid int) { e.running(vmid, (*core.Task).Lose) }

func (e *Edit) running(vmid int, do func(*core.Task)) {
	for _, t := range e.w.Tasks.All {
		if t.Running() && t.ID == fmt.Sprint(vmid) {
			do(t)
		}
	}
}

// Offline takes a node down or brings it back.
func (e *Edit) Offline(node string, down bool) {
	if e.w.Nodes[node] == nil {
		panic(fmt.Sprintf("pve: edit of node %s, which does not exist", node))
	}
	setOffline(e.w, node, down)
}

// Maintenance is ha-manager crm-command node-maintenance.
func (e *Edit) Maintenance(node string, on bool) {
	e.w.Nodes[node].Maintenance = on
	for _, vmid := range e.w.Vmids {
		e.w.HA.Notice(e.w.Guests[vmid])
	}
}

// Quorum takes the cluster's quorum or gives it back.
func (e *Edit) Quorum(have bool) {
	e.w.Quorum = have
	for _, vmid := range e.w.Vmids {
		e.w.HA.Notice(e.w.Guests[vmid])
	}
}

// Fill takes all free space of a storage; with false it gives it back.
func (e *Edit) Fill(storage string, full bool) {
	s := e.w.Stores[storage]
	if s == nil {
		panic(fmt.Sprintf("pve: edit of storage %s, which does not exist", storage))
	}
	s.Filled = 0
	if full {
		s.Filled = s.Size
	}
}

// Spoil damages a backup: torn, it cannot be unpacked; else its disks have no system that boots.
func (e *Edit) Spoil(volid string, torn bool) {
	storage, name, _ := core.VolumeID(volid)
	for key, v := range e.w.Stores[storage].Volumes {
		if key.Name != name {
			continue
		}
		v.Broken = torn
		if v.Backup != nil && !torn {
			for disk, saved := range v.Backup.Disks {
				saved.System = false
				v.Backup.Disks[disk] = saved
			}
		}
	}
}

// RemoveVolume deletes a volume from all nodes, even one in use.
func (e *Edit) RemoveVolume(volid string) {
	storage, name, _ := core.VolumeID(volid)
	if s := e.w.Stores[storage]; s != nil {
		for key := range s.Volumes {
			if key.Name == name {
				delete(s.Volumes, key)
			}
		}
	}
}

// Date gives a volume another time of creation, as a clock does that was wrong.
func (e *Edit) Date(volid string, at time.Time) {
	storage, name, _ := core.VolumeID(volid)
	for key, v := range e.w.Stores[storage].Volumes {
		if key.Name == name {
			v.Ctime = at.Unix()
		}
	}
}

// Verified is what a Proxmox Backup Server found of a backup: ok or failed. Of one that is being written, it lists no size, which PVE
// shows as 1 (list_volumes in PVE/Storage/PBSPlugin.pm): "unfinished".
func (e *Edit) Verified(volid, state string) {
	storage, name, _ := core.VolumeID(volid)
	v := e.w.Stores[storage].Find("", name)
	if v.Verified = state; state == "unfinished" {
		v.Verified, v.Length = "", 1
	}
}

// Snippet puts a file for cloud-init or a hook onto a storage, which no call of the API
// can do.
func (e *Edit) Snippet(volid string) {
	storage, name, _ := core.VolumeID(volid)
	if s := e.w.Stores[storage]; s != nil {
		s.Put(e.w.Cfg.Node, &core.Volume{Name: name, Content: "snippets", Format: "snippet", Size: 1024, Used: 4096, Ctime: e.w.Now.Unix()})
	}
}

// setOffline takes a node down or brings it back.
func setOffline(w *core.World, node string, down bool) {
	w.Nodes[node].Offline = down
	for _, vmid := range w.Vmids {
		if g := w.Guests[vmid]; g.Node == node {
			w.HA.Notice(g)
		}
	}
}
