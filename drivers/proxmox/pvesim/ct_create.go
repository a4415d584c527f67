package pvesim

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// ctOrder is what a new container is made of.
type ctOrder struct {
	template string            // The volume with its system, or the backup.
	restore  bool              // It is a backup.
	unique   bool              // A restored one gets new hardware addresses.
	storage  string            // For what names none.
	set      map[string]string // The keys of its configuration but mount points.
	mounts   map[string]string
	pool     string
	managed  bool // The HA manager gets it.
	ignore   bool // What of the template cannot be unpacked is left out.
	by       *call
}

var bareSize = regexp.MustCompile(`^\d+(?:\.\d+)?$`)

// apiCreateLXC is POST /nodes/{node}/lxc. As with a VM the id is taken when the
// UPID is back. The secrets go into the system of the container, never into its
// configuration.
func apiCreateLXC(w *world, c *call) (any, error) {
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	node, vmid := c.take("node"), atoi(c.take("vmid"))
	for _, key := range []string{"bwlimit", "password"} {
		c.take(key)
	}
	ignore := c.take("ignore-unpack-errors") == "1"
	managed := c.take("ha-managed") == "1"
	start, force := c.take("start") == "1", c.take("force") == "1"
	order := ctOrder{template: c.take("ostemplate"), restore: c.take("restore") == "1", unique: c.take("unique") == "1", managed: managed, ignore: ignore, by: c}
	said := c.has("unprivileged")
	unprivileged := c.take("unprivileged") == "1"
	if w.v9() && !order.restore { // since pve-container 6.0.6: unprivileged unless said otherwise, and else for who may change the host
		if unprivileged = unprivileged || !said; !unprivileged {
			if err := c.need("/", "Sys.Modify"); err != nil {
				return nil, err
			}
		}
	}
	if managed {
		if err := c.need("/", "Sys.Console"); err != nil {
			return nil, err
		}
	}
	if units, ok := c.in["cpuunits"]; ok {
		c.in["cpuunits"] = fmt.Sprint(min(max(atoi(units), 1), 10000))
	}
	old, err := w.replaced(c, node, vmid, order.restore && force)
	if err != nil {
		return nil, err
	}
	if keys := c.take("ssh-public-keys"); keys != "" {
		if err := checkPublicKeys(keys); err != nil {
			return nil, err
		}
	}
	order.pool = c.take("pool")
	if err := c.mayCreate(vmid, order.pool, ""); err != nil {
		return nil, err
	}
	if order.storage = c.take("storage"); order.storage == "" {
		order.storage = "local"
	}
	order.set = c.in
	if err := c.mayConfigureCT(ctChange{vmid: vmid, pool: order.pool, set: order.set, unprivileged: unprivileged}); err != nil {
		return nil, err
	}
	if err := c.mayUseTemplate(vmid, order); err != nil {
		return nil, err
	}
	if err := c.splitMounts(&order); err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(order.set)) {
		if err := w.checkCTValue(key, order.set[key]); err != nil {
			return nil, err
		}
		if err := w.mtuOfCT(node, key, order.set[key]); err != nil && !order.restore {
			return nil, err
		}
		order.set[key] = w.ctCanonical(key, order.set[key])
	}
	switch { // a privileged container has no word of it (PVE/API2/LXC.pm, create_vm)
	case unprivileged:
		order.set["unprivileged"] = "1"
	case said && order.restore:
		order.set["unprivileged"] = "0"
	}
	return w.forkCreateCT(c, node, vmid, old, order, start), nil
}

// replaced is the container that a restore by force takes the place of; nil when
// the id has to be free.
func (w *world) replaced(c *call, node string, vmid int, force bool) (*guest, error) {
	g := w.guest(node, "lxc", vmid)
	if g == nil || !force {
		return nil, w.unusedID(vmid)
	}
	switch {
	case g.run != nil:
		return nil, fail("can't overwrite running container")
	case g.conf["protection"] == "1":
		return nil, fail("unable to restore CT %d - protection mode enabled", vmid)
	}
	return g, c.lockFile(g)
}

// checkPublicKeys: those of a container come as they are, not percent-encoded.
func checkPublicKeys(keys string) error {
	for line := range strings.SplitSeq(keys, "\n") {
		if strings.TrimSpace(line) != "" && !strings.HasPrefix(strings.TrimSpace(line), "#") && !isPublicKey(line) {
			return fail("SSH public key validation error")
		}
	}
	return nil
}

