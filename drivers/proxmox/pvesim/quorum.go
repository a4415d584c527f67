package pvesim

// Without quorum the cluster file system can only be read. How that shows
// depends on who finds out: a check made on purpose, the writing of a file, or
// the lock that user.cfg needs.

// needQuorum is the check on purpose (check_cfs_quorum in PVE/Cluster.pm).
func (w *world) needQuorum() error {
	if w.quorum {
		return nil
	}
	return fail("cluster not ready - no quorum?")
}

// needWritable is what writing a guest's configuration runs into.
func (w *world) needWritable(g *guest) error {
	if w.quorum {
		return nil
	}
	dir := "qemu-server"
	if g.kind == "lxc" {
		dir = "lxc"
	}
	return fail("unable to open file '/etc/pve/nodes/%s/%s/%d.conf.tmp.%d' - Permission denied", g.node, dir, g.vmid, w.lastID)
}

// writingTasks are the tasks that write the configuration of their guest before they
// do anything, and that check nothing else first.
var writingTasks = map[string]bool{
	"qmtemplate": true, "qmmove": true, "resize": true, "qmrollback": true, "vzrollback": true, "qmdelsnapshot": true,
	"vzdelsnapshot": true, "vztemplate": true, "move_volume": true, "qmsuspend": true,
}

// needLock is what the lock of a file of the cluster runs into ($cfs_lock in
// PVE/Cluster.pm). What goes wrong behind such a lock is told without a word of it.
func (w *world) needLock(name string) error {
	if w.quorum {
		return nil
	}
	return fail("cfs-lock '%s' error: no quorum!", name)
}

// needUserLock is what a change of users, roles, pools or the access list runs
// into (lock_user_config in PVE/AccessControl.pm).
func (w *world) needUserLock(what string) error {
	if err := w.needLock("file-user_cfg"); err != nil {
		return fail("%s: %s", what, err)
	}
	return nil
}
