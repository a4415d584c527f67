package core

import (
	"crypto/sha1" //nolint:gosec // PVE's digest is SHA-1.
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Guest is one VM or container: its configuration file and, while it runs, its process. The file is only rendered
// for its digest.
type Guest struct {
	Vmid int
	Node string
	Kind string // qemu or lxc.

	Conf  perl.Config // In force, or to be in force at the next start.
	Pend  perl.Config // Waiting for a full stop; the key "delete" lists keys to go.
	Cloud perl.Config // Values that the cloud-init drive does not have yet ([special:cloudinit]).

	Snapshots []*Snapshot // In the order in which they were taken.

	Run   *Process // nil while it is stopped.
	Birth Birth    // Of a container.
	In    *Inside  // State of its system; nil before the first use.
	File  *Task    // The task that holds the lock file, nil if none.

	Rebooting bool // The file that asks for a start after the next end is there.

	raw    string // The file as text; empty when it has to be rendered.
	digest string
	// dropped are waiting values that do not parse and so stay invisible. They stay in the file until it is written
	// again, with another content than valid.
	dropped perl.Config
	valid   string
	told    struct{ text, digest string } // See Believe.
}

// Process is a running guest.
type Process struct {
	Pid     int
	Since   time.Time
	Booted  time.Time // When its agent begins to answer.
	Qmp     string    // What QEMU says where its processors do not run: paused, io-error, …; "" while they do.
	System  bool      // A disk of it holds a system, which obeys ACPI.
	Machine string
	Disks   map[string]bool // Drives, for the block statistics.
}

// Paused is vm_is_paused in PVE/QemuServer.pm, with what counts as such.
func (p *Process) Paused() bool {
	return slices.Contains([]string{"paused", "prelaunch", "suspended"}, p.Qmp)
}

// NewGuest makes a guest with an empty configuration.
func NewGuest(node, kind string, vmid int) *Guest {
	return &Guest{Vmid: vmid, Node: node, Kind: kind, Conf: perl.Config{}, Pend: perl.Config{}, Cloud: perl.Config{}}
}

// Text renders the configuration file (write_vm_config in PVE/QemuServer.pm).
func (g *Guest) Text() string {
	if g.raw == "" {
		g.raw = g.render(g.Pend)
		switch {
		case len(g.dropped) == 0:
		case g.valid == "" || g.valid == g.raw:
			g.valid = g.raw
			all := maps.Clone(g.Pend)
			maps.Copy(all, g.dropped)
			g.raw = g.render(all)
		default:
			g.dropped, g.valid = nil, ""
		}
		sum := sha1.Sum([]byte(g.raw)) //nolint:gosec // As above.
		if g.digest = hex.EncodeToString(sum[:]); g.told.digest != "" && g.told.text == g.raw {
			g.digest = g.told.digest
		}
	}
	return g.raw
}

// Believe gives the file the digest that another host told of it, until it changes. It cannot be computed where that
// host kept secrets to itself.
func (g *Guest) Believe(digest string) {
	g.told.text, g.told.digest = g.Text(), digest
	g.raw = ""
}

// render writes the sections, that of what waits as it is given.
func (g *Guest) render(pend perl.Config) string {
	var b strings.Builder
	g.Conf.Write(&b, false)
	if len(pend) > 0 {
		b.WriteString("\n[PENDING]\n")
		pend.Write(&b, true)
	}
	if len(g.Cloud) > 0 {
		b.WriteString("\n[special:cloudinit]\n")
		g.Cloud.Write(&b, true)
	}
	for _, s := range g.Snapshots {
		b.WriteString("\n[" + s.Name + "]\n")
		s.Conf.Write(&b, false)
	}
	return b.String()
}

// Sum is the digest: SHA-1 over the whole file, waiting changes included.
func (g *Guest) Sum() string {
	g.Text()
	if g.digest == "" { // An empty file renders to nothing.
		return "da39a3ee5e6b4b0d3255bfef95601890afd80709"
	}
	return g.digest
}

// Write stores what a handler did to a guest. It is write_config and the
// reading of the file that follows it, in one: unused volumes that came back
// into use leave their unusedN.
func (w *World) Write(g *Guest) {
	used := map[string]bool{}
	for _, section := range []perl.Config{g.Conf, g.Pend} {
		for key, value := range section {
			switch {
			case g.Kind == "qemu" && perl.IsDrive(key):
				used[perl.ParseDrive(key, value).File] = true
			case g.Kind == "lxc" && perl.IsMount(key):
				used[perl.ParseMount(key, value).Volume] = true
			}
		}
	}
	for key, value := range g.Conf {
		if strings.HasPrefix(key, "unused") && used[value] {
			delete(g.Conf, key)
		}
	}
	g.Conf.Reread(g.Kind, false)
	if dropped := g.Pend.Reread(g.Kind, true); dropped != nil {
		g.dropped, g.valid = dropped, ""
	}
	g.Cloud.Reread(g.Kind, true)
	w.Touch(g)
	if len(g.dropped) > 0 {
		g.Text() // Now: the next change takes away what was dropped.
	}
}

// Present are the keys in force with the waiting changes made (load_current_config
// in AbstractConfig.pm). A key whose value counts as false stays even if its
// deletion waits.
func (g *Guest) Present() perl.Config {
	merged := maps.Clone(g.Conf)
	for key, value := range g.Pend {
		if key != "delete" {
			merged[key] = value
		}
	}
	for key := range g.Deletions() {
		if value := merged[key]; value != "" && value != "0" {
			delete(merged, key)
		}
	}
	return merged
}

// Deletions are the keys that will go, each with whether by force.
func (g *Guest) Deletions() map[string]bool {
	keys := map[string]bool{}
	for _, word := range perl.SplitList(g.Pend["delete"]) {
		key, force := strings.CutPrefix(word, "!")
		keys[key] = force
	}
	return keys
}

// SetDeletions stores the keys that will go.
func (g *Guest) SetDeletions(keys map[string]bool) {
	words := make([]string, 0, len(keys))
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if keys[key] {
			key = "!" + key
		}
		words = append(words, key)
	}
	if len(words) == 0 {
		delete(g.Pend, "delete")
		return
	}
	g.Pend["delete"] = strings.Join(words, ",")
}