func (c *call) mayUseTemplate(vmid int, order ctOrder) error {
	if order.template == "-" {
		return fail("pipe requires cli environment")
	}
	content := "vztmpl"
	if order.restore {
		content = "backup"
	}
	_, err := c.mayReadVolume(vmid, order.template, content)
	return err
}

// splitMounts takes the mount points out of what is to be set and checks the
// storages that they, or the root that was not named, will lie on.
func (c *call) splitMounts(order *ctOrder) error {
	order.mounts = map[string]string{}
	for key, value := range order.set {
		switch {
		case isMount(key):
			if bareSize.MatchString(value) {
				value = order.storage + ":" + value
			}
			order.mounts[key] = value
			delete(order.set, key)
		case strings.HasPrefix(key, "unused"):
			delete(order.set, key)
		}
	}
	if len(order.mounts) == 0 {
		return c.mayHoldCT(order.storage)
	}
	if _, ok := order.mounts["rootfs"]; !ok {
		return fail("mount points configured, but 'rootfs' not set - aborting")
	}
	for _, key := range mountNames(order.mounts) {
		m := parseMount(key, order.mounts[key])
		if m.kind() != "volume" {
			if !c.root() {
				return fail("Only root can pass arbitrary filesystem paths.")
			}
			continue
		}
		storage, _, managed := volumeID(m.volume)
		if !managed {
			return fail("unable to parse volume ID '%s'", m.volume)
		}
		if err := c.mayHoldCT(storage); err != nil {
			return err
		}
	}
	return nil
}

func (c *call) mayHoldCT(storage string) error {
	st, err := c.w.store(storage)
	if err != nil {
		return err
	}
	if !st.holds("rootdir") {
		return badParam("storage", "storage '"+storage+"' does not support container directories")
	}
	return c.need("/storage/"+storage, "Datastore.AllocateSpace")
}

// forkCreateCT takes the id and starts the task that does the rest.
func (w *world) forkCreateCT(c *call, node string, vmid int, old *guest, order ctOrder, start bool) string {
	kind, what := "vzcreate", "create"
	if order.restore {
		kind, what = "vzrestore", "restore"
	}
	g := old
	if g == nil {
		g = newGuest(node, "lxc", vmid)
		w.add(g)
	}
	g.conf["lock"] = "create"
	w.write(g)
	drop := func(*task) {
		if old == nil {
			w.remove(g)
		}
	}
	return w.fork(c, node, job{kind: kind, id: fmt.Sprint(vmid), guest: g, abort: drop, end: func(t *task) error {
		if err := w.buildCT(g, order, t); err != nil {
			delete(g.conf, "lock")
			drop(t)
			return fail("unable to %s CT %d - %s", what, vmid, taskText(err))
		}
		if order.pool != "" {
			w.joinPool(order.pool, vmid)
		}
		if start {
			w.fork(c, node, w.startCTJob(g, c))
		}
		if order.managed {
			t.logf("Add as HA resource")
			w.ha.manage(g, map[bool]string{true: "started", false: "stopped"}[start])
		}
		return nil
	}})
}

// buildCT makes the volumes of a new container and writes its configuration.
func (w *world) buildCT(g *guest, order ctOrder, t *task) error {
	log := t.logf
	conf := config(maps.Clone(order.set))
	mounts := maps.Clone(order.mounts)
	var from *backup
	if order.restore {
		var err error
		if from, err = w.recoverCT(g, order, conf, mounts, log); err != nil {
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
			_ = w.free(g.node, volid)
		}
		return err
	}
	for _, key := range mountNames(mounts) {
		value, volid, err := w.newMount(g, parseMount(key, mounts[key]), log)
		if err != nil {
			return undo(err)
		}
		if volid != "" {
			made = append(made, volid)
		}
		conf[key] = value
	}
	if err := w.volumesThere(g.node, conf); err != nil { // They are mounted.
		return undo(err)
	}
	archive := w.volume(g.node, order.template)
	if archive == nil {
		return undo(fail("volume '%s' does not exist", order.template))
	}
	if from != nil { // What a restore takes the place of goes now.
		w.freeDisks(g, false, log)
		w.mergeCT(from, conf, order, log)
	}
	if err := w.unpackCT(g.vmid, conf, order, archive, from, t); err != nil {
		return undo(err)
	}
	g.conf, g.pend, g.snapshots = conf, config{}, nil
	if from != nil && from.conf["template"] == "1" {
		if err := w.templateCT(g); err != nil {
			return undo(err)
		}
	}
	w.write(g)
	return nil
}

