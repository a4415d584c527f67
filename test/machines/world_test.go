// Package machines_test applies specs to a real Debian with systemd, sshd and apt, which
// test/nspawn boots: that every field takes effect, is left alone when it is right, and is
// withdrawn when it is dropped, whatever was cut off in between. The files installed_…_test.go run
// the program as it is installed there, with its units.
//
// world_test.go is the machine, what the tests see of it, and the packages that apt finds
// there; nothing of it needs a network.
package machines_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// debian is what the machines are booted from: what an image for the cloud has, as far as
// aspects touch it.
func debian(suite string) nspawn.Rootfs {
	return nspawn.Rootfs{
		Packages: nspawn.Systemd + ",openssh-server,sudo,iproute2,libpam-systemd,ifupdown,fail2ban,python3-systemd,e2fsprogs",
		Suite:    suite, Ready: "HOMESTAK_MACHINES_ROOTFS",
	}
}

// world is a machine, and the way into it.
type world struct {
	*nspawn.Machine
	t       *testing.T
	key     string // that signs the repository /srv/apt/extra; "" if nothing here can sign
	archive string // folder of the repositories
	// runs counts the commands that were run.
	runs int
	// instead replaces a script before it runs. May be nil.
	instead func(c guest.Command) guest.Command
	// over is the way into the machine, if not by entering its namespaces. May be nil.
	over converge.Machine
	// environment is that of what is run, beside the usual one.
	environment []string
}

// begin boots a machine that nothing was put on.
func begin(t *testing.T, binds ...nspawn.Bind) *world {
	t.Helper()
	nspawn.Need(t)
	dir, key := repository(t)
	w := &world{t: t, key: key, archive: dir}
	return w.boot(nspawn.Rootfs.Boot, binds...)
}

// beginFrom boots a machine from another folder. Its sources of apt are what they are.
func beginFrom(t *testing.T, base nspawn.Rootfs, binds ...nspawn.Bind) *world {
	t.Helper()
	nspawn.Need(t)
	dir, key := repository(t)
	w := &world{t: t, key: key, archive: dir}
	return w.bootFrom(nspawn.Rootfs.Boot, base, binds...)
}

// sibling boots another such machine, which installs from the same repositories.
func (w *world) sibling(t *testing.T, how func(nspawn.Rootfs, testing.TB, ...nspawn.Bind) *nspawn.Machine, binds ...nspawn.Bind) *world {
	t.Helper()
	return (&world{t: t, key: w.key, archive: w.archive}).boot(how, binds...)
}

func (w *world) boot(how func(nspawn.Rootfs, testing.TB, ...nspawn.Bind) *nspawn.Machine, binds ...nspawn.Bind) *world {
	w.t.Helper()
	w.bootFrom(how, debian(""), binds...)
	w.Run0("rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/*; echo 'deb [trusted=yes] file:/srv/apt ./' >/etc/apt/sources.list")
	return w
}

func (w *world) bootFrom(how func(nspawn.Rootfs, testing.TB, ...nspawn.Bind) *nspawn.Machine, base nspawn.Rootfs, binds ...nspawn.Bind) *world {
	w.t.Helper()
	w.Machine = how(base, w.t, append(binds, nspawn.Bind{From: w.archive, To: "/srv/apt"})...)
	w.t.Cleanup(w.Kill)
	// systemd counts the starts of a unit, and a test makes many; fail2ban does not always
	// respond to a stop while it starts.
	w.Run0("cd /etc/systemd/system && mkdir -p service.d socket.d && printf '[Unit]\\nStartLimitIntervalSec=0\\n' | tee service.d/often.conf >socket.d/often.conf && printf '[Service]\\nTimeoutStopSec=3s\\n' >>service.d/often.conf && systemctl daemon-reload")
	return w
}

// Run0 runs a line of shell in the machine, and gives what it printed.
func (w *world) Run0(line string) string {
	w.t.Helper()
	return w.Run("sh", "-c", line)
}

