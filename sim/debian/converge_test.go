package debian_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/sim/debian"
)

// inside is a machine that is entered from within.
type inside struct {
	*debian.Machine
	runs int
}

func (m *inside) Run(_ context.Context, c guest.Command) (guest.Output, error) {
	m.runs++
	return m.Exec(c.Args, c.Stdin)
}

// Exec runs a program as root.
func (m *inside) Exec(args []string, in []byte) (guest.Output, error) {
	var out, errs bytes.Buffer
	s := m.Root(args...)
	s.In, s.Out, s.Err = bytes.NewReader(in), &out, &errs
	p, err := m.K.Start(s)
	if err != nil {
		return guest.Output{}, err
	}
	code, signal := p.Ended()
	return guest.Output{Code: code, Signal: int(signal), Out: out.String(), Err: errs.String()}, nil
}

func (m *inside) sh(t *testing.T, line string) string {
	t.Helper()
	out, err := m.Exec([]string{"sh", "-c", line}, nil)
	require.NoError(t, err)
	require.Zero(t, out.Code, "%s\n%s%s", line, out.Out, out.Err)
	return out.Out
}

func begin(t *testing.T, more ...debian.Package) *inside {
	t.Helper()
	m := debian.NewDisk(debian.Options{Packages: more}).Begin(debian.Birth{Instance: "1", Hostname: "vm"})
	t.Cleanup(m.Halt)
	return &inside{Machine: m}
}

func parse(t *testing.T, document string) *spec.Spec {
	t.Helper()
	s, err := spec.Read([]byte(fmt.Sprintf(`{"version": 1, "node": "edge", "spec": "test", %s}`, document)))
	require.NoError(t, err)
	return s
}

func (m *inside) apply(t *testing.T, s *spec.Spec) {
	t.Helper()
	state, err := converge.Apply(t.Context(), m, s, converge.Options{})
	require.NoError(t, err)
	require.Empty(t, state.Changes())
	require.Empty(t, state.Unknown)
	m.runs = 0
	_, err = converge.Apply(t.Context(), m, s, converge.Options{})
	require.NoError(t, err)
	require.Equal(t, 1, m.runs, "a second apply reads, and does nothing")
}

const (
	keyA = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA a@laptop"
	keyB = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB b@laptop"
)

// whole is a spec with a value for everything, as test/machines has it for real machines.
const whole = `
	"identity": {"hostname": "edge", "domain": "home.example"},
	"access": {"users": [
		{"name": "ann", "sudo": "nopasswd", "ssh_keys": ["` + keyA + `", "` + keyB + `"], "groups": ["video", "ops"], "shell": "/bin/bash"},
		{"name": "bob", "sudo": "none", "ssh_keys": [], "shell": "/bin/sh"}]},
	"posture": {"name": "prod", "ssh": {"port": "2222", "permit_root_login": "no", "password_authentication": "no"}, "fail2ban": {}},
	"platform": {"packages": ["htop", "nginx", "fail2ban"], "services": {"nginx": "enabled", "fail2ban": "enabled", "cron": "disabled"}},
	"config": {"timezone": "Europe/Berlin", "sysctl": {"net.ipv4.ip_forward": "1"},
		"repositories": [{"name": "extra", "url": "https://packages.example.org/debian", "suites": ["./"], "key": "-----BEGIN PGP PUBLIC KEY BLOCK-----\n"}], "commands": [{"name": "once", "run": "true"}],
		"files": [{"path": "/etc/homestak-test/app.conf", "content": "it's \"here\"\n", "mode": "0640", "owner": "root", "group": "video", "restart": ["nginx"]},
			{"path": "/etc/motd", "content": "welcome\n", "mode": "0644", "owner": "root", "group": "root"}]}`