// mayRestore asks for what only the backup tells: the bridges that it names, and the right
// to change the host for a container that was not privileged before, which is one since
// pve-container 6.0.6 if it is new (create_vm in PVE/API2/LXC.pm).
func (o ctOrder) mayRestore(g *guest, from *backup, conf config) error {
	for _, key := range indexedKeys(from.conf, "net") {
		if _, given := conf[key]; given {
			continue
		}
		if err := o.by.mayUseCTBridge(from.conf[key]); err != nil {
			return fail("403 %s", err)
		}
	}
	old, there := g.conf["unprivileged"]
	there = there || len(g.conf) > 1 // Besides the lock.
	var err error
	switch {
	case conf["unprivileged"] == "1":
	case o.by.w.v9() && (!there || old == "1"):
		err = o.by.need("/", "Sys.Modify")
	case !o.by.w.v9() && old == "1":
		err = o.by.needVM(g.vmid, o.pool, "VM.Allocate")
	}
	if err != nil {
		return fail("403 %s", err)
	}
	return nil
}

// unpackCT fills in what the root file system tells and what PVE sets by default
// (create_vm in PVE/API2/LXC.pm).
func (w *world) unpackCT(vmid int, conf config, order ctOrder, archive *volume, from *backup, t *task) error {
	root := archive.root
	if from == nil {
		storage, name, _ := volumeID(order.template)
		file := w.stores[storage].path(name)
		switch {
		case archive.broken:
			if err := w.unpackFails(vmid, file, order, t.logf); err != nil {
				return err
			}
			root = rootFS{}.system()
		case root == nil:
			root = systemByName(name)
			fallthrough
		default:
			t.logf("extracting archive '%s'", file)
			t.logf("Total bytes read: 2017280 (2.0MiB, 126MiB/s)")
		}
	} else if root == nil { // What was backed up was detected before.
		root = &rootSystem{ostype: conf["ostype"], arch: cmp.Or(conf["arch"], "amd64")}
	}
	if err := root.setUp(conf, t); err != nil {
		return err
	}
	for key, value := range map[string]string{"hostname": fmt.Sprintf("CT%d", vmid), "memory": "512", "swap": "512"} {
		if conf[key] == "" {
			conf[key] = value
		}
	}
	return nil
}

// unpackFails is the error of a create whose template tar cannot unpack; nil if it goes on
// with what there is. PVE 9 lists a file without compression first, to see whether it is an
// image of OCI (restore_archive and archive_is_oci_format in PVE/LXC/Create.pm).
func (w *world) unpackFails(vmid int, file string, order ctOrder, log func(string, ...any)) error {
	packer := packers[path.Ext(file)]
	if packer.option == "" && w.v9() {
		return fail("command 'tar -tf %s' failed: exit code 2", file)
	}
	log("extracting archive '%s'", file)
	if order.ignore {
		return nil
	}
	command := "tar xpf - "
	if order.set["unprivileged"] == "1" {
		command = "lxc-usernsexec -m u:0:100000:65536 -m g:0:100000:65536 -- " + command
	}
	if packer.option != "" {
		command += packer.option + " "
	}
	command += "--totals --one-file-system -p --sparse --numeric-owner --acls --xattrs '--xattrs-include=user.*' '--xattrs-include=security.capability' " +
		"'--warning=no-file-ignored' '--warning=no-xattr-write' -C /var/lib/lxc/" + itoa(vmid) + "/rootfs --skip-old-files --anchored --exclude './dev/*'"
	return fail("command '%s' failed: exit code 2", command)
}

// setUp fills in type and architecture of the system, as it was found, and not as it was
// ordered: only the type "unmanaged" and an ordered architecture are left alone (new in
// PVE/LXC/Setup.pm).
func (r *rootSystem) setUp(conf config, t *task) error {
	found := r.ostype
	switch ordered := conf["ostype"]; {
	case ordered == "unmanaged", r.guessed && ordered != "":
		found = ordered
	default:
		for _, note := range r.notes {
			t.logf("%s", note)
		}
		if r.failure != "" {
			return fail("%s", r.failure)
		}
		if ordered != "" && ordered != found {
			t.logf("got unexpected ostype (%s != %s)", found, ordered)
		}
	}
	if found != "" {
		conf["ostype"] = found
	}
	switch {
	case conf["arch"] != "":
	case r.arch == "" || found == "unmanaged": // That type has no code to find out.
		t.logf("Falling back to amd64.\nUse `pct set VMID --arch ARCH` to change.")
		conf["arch"] = "amd64"
	default:
		t.logf("Detected container architecture: %s", r.arch)
		conf["arch"] = r.arch
	}
	return nil
}