// way is the way into the machine as an apply has it.
type way struct{ *world }

// Run is that of guest.Machine.
func (m way) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	if ctx.Err() != nil {
		return guest.Output{}, ctx.Err()
	}
	m.runs++
	if m.instead != nil {
		c = m.instead(c)
	}
	if m.over != nil {
		return m.over.Run(ctx, c)
	}
	cmd := m.Command(c.Args...)
	cmd.Env = append(cmd.Env, m.environment...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a process that kills its group kills no other
	var out, complaints bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(c.Stdin), &out, &complaints
	err := cmd.Run()
	o := guest.Output{Out: out.String(), Err: complaints.String()}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		o.Code = exit.ExitCode()
		if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			o.Code, o.Signal = 0, int(s.Signal())
		}
	case err != nil:
		return o, err
	}
	return o, nil
}

// apply applies a spec, and requires that it succeeds, also on a machine where each command takes seconds.
func (w *world) apply(s *spec.Spec) *converge.State {
	w.t.Helper()
	state, err := converge.Apply(context.Background(), way{w}, s, converge.Options{ConfirmWithin: time.Hour})
	require.NoError(w.t, err)
	require.Empty(w.t, changes(state))
	return state
}

// observe reads the machine for a spec.
func (w *world) observe(s *spec.Spec) *converge.State {
	w.t.Helper()
	state, err := converge.Observe(context.Background(), way{w}, s)
	require.NoError(w.t, err)
	require.Empty(w.t, state.Unknown)
	return state
}

func changes(s *converge.State) []string {
	var out []string
	for _, c := range s.Changes() {
		out = append(out, c.String())
	}
	return out
}

// snapshot is everything on the machine that an apply could change, item by item: packages, units,
// accounts with their shadow flags, keys, sudo, sshd, fail2ban, kernel parameters, name, time zone,
// repositories, and every file and folder of /etc, of homes and of what people add. What differs by
// itself, such as times and numbers of processes, is not in it.
func (w *world) snapshot() string {
	w.t.Helper()
	const places = "/etc /home /root /srv /opt /usr/local /var/spool /var/lib/homestak-gitops"
	return w.Run0(strings.Join([]string{
		"echo name $(uname -n) $(hostname -f 2>/dev/null)", "echo zone $(readlink /etc/localtime) $(date +%Z)",
		"dpkg-query -W -f='package ${Package} ${Version} ${db:Status-Abbrev}\n' | grep -v '^package .* rc '", "apt-mark showmanual | sed 's/^/manual /'",
		"apt-cache policy | grep -E '^ +(-?[0-9]+ |release )'",
		"systemctl list-unit-files --no-legend --no-pager | awk '{print \"unit file\", $1, $2}' | grep -v ' run-\\|\\.mount\\|homestak-gitops-revert'",
		"systemctl list-units --no-legend --no-pager --plain --type=service,socket,timer --state=active | awk '{print \"unit\", $1, $3}' | grep -v 'user-runtime-dir\\|user@\\|homestak-gitops-revert\\|apt-daily\\|dpkg-db\\|e2scrub\\|systemd-tmpfiles-clean\\|fstrim\\|systemd-hostnamed\\|systemd-random\\|ifup@\\|session-'",
		"cut -d: -f1,6,7 /etc/passwd | sort", "cut -d: -f1,4 /etc/group | sort", "awk -F: '{print \"shadow\", $1, substr($2,1,1), $4, $5, $6, $7, $8}' /etc/shadow | sort",
		"cut -d: -f1 /etc/subuid /etc/subgid | sort",
		"find " + places + " -xdev -printf '%p %y %m %u %g %l\\n' 2>/dev/null | grep -vE '" + passing + "' | sort",
		"find " + places + " -xdev -type f -print0 2>/dev/null | grep -zvE '" + passing + "|^/etc/(passwd|group|shadow|gshadow|subuid|subgid)$|/owned.json$|/config-[a-z]*.json$' | sort -z | xargs -0 sha256sum",
		"for f in /root/.ssh/* /home/*/.ssh/* /etc/hosts /etc/hostname /etc/timezone /etc/sudoers.d/* /etc/ssh/sshd_config.d/* /etc/sysctl.d/zz* /etc/fail2ban/jail.d/* /etc/apt/sources.list.d/* /etc/homestak-test/*; do if [ -f $f ]; then sed \"s|^|$f: |\" $f; fi; done",
		"[ -d /run/sshd ] || mkdir /run/sshd; sshd -T | sort | sed 's/^/sshd /'", "if systemctl is-active -q fail2ban; then fail2ban-client status | sed 's/^/fail2ban /'; fi",
		"grep -r . /proc/sys/net 2>/dev/null | grep -v '/nf_conntrack_count\\|/stat/\\|random\\|_secret' | sort",
		"visudo -c 2>&1 | sort", "ls /var/lib/dpkg/info | sort",
	}, "; echo ---; "))
}