// SetLock sets the lock of a guest and writes its file; an empty one takes the lock away.
func (w *World) SetLock(g *Guest, lock string) {
	if g.Conf["lock"] = lock; lock == "" {
		delete(g.Conf, "lock")
	}
	w.Write(g)
}

// CheckLock fails while the configuration carries a lock.
func (g *Guest) CheckLock() error {
	if lock := g.Conf["lock"]; lock != "" {
		return perl.Fail("%s is locked (%s)", g.Title(), lock)
	}
	return nil
}

// Missing is the failure to load a configuration file.
func Missing(node, kind string, vmid int) error {
	dir := "qemu-server"
	if kind == "lxc" {
		dir = "lxc"
	}
	return perl.Fail("Configuration file 'nodes/%s/%s/%d.conf' does not exist", node, dir, vmid)
}

// lockPatience is the time that a call waits for the lock file of a guest
// (lock_config in AbstractConfig.pm).
const lockPatience = 10 * time.Second

// LockFile waits for the lock file of a guest while a task holds it.
func (c *Call) LockFile(g *Guest) error {
	if g.File == nil {
		return nil
	}
	giveUp := c.Req.Begun.Add(lockPatience)
	if !c.W.Now.Before(giveUp) {
		return perl.Fail("can't lock file '%s' - got timeout", lockName(g))
	}
	until := giveUp
	if end := g.File.due; end.Before(until) {
		until = end
	}
	if !until.After(c.W.Now) {
		until = c.W.Now.Add(time.Millisecond)
	}
	return &perl.LockedError{Until: until}
}

func lockName(g *Guest) string {
	if g.Kind == "lxc" {
		return fmt.Sprintf("/run/lock/lxc/pve-config-%d.lock", g.Vmid)
	}
	return fmt.Sprintf("/var/lock/qemu-server/lock-%d.conf", g.Vmid)
}

// Snapshot is one snapshot of a guest: its configuration then, and how large its
// volumes were. (The type Snapshot is something else: what a test sees.)
type Snapshot struct {
	Name  string
	Conf  perl.Config // With snaptime, and parent, description and vmstate if it has them.
	Sizes map[string]int64
}

// Title returns the name of a kind of guest in messages.
func (g *Guest) Title() string {
	if g.Kind == "lxc" {
		return "CT"
	}
	return "VM"
}

// Snapshot finds a snapshot by name; nil if there is none.
func (g *Guest) Snapshot(name string) *Snapshot {
	for _, s := range g.Snapshots {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Guest is the VM or container that a call is about, by its path.
func (c *Call) Guest() (*Guest, error) {
	kind := perl.Segments(c.M.Path)[2]
	if g := c.W.Guest(c.In["node"], kind, c.Vmid()); g != nil {
		return g, nil
	}
	return nil, Missing(c.In["node"], kind, c.Vmid())
}

// AgentEnabled says whether a VM is configured to have a guest agent.
func (g *Guest) AgentEnabled() bool {
	return perl.ParseProperty("agent", g.Conf["agent"])["enabled"] == "1"
}

// Inside is the state of a guest's system while it exists: files written through the agent, and programs that were
// run.
type Inside struct {
	Files  map[string]string
	Runs   map[int]*Execution
	Last   int
	Frozen bool // Its file systems, by the agent.
}

// Execution is a program that an agent has run. Its outcome can be asked for once.
type Execution struct {
	Out, Err string
	Code     int
	Signal   int           // that killed it
	Ended    chan struct{} // is closed when the rest is known; nil: it is
}

// Masked hides the one secret of a configuration.
func Masked(key string, value any) any {
	if key == "cipassword" {
		return "**********"
	}
	return value
}

// Sections are the parts of the file of a guest: what is in force, what is pending, and
// the snapshots.
func (g *Guest) Sections() []perl.Config {
	sections := []perl.Config{g.Conf, g.Pend}
	for _, s := range g.Snapshots {
		sections = append(sections, s.Conf)
	}
	return sections
}
