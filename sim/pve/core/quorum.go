package core

import "github.com/homestak/homestak-gitops/sim/pve/perl"

// Without quorum the cluster file system can only be read. How that shows
// depends on who finds out: a check made on purpose, the writing of a file, or
// the lock that user.cfg needs.

// NeedQuorum is the check on purpose (check_cfs_quorum in PVE/Cluster.pm).
func (w *World) NeedQuorum() error {
	if w.Quorum {
		return nil
	}
	return perl.Fail("cluster not ready - no quorum?")
}

// NeedWritable returns the error of writing a guest's configuration without a quorum.
func (w *World) NeedWritable(g *Guest) error {
	if w.Quorum {
		return nil
	}
	dir := "qemu-server"
	if g.Kind == "lxc" {
		dir = "lxc"
	}
	return perl.Fail("unable to open file '/etc/pve/nodes/%s/%s/%d.conf.tmp.%d' - Permission denied", g.Node, dir, g.Vmid, w.lastID)
}

// writingTasks are the tasks that write the configuration of their guest before they
// do anything, and that check nothing else first.
var writingTasks = map[string]bool{
	"qmtemplate": true, "qmmove": true, "resize": true, "qmrollback": true, "vzrollback": true, "qmdelsnapshot": true,
	"vzdelsnapshot": true, "vztemplate": true, "move_volume": true, "qmsuspend": true,
}

// NeedLock fails as the lock of a file of the cluster does ($cfs_lock in PVE/Cluster.pm). Errors under such a lock
// do not mention it.
func (w *World) NeedLock(name string) error {
	if w.Quorum {
		return nil
	}
	return perl.Fail("cfs-lock '%s' error: no quorum!", name)
}

// NeedUserLock returns the error that a change of users, roles, pools or the access list runs
// into (lock_user_config in PVE/AccessControl.pm).
func (w *World) NeedUserLock(what string) error {
	if err := w.NeedLock("file-user_cfg"); err != nil {
		return perl.Fail("%s: %s", what, err)
	}
	return nil
}
