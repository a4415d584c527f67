package lxc

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/content"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/host"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// ctOrder describes a new container.
type ctOrder struct {
	template string            // The volume with its system, or the backup.
	restore  bool              // It is a backup.
	unique   bool              // A restored one gets new hardware addresses.
	storage  string            // For what names none.
	set      map[string]string // The keys of its configuration but mount points.
	mounts   map[string]string
	keys     string // Lines of authorized_keys of root.
	pool     string
	managed  bool // The HA manager gets it.
	ignore   bool // Skip files of the template that cannot be unpacked.
	by       *core.Call
}

var sizeOnly = regexp.MustCompile(`^\d+(?:\.\d+)?$`)

// apiCreateLXC is POST /nodes/{node}/lxc. As with a VM the id is taken when the
// UPID is back. The secrets go into the system of the container, never into its
// configuration.
func apiCreateLXC(w *core.World, c *core.Call) (any, error) {
	if err := w.NeedQuorum(); err != nil {
		return nil, err
	}
	node, vmid := c.Take("node"), perl.Atoi(c.Take("vmid"))
	for _, key := range []string{"bwlimit", "password"} {
		c.Take(key)
	}
	ignore := c.Take("ignore-unpack-errors") == "1"
	managed := c.Take("ha-managed") == "1"
	start, force := c.Take("start") == "1", c.Take("force") == "1"
	order := ctOrder{template: c.Take("ostemplate"), restore: c.Take("restore") == "1", unique: c.Take("unique") == "1", managed: managed, ignore: ignore, by: c}
	said := c.Has("unprivileged")
	unprivileged := c.Take("unprivileged") == "1"
	if w.V9() && !order.restore { // since pve-container 6.0.6: unprivileged unless said otherwise, and else for who may change the host
		if unprivileged = unprivileged || !said; !unprivileged {
			if err := c.Need("/", "Sys.Modify"); err != nil {
				return nil, err
			}
		}
	}
	if managed {
		if err := c.Need("/", "Sys.Console"); err != nil {
			return nil, err
		}
	}
	if units, ok := c.In["cpuunits"]; ok {
		c.In["cpuunits"] = fmt.Sprint(min(max(perl.Atoi(units), 1), 10000))
	}
	old, err := replaced(w, c, node, vmid, order.restore && force)
	if err != nil {
		return nil, err
	}
	if order.keys = c.Take("ssh-public-keys"); order.keys != "" {
		if err := checkPublicKeys(order.keys); err != nil {
			return nil, err
		}
	}
	order.pool = c.Take("pool")
	if err := guests.MayCreate(c, vmid, order.pool, ""); err != nil {
		return nil, err
	}
	if order.storage = c.Take("storage"); order.storage == "" {
		order.storage = "local"
	}
	order.set = c.In
	if err := cmp.Or(mayConfigureCT(c, ctChange{vmid: vmid, pool: order.pool, set: order.set, unprivileged: unprivileged}), mayUseTemplate(c, vmid, order)); err != nil {
		return nil, err
	}
	if err := splitMounts(c, &order); err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(order.set)) {
		if err := checkCTValue(w, key, order.set[key]); err != nil {
			return nil, err
		}
		if err := mtuOfCT(w, node, key, order.set[key]); err != nil && !order.restore {
			return nil, err
		}
		order.set[key] = ctCanonical(w, key, order.set[key])
	}
	switch { // a privileged container has no word of it (PVE/API2/LXC.pm, create_vm)
	case unprivileged:
		order.set["unprivileged"] = "1"
	case said && order.restore:
		order.set["unprivileged"] = "0"
	}
	return forkCreateCT(w, c, node, vmid, old, order, start), nil
}

// replaced is the container that a forced restore replaces; nil when
// the id has to be free.
func replaced(w *core.World, c *core.Call, node string, vmid int, force bool) (*core.Guest, error) {
	g := w.Guest(node, "lxc", vmid)
	if g == nil || !force {
		return nil, guests.UnusedID(w, vmid)
	}
	switch {
	case g.Run != nil:
		return nil, perl.Fail("can't overwrite running container")
	case g.Conf["protection"] == "1":
		return nil, perl.Fail("unable to restore CT %d - protection mode enabled", vmid)
	}
	return g, c.LockFile(g)
}

// checkPublicKeys: those of a container come as they are, not percent-encoded.
func checkPublicKeys(keys string) error {
	for line := range strings.SplitSeq(keys, "\n") {
		if strings.TrimSpace(line) != "" && !strings.HasPrefix(strings.TrimSpace(line), "#") && !guests.IsPublicKey(line) {
			return perl.Fail("SSH public key validation error")
		}
	}
	return nil
}

