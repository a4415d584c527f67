package core

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/content"
)

// NoWorker is a status of Config.Fault: PVE does what a request does before it starts a
// task, fails to start the process of that task, and answers "got no worker upid - start
// worker failed" (fork_worker in PVE/RESTEnvironment.pm). A creation leaves a
// configuration that holds nothing but its lock. A request without a task succeeds.
const NoWorker = -2

// Config says what host to simulate. The zero value is a single node named
// "father" with PVE 9.2, its usual two storages and bridge, and no guests.
type Config struct {
	Node     string   // The node that answers; default "father".
	Nodes    []string // Further nodes of its cluster; default none, and then no cluster either.
	Offline  []string // Nodes that are down: calls proxied to them answer 595, of Node itself none.
	NoQuorum bool     // The cluster file system is read-only.
	// NoManager disables the HA manager: resources can be configured, and power calls file their requests, which
	// stay unprocessed.
	NoManager bool
	// Seed fixes everything invented: token, MACs, uuids, sizes, foreign guests.
	// Same seed and same requests in the same order, same answers but for times.
	Seed    int64
	Version string // One of [Versions]; default "9.2".

	// Speed is how many times as fast as the clock of this machine that of the host runs;
	// default 1. All times, of this configuration too, are by the clock of the host: with
	// 10, a task of 30 seconds is over after 3. Limits of connections are not.
	Speed int

	// TaskTime is the duration of a task. With 0 it ends as it starts, but its
	// outcome still shows only in the task.
	TaskTime time.Duration
	// TaskTimes says it for single types of task ("qmclone"), instead of TaskTime.
	TaskTimes map[string]time.Duration
	// BootTime is the time that the system of a VM takes until its agent answers and it obeys
	// the power button; default 2 seconds.
	BootTime time.Duration
	// Deaths are workers that die in the middle of their tasks.
	Deaths []Death
	// KeepTasks is the number of finished tasks that are remembered; older ones are
	// rotated away and then unknown. 0 keeps all.
	KeepTasks int
	Latency   time.Duration // Of every request; the effect is there before it, the answer after.
	// Workers is the number of requests of one node that are served at once (default
	// 3, as pveproxy and pvedaemon have); others wait. It matters with Latency.
	Workers int

	// Storages are the entries of storage.cfg; default local and local-lvm, see [DefaultStorages]. If it is empty
	// but not nil, the file does not exist, and PVE assumes local.
	Storages []Storage
	Bridges  []string // Default vmbr0.
	// CPUs, Memory and RootDisk are the size of every node, in bytes; default 64, 1 TiB and
	// 96 GiB.
	CPUs             int
	Memory, RootDisk int64
	StorageSize      int64 // Of storages without a size of their own; default 1 TiB.
	// NoKVM is a machine without virtualisation: a VM starts only with kvm=0.
	NoKVM bool
	// LegacyCgroups is a host whose processes are grouped as before version 2: it does not
	// know how long those of a guest wait for resources.
	LegacyCgroups bool
	// Address is that of the first bridge of Node, as a CIDR; the bridge then has no
	// port and no gateway. Default 192.0.2.2/24 with eth0 and 192.0.2.1.
	Address string
	// Leases are the first two numbers of the addresses that DHCP gives to guests; default 10.0.
	Leases string
	// Resolver is the content of /etc/resolv.conf of every node: dns1 to dns3 and search, as
	// PUT /nodes/{node}/dns takes them; default 192.0.2.53 and example.test.
	Resolver map[string]string
	// Token is the API token that the host knows from the start, without
	// privilege separation: "user@realm!name=secret". Default
	// "root@pam!sim=<uuid made from Seed>".
	Token string
	// Password is the password of root@pam for /access/ticket; default the secret
	// of Token.
	Password string
	Guests   int // Unmanaged guests at the start, of varied kind and state.

	// Exec answers for the programs that the guest agent of a VM is asked to run, by
	// the VM's id, the command and what it reads: what it writes to its two outputs,
	// and its exit status. known is false for a program that it does not know; then a
	// few simple ones are there (true, false, echo, cat, hostname, sh -c "exit N"),
	// and no others.
	Exec func(vmid int, command []string, input string) (out, err string, code int, known bool)
	// Start begins such a program and does not wait for it, and Write writes a file through the agent: together
	// they are a real system in every VM. They take precedence over Exec and the files of the simulated system.
	// wait is called in a goroutine of its own until the program has ended. Set both or none.
	Start func(vmid int, command []string, input string) (wait func() Execution, known bool)
	Write func(vmid int, file, content string) error

	// Systems run inside of guests that were made from a known image; nil: nothing does, and
	// an agent knows the few programs of Exec. It comes before Start and Exec.
	Systems Systems

	// Web returns the page at an address of http or https; nil: every address has one, see [Page].
	Web func(address string) content.Page
	// Downloads say what is at some addresses, before Web does; the first that matches
	// decides.
	Downloads []content.Download
	// System is the system in every VM; default a Debian.
	System System

	// Files is a folder for what a node shows of its guests without its API, as below its root: etc/pve/.version,
	// etc/pve/.vmlist and the control groups of guests that run. "": nothing is written.
	Files string

	// Fault may turn a request into a failure. It is asked once per request,
	// before anything else. Status 0 means no fault; a status of 100 and more is
	// answered, with PVE's empty body where it is a pseudo status of pveproxy
	// (595 to 599); NoWorker fails to start its task; any other negative one
	// drops the connection without an answer. With
	// apply the request takes effect all the same: the answer was lost.
	Fault func(r *http.Request) (status int, apply bool)
	// Record sees every request after it was served, with its body (of an upload
	// nothing) and the status that was answered (negative: connection dropped).
	// Fault and Record are called by many goroutines at once.
	Record func(r *http.Request, body []byte, status int)
	// Promise hears of every good answer that is not what the API table promises of
	// its method (types, members that must be there), but for what PVE itself does not
	// keep. It is for tests, and is called by many goroutines at once.
	Promise func(deviation string)
	// Kept, if there is one, spares answers that were checked before.
	Kept *KeptPromises
}

