package pvesim

import (
	"crypto/sha1" //nolint:gosec // PVE's digest is SHA-1.
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// guest is one VM or container: its configuration file and, while it runs, its
// process. The file is rendered only when somebody asks for its digest.
type guest struct {
	vmid int
	node string
	kind string // qemu or lxc.

	conf  config // In force, or to be in force at the next start.
	pend  config // Waiting for a full stop; the key "delete" lists keys to go.
	cloud config // What the cloud-init drive still says otherwise ([special:cloudinit]).

	snapshots []*snapshot // In the order in which they were taken.

	run  *process // nil while it is stopped.
	in   *inside  // What its system keeps; nil until somebody asks it.
	file *task    // The task that holds the lock file, nil if none.

	rebooting bool // The file that asks for a start after the next end is there.

	raw    string // The file as text; empty when it has to be rendered.
	digest string
	// dropped are waiting values that do not parse, so that nobody sees them. They stand in
	// the file until it is written again, with another content than valid.
	dropped config
	valid   string
}

// process is a running guest.
type process struct {
	pid     int
	since   time.Time
	booted  time.Time // When its agent begins to answer.
	qmp     string    // What QEMU says where its processors do not run: paused, io-error, …; "" while they do.
	system  bool      // A disk of it holds a system, which obeys ACPI.
	machine string
	disks   map[string]bool // Drives, for the block statistics.
}

// paused is vm_is_paused in PVE/QemuServer.pm, with what counts as such.
func (p *process) paused() bool {
	return slices.Contains([]string{"paused", "prelaunch", "suspended"}, p.qmp)
}

// newGuest makes a guest with an empty configuration.
func newGuest(node, kind string, vmid int) *guest {
	return &guest{vmid: vmid, node: node, kind: kind, conf: config{}, pend: config{}, cloud: config{}}
}

// text renders the configuration file (write_vm_config in PVE/QemuServer.pm).
func (g *guest) text() string {
	if g.raw == "" {
		g.raw = g.render(g.pend)
		switch {
		case len(g.dropped) == 0:
		case g.valid == "" || g.valid == g.raw:
			g.valid = g.raw
			all := maps.Clone(g.pend)
			maps.Copy(all, g.dropped)
			g.raw = g.render(all)
		default:
			g.dropped, g.valid = nil, ""
		}
		sum := sha1.Sum([]byte(g.raw)) //nolint:gosec // As above.
		g.digest = hex.EncodeToString(sum[:])
	}
	return g.raw
}

// render writes the sections, that of what waits as it is given.
func (g *guest) render(pend config) string {
	var b strings.Builder
	writeSection(&b, g.conf, false)
	if len(pend) > 0 {
		b.WriteString("\n[PENDING]\n")
		writeSection(&b, pend, true)
	}
	if len(g.cloud) > 0 {
		b.WriteString("\n[special:cloudinit]\n")
		writeSection(&b, g.cloud, true)
	}
	for _, s := range g.snapshots {
		b.WriteString("\n[" + s.name + "]\n")
		writeSection(&b, s.conf, false)
	}
	return b.String()
}

// sum is the digest: SHA-1 over the whole file, waiting changes included.
func (g *guest) sum() string {
	g.text()
	if g.digest == "" { // An empty file renders to nothing.
		return "da39a3ee5e6b4b0d3255bfef95601890afd80709"
	}
	return g.digest
}

// write stores what a handler did to a guest. It is write_config and the
// reading of the file that follows it, in one: unused volumes that came back
// into use leave their unusedN.
func (w *world) write(g *guest) {
	used := map[string]bool{}
	for _, section := range []config{g.conf, g.pend} {
		for key, value := range section {
			switch {
			case g.kind == "qemu" && isDrive(key):
				used[parseDrive(key, value).file] = true
			case g.kind == "lxc" && isMount(key):
				used[parseMount(key, value).volume] = true
			}
		}
	}
	for key, value := range g.conf {
		if strings.HasPrefix(key, "unused") && used[value] {
			delete(g.conf, key)
		}
	}
	g.conf.reread(g.kind, false)
	if dropped := g.pend.reread(g.kind, true); dropped != nil {
		g.dropped, g.valid = dropped, ""
	}
	g.cloud.reread(g.kind, true)
	w.touch(g)
	if len(g.dropped) > 0 {
		g.text() // Now: the next change takes away what was dropped.
	}
}

// present are the keys in force with the waiting changes made (load_current_config
// in AbstractConfig.pm). A key whose value counts as false stays even if its
// deletion waits.
func (g *guest) present() config {
	merged := maps.Clone(g.conf)
	for key, value := range g.pend {
		if key != "delete" {
			merged[key] = value
		}
	}
	for key := range g.deletions() {
		if value := merged[key]; value != "" && value != "0" {
			delete(merged, key)
		}
	}
	return merged
}

// deletions are the keys that will go, each with whether by force.
func (g *guest) deletions() map[string]bool {
	keys := map[string]bool{}
	for _, word := range splitList(g.pend["delete"]) {
		key, force := strings.CutPrefix(word, "!")
		keys[key] = force
	}
	return keys
}

// setDeletions stores the keys that will go.
func (g *guest) setDeletions(keys map[string]bool) {
	words := make([]string, 0, len(keys))
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if keys[key] {
			key = "!" + key
		}
		words = append(words, key)
	}
	if len(words) == 0 {
		delete(g.pend, "delete")
		return
	}
	g.pend["delete"] = strings.Join(words, ",")
}

