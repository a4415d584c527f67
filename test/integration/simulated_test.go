package integration_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// simulated is a story whose guests run a simulated Debian.
type simulated struct {
	*story
	guests *sim.Guests
	hosts  *push.KnownHosts
	key    string
	// confirm is as in push.Config.
	confirm time.Duration
	// cut ends the connection to a guest before its write of that number over all connections; 0: never.
	cut    atomic.Int64
	writes atomic.Int64

	// changed is as in engine.Pass.
	changed map[model.Address]model.Guest
	// first is Pass.StartFirst.
	first bool

	loaded, earlier *model.Site // by the last pass; of the commit before, nil if that is not known
}

// beginSimulated sets the scene with a spec for web-1, which has a static address.
func beginSimulated(t *testing.T, specs string, lines ...string) *simulated {
	t.Helper()
	s := &simulated{guests: &sim.Guests{}, hosts: &push.KnownHosts{}}
	_, key, err := sim.GuestKey()
	require.NoError(t, err)
	s.key = key
	t.Cleanup(s.guests.Close)
	s.story = begin(t, pve.Config{BootTime: time.Nanosecond, Systems: s.guests})
	s.write("specs.hcl", specs)
	s.deploy("web", vm("web-1", append(lines, `spec = spec.base`, `nic "lan" {`, `  ip = "192.0.2.50/24"`, `}`, `disk "data" {`, `  size = 1`, `}`)...))
	return s
}

// dial connects to guests; see cut.
func (s *simulated) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dial := sim.Hosts{"father": s.host}.Dial
	if strings.HasPrefix(address, "127.0.0.1:") { // a host that is served
		dial = new(net.Dialer).DialContext
	}
	conn, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &cutting{conn, s}, nil
}

// cutting is a connection that ends.
type cutting struct {
	net.Conn
	s *simulated
}

func (c *cutting) Write(p []byte) (int, error) {
	if n := c.s.writes.Add(1); n == c.s.cut.Load() {
		_ = c.Close()
		return 0, errors.New("connection reset by peer")
	}
	return c.Conn.Write(p)
}

// pass makes a pass with a driver of its own, as a new process does.
func (s *simulated) pass(verb string) engine.Report {
	s.t.Helper()
	return s.story.pass(verb, func(pass *engine.Pass) {
		s.enter(pass, push.Config{HostKeys: s.hosts, Dial: s.dial, PrivateKeys: []string{s.key}, Confirm: s.confirm})
		pass.Changed, pass.StartFirst = s.changed, s.first
		pass.History = enginetest.History{Site: s.earlier}
		s.loaded = pass.Load(s.t.Context()).Site
	})
}

func (s *simulated) apply(when string) {
	s.t.Helper()
	r := s.pass("apply")
	require.Equal(s.t, engine.Done, r.Outcome, "%s: %s", when, describe(r))
	r = s.pass("plan")
	require.Empty(s.t, steps(r.Plan), when)
	require.Empty(s.t, r.Plan.Unknown, when)
}

// inside runs a line of shell in web-1, as at its console.
func (s *simulated) inside(line string) (string, int) {
	s.t.Helper()
	m := s.guests.Machine("10000")
	require.NotNil(s.t, m, "web-1 runs no simulated system")
	return m.Shell(line)
}

func (s *simulated) holds(line, when string) {
	s.t.Helper()
	out, code := s.inside(line)
	require.Zero(s.t, code, "%s: %s\n%s", when, line, out)
}

// field is a part of a spec, what shows that it is in force, and what shows that it is not.
type field struct{ name, block, text, effect, absent string }

