// Package debian is a simulated Debian: files, users, packages, systemd units, sshd and sudo configuration, and the
// programs that show and change them. Scripts for a real Debian run on it unchanged.
//
// Read Disk and Machine first. Each other file is one part of the system: image.go (the initial state),
// accounts.go, apt.go and dpkg.go, systemd.go, sshd.go, sudo.go, cloudinit.go.
package debian

import (
	"cmp"
	"context"
	"maps"
	"net"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/machine/userland"
)

// Disk is the part of a machine that stays while it is off.
type Disk struct {
	fs    *machine.FS
	clock machine.Clock
	more  []Package // that its repository has beside those of Debian

	programs  map[string]Program // by file
	lan       userland.LAN
	container bool
	network   Dial
}

// Dial opens a connection from a machine to another one.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Program is an additional program of a machine. It returns the exit code.
type Program func(m *Machine, p *machine.Process) int

// Options say what a new disk holds.
type Options struct {
	Suite    string // 12 or 13; "" is 13
	Clock    machine.Clock
	Packages []Package // that the repository of the machine has beside those of Debian
	// Programs are there beside those of Debian, by the files that they are run by.
	Programs map[string]Program
	// Container is a machine that has no kernel of its own.
	Container bool
	// Network leads to other machines; nil: there are none.
	Network Dial
	// Installed are packages of Debian and of Proxmox that the image has beside the usual ones.
	Installed []string
}

// NewDisk is an image of Debian as the project publishes it for clouds, with sshd.
func NewDisk(o Options) *Disk {
	o.Suite = cmp.Or(o.Suite, "13")
	d := &Disk{fs: machine.NewFS(o.Clock.Now), clock: o.Clock, more: o.Packages, programs: o.Programs, container: o.Container, network: o.Network}
	d.install(o)
	return d
}

// Clone is another disk with the same on it.
func (d *Disk) Clone() *Disk {
	return &Disk{fs: d.fs.Clone(d.clock.Now), clock: d.clock, more: d.more, programs: d.programs, lan: d.lan, container: d.container, network: d.network}
}

// Files returns the files on the disk.
func (d *Disk) Files() *machine.FS { return d.fs }

// Machine is a Debian that runs. Safe for concurrent use.
type Machine struct {
	K       *machine.Kernel
	Network userland.Network
	disk    *Disk

	// mu is for a moment only: programs of the machine and logins read and change these side by side.
	mu      sync.Mutex
	units   map[string]*unit
	journal journal
	sshd    *Settings // of the server that runs; nil without one
	closed  bool
	// unnamed is whether it cannot resolve names.
	unnamed bool
	ports   machine.Net
	down    context.Context //nolint:containedctx // it ends when the machine halts
	end     context.CancelFunc
	busy    sync.WaitGroup // timers, and what watches services
}

// Boot starts what is on a disk. One machine at a time may run from it.
func (d *Disk) Boot() *Machine {
	m := &Machine{disk: d, units: map[string]*unit{}}
	m.down, m.end = context.WithCancel(context.Background())
	programs := userland.Programs()
	maps.Copy(programs, m.programs())
	for name, run := range d.programs {
		programs[name] = func(p *machine.Process) int { return run(m, p) }
	}
	m.K = machine.NewKernel(d.fs, d.clock, programs)
	name, _ := d.fs.ReadFile("/etc/hostname")
	if name = strings.TrimSpace(name); name != "" {
		m.K.SetHostname(name)
	}
	m.volatile()
	must(userland.Disks{FS: d.fs}.Boot())
	must(m.Network.Boot(d.fs, d.lan, d.container))
	parametersOf{m}.sysctlAtBoot()
	systemd{m}.startAtBoot()
	return m
}

// volatile makes what a machine has only while it runs: /run, /tmp, /dev, /proc and /sys.
func (m *Machine) volatile() {
	fs := m.K.FS
	for _, name := range []string{"/run", "/tmp", "/proc", "/dev", "/sys"} {
		must(fs.RemoveAll(machine.Cred{}, name))
	}
	must(fs.MkdirAll("/run/systemd/system", 0o755))
	must(fs.MkdirAll("/run/lock", 0o755))
	must(fs.MkdirAll("/tmp", 0o755))
	must(fs.Chmod(machine.Cred{}, "/tmp", 0o1777))
	for name, s := range map[string]machine.SpecialFile{"null": null{}, "zero": zero{}, "full": null{}} {
		must(fs.SetSpecial("/dev/"+name, 0o666, machine.DeviceFile, s))
	}
	must(fs.Symlink(machine.Cred{}, "/proc/self/fd/0", "/dev/stdin"))
	for name, value := range parameters() {
		must(fs.SetSpecial("/proc/sys/"+name, 0o644, machine.PlainFile, &parameter{value: value}))
	}
}

// must panics on errors of calls that cannot fail on the file system of a machine that boots.
func must(err error) {
	if err != nil {
		panic("simulated Debian: " + err.Error())
	}
}

// Halt ends everything that runs, and waits for it.
func (m *Machine) Halt() {
	m.mu.Lock()
	m.closed, m.sshd = true, nil
	m.mu.Unlock()
	m.end()
	m.K.Halt()
	m.ports.Close()
	m.busy.Wait()
}

// Down is closed when the machine halts.
func (m *Machine) Down() <-chan struct{} { return m.down.Done() }

// Life ends when the machine halts.
func (m *Machine) Life() context.Context { return m.down }

// null is /dev/null.
type null struct{}

// ReadAt gives nothing.
func (null) ReadAt(int, int64) []byte { return nil }

// Write takes everything.
func (null) Write([]byte) error { return nil }

// zero is /dev/zero.
type zero struct{ null }

// ReadAt gives zeros.
func (zero) ReadAt(size int, _ int64) []byte { return make([]byte, size) }

// Shell runs a line of shell as root, as from the console, and returns its output and exit code.
func (m *Machine) Shell(line string) (out string, code int) {
	var b strings.Builder
	s := m.Root("sh", "-c", line+" 2>&1")
	s.In, s.Out = strings.NewReader(""), &b
	p, err := m.K.Start(s)
	if err != nil {
		return err.Error(), noProgram
	}
	code = p.Wait()
	return b.String(), code
}

// noProgram is the exit code of a shell for a program that it cannot run.
const noProgram = 127

// Root is the environment and the rights of a program that the system itself starts.
func (*Machine) Root(args ...string) machine.Start {
	return machine.Start{Args: args, Dir: "/", Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"}}
}