// checkLock fails while the configuration carries a lock.
func (g *guest) checkLock() error {
	if lock := g.conf["lock"]; lock != "" {
		return fail("%s is locked (%s)", g.title(), lock)
	}
	return nil
}

// missing is the failure to load a configuration file.
func missing(node, kind string, vmid int) error {
	dir := "qemu-server"
	if kind == "lxc" {
		dir = "lxc"
	}
	return fail("Configuration file 'nodes/%s/%s/%d.conf' does not exist", node, dir, vmid)
}

// vm is the VM that a call is about.
func (c *call) vm() (*guest, error) {
	if g := c.w.guest(c.in["node"], "qemu", c.vmid()); g != nil {
		return g, nil
	}
	return nil, missing(c.in["node"], "qemu", c.vmid())
}

// lockPatience is how long a call waits for the lock file of a guest
// (lock_config in AbstractConfig.pm).
const lockPatience = 10 * time.Second

// lockFile waits for the lock file of a guest while a task holds it.
func (c *call) lockFile(g *guest) error {
	if g.file == nil {
		return nil
	}
	giveUp := c.req.begun.Add(lockPatience)
	if !c.w.now.Before(giveUp) {
		return fail("can't lock file '%s' - got timeout", lockName(g))
	}
	until := giveUp
	if end := g.file.due; end.Before(until) {
		until = end
	}
	if !until.After(c.w.now) {
		until = c.w.now.Add(time.Millisecond)
	}
	return &lockedError{until: until}
}

func lockName(g *guest) string {
	if g.kind == "lxc" {
		return fmt.Sprintf("/run/lock/lxc/pve-config-%d.lock", g.vmid)
	}
	return fmt.Sprintf("/var/lock/qemu-server/lock-%d.conf", g.vmid)
}

// snapshot is one snapshot of a guest: its configuration then, and how large its
// volumes were. (The type Snapshot is something else: what a test sees.)
type snapshot struct {
	name  string
	conf  config // With snaptime, and parent, description and vmstate if it has them.
	sizes map[string]int64
}

// title is how messages name a kind of guest.
func (g *guest) title() string {
	if g.kind == "lxc" {
		return "CT"
	}
	return "VM"
}

func (g *guest) snapshot(name string) *snapshot {
	for _, s := range g.snapshots {
		if s.name == name {
			return s
		}
	}
	return nil
}

// ct is the container that a call is about.
func (c *call) ct() (*guest, error) {
	if g := c.w.guest(c.in["node"], "lxc", c.vmid()); g != nil {
		return g, nil
	}
	return nil, missing(c.in["node"], "lxc", c.vmid())
}

// guestCall is the VM or container that a call is about, by its path.
func (c *call) guestCall() (*guest, error) {
	if strings.HasPrefix(c.m.Path, "/nodes/{node}/lxc") {
		return c.ct()
	}
	return c.vm()
}

// agentEnabled says whether a VM is configured to have a guest agent.
func agentEnabled(g *guest) bool { return parseProperty("agent", g.conf["agent"])["enabled"] == "1" }

// inside is what a guest's system keeps while it lives: files that somebody wrote
// through the agent, and programs that were run.
type inside struct {
	files  map[string]string
	runs   map[int]execution
	last   int
	frozen bool // Its file systems, by the agent.
}

// execution is a program that an agent has run. Its outcome can be asked for once.
type execution struct {
	out, err string
	code     int
}

// masked hides the one secret of a configuration.
func masked(key string, value any) any {
	if key == "cipassword" {
		return "**********"
	}
	return value
}