// simulatedFields are all that a spec may ask, by the block that they are in.
var simulatedFields = []field{
	{"package", "platform", `packages = ["jq"]`, "jq", "! command -v jq"},
	{"service", "services", `disable = ["cron"]`, "! systemctl is-active cron && ! systemctl is-enabled cron", "systemctl is-active cron && systemctl is-enabled cron"},
	{"user", "access", "user \"ann\" {\n sudo = true\n ssh_keys = [\"ops\"]\n groups = [\"video\"]\n}", "id -Gn ann | grep -w video && grep -q ops@home /home/ann/.ssh/authorized_keys && grep -q ann /etc/sudoers.d/zz-homestak-gitops", "[ \"$(getent shadow ann | cut -d: -f8)\" = 1 ] && ! grep -q ops@home /home/ann/.ssh/authorized_keys && [ ! -e /etc/sudoers.d/zz-homestak-gitops ]"},
	{"posture", "access", `posture = "hard"`, "sshd -T | grep -qx 'port 2222' && sshd -T | grep -qx 'permitrootlogin no' && systemctl is-active fail2ban", "sshd -T | grep -qx 'port 22' && [ ! -e /etc/fail2ban/jail.d/zz-homestak-gitops.local ]"},
	{"time zone", "config", `timezone = "Europe/Berlin"`, "[ \"$(readlink -f /etc/localtime)\" = /usr/share/zoneinfo/Europe/Berlin ]", "[ \"$(readlink -f /etc/localtime)\" = /usr/share/zoneinfo/Etc/UTC ]"},
	{"sysctl", "config", `sysctl = { "net.ipv4.ip_forward" = "1" }`, "[ \"$(cat /proc/sys/net/ipv4/ip_forward)\" = 1 ]", "[ \"$(cat /proc/sys/net/ipv4/ip_forward)\" = 0 ]"},
	{"file", "config", "file \"/etc/motd\" {\n content = \"managed\\n\"\n}", "grep -qx managed /etc/motd", "grep -q WARRANTY /etc/motd"},
	{"repository", "config", "repository \"extra\" {\n url = \"https://packages.example/debian\"\n suites = [\"stable\"]\n components = [\"main\"]\n key = \"-----BEGIN PGP PUBLIC KEY BLOCK-----\"\n}", "[ -f /etc/apt/sources.list.d/homestak-extra.sources ]", "[ ! -e /etc/apt/sources.list.d/homestak-extra.sources ] && [ ! -e /etc/apt/keyrings/homestak-extra.asc ]"},
	{"mount", "config", "mount \"/srv/data\" {\n disk = \"data\"\n options = [\"noatime\"]\n}", "grep -q ' /srv/data rw,noatime .* ext4 /dev/sdb ' /proc/self/mountinfo && grep -q '^LABEL=data /srv/data ' /etc/fstab", "! grep -q /srv/data /proc/self/mountinfo /etc/fstab && [ \"$(blkid -p -s LABEL -o value /dev/sdb)\" = data ]"},
	{"swap", "config", `swap = 64`, "grep -q '^/swapfile ' /proc/swaps", "! grep -q '^/swapfile ' /proc/swaps && [ ! -e /swapfile ]"},
	{"repository of PVE", "pve", `no_subscription = true`, "grep -qx 'Components: pve-no-subscription' /etc/apt/sources.list.d/homestak-pve.sources", "[ ! -e /etc/apt/sources.list.d/homestak-pve.sources ]"},
	{"reminder of PVE", "pve", `remove_subscription_nag = true`, "[ -x /usr/local/lib/homestak-pve-nag ]", "[ ! -e /usr/local/lib/homestak-pve-nag ] && [ ! -e /etc/dpkg/dpkg.cfg.d/homestak-gitops-pve ]"},
	{"command", "config", "command \"made\" {\n run = \"echo made >/srv/made\"\n creates = \"/srv/made\"\n}", "[ \"$(cat /srv/made)\" = made ]", "[ \"$(cat /srv/made)\" = made ]"},
}

// specOf writes spec base with all fields but some.
func specOf(without ...string) string {
	in := map[string]string{}
	for _, f := range simulatedFields {
		if !strings.Contains(strings.Join(without, "\n"), f.name) {
			in[f.block] += f.text + "\n"
		}
	}
	if in["pve"] != "" {
		in["config"] += "pve {\n" + in["pve"] + "}\n"
	}
	services := ""
	if in["services"] != "" {
		services = "services {\n" + in["services"] + "}\n"
	}
	return fmt.Sprintf("posture \"hard\" {\n  ssh {\n    port = 2222\n    permit_root_login = \"no\"\n  }\n  fail2ban {\n    enabled = true\n  }\n}\n"+
		"spec \"base\" {\n  access {\n%s  }\n  platform {\n%s%s  }\n  config {\n%s  }\n}\n", in["access"], in["platform"], services, in["config"])
}