// System is the system of a VM, as its guest agent tells of it.
type System struct {
	Release               string // The content of /etc/os-release.
	Kernel, KernelVersion string // Output of uname -r and -v.
}

// Storage is one entry of storage.cfg.
type Storage struct {
	Name    string
	Type    string   // dir, nfs, cifs, btrfs, lvm, lvmthin, zfspool, rbd, …
	Content []string // images, rootdir, iso, vztmpl, backup, snippets, import.
	Size    int64    // In bytes; default 1 TiB.
	Path    string   // Of a file storage; default /mnt/pve/NAME, and /var/lib/vz for "local".
	Shared  bool     // Default true for network types.
}

// DefaultStorages are those of a fresh installation on LVM, with imports
// allowed on local.
func DefaultStorages() []Storage {
	return []Storage{
		{Name: "local", Type: "dir", Content: []string{"iso", "vztmpl", "backup", "snippets", "import"}},
		{Name: "local-lvm", Type: "lvmthin", Content: []string{"images", "rootdir"}},
	}
}

// ContentTypes are the kinds of volumes a storage may hold.
var ContentTypes = []string{"images", "rootdir", "iso", "vztmpl", "backup", "snippets", "import"}

// StorageTypes maps the types that can be simulated to what they are.
var StorageTypes = map[string]struct{ files, Shared bool }{
	"dir": {files: true}, "btrfs": {files: true},
	"nfs": {files: true, Shared: true}, "cifs": {files: true, Shared: true}, "cephfs": {files: true, Shared: true},
	"lvm": {}, "lvmthin": {}, "zfspool": {},
	"zfs": {Shared: true}, "rbd": {Shared: true}, "iscsi": {Shared: true}, "pbs": {Shared: true},
}

// ParseStorage reads "name:type:content[:size][:path][:shared]", content separated
// by commas, size in GiB, the path of a file storage absolute:
// "fast:zfspool:images,rootdir:500", "iso:dir:iso,import:/srv/iso". Network types
// are shared without saying so.
func ParseStorage(s string) (Storage, error) {
	parts := strings.Split(s, ":")
	if len(parts) < 3 || parts[0] == "" {
		return Storage{}, fmt.Errorf("storage %q: want name:type:content[:size in GiB][:path][:shared]", s)
	}
	st := Storage{Name: parts[0], Type: parts[1], Content: strings.Split(parts[2], ",")}
	for _, part := range parts[3:] {
		switch {
		case part == "shared" && !st.Shared:
			st.Shared = true
		case strings.HasPrefix(part, "/") && st.Path == "" && !st.Shared:
			st.Path = part
		case st.Size == 0 && st.Path == "" && !st.Shared:
			gib, err := strconv.ParseInt(part, 10, 32)
			if err != nil || gib < 1 {
				return Storage{}, fmt.Errorf("storage %q: size %q is not a number of GiB", s, part)
			}
			st.Size = gib << 30
		default:
			return Storage{}, fmt.Errorf("storage %q: %q is too much behind name:type:content[:size in GiB][:path][:shared]", s, part)
		}
	}
	if err := st.check(); err != nil {
		return Storage{}, fmt.Errorf("storage %q: %w", s, err)
	}
	if st.Path != "" && !StorageTypes[st.Type].files {
		return Storage{}, fmt.Errorf("storage %q: type %s has no path", s, st.Type)
	}
	return st, nil
}