// passing are files below /etc and homes that change without our doing: backups of accounts, caches, and traces of a login.
const passing = `^/etc/[a-z]+-( |$)|^/etc/(\.pwd\.lock|machine-id|ld\.so\.cache|resolv\.conf|\.updated)( |$)|\.homestak-new|^/var/spool/.*/(log|state)|/\.ansible`

// whole is the spec with everything in it. Without gpg it has no repository.
func (w *world) whole() *spec.Spec {
	w.t.Helper()
	key, err := json.Marshal(w.key)
	require.NoError(w.t, err)
	s := parse(w.t, strings.Replace(whole, `"KEY"`, string(key), 1))
	if w.key == "" {
		s.Config.Repositories = nil
	}
	return s
}

// same requires that two snapshots agree, and shows only where they do not.
func same(t *testing.T, want, got, when string) {
	t.Helper()
	if want == got {
		return
	}
	lines := func(s string) map[string]bool {
		of := map[string]bool{}
		for line := range strings.Lines(s) {
			of[line] = true
		}
		return of
	}
	a, b := lines(want), lines(got)
	for line := range strings.Lines(want) {
		if !b[line] {
			t.Errorf("%s: missing: %s", when, line)
		}
	}
	for line := range strings.Lines(got) {
		if !a[line] {
			t.Errorf("%s: not wanted: %s", when, line)
		}
	}
	t.Fatalf("%s: the machine differs", when)
}

// parse makes a spec of a document without the fields that every one has.
func parse(t *testing.T, document string) *spec.Spec {
	t.Helper()
	s, err := spec.Read([]byte(fmt.Sprintf(`{"version": 1, "node": "edge", "spec": "test", %s}`, document)))
	require.NoError(t, err)
	return s
}

// content is what a package has.
type content struct {
	fields string // further ones of its control file
	files  map[string]string
}