// Each field of a spec takes effect by one apply, over SSH, without another word in the spec; a second
// apply does nothing. A change by hand inside is found by its name and reverted.
func TestST02SimulatedPush(t *testing.T) {
	s := beginSimulated(t, specOf())
	r := s.pass("plan")
	require.Equal(t, engine.Planned, r.Outcome, describe(r))
	require.Equal(t, "create image.debian-12, create vm.web-1, create guest.web-1", strings.Join(actions(r.Plan), ", "))
	s.apply("at first")
	for _, f := range simulatedFields {
		s.holds(f.effect, f.name)
	}
	s.holds("systemctl stop fail2ban && sed -i s/2222/22/ /etc/ssh/sshd_config.d/00-homestak-gitops.conf", "by hand")
	r = s.pass("plan")
	require.Equal(t, []string{"update guest.web-1"}, actions(r.Plan))
	var paths []string
	for _, c := range r.Plan.Steps[0].Changes {
		paths = append(paths, c.Path)
	}
	require.ElementsMatch(t, []string{"posture.ssh.port", "platform.services.fail2ban"}, paths)
	s.apply("after the work by hand")
	s.holds("systemctl is-active fail2ban && sshd -T | grep -qx 'port 2222'", "reverted")
}

// A guest that was noticed to be off is started before any guest is entered. The full check after that enters all.
func TestR10AGuestThatIsOffIsStartedFirst(t *testing.T) {
	s := beginSimulated(t, specOf("posture", "package", "service", "user", "repository", "reminder", "mount", "swap", "command"))
	s.apply("at first")
	s.byHand(func(e *pve.Edit) { e.Stop(10000) })
	logins := s.writes.Load()
	s.changed = map[model.Address]model.Guest{{Kind: "vm", Name: "web-1"}: {VMID: 10000, Node: "father"}}
	r := s.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.True(t, r.Have.Only)
	require.Equal(t, []string{"update vm.web-1"}, actions(r.Plan))
	require.Equal(t, logins, s.writes.Load(), "no guest was entered")
	s.changed = nil
	s.apply("the full check")
	require.Greater(t, s.writes.Load(), logins)

	// The same holds for one that was not noticed, when all is checked. If no other is off, that is one pass.
	s.byHand(func(e *pve.Edit) { e.Stop(10000) })
	logins, s.first = s.writes.Load(), true
	r = s.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.True(t, r.Have.Only)
	require.Equal(t, []string{"update vm.web-1"}, actions(r.Plan))
	require.Equal(t, logins, s.writes.Load(), "no guest was entered")
	r = s.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.False(t, r.Have.Only)
	require.Greater(t, s.writes.Load(), logins)

	// Where drift is only reported, the guest is left off, and the host is read once.
	s.edit("manifests/web.hcl", "preset.vm-small\n", "preset.vm-small\n    drift = \"report\"\n")
	s.byHand(func(e *pve.Edit) { e.Stop(10000) })
	reads := func(first bool) int {
		s.first = first
		from := len(s.requests())
		require.False(t, s.pass("plan").Have.Only)
		return len(s.requests()) - from
	}
	reads(false) // what is kept from pass to pass
	require.Equal(t, reads(false), reads(true))

	// A guest that cannot be started, since it is locked, does not make the host be read twice either.
	s.edit("manifests/web.hcl", "    drift = \"report\"\n", "")
	s.byHand(func(e *pve.Edit) { e.Lock(10000, "backup") })
	reads(false)
	require.Equal(t, reads(false), reads(true))
}

// A guest that was stopped by hand is started and entered by one apply, as after a creation, and the plan says that it is off.
func TestN7AGuestThatIsOffIsStartedAndEntered(t *testing.T) {
	s := beginSimulated(t, specOf("posture", "package", "service", "user", "repository", "reminder", "mount", "swap", "command"))
	s.apply("at first")
	s.holds("echo edited >/etc/motd", "by hand")
	s.byHand(func(e *pve.Edit) { e.Stop(10000) })
	r := s.pass("plan")
	require.Equal(t, []string{"update vm.web-1", "create guest.web-1"}, actions(r.Plan))
	require.Empty(t, r.Plan.Unknown)
	var text strings.Builder
	r.Plan.Text(&text, plan.TextOptions{Width: 120})
	require.Contains(t, text.String(), "spec base, entered once vm.web-1 runs, which is off")
	require.NotContains(t, text.String(), "not created")
	s.apply("after it was stopped")
	s.holds("grep -qx managed /etc/motd", "what differed inside")

	// Where its drift is only reported, nothing is changed inside, and nothing is called unknown.
	s.edit("specs.hcl", "  config {\n", "  config {\n    drift = \"report\"\n")
	s.holds("echo edited >/etc/motd", "by hand")
	s.byHand(func(e *pve.Edit) { e.Stop(10000) })
	r = s.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Equal(t, []string{"update vm.web-1"}, actions(r.Plan))
	require.Equal(t, "web-1:skipped", enginetest.Statuses(r))
	require.Contains(t, r.Nodes[0].Error, "not compared, since vm.web-1 is off")
	s.holds("grep -qx edited /etc/motd", "what is only reported")
	require.Contains(t, describe(s.pass("plan")), "is left as it is (drift = report)")
}