func (s Storage) check() error {
	if _, ok := StorageTypes[s.Type]; !ok {
		return fmt.Errorf("type %q cannot be simulated", s.Type)
	}
	for _, c := range s.Content {
		if !slices.Contains(ContentTypes, c) {
			return fmt.Errorf("content %q is none of %s", c, strings.Join(ContentTypes, ", "))
		}
	}
	return nil
}

// WithDefaults fills in what was left open.
func (c Config) WithDefaults() Config {
	c.Node = cmp.Or(c.Node, "father")
	c.Version, c.Leases = cmp.Or(c.Version, "9.2"), cmp.Or(c.Leases, "10.0")
	if c.Workers <= 0 {
		c.Workers = 3
	}
	c.Speed = max(c.Speed, 1)
	c.CPUs, c.Memory, c.RootDisk = cmp.Or(c.CPUs, 64), cmp.Or(c.Memory, 1<<40), cmp.Or(c.RootDisk, 96<<30)
	if c.System == (System{}) {
		c.System = System{
			Release: "PRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\nNAME=\"Debian GNU/Linux\"\nVERSION_ID=\"13\"\nVERSION=\"13 (trixie)\"\nID=debian\n",
			Kernel:  "6.12.48+deb13-cloud-amd64", KernelVersion: "#1 SMP PREEMPT_DYNAMIC Debian 6.12.48-1 (2025-09-20)",
		}
	}
	if c.Resolver == nil {
		c.Resolver = map[string]string{"dns1": "192.0.2.53", "search": "example.test"}
	}
	c.BootTime = cmp.Or(c.BootTime, 2*time.Second)
	if c.Storages == nil {
		c.Storages = DefaultStorages()
	}
	if c.Bridges == nil {
		c.Bridges = []string{"vmbr0"}
	}
	c.Storages = slices.Clone(c.Storages)
	for i := range c.Storages {
		s := &c.Storages[i]
		s.Content = slices.Clone(s.Content)
		if s.Size == 0 {
			s.Size = cmp.Or(c.StorageSize, 1<<40)
		}
		if s.Path == "" && StorageTypes[s.Type].files {
			s.Path = "/mnt/pve/" + s.Name
			if s.Name == "local" {
				s.Path = "/var/lib/vz"
			}
		}
		s.Shared = s.Shared || StorageTypes[s.Type].Shared
	}
	return c
}

// Versions lists the versions of Proxmox VE that a [Host] can be, oldest first.
func Versions() []string { return []string{"8.4", "9.1", "9.2"} }

// KeptPromises remembers answers that match the API table. To check an answer
// costs more than to make it, and hosts in the same story give the same ones: a test that
// tells its story a thousand times lets all its hosts share one KeptPromises. The zero
// value is empty; nil remembers nothing.
type KeptPromises struct {
	seed maphash.Seed
	once sync.Once
	sums sync.Map // Of method and body. Hosts share it, on goroutines of their own.
}

func (k *KeptPromises) sum(name string, body []byte) uint64 {
	k.once.Do(func() { k.seed = maphash.MakeSeed() })
	var h maphash.Hash
	h.SetSeed(k.seed)
	_, _ = h.WriteString(name)
	_, _ = h.Write(body)
	return h.Sum64()
}

// First says whether an answer is none of those that are remembered.
func (k *KeptPromises) First(name string, body []byte) bool {
	if k == nil {
		return true
	}
	_, seen := k.sums.Load(k.sum(name, body))
	return !seen
}

// Add remembers an answer.
func (k *KeptPromises) Add(name string, body []byte) {
	if k != nil {
		k.sums.Store(k.sum(name, body), nil)
	}
}