// A spec with everything in it is applied, and leaves nothing behind when it is dropped but
// what is said to stay.
func TestAWholeSpec(t *testing.T) {
	m := begin(t)
	m.apply(t, parse(t, whole))
	m.sh(t, `[ "$(hostname -f)" = edge.home.example ] && systemctl is-active nginx fail2ban && ! systemctl is-active cron && [ "$(date +%Z)" = CET ]`)
	require.Equal(t, []int{2222}, m.SSHD().Ports)
	require.Equal(t, "600 root root\n", m.sh(t, "stat -c '%a %U %G' /var/lib/homestak-gitops-spec/owned.json"))
	m.apply(t, parse(t, `"access": {"former_users": "remove"}`))
	require.Equal(t, []int{22}, m.SSHD().Ports)
	m.sh(t, "! id ann && ! getent group ops && ! command -v htop && ! command -v nginx && grep -q WARRANTY /etc/motd && systemctl is-active cron")
	require.JSONEq(t, `{"version": 1, "entries": []}`, m.sh(t, "cat /var/lib/homestak-gitops-spec/owned.json"))
	require.Empty(t, strings.TrimSpace(m.sh(t, "ls -A /var/lib/homestak-gitops-spec/revert /var/lib/homestak-gitops-spec/found | grep -v : || :; find / -xdev -name '*homestak-new*'")))
}

// The record of an earlier version is in a folder that may be an agent's. Only what is root's is taken from there.
func TestTheRecordOfAnEarlierVersionIsMoved(t *testing.T) {
	m := begin(t)
	motd := parse(t, `"config": {"files": [{"path": "/etc/motd", "content": "welcome\n", "mode": "0644", "owner": "root", "group": "root"}]}`)
	m.apply(t, motd)
	m.sh(t, "rm -rf /var/lib/homestak-gitops && mv /var/lib/homestak-gitops-spec /var/lib/homestak-gitops")
	m.apply(t, motd)
	m.sh(t, "[ ! -e /var/lib/homestak-gitops/owned.json ] && [ ! -e /var/lib/homestak-gitops/found ]")
	m.apply(t, parse(t, `"config": {}`))
	m.sh(t, "grep -q WARRANTY /etc/motd")

	m.sh(t, `useradd eve; rm -rf /var/lib/homestak-gitops-spec; echo '{"version": 1, "entries": [{"aspect": "packages", "item": "sudo"}]}' >/var/lib/homestak-gitops/owned.json; chown eve /var/lib/homestak-gitops/owned.json`)
	m.apply(t, parse(t, `"config": {}`))
	m.sh(t, "[ ! -e /var/lib/homestak-gitops-spec ]")
	m.sh(t, "rm /var/lib/homestak-gitops/owned.json; ln -s /etc/passwd /var/lib/homestak-gitops/owned.json")
	m.apply(t, parse(t, `"config": {}`))
	m.sh(t, "[ ! -e /var/lib/homestak-gitops-spec ]")
}

// A machine without a name server gets everything of its spec that needs no package. What needs one waits, and nothing is
// withdrawn whose successor is among it.
func TestR4WithoutNamesTheRestIsApplied(t *testing.T) {
	m := begin(t)
	m.apply(t, parse(t, `"access": {"users": [{"name": "old", "sudo": "none", "ssh_keys": ["`+keyA+`"], "shell": "/bin/sh"}]}, "platform": {"packages": ["htop"]},
		"config": {"files": [{"path": "/etc/gone", "content": "x\n", "mode": "0644", "owner": "root", "group": "root"}]}`))
	m.Unnamed(true)
	want := parse(t, `"access": {"users": [
			{"name": "ann", "sudo": "nopasswd", "ssh_keys": ["`+keyA+`"], "shell": "/bin/bash"},
			{"name": "bob", "sudo": "none", "ssh_keys": ["`+keyB+`"], "groups": ["docker"], "shell": "/bin/sh"}]},
		"posture": {"name": "prod", "ssh": {"port": "2222", "permit_root_login": "no", "password_authentication": "no"}},
		"platform": {"packages": ["jq", "tree", "nginx"], "services": {"nginx": "enabled", "cron": "disabled"}},
		"config": {"timezone": "Europe/Berlin", "sysctl": {"net.ipv4.ip_forward": "1"}, "commands": [{"name": "once", "run": "jq --version"}],
			"repositories": [{"name": "extra", "url": "https://packages.example.org/debian", "suites": ["./"]}],
			"files": [{"path": "/etc/motd", "content": "welcome\n", "mode": "0644", "owner": "root", "group": "root"},
				{"path": "/etc/nginx/site.conf", "content": "x\n", "mode": "0644", "owner": "root", "group": "root", "restart": ["nginx"]}]}`)
	var started []string
	_, err := converge.Apply(t.Context(), m, want, converge.Options{Started: func(s aspect.Step) { started = append(started, s.Text) }})
	require.EqualError(t, err, "edge: add repository extra: repository extra cannot be read: the name packages.example.org cannot be resolved on this machine: check its name servers in /etc/resolv.conf (none)"+
		" (waiting for it: install jq, nginx, tree, make user bob, set the keys of bob, write /etc/nginx/site.conf, restart nginx, enable and start nginx, run command once,"+
		" withdraw the keys of old, lock user old, remove /etc/gone, remove htop unless something else needs it)")
	require.Equal(t, []string{
		"add repository extra", "stop and disable cron", "set the time zone to Europe/Berlin", "make user ann", "set the keys of ann",
		"set the sudo rules", "write /etc/motd", "set net.ipv4.ip_forward", "set the SSH server to port 2222, root login no, passwords no",
	}, started)
	m.sh(t, `id ann && ! id bob && [ "$(date +%Z)" = CET ] && grep -q welcome /etc/motd && ! systemctl is-active cron && [ -f /etc/gone ] && command -v htop`)
	require.Equal(t, []int{2222}, m.SSHD().Ports)

	m.Unnamed(false)
	m.apply(t, want)
	m.sh(t, `id -Gn bob | grep -qw docker && systemctl is-active nginx && [ ! -e /etc/gone ] && ! command -v htop`)
}