// archive is what the repository has: packages by name, with their further fields and files.
var archive = map[string]content{
	"hs-lib":    {files: map[string]string{"usr/share/hs-lib/data": "data\n"}},
	"hs-tool":   {fields: "Depends: hs-lib\n", files: map[string]string{"usr/bin/hs-tool": "#!/bin/sh\necho tool\n"}},
	"hs-other":  {fields: "Depends: hs-lib\n", files: map[string]string{"usr/bin/hs-other": "#!/bin/sh\necho other\n"}},
	"hs-needer": {fields: "Depends: hs-tool\n", files: map[string]string{"usr/bin/hs-needer": "#!/bin/sh\n"}},
	// The second replaces the first (Debian Policy, 7.6.2), the third only conflicts with it.
	"hs-mailer":  {fields: "Provides: hs-mail\nConflicts: hs-mail\nReplaces: hs-mail\n", files: map[string]string{"usr/bin/hs-mailer": "#!/bin/sh\necho mailer\n"}},
	"hs-postman": {fields: "Provides: hs-mail\nConflicts: hs-mail\nReplaces: hs-mail (<< 9), hs-other-mail\n", files: map[string]string{"usr/bin/hs-postman": "#!/bin/sh\necho postman\n"}},
	"hs-enemy":   {fields: "Conflicts: hs-mailer\n", files: map[string]string{"usr/bin/hs-enemy": "#!/bin/sh\n"}},
	"hs-daemon": {files: map[string]string{
		"lib/systemd/system/hs-daemon.service": "[Unit]\nDescription=test\n[Service]\nExecStart=/usr/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n",
		"etc/hs-daemon.conf":                   "shipped\n",
		"DEBIAN/conffiles":                     "/etc/hs-daemon.conf\n",
		// As debhelper writes it: enabled and started when it is installed. A test that kills dpkg on the way
		// asks it to stop there.
		"DEBIAN/postinst": "#!/bin/sh\nset -e\nif [ -e /run/stop-in-postinst ]; then touch /run/stopped; exec sleep 1000; fi\nif [ \"$1\" = configure ]; then systemctl daemon-reload; systemctl enable --now --quiet hs-daemon.service; fi\n",
		"DEBIAN/prerm":    "#!/bin/sh\nset -e\nif [ \"$1\" = remove ]; then systemctl disable --now --quiet hs-daemon.service; fi\n",
		"DEBIAN/postrm":   "#!/bin/sh\nset -e\nsystemctl daemon-reload\n",
	}},
	"hs-socket": {files: map[string]string{
		"lib/systemd/system/hs-socket.service": "[Unit]\nDescription=test\n[Service]\nExecStart=/usr/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n",
		"lib/systemd/system/hs-socket.socket":  "[Socket]\nListenStream=/run/hs-socket\n[Install]\nWantedBy=sockets.target\n",
	}},
	// The lines of the web interface that ask for a subscription, as Proxmox VE 9 has them.
	"proxmox-widget-toolkit": {files: map[string]string{"usr/share/javascript/proxmox-widget-toolkit/proxmoxlib.js": webLibrary9}},
	"hs-broken":              {files: map[string]string{"DEBIAN/postinst": "#!/bin/sh\necho it cannot be configured >&2\nexit 1\n"}},
	"hs-unmet":               {fields: "Depends: hs-missing (>= 2)\n"},
	// It is larger than the small file system of a test.
	"hs-big":              {files: map[string]string{"usr/share/hs-big/data": strings.Repeat("0123456789abcdef", 1<<16)}},
	"unattended-upgrades": {files: map[string]string{"usr/share/unattended-upgrades/20auto-upgrades": "APT::Periodic::Unattended-Upgrade \"1\";\n"}},
}

// built is the folder that apt reads and the key that signs, the same for all machines, which only
// read it. The first machine builds it, and TestMain removes it.
var built struct {
	once     sync.Once
	dir, key string
	whole    bool
}

func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); strings.HasPrefix(name, "pve") {
		os.Exit(programOfPVE(name))
	}
	m.Run()
	_ = os.RemoveAll(built.dir)
	_ = os.RemoveAll(installedProgram.dir)
}

// repository gives the folder that apt reads. Nothing of it is signed, and nothing is
// fetched. Its folder extra is a repository of its own, which is signed by the key, where
// this machine has gpg.
func repository(t *testing.T) (dir, key string) {
	t.Helper()
	built.once.Do(func() {
		var err error
		built.dir, err = os.MkdirTemp("", "homestak-apt-")
		require.NoError(t, err)
		built.key = buildRepository(t, built.dir)
		built.whole = true
	})
	require.True(t, built.whole, "the test that built the packages failed")
	return built.dir, built.key
}