// A simulator that is served lets SSH in as the host, and guests are reached through it.
func TestST02SimulatedPushThroughAServedHost(t *testing.T) {
	s := beginSimulated(t, specOf("posture"))
	s.serveHost()
	s.apply("through the host")
	s.holds("id ann", "a user")
}

// serveHost serves SSH as the host does, and lets the site reach its guests through that.
func (s *simulated) serveHost() {
	t := s.t
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	jump, served := sim.JumpTo(s.host), make(chan struct{})
	ctx, end := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		jump.Serve(ctx, ln)
		close(served)
	}()
	t.Cleanup(func() {
		end()
		<-served
	})
	s.edit("host.hcl", "host \"father\" {\n", fmt.Sprintf("host \"father\" {\n  ssh {\n    address  = \"127.0.0.1\"\n    port     = %d\n    host_key = %q\n    jump     = true\n  }\n", ln.Addr().(*net.TCPAddr).Port, jump.HostKey()))
}

// A guest that is entered through its host is checked through it, too: a simulated host has no other way.
func TestN12ChecksThroughAServedHost(t *testing.T) {
	s := beginSimulated(t, "spec \"base\" {\n  platform {\n    packages = [\"nginx\"]\n  }\n}\n",
		`check "ssh" {`, `  tcp = "22"`, `}`, `check "login" {`, `  ssh = true`, `}`, `check "web" {`, `  tcp = "80"`, `}`, `check "page" {`, `  http   = "/"`, `  expect = "simulated"`, `}`)
	s.serveHost()
	s.apply("with checks")
	s.edit("manifests/web.hcl", `  tcp = "80"`, "  tcp = \"81\"\n  interval = \"5m\"") // one attempt
	s.edit("manifests/web.hcl", "preset.vm-small\n", "preset.vm-small\n    tags = [\"x\"]\n")
	r := s.pass("apply")
	require.Contains(t, describe(r), "192.0.2.50:81: ", "it was tried")
	require.Contains(t, describe(r), "connection refused")
}

// Another host key of the host that leads to the guests is its own affair: it is reported once, and of no guest.
func TestN11AnotherHostKeyOfTheHost(t *testing.T) {
	s := beginSimulated(t, "spec \"base\" {\n  config {\n    timezone = \"Europe/Berlin\"\n  }\n}\n")
	var nodes []string
	for n := range 3 {
		nodes = append(nodes, vm(fmt.Sprintf("web-%d", n+1), `spec = spec.base`, `nic "lan" {`, fmt.Sprintf(`  ip = "192.0.2.5%d/24"`, n), `}`))
	}
	s.deploy("web", strings.Join(nodes, ""))
	s.serveHost()
	s.apply("at first")
	const other = `host_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIM87Cr18C+sxhaRWLCZqJeH+c+34Wt/aUlIL/AmPJCgC"`
	text, err := os.ReadFile(s.dir + "/host.hcl")
	require.NoError(t, err)
	s.write("host.hcl", regexp.MustCompile(`host_key = "[^"]*"`).ReplaceAllString(string(text), other))

	r := s.pass("apply")
	require.Equal(t, engine.Failed, r.Outcome, describe(r))
	var all strings.Builder
	r.Plan.Text(&all, plan.TextOptions{All: true, Width: 4000})
	fmt.Fprintln(&all, r.Err)
	for _, n := range r.Nodes {
		fmt.Fprintln(&all, n.Name, n.Status, n.Error)
	}
	const changed = "its host key has changed"
	require.Equal(t, 1, strings.Count(r.Err.Error(), changed), all.String())
	require.Equal(t, 2, strings.Count(all.String(), changed), "once in the plan, once in the error\n%s", all.String())
	require.Contains(t, r.Err.Error(), "they are entered through the host (jump), and it cannot be entered: ssh to root@127.0.0.1:")
}