// What fails only while apt runs is put aside as well, although the packages are recorded already.
func TestR4APackageThatFailsWhileItIsInstalled(t *testing.T) {
	m := begin(t, debian.Package{Name: "broken", Scripts: map[string]string{"postinst": "#!/bin/sh\nexit 1\n"}})
	_, err := converge.Apply(t.Context(), m, parse(t, `"platform": {"packages": ["broken"]}, "config": {"timezone": "Europe/Berlin", "commands": [{"name": "once", "run": "true"}]}`), converge.Options{})
	require.ErrorContains(t, err, "edge: install broken: ")
	require.ErrorContains(t, err, "(waiting for it: run command once)")
	m.sh(t, `[ "$(date +%Z)" = CET ] && grep -q '"item": *"broken"' /var/lib/homestak-gitops-spec/owned.json && grep -q '"aspect": *"timezone"' /var/lib/homestak-gitops-spec/owned.json`)
}

// A name server that is away costs nothing where apt has all it needs.
func TestR4WithoutNamesWhatIsInstalledStays(t *testing.T) {
	m := begin(t)
	m.apply(t, parse(t, `"platform": {"packages": ["git"]}`))
	m.Unnamed(true)
	m.apply(t, parse(t, `"platform": {"packages": ["git", "less"]}`)) // it came with git
}

// A package of a spec that leaves it while another one needs it stays ours: the spec can name it again, and it goes with the last
// one that needs it.
func TestAPackageThatIsNeededForAWhile(t *testing.T) {
	m := begin(t, debian.Package{Name: "lib"}, debian.Package{Name: "tool", Depends: []string{"lib"}}, debian.Package{Name: "other", Depends: []string{"lib"}}, debian.Package{Name: "needer", Depends: []string{"tool"}})
	packages := func(list string) {
		t.Helper()
		m.apply(t, parse(t, `"platform": {"packages": [`+list+`]}`))
	}
	has := func(want string) {
		t.Helper()
		require.Equal(t, want, m.sh(t, `for p in lib tool other needer; do if dpkg-query -W -f='${db:Status-Status}' -- $p 2>/dev/null | grep -q '^installed'; then printf ' %s' $p; fi; done`))
	}
	nothing := func() {
		t.Helper()
		has("")
		require.JSONEq(t, `{"version": 1, "entries": []}`, m.sh(t, "cat /var/lib/homestak-gitops-spec/owned.json"))
	}
	packages(`"tool"`)
	packages(`"needer"`)
	has(" lib tool needer")
	m.sh(t, "apt-mark showauto | grep -qx tool")
	packages(`"tool"`)
	has(" lib tool")
	packages(`"other", "tool"`)
	packages(`"other"`)
	has(" lib other")
	packages("")
	nothing()

	packages(`"tool"`)
	packages(`"needer"`)
	packages("")
	nothing()

	packages(`"tool"`)
	m.sh(t, "apt-get -y remove tool")
	packages(`"other"`)
	m.sh(t, "! grep -q tool /var/lib/homestak-gitops-spec/owned.json")
	packages("")
	nothing()
}