// buildRepository builds the packages in a folder, and gives the key; "" without gpg.
func buildRepository(t *testing.T, dir string) (key string) {
	t.Helper()
	require.NoError(t, os.Chmod(dir, 0o755)) // apt reads as a user of its own
	build(t, dir, archive)
	extra := filepath.Join(dir, "extra")
	require.NoError(t, os.Mkdir(extra, 0o755))
	index := build(t, extra, map[string]content{"hs-extra": {files: map[string]string{"usr/bin/hs-extra": "#!/bin/sh\necho extra\n"}}})
	release(t, extra, map[string]string{"Packages": index})
	// A repository with components, as most have it.
	parts := filepath.Join(dir, "parts")
	require.NoError(t, os.Mkdir(parts, 0o755))
	part := build(t, parts, map[string]content{"hs-part": {files: map[string]string{"usr/bin/hs-part": "#!/bin/sh\necho part\n"}}})
	suite, lists := filepath.Join(parts, "dists/stable"), map[string]string{}
	for component, index := range map[string]string{"main": part, "other": ""} {
		for _, architecture := range []string{"amd64", "arm64", "all"} {
			name := component + "/binary-" + architecture + "/Packages"
			lists[name] = index
			write(t, filepath.Join(suite, name), index, 0o644)
		}
	}
	release(t, suite, lists)
	if _, err := exec.LookPath("gpg"); err != nil {
		return ""
	}
	home := t.TempDir()
	gpg := func(args ...string) string {
		cmd := exec.Command("gpg", append([]string{"--homedir", home, "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""}, args...)...)
		said, err := cmd.CombinedOutput()
		require.NoError(t, err, string(said))
		return string(said)
	}
	gpg("--quick-generate-key", "test <test@example.org>", "ed25519", "sign", "never")
	for _, signed := range []string{extra, suite} {
		gpg("--clearsign", "--output", filepath.Join(signed, "InRelease"), filepath.Join(signed, "Release"))
		require.NoError(t, os.Chmod(filepath.Join(signed, "InRelease"), 0o644))
	}
	t.Cleanup(func() { _ = exec.Command("gpgconf", "--homedir", home, "--kill", "gpg-agent").Run() })
	return gpg("--armor", "--export")
}

// release writes the file that names the lists of a repository.
func release(t *testing.T, dir string, lists map[string]string) {
	t.Helper()
	text := "Origin: test\nSuite: stable\nCodename: stable\nComponents: main other\nArchitectures: all amd64 arm64\nDate: Sun, 01 Nov 2026 00:00:00 UTC\nSHA256:\n"
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		text += fmt.Sprintf(" %x %d %s\n", sha256.Sum256([]byte(lists[name])), len(lists[name]), name)
	}
	write(t, filepath.Join(dir, "Release"), text, 0o644)
}

// build makes packages and their index in a folder, and gives the index.
func build(t *testing.T, dir string, packages map[string]content) string {
	t.Helper()
	var index strings.Builder
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		p := packages[name]
		root := filepath.Join(t.TempDir(), name)
		control := fmt.Sprintf("Package: %s\nVersion: 1.0\nArchitecture: all\nMaintainer: Test <test@example.org>\n%sDescription: for tests\n", name, p.fields)
		write(t, filepath.Join(root, "DEBIAN/control"), control, 0o644)
		for file, text := range p.files {
			mode := os.FileMode(0o644)
			if strings.HasPrefix(text, "#!") {
				mode = 0o755
			}
			write(t, filepath.Join(root, file), text, mode)
		}
		deb := name + "_1.0_all.deb"
		said, err := exec.Command("dpkg-deb", "--root-owner-group", "-Zgzip", "--build", root, filepath.Join(dir, deb)).CombinedOutput()
		require.NoError(t, err, string(said))
		b, err := os.ReadFile(filepath.Join(dir, deb))
		require.NoError(t, err)
		fmt.Fprintf(&index, "%sFilename: ./%s\nSize: %d\nSHA256: %x\n\n", control, deb, len(b), sha256.Sum256(b))
	}
	write(t, filepath.Join(dir, "Packages"), index.String(), 0o644)
	return index.String()
}

// ofDebian puts packages of Debian into a folder for apt, as debootstrap got them from its mirror for another machine.
func ofDebian(t *testing.T, from nspawn.Rootfs, names ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	var index strings.Builder
	for _, name := range names {
		found, err := filepath.Glob(filepath.Join(from.Folder(t), "var/cache/apt/archives", name+"_*.deb"))
		require.NoError(t, err)
		if len(found) == 0 {
			nspawn.Without(t, "the folder that machines are booted from does not have the package "+name)
		}
		control, err := exec.Command("dpkg-deb", "--field", found[0]).Output()
		require.NoError(t, err)
		b, err := os.ReadFile(found[0])
		require.NoError(t, err)
		write(t, filepath.Join(dir, name+".deb"), string(b), 0o644)
		fmt.Fprintf(&index, "%sFilename: ./%s.deb\nSize: %d\nSHA256: %x\n\n", control, name, len(b), sha256.Sum256(b))
	}
	write(t, filepath.Join(dir, "Packages"), index.String(), 0o644)
	return dir
}

func write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, []byte(text), mode))
	require.NoError(t, os.Chmod(name, mode))
}