// An item that leaves the spec leaves the machine, and the rest stays.
func TestST11SimulatedWithdrawal(t *testing.T) {
	s := beginSimulated(t, specOf())
	s.apply("at first")
	var gone []string
	for _, f := range simulatedFields {
		gone = append(gone, f.name)
		s.write("specs.hcl", specOf(gone...))
		s.apply("without " + f.name)
		s.holds(f.absent, "without "+f.name)
		for _, stays := range simulatedFields[len(gone):] {
			s.holds(stays.effect, "without "+f.name+", with "+stays.name)
		}
	}
	s.remove("manifests/web.hcl")
	require.Equal(t, engine.Done, s.pass("apply").Outcome)
	require.Nil(t, s.guests.Machine("10000"), "it is gone with all that is inside")
}

// The address of a guest moves with the files, and the guest answers at the new one alone. One that is in no network of the guest
// is taken back by the guest itself.
func TestST02SimulatedAddressMoves(t *testing.T) {
	s := beginSimulated(t, strings.Replace(specOf(), "  access {\n", "  network {\n    dns = [\"192.0.2.54\"]\n  }\n  access {\n", 1))
	move := func(ip, gateway string) {
		s.deploy("web", vm("web-1", `spec = spec.base`, `nic "lan" {`, `  ip = "`+ip+`/24"`, `  gateway = "`+gateway+`"`, `}`, `disk "data" {`, `  size = 1`, `}`))
	}
	move("192.0.2.50", "192.0.2.1")
	at := func(ip string) {
		t.Helper()
		s.holds("n=0; until ip -4 -o addr show dev eth0 scope global | grep -q ' "+ip+"/24 ' && [ -z \"$(ls /var/lib/homestak-gitops-spec/revert)\" ]; do n=$((n + 1)); [ $n -lt 3000 ] || { ip -4 -o addr show; ls /var/lib/homestak-gitops-spec/revert; exit 1; }; sleep 0.1; done", "inside")
		for _, one := range []string{"192.0.2.50", "192.0.2.60", "198.51.100.5"} {
			conn, err := s.dial(t.Context(), "tcp", one+":2222")
			if one != ip {
				require.ErrorContains(t, err, "no route to host", one)
				continue
			}
			require.NoError(t, err)
			require.NoError(t, conn.Close())
		}
	}
	s.apply("at first")
	at("192.0.2.50")
	move("192.0.2.60", "192.0.2.1")
	s.apply("at another address")
	at("192.0.2.60")
	s.holds("grep -qx 'nameserver 192.0.2.54' /etc/resolv.conf && ip route show default | grep -q 'via 192.0.2.1 '", "inside")

	s.confirm = 10 * time.Second
	move("198.51.100.5", "198.51.100.1")
	r := s.pass("apply")
	require.Equal(t, engine.Partly, r.Outcome, describe(r))
	require.Contains(t, describe(r), "no connection was possible afterwards")
	at("192.0.2.60")

	move("192.0.2.50", "192.0.2.1")
	s.write("specs.hcl", specOf())
	s.apply("without network")
	at("192.0.2.50")
	s.holds("[ \"$(find /etc -name '*homestak*network*')\" = '' ]", "set back")
}

// A node that loses its spec altogether is left by all of it, also where only the spec that went says how to enter it.
func TestST11SimulatedNodeLosesItsSpec(t *testing.T) {
	s := beginSimulated(t, specOf())
	s.apply("at first")
	was := s.loaded
	s.edit("manifests/web.hcl", "spec = spec.base", "")
	s.write("specs.hcl", "")
	r := s.pass("plan")
	require.Empty(t, actions(r.Plan))
	require.Contains(t, describe(r), "vm.web-1 has no spec any more, and what its last spec configured stays")
	s.earlier = was
	r = s.pass("plan")
	require.Equal(t, []string{"update guest.web-1"}, actions(r.Plan))
	require.NotContains(t, describe(r), "has no spec any more")
	s.apply("by the commit before")
	for _, f := range simulatedFields {
		s.holds(f.absent, "without "+f.name)
	}
	s.earlier = nil
	s.apply("when the host has converged")
	require.NotContains(t, describe(s.pass("plan")), "has no spec any more")
}

// state is what an apply could have changed, line by line.
const state = `cat /etc/hostname /etc/hosts /etc/fstab /proc/swaps /etc/motd /etc/passwd; cut -d: -f1,4 /etc/group; readlink -f /etc/localtime; dpkg-query -W; apt-mark showauto; sshd -T; systemctl list-units; systemctl list-unit-files
	cat /etc/sudoers.d/* /home/*/.ssh/* /etc/ssh/sshd_config.d/* /etc/sysctl.d/* /etc/apt/sources.list.d/* /proc/sys/net/ipv4/ip_forward; ls -A /var/lib/homestak-gitops /var/lib/homestak-gitops-spec/revert`