func mayUseTemplate(c *core.Call, vmid int, order ctOrder) error {
	if order.template == "-" {
		return perl.Fail("pipe requires cli environment")
	}
	content := "vztmpl"
	if order.restore {
		content = "backup"
	}
	_, err := guests.MayReadVolume(c, vmid, order.template, content)
	return err
}

// splitMounts takes the mount points out of what is to be set and checks the
// storages for them, or for a root that was not named.
func splitMounts(c *core.Call, order *ctOrder) error {
	order.mounts = map[string]string{}
	for key, value := range order.set {
		switch {
		case perl.IsMount(key):
			if sizeOnly.MatchString(value) {
				value = order.storage + ":" + value
			}
			order.mounts[key] = value
			delete(order.set, key)
		case strings.HasPrefix(key, "unused"):
			delete(order.set, key)
		}
	}
	if len(order.mounts) == 0 {
		return mayHoldCT(c, order.storage)
	}
	if _, ok := order.mounts["rootfs"]; !ok {
		return perl.Fail("mount points configured, but 'rootfs' not set - aborting")
	}
	for _, key := range perl.Config(order.mounts).MountNames() {
		m := perl.ParseMount(key, order.mounts[key])
		if m.Kind() != "volume" {
			if !c.Root() {
				return perl.Fail("Only root can pass arbitrary filesystem paths.")
			}
			continue
		}
		storage, _, managed := core.VolumeID(m.Volume)
		if !managed {
			return perl.Fail("unable to parse volume ID '%s'", m.Volume)
		}
		if err := mayHoldCT(c, storage); err != nil {
			return err
		}
	}
	return nil
}

func mayHoldCT(c *core.Call, storage string) error {
	st, err := c.W.Store(storage)
	if err != nil {
		return err
	}
	if !st.Holds("rootdir") {
		return perl.BadParam("storage", "storage '"+storage+"' does not support container directories")
	}
	return c.Need("/storage/"+storage, "Datastore.AllocateSpace")
}

// forkCreateCT takes the id and starts the task that does the rest.
func forkCreateCT(w *core.World, c *core.Call, node string, vmid int, old *core.Guest, order ctOrder, start bool) string {
	kind, what := "vzcreate", "create"
	if order.restore {
		kind, what = "vzrestore", "restore"
	}
	g := old
	if g == nil {
		g = core.NewGuest(node, "lxc", vmid)
		w.Add(g)
	}
	w.SetLock(g, "create")
	drop := func(*core.Task) {
		if old == nil {
			w.Remove(g)
		}
	}
	return w.Fork(c, node, core.Job{Kind: kind, ID: fmt.Sprint(vmid), Guest: g, Abort: drop, End: func(t *core.Task) error {
		if err := buildCT(w, g, order, t); err != nil {
			delete(g.Conf, "lock")
			drop(t)
			return perl.Fail("unable to %s CT %d - %s", what, vmid, core.TaskText(err))
		}
		if !order.restore {
			g.Birth = core.Birth{Template: order.template, Keys: order.keys}
		}
		if order.pool != "" {
			host.JoinPool(w, order.pool, vmid)
		}
		if start {
			w.Fork(c, node, StartCTJob(w, g, c))
		}
		if order.managed {
			t.Logf("Add as HA resource")
			w.HA.Manage(g, map[bool]string{true: "started", false: "stopped"}[start])
		}
		return nil
	}})
}

// buildCT makes the volumes of a new container and writes its configuration.
func buildCT(w *core.World, g *core.Guest, order ctOrder, t *core.Task) error {
	log := t.Logf
	conf := perl.Config(maps.Clone(order.set))
	mounts := maps.Clone(order.mounts)
	var from *core.Backup
	if order.restore {
		var err error
		if from, err = recoverCT(w, g, order, conf, mounts, log); err != nil {
			return err
		}
		if err := order.mayRestore(g, from, conf); err != nil {
			return err
		}
	} else if len(mounts) == 0 {
		mounts["rootfs"] = order.storage + ":4"
	}
	made := []string{}
	undo := func(err error) error {
		for _, volid := range made {
			_ = core.Free(w, g.Node, volid)
		}
		return err
	}
	for _, key := range perl.Config(mounts).MountNames() {
		value, volid, err := newMount(w, g, perl.ParseMount(key, mounts[key]), log)
		if err != nil {
			return undo(err)
		}
		if volid != "" {
			made = append(made, volid)
		}
		conf[key] = value
	}
	if err := volumesThere(w, g.Node, conf); err != nil { // They are mounted.
		return undo(err)
	}
	archive := w.Volume(g.Node, order.template)
	if archive == nil {
		return undo(perl.Fail("volume '%s' does not exist", order.template))
	}
	if from != nil { // Remove what a restore replaces.
		guests.FreeDisks(w, g, false, log)
		mergeCT(w, from, conf, order, log)
	}
	if err := unpackCT(w, g.Vmid, conf, order, archive, from, t); err != nil {
		return undo(err)
	}
	g.Conf, g.Pend, g.Snapshots = conf, perl.Config{}, nil
	if from != nil && from.Conf["template"] == "1" {
		if err := templateCT(w, g); err != nil {
			return undo(err)
		}
	}
	w.Write(g)
	return nil
}