// lan is a machine with an interface eth0, at whose other end is a network namespace lan: with a
// gateway that has the addresses 10.9.0.1 and 10.8.0.1, and a DHCP server for 10.9.0.100 to 10.9.0.120.
type lan struct{ *world }

// beginLAN boots a machine whose eth0 gets what these lines of shell say. What configures it, such as
// ifupdown, is one of the packages.
func beginLAN(t *testing.T, packages string, lines ...string) lan {
	t.Helper()
	nspawn.Need(t)
	w := lan{&world{t: t}}
	w.Machine = networked(packages).Boot(t)
	t.Cleanup(w.Kill)
	w.connect(lines...)
	return w
}

// networked is what machines with a network are booted from.
func networked(packages string) nspawn.Rootfs {
	return nspawn.Rootfs{
		Packages: nspawn.Systemd + ",openssh-server,sudo,iproute2," + packages + ",dnsmasq-base,iputils-ping,netplan.io", Ready: "HOMESTAK_NETWORK_ROOTFS",
	}
}

// connect gives the machine a network, and runs lines of shell in it.
func (w lan) connect(lines ...string) {
	w.t.Helper()
	w.Run0(strings.Join(append([]string{
		"ip netns add lan", "ip link add eth0 type veth peer name lan0 netns lan", "ip -n lan link set lo up", "ip -n lan link set lan0 up",
		"ip -n lan addr add 10.9.0.1/24 dev lan0", "ip -n lan addr add 10.8.0.1/24 dev lan0", "rm -f /etc/resolv.conf",
		"ip netns exec lan dnsmasq --port=0 --interface=lan0 --dhcp-range=10.9.0.100,10.9.0.120,10m --dhcp-option=option:dns-server,10.9.0.53 --dhcp-leasefile=/run/leases",
	}, lines...), " && "))
}

// ping asks from outside whether an address answers.
func (w lan) ping(address string) bool {
	_, code := w.Try("ip", "netns", "exec", "lan", "ping", "-c", "1", "-W", "1", address)
	return code == 0
}

// address gives the addresses of the interface.
func (w lan) address() string {
	return w.Run0("ip -4 -o addr show dev eth0 scope global | awk '{print $4}'")
}

// static is a spec with an address.
func static(t *testing.T, ip, gateway string, dns ...string) *spec.Spec {
	t.Helper()
	s := spec.Empty("edge")
	s.Name, s.Network = "test", &spec.Network{IP: ip, Gateway: gateway, DNS: dns}
	return s
}