// A push may be cut off anywhere: of its connection to the guest, and of its requests to the host. Passes
// that come after it go on, to the same end.
func TestST14SimulatedPushThatIsCutOff(t *testing.T) {
	clean := beginSimulated(t, specOf())
	clean.apply("undisturbed")
	want, _ := clean.inside(state)
	writes := clean.writes.Load()
	require.Greater(t, writes, int64(100))
	points := int64(6)
	if os.Getenv("HOMESTAK_FAULTS") == "all" {
		points = writes
	}
	for n := int64(1); n <= writes; n += max(writes/points, 1) {
		t.Run(fmt.Sprintf("write %d", n), func(t *testing.T) {
			s := beginSimulated(t, specOf())
			s.cut.Store(n)
			s.resume()
			got, _ := s.inside(state)
			sameLines(t, want, got)
		})
	}
	for _, effect := range []bool{false, true} {
		for n := int32(1); n <= 6; n++ {
			t.Run(fmt.Sprintf("request %d, effect %v", n, effect), func(t *testing.T) {
				s := beginSimulated(t, specOf())
				var seen atomic.Int32
				fault := func(r *http.Request) (int, bool) {
					if r.Method != http.MethodGet && seen.Add(1) == n {
						return -1, effect
					}
					return 0, false
				}
				s.fault.Store(&fault)
				s.resume()
				got, _ := s.inside(state)
				sameLines(t, want, got)
			})
		}
	}
}

// sameLines requires that two texts agree, and shows only where they do not.
func sameLines(t *testing.T, want, got string) {
	t.Helper()
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	require.Empty(t, slices.DeleteFunc(slices.Clone(a), func(line string) bool { return slices.Contains(b, line) }), "missing")
	require.Empty(t, slices.DeleteFunc(slices.Clone(b), func(line string) bool { return slices.Contains(a, line) }), "too many")
}

// resume makes a pass that may fail, and others until one is done.
func (s *simulated) resume() {
	s.t.Helper()
	s.pass("apply")
	s.cut.Store(0)
	const most = 3
	for range most {
		if r := s.pass("apply"); r.Outcome == engine.Done && len(r.Plan.Unknown) == 0 {
			break
		}
	}
	s.apply("after it was cut off")
}

// A guest that is made again is another machine: it has another host key, and nothing of the old one.
func TestST02SimulatedGuestIsRecreated(t *testing.T) {
	s := beginSimulated(t, specOf())
	s.apply("at first")
	before, _ := s.inside("cat /etc/ssh/ssh_host_ed25519_key.pub")
	known, err := s.hosts.Of("home/father/vm.web-1")
	require.NoError(t, err)
	require.Contains(t, before, known.Keys[0])
	s.holds("echo mine >/srv/mine", "by hand")
	s.host.Edit(func(e *pve.Edit) { e.Delete(10000) })
	s.apply("after it was deleted by hand")
	after, _ := s.inside("cat /etc/ssh/ssh_host_ed25519_key.pub; [ ! -e /srv/mine ] && echo fresh")
	require.NotContains(t, after, before)
	require.Contains(t, after, "fresh")
}

// A guest from another image has no system to enter, and its node says so.
func TestSimulatedGuestOfAnotherImage(t *testing.T) {
	s := beginSimulated(t, specOf())
	s.write("images.hcl", "image \"windows\" {\n  url      = \"https://images.example/windows.qcow2\"\n  checksum = \"sha256:00000000000000000000000000000000000000000000000000000000000000bb\"\n}\n")
	s.deploy("web", strings.Replace(vm("web-1", `nic "lan" {`, `  ip = "192.0.2.50/24"`, `}`), "image.debian-12", "image.windows", 1))
	require.Equal(t, engine.Done, s.pass("apply").Outcome)
	_, err := s.dial(t.Context(), "tcp", "192.0.2.50:22")
	require.ErrorContains(t, err, "no route to host")
	require.Nil(t, s.guests.Machine("10000"))
}

// The guest agent reaches into the same machine.
func TestST02SimulatedPushByTheGuestAgent(t *testing.T) {
	s := beginSimulated(t, strings.Replace(specOf(), "  access {\n", "  access {\n via = \"agent\"\n", 1), "agent = true")
	s.apply("by the agent")
	for _, f := range simulatedFields {
		s.holds(f.effect, f.name)
	}
	require.Zero(t, s.writes.Load(), "no connection was made")
}