// mayRestore asks for what only the backup tells: the bridges that it names, and the right
// to change the host for a container that was not privileged before, which is one since
// pve-container 6.0.6 if it is new (create_vm in PVE/API2/LXC.pm).
func (o ctOrder) mayRestore(g *core.Guest, from *core.Backup, conf perl.Config) error {
	for _, key := range from.Conf.IndexedKeys("net") {
		if _, given := conf[key]; given {
			continue
		}
		if err := mayUseCTBridge(o.by, from.Conf[key]); err != nil {
			return perl.Fail("403 %s", err)
		}
	}
	old, there := g.Conf["unprivileged"]
	there = there || len(g.Conf) > 1 // Besides the lock.
	var err error
	switch {
	case conf["unprivileged"] == "1":
	case o.by.W.V9() && (!there || old == "1"):
		err = o.by.Need("/", "Sys.Modify")
	case !o.by.W.V9() && old == "1":
		err = o.by.NeedVM(g.Vmid, o.pool, "VM.Allocate")
	}
	if err != nil {
		return perl.Fail("403 %s", err)
	}
	return nil
}

// unpackCT fills in what the root file system tells and what PVE sets by default
// (create_vm in PVE/API2/LXC.pm).
func unpackCT(w *core.World, vmid int, conf perl.Config, order ctOrder, archive *core.Volume, from *core.Backup, t *core.Task) error {
	root := archive.Root
	switch {
	case from == nil:
		storage, name, _ := core.VolumeID(order.template)
		file := w.Stores[storage].FilePath(name)
		switch {
		case archive.Broken:
			if err := unpackFails(w, vmid, file, order, t.Logf); err != nil {
				return err
			}
			root = content.RootFS{}.System()
		case root == nil:
			root = systemByName(name)
			fallthrough
		default:
			t.Logf("extracting archive '%s'", file)
			t.Logf("Total bytes read: 2017280 (2.0MiB, 126MiB/s)")
		}
	case archive.Broken:
		storage, name, _ := core.VolumeID(order.template)
		if err := unpackFails(w, vmid, w.Stores[storage].FilePath(name), order, t.Logf); err != nil {
			return err
		}
	case root == nil: // A backup was detected before.
		root = &content.RootSystem{Ostype: conf["ostype"], Arch: cmp.Or(conf["arch"], "amd64")}
	}
	if err := setUp(root, conf, t); err != nil {
		return err
	}
	for key, value := range map[string]string{"hostname": fmt.Sprintf("CT%d", vmid), "memory": "512", "swap": "512"} {
		if conf[key] == "" {
			conf[key] = value
		}
	}
	return nil
}

// apiDestroyLXC is DELETE /nodes/{node}/lxc/{vmid}.
func apiDestroyLXC(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	force, purge := c.Flag("force"), c.Flag("purge")
	return guests.Destroy(c, g, func() error {
		if err := g.CheckLock(); err != nil {
			return err
		}
		switch err := guests.NotReplicated(w, g); {
		case w.HA.Managed(g) && !purge:
			return guests.UsedInHA(g)
		case err != nil && !purge:
			return err
		case g.Run != nil && !force:
			return perl.Fail("unable to destroy CT %d - container is running", g.Vmid)
		}
		return nil
	}, func(t *core.Task) error {
		if g.Run != nil {
			t.Logf("forced to stop CT %d before destroying!", g.Vmid)
			guests.PowerOff(w, g, c)
		}
		return nil
	})
}

// systemByName guesses what is in a template whose content the simulator does not have:
// one from Proxmox's list, one of a simulated download, and one that Go's library cannot
// unpack (xz, zstd). Templates that distributions and Proxmox
// offer begin with the name of the system. Any other is taken for a Debian.
func systemByName(volname string) *content.RootSystem {
	r := &content.RootSystem{Ostype: "debian", Arch: "amd64", Guessed: true}
	for _, system := range []string{"debian", "devuan", "ubuntu", "centos", "fedora", "opensuse", "archlinux", "alpine", "gentoo", "nixos"} {
		if strings.Contains(volname, system) {
			r.Ostype = system
		}
	}
	for _, arch := range []string{"arm64", "armhf", "i386", "riscv64"} {
		if strings.Contains(volname, "_"+arch) {
			r.Arch = arch
		}
	}
	return r
}
