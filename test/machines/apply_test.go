package machines_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

const (
	keyA = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA a@laptop"
	keyB = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB b@laptop"
)

// whole is a spec with a value for everything.
const whole = `
	"identity": {"hostname": "edge", "domain": "home.example"},
	"access": {"users": [
		{"name": "ann", "sudo": "nopasswd", "ssh_keys": ["` + keyA + `", "` + keyB + `"], "groups": ["video", "ops"], "shell": "/bin/bash"},
		{"name": "bob", "sudo": "none", "ssh_keys": [], "shell": "/bin/sh"}]},
	"posture": {"name": "prod", "ssh": {"port": "2222", "permit_root_login": "no", "password_authentication": "no"}, "fail2ban": {}},
	"platform": {"packages": ["hs-tool", "hs-daemon"], "services": {"hs-daemon": "enabled", "fail2ban": "enabled", "cron": "disabled"}},
	"config": {"timezone": "Europe/Berlin", "sysctl": {"net.ipv4.ip_forward": "1"},
		"repositories": [{"name": "extra", "url": "file:/srv/apt/extra", "suites": ["./"], "key": "KEY"}], "commands": [{"name": "once", "run": "true"}],
		"files": [{"path": "/etc/homestak-test/app.conf", "content": "it's \"here\"\n", "mode": "0640", "owner": "root", "group": "video", "restart": ["hs-daemon"]},
			{"path": "/etc/motd", "content": "welcome\n", "mode": "0644", "owner": "root", "group": "root"}]}`

// user writes a user that nothing further is asked for.
func user(name, more string) string {
	return `"access": {"users": [{"name": "` + name + `", "sudo": "none", "ssh_keys": [], "shell": "/bin/bash"` + more + `}]}`
}

// field is one thing that a spec asks, what shows that it is in force, and what shows that
// it is not. Both are lines of shell that succeed.
type field struct {
	name           string
	machine        string // rows with the same one share a machine, one after the other; each other has its own
	with, without  string // documents
	before         string // done to the machine first
	effect, absent string
}

// nisKept is that lines of NIS are what they were, behind all others.
const nisKept = `[ "$(tail -n 3 /etc/passwd)" = "$(printf '+::::::\n-mallory::::::\n+@staff:x:65001:65001::/home/staff:\n')" ] && [ "$(tail -n 2 /etc/shadow)" = "$(printf '+::::::::\n-mallory\n')" ] && [ "$(tail -n 1 /etc/group)" = +::: ]`

var fields = []field{
	{
		name: "hostname", with: `"identity": {"hostname": "edge", "domain": "home.example"}`, without: `"identity": {"hostname": "core", "domain": "lab.example"}`,
		before: "printf '127.0.0.1 localhost\\n10.1.2.3 nas\\n' >/etc/hosts",
		effect: `[ "$(hostname)" = edge ] && [ "$(hostname -f)" = edge.home.example ] && [ "$(cat /etc/hostname)" = edge ] && grep -q '^10.1.2.3 nas$' /etc/hosts`,
		absent: `[ "$(hostname -f)" = core.lab.example ] && ! grep -q edge /etc/hosts /etc/hostname && grep -q '^10.1.2.3 nas$' /etc/hosts`,
	},
	{
		name: "timezone", machine: "settings", with: `"config": {"timezone": "America/Denver"}`, without: `"config": {}`,
		effect: `[ "$(date +%Z)" = MST ] || [ "$(date +%Z)" = MDT ] && { [ ! -e /etc/timezone ] || [ "$(cat /etc/timezone)" = America/Denver ]; }`, absent: `[ "$(date +%Z)" = UTC ] && { [ ! -e /etc/timezone ] || [ "$(cat /etc/timezone)" = Etc/UTC ]; }`,
	},
	{
		name: "timezone that is a link to another", machine: "settings", with: `"config": {"timezone": "UTC"}`, without: `"config": {}`,
		effect: `[ "$(readlink /etc/localtime)" = /usr/share/zoneinfo/UTC ]`, absent: `[ "$(readlink -f /etc/localtime)" = /usr/share/zoneinfo/Etc/UTC ] && [ "$(readlink /etc/localtime)" != /usr/share/zoneinfo/UTC ]`,
	},
	{
		name: "timezone where a file is", with: `"config": {"timezone": "America/Denver"}`, without: `"config": {}`,
		before: "rm /etc/localtime && cp /usr/share/zoneinfo/Asia/Tokyo /etc/localtime && chmod 640 /etc/localtime",
		effect: `[ "$(readlink /etc/localtime)" = /usr/share/zoneinfo/America/Denver ]`,
		absent: `[ ! -L /etc/localtime ] && cmp /etc/localtime /usr/share/zoneinfo/Asia/Tokyo && [ "$(stat -c %a /etc/localtime)" = 640 ] && [ -z "$(ls -A /var/lib/homestak-gitops-spec/found)" ] && { [ ! -e /etc/timezone ] || [ "$(cat /etc/timezone)" = Etc/UTC ]; }`,
	},
	{
		name: "package", machine: "packages", with: `"platform": {"packages": ["hs-tool"]}`, without: `"platform": {}`,
		effect: `[ "$(hs-tool)" = tool ] && [ -f /usr/share/hs-lib/data ]`, absent: `! command -v hs-tool && [ ! -e /usr/share/hs-lib/data ]`,
	},
	{
		name: "package that something else needs", with: `"platform": {"packages": ["hs-tool"]}`, without: `"platform": {"packages": ["hs-needer"]}`,
		effect: `[ "$(hs-tool)" = tool ]`, absent: `[ "$(hs-tool)" = tool ] && apt-mark showauto | grep -qx hs-tool`,
	},
	{
		name: "one of two packages", machine: "packages", with: `"platform": {"packages": ["hs-tool", "hs-other"]}`, without: `"platform": {"packages": ["hs-other"]}`,
		effect: `hs-tool && hs-other`, absent: `! command -v hs-tool && hs-other && [ -f /usr/share/hs-lib/data ]`,
	},
	{
		name: "package that was there", with: `"platform": {"packages": ["hs-tool"]}`, without: `"platform": {}`, before: "apt-get update && apt-get -y install hs-tool",
		effect: `hs-tool`, absent: `hs-tool`,
	},
	{
		name: "package that was there, and an orphan", with: `"platform": {"packages": ["hs-other"]}`, without: `"platform": {}`,
		before: "apt-get update && apt-get -y install hs-lib && apt-mark auto hs-lib",
		effect: `hs-other`, absent: `! command -v hs-other && [ -f /usr/share/hs-lib/data ]`,
	},
	{
		name: "service enabled", with: `"platform": {"packages": ["hs-daemon"], "services": {"hs-daemon": "enabled"}}`, without: `"platform": {"packages": ["hs-daemon"]}`,
		before: "apt-get update && apt-get -y install hs-daemon && systemctl disable --now hs-daemon",
		effect: `systemctl is-active hs-daemon && systemctl is-enabled hs-daemon`, absent: `! systemctl is-active hs-daemon && ! systemctl is-enabled hs-daemon`,
	},
	{
		name: "service disabled", with: `"platform": {"services": {"hs-daemon": "disabled"}}`, without: `"platform": {}`,
		before: "apt-get update && apt-get -y install hs-daemon",
		effect: `! systemctl is-active hs-daemon && ! systemctl is-enabled hs-daemon`, absent: `systemctl is-active hs-daemon && systemctl is-enabled hs-daemon`,
	},
	{
		name: "service of a package of the same run disabled", machine: "packages", with: `"platform": {"packages": ["hs-daemon"], "services": {"hs-daemon": "disabled"}}`, without: `"platform": {}`,
		effect: `! systemctl is-active hs-daemon && ! systemctl is-enabled hs-daemon`, absent: `! systemctl cat hs-daemon`,
	},
	{
		name: "masked service enabled", with: `"platform": {"services": {"hs-daemon": "enabled"}}`, without: `"platform": {}`,
		before: "apt-get update && apt-get -y install hs-daemon && systemctl disable --now hs-daemon && systemctl mask hs-daemon",
		effect: `systemctl is-active hs-daemon && systemctl is-enabled hs-daemon`, absent: `! systemctl is-active hs-daemon && [ "$(systemctl is-enabled hs-daemon)" = masked ]`,
	},
	{
		name: "service that a socket starts", with: `"platform": {"services": {"hs-socket": "disabled"}}`, without: `"platform": {}`,
		before: "apt-get update && apt-get -y install hs-socket && systemctl enable --now hs-socket.socket",
		effect: `! systemctl is-active hs-socket.socket && ! systemctl is-enabled hs-socket.socket`,
		absent: `systemctl is-active hs-socket.socket && systemctl is-enabled hs-socket.socket && ! systemctl is-active hs-socket`,
	},
	{
		name: "service whose socket was off", with: `"platform": {"services": {"hs-socket": "disabled"}}`, without: `"platform": {}`,
		before: "apt-get update && apt-get -y install hs-socket && systemctl enable --now hs-socket",
		effect: `! systemctl is-active hs-socket && ! systemctl is-enabled hs-socket`,
		absent: `systemctl is-active hs-socket && systemctl is-enabled hs-socket && ! systemctl is-active hs-socket.socket && ! systemctl is-enabled hs-socket.socket`,
	},
	{
		name: "service enabled beside its socket", with: `"platform": {"services": {"hs-socket": "enabled"}}`, without: `"platform": {}`,
		before: "apt-get update && apt-get -y install hs-socket",
		effect: `systemctl is-active hs-socket && systemctl is-enabled hs-socket`,
		absent: `! systemctl is-active hs-socket && ! systemctl is-active hs-socket.socket && ! systemctl is-enabled hs-socket.socket`,
	},
	{
		name: "user", machine: "users", with: user("ann", ""), without: `"access": {}`,
		effect: `id ann && [ -d /home/ann ] && [ "$(getent passwd ann | cut -d: -f7)" = /bin/bash ]`,
		absent: `id ann && [ -d /home/ann ] && [ "$(getent shadow ann | cut -d: -f8)" = 1 ]`,
	},
	{
		name: "user that is removed", machine: "users", with: user("ann", ""), without: `"access": {"former_users": "remove"}`,
		effect: `[ "$(stat -c %U /home/ann)" = ann ]`, absent: `! id ann && [ -d /home/ann ] && useradd --uid 2000 other`,
	},
	{
		name: "user that was there", with: user("ann", `, "groups": ["video", "ops"]`), without: `"access": {}`,
		before: "useradd --create-home --shell /bin/sh --groups audio ann",
		effect: `id -Gn ann | grep -w video | grep -w ops | grep -w audio && [ "$(getent passwd ann | cut -d: -f7)" = /bin/bash ]`,
		absent: `[ "$(id -Gn ann)" = "ann audio" ] && [ "$(getent passwd ann | cut -d: -f7)" = /bin/sh ] && [ -z "$(getent shadow ann | cut -d: -f8)" ] && ! getent group ops`,
	},
	{
		name: "user and sshd beside lines of NIS", with: user("ann", `, "groups": ["ops"]`) + `, "posture": {"ssh": {"port": "2222", "permit_root_login": "yes", "password_authentication": "no"}}`, without: `"access": {"former_users": "remove"}`,
		before: "printf '+::::::\\n-mallory::::::\\n+@staff:x:65001:65001::/home/staff:\\n' >>/etc/passwd && printf '+::::::::\\n-mallory\\n' >>/etc/shadow && printf '+:::\\n' >>/etc/group",
		effect: `id ann && id -Gn ann | grep -w ops && sshd -T | grep -qx 'port 2222' && ` + nisKept,
		absent: `! id ann && sshd -T | grep -qx 'port 22' && ` + nisKept,
	},
	{
		name: "groups", machine: "users", with: user("ann", `, "groups": ["video", "ops"]`), without: user("ann", `, "groups": ["video"]`),
		effect: `id -Gn ann | grep -w video | grep -w ops`, absent: `! id -Gn ann | grep -w ops && ! getent group ops && id -Gn ann | grep -w video`,
	},
	{
		name: "keys", with: `"access": {"users": [{"name": "ann", "sudo": "none", "ssh_keys": ["` + keyA + `", "` + keyB + `"], "shell": "/bin/bash"}]}`,
		without: `"access": {"users": [{"name": "ann", "sudo": "none", "ssh_keys": ["` + keyB + `"], "shell": "/bin/bash"}]}`,
		before:  "useradd --create-home ann && mkdir -m 700 /home/ann/.ssh && echo 'ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAIQDGpmFzdC1hbmQtbm90LXNlY3VyZQ== own' >/home/ann/.ssh/authorized_keys && chown -R ann: /home/ann/.ssh",
		effect:  `grep -q a@laptop /home/ann/.ssh/authorized_keys && grep -q b@laptop /home/ann/.ssh/authorized_keys && grep -q own /home/ann/.ssh/authorized_keys && [ "$(stat -c '%a %U' /home/ann/.ssh/authorized_keys)" = "600 ann" ]`,
		absent:  `! grep -q a@laptop /home/ann/.ssh/authorized_keys && grep -q b@laptop /home/ann/.ssh/authorized_keys && grep -q own /home/ann/.ssh/authorized_keys`,
	},
	{
		name: "key that the image had", with: `"access": {"users": [{"name": "ann", "sudo": "none", "ssh_keys": ["` + keyA + `"], "shell": "/bin/bash"}]}`, without: user("ann", ""),
		before: "useradd --create-home ann && mkdir -m 700 /home/ann/.ssh && echo '" + keyA + "' >/home/ann/.ssh/authorized_keys && chown -R ann: /home/ann/.ssh",
		effect: `grep -c a@laptop /home/ann/.ssh/authorized_keys | grep -qx 1`, absent: `! grep -q a@laptop /home/ann/.ssh/authorized_keys`,
	},
	{
		name: "sudo", machine: "users", with: strings.Replace(user("ann", ""), `"none"`, `"nopasswd"`, 1), without: user("ann", ""),
		effect: `[ "$(setpriv --reuid=ann --regid=ann --init-groups sudo -n id -u)" = 0 ]`, absent: `! setpriv --reuid=ann --regid=ann --init-groups sudo -n true`,
	},
	{
		name: "sudo with a password", with: strings.Replace(user("ann", ""), `"none"`, `"password"`, 1), without: `"access": {}`,
		before: "echo 'ann ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/90-cloud-init-users",
		effect: `! setpriv --reuid=ann --regid=ann --init-groups sudo -n true && sudo -l -U ann | grep -q PASSWD`, absent: `[ ! -e /etc/sudoers.d/zz-homestak-gitops ] && [ -e /etc/sudoers.d/90-cloud-init-users ]`,
	},
	{
		name: "no sudo in spite of the image", with: user("ann", ""), without: `"access": {}`,
		before: "useradd --create-home --groups sudo ann && echo 'ann ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/90-cloud-init-users",
		effect: `! setpriv --reuid=ann --regid=ann --init-groups sudo -n true && ! id -Gn ann | grep -w sudo`, absent: `setpriv --reuid=ann --regid=ann --init-groups sudo -n true && id -Gn ann | grep -w sudo`,
	},
	{
		name: "sshd", with: `"posture": {"ssh": {"port": "2222", "permit_root_login": "no", "password_authentication": "no"}}`, without: `"posture": {}`,
		before: "echo 'PasswordAuthentication yes' >/etc/ssh/sshd_config.d/50-cloud-init.conf",
		effect: `sshd -T | grep -qx 'port 2222' && sshd -T | grep -qx 'permitrootlogin no' && sshd -T | grep -qx 'passwordauthentication no' && ss -tln | grep -q ':2222 '`,
		absent: `sshd -T | grep -qx 'port 22' && sshd -T | grep -qx 'passwordauthentication yes' && [ ! -e /var/lib/homestak-gitops-spec/revert/sshd.sh ]`,
	},
	{
		name: "fail2ban", machine: "settings", with: `"posture": {"fail2ban": {}}, "platform": {"services": {"fail2ban": "enabled"}}`, without: `"posture": {}`,
		effect: `systemctl is-active fail2ban`, absent: `[ -z "$(ls /etc/fail2ban/jail.d | grep homestak)" ]`,
	},
	{
		name: "sysctl", machine: "settings", with: `"config": {"sysctl": {"net.ipv4.ip_forward": "1", "net.ipv4.conf.all.accept_redirects": "0"}}`, without: `"config": {"sysctl": {"net.ipv4.conf.all.accept_redirects": "0"}}`,
		effect: `[ "$(cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf/all/accept_redirects | tr '\n' ' ')" = "1 0 " ]`,
		absent: `[ "$(cat /proc/sys/net/ipv4/ip_forward)" = 0 ] && ! grep -q forward /etc/sysctl.d/zz-homestak-gitops.conf`,
	},
	{
		name: "file", machine: "settings", with: `"config": {"files": [{"path": "/etc/homestak-test/a b", "content": "x'\u0001\n", "mode": "600", "owner": "root", "group": "video"}]}`, without: `"config": {}`,
		effect: `[ "$(stat -c '%a %U %G' '/etc/homestak-test/a b')" = "600 root video" ] && printf "x'\001\n" | cmp - '/etc/homestak-test/a b'`, absent: `[ ! -e '/etc/homestak-test/a b' ]`,
	},
	{
		name: "file that was there", with: `"config": {"files": [{"path": "/etc/motd", "content": "mine\n", "mode": "0644", "owner": "root", "group": "root"}]}`, without: `"config": {}`,
		before: "echo theirs >/etc/motd && chmod 640 /etc/motd && chgrp adm /etc/motd",
		effect: `[ "$(cat /etc/motd)" = mine ]`, absent: `[ "$(cat /etc/motd)" = theirs ] && [ "$(stat -c '%a %G' /etc/motd)" = "640 adm" ] && [ -z "$(ls /var/lib/homestak-gitops-spec/found)" ]`,
	},
	{
		name: "file that a service reads", with: `"config": {"files": [{"path": "/etc/hs-daemon.conf", "content": "mine\n", "mode": "0644", "owner": "root", "group": "root", "restart": ["hs-daemon"]}]}`, without: `"config": {}`,
		before: "apt-get update && apt-get -y install hs-daemon && systemctl show -p MainPID hs-daemon >/run/pid",
		effect: `[ "$(systemctl show -p MainPID hs-daemon)" != "$(cat /run/pid)" ] && systemctl show -p MainPID hs-daemon >/run/pid`, absent: `[ "$(cat /etc/hs-daemon.conf)" = shipped ] && ! systemctl show -p MainPID hs-daemon | grep -qxFf /run/pid && systemctl show -p MainPID hs-daemon >/run/pid`,
	},
	{
		name: "repository", machine: "packages", with: `"platform": {"packages": ["hs-extra"]}, "config": {"repositories": [{"name": "extra", "url": "file:/srv/apt/extra", "suites": ["./"], "key": "KEY"}]}`, without: `"config": {}`,
		effect: `hs-extra && [ "$(stat -c %a /etc/apt/keyrings/homestak-extra.asc)" = 644 ]`,
		absent: `! command -v hs-extra && ! ls /etc/apt/sources.list.d /etc/apt/keyrings | grep homestak && ! apt-cache show hs-extra`,
	},
	{
		name: "repository with components", machine: "packages", with: `"config": {"repositories": [{"name": "parts", "url": "file:/srv/apt/parts", "suites": ["stable"], "components": ["main"], "key": "KEY"}]}, "platform": {"packages": ["hs-part"]}`,
		without: `"config": {"repositories": [{"name": "parts", "url": "file:/srv/apt/parts", "suites": ["stable"], "components": ["other"], "key": "KEY"}]}`,
		effect:  `hs-part && grep -qx 'Components: main' /etc/apt/sources.list.d/homestak-parts.sources`,
		absent:  `! command -v hs-part && ! apt-cache show hs-part && grep -qx 'Components: other' /etc/apt/sources.list.d/homestak-parts.sources`,
	},
	{
		name: "commands", machine: "settings", with: `"config": {"commands": [{"name": "make", "run": "echo x >>/srv/made", "creates": "/srv/made"}, {"name": "check", "run": "echo y >>/srv/log; touch /srv/flag", "unless": "[ -e /srv/flag ]"},
			{"name": "once", "run": "echo z >>/srv/once"}]}`, without: `"config": {}`,
		effect: `[ "$(cat /srv/made /srv/log /srv/once | tr -d '\n')" = xyz ]`, absent: `[ "$(cat /srv/made /srv/log | tr -d '\n')" = xy ] && rm /srv/once`,
	},
}

// noEffect are fields that change nothing on a machine by themselves, with the reason.
var noEffect = map[string]string{
	"posture.name": "it only names where the settings are from",
	"config.drift": "it decides what happens to a difference, see drivers/push",

	"config.pve.restart": "it decides when the machine restarts, see engine/guest/aspect/network",

	"config.mounts.credentials": "a share takes a server and a file system of the kernel that no machine here has, see mounts-network of engine/guest/aspect",

	"run.pushed": "it decides whether a round of the node applies anything, see specserve/node",

	"access.first_user": "it decides which accounts are reported as unmanaged, see engine/guest/converge",
}

// elsewhere are fields that a row is too small for, and the test of this package that shows them to take effect and
// to be withdrawn.
var elsewhere = map[string]string{
	"identity.routable":                  "TestST02TheNameOfAHostOfProxmoxVE",
	"config.files.content_base64":        "TestST02ContentOfAFileOfTheSite",
	"config.mounts.path":                 "TestST02ADiskIsFormattedAndMounted",
	"config.mounts.disk":                 "TestST02ADiskIsFormattedAndMounted",
	"config.mounts.fstype":               "TestST02ADiskIsFormattedAndMounted",
	"config.mounts.options":              "TestST02ADiskIsFormattedAndMounted",
	"config.swap":                        "TestST02TheSwapFile",
	"config.pve.no_subscription":         "TestST02TheRepositoryOfProxmoxVE",
	"config.pve.remove_subscription_nag": "TestST02TheReminderOfProxmoxVE",
	"config.pve.bridge":                  "TestST02TheBridgeOfAHostOfProxmoxVE",
	"network.ip":                         "TestST02TheAddressOfAMachine",
	"network.gateway":                    "TestST02TheAddressOfAMachine",
	"network.dns":                        "TestST02TheAddressOfAMachine",
	"run.trigger":                        "TestST01ST19ANewNodePullsItsSpec",
	"run.interval_seconds":               "TestST01ST19ANewNodePullsItsSpec",
}

// Every field of the resolved spec has a row in which it differs, so that a new one is not forgotten.
func TestST11EveryFieldHasARow(t *testing.T) {
	shown, all := shownBy(t, fields), allFields()
	require.Empty(t, slices.DeleteFunc(slices.Clone(all), func(name string) bool { return shown[name] || noEffect[name] != "" || elsewhere[name] != "" }),
		"no row of fields has another value of these with than without")
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	tests := ""
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		tests += string(text)
	}
	for name, test := range elsewhere {
		require.Contains(t, all, name)
		require.Contains(t, tests, "func "+test+"(")
	}
	for name := range shown {
		require.Contains(t, all, name, "a row sets a field that no spec has")
	}
	for name := range noEffect {
		require.Contains(t, all, name)
	}
}

// shownBy are the fields that differ within a row.
func shownBy(t *testing.T, rows []field) map[string]bool {
	t.Helper()
	shown := map[string]bool{}
	for _, f := range rows {
		with, without := leaves(t, f.with), leaves(t, f.without)
		for name, values := range with {
			shown[name] = shown[name] || !slices.Equal(values, without[name])
		}
		for name := range without {
			shown[name] = shown[name] || with[name] == nil
		}
	}
	return shown
}

// allFields are those of a spec, without those of its document.
func allFields() []string {
	return slices.DeleteFunc(fieldsOf(reflect.TypeFor[spec.Spec](), ""), func(name string) bool {
		return slices.Contains([]string{"version", "node", "spec", "sensitive"}, name)
	})
}

// fieldsOf lists the fields of a type that its JSON has, down to those without fields.
func fieldsOf(t reflect.Type, prefix string) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	var out []string
	if t.Kind() == reflect.Struct {
		for f := range t.Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" && name != "" {
				out = append(out, fieldsOf(f.Type, strings.TrimPrefix(prefix+"."+name, "."))...)
			}
		}
	}
	if len(out) == 0 && prefix != "" {
		return []string{prefix}
	}
	return out
}

// leaves lists the values of a document by the names of fieldsOf; those of all users together.
func leaves(t *testing.T, document string) map[string][]string {
	t.Helper()
	known := fieldsOf(reflect.TypeFor[spec.Spec](), "")
	out := map[string][]string{}
	var walk func(name string, value any)
	walk = func(name string, value any) {
		list, isList := value.([]any)
		of, isObject := value.(map[string]any)
		switch {
		case slices.Contains(known, name):
			text, err := json.Marshal(value)
			require.NoError(t, err)
			out[name] = append(out[name], string(text))
		case isList:
			for _, v := range list {
				walk(name, v)
			}
		case isObject:
			for key, v := range of {
				walk(strings.TrimPrefix(name+"."+key, "."), v)
			}
		default:
			t.Fatalf("%s is not a field of a spec", name)
		}
	}
	var root map[string]any
	require.NoError(t, json.Unmarshal([]byte("{"+document+"}"), &root))
	walk("", root)
	return out
}

// Every field takes effect, is not written again, and is withdrawn when it is dropped. What
// was there before stays.
func TestST02ST11EveryFieldTakesEffectAndIsWithdrawn(t *testing.T) {
	nspawn.Need(t)
	rows := map[string][]field{}
	for _, f := range fields {
		on := cmp.Or(f.machine, f.name)
		rows[on] = append(rows[on], f)
	}
	for on, rows := range rows {
		t.Run(on, func(t *testing.T) {
			t.Parallel()
			w := begin(t)
			for i, f := range rows {
				t.Log(f.name)
				if i > 0 {
					w.apply(parse(t, `"access": {"former_users": "remove"}`))
					w.Run0("rm -rf /home/ann")
				}
				w.takesEffectAndIsWithdrawn(f)
			}
		})
	}
}

func (w *world) takesEffectAndIsWithdrawn(f field) {
	w.t.Helper()
	if strings.HasPrefix(f.name, "repository") && w.key == "" {
		nspawn.Without(w.t, "gpg is missing, to sign a repository with")
	}
	if f.before != "" {
		w.Run0(f.before)
	}
	key, err := json.Marshal(w.key)
	require.NoError(w.t, err)
	with, without := parse(w.t, strings.ReplaceAll(f.with, `"KEY"`, string(key))), parse(w.t, strings.ReplaceAll(f.without, `"KEY"`, string(key)))
	w.apply(with)
	w.Run0(f.effect)
	w.unchanged(with)
	w.apply(without)
	w.Run0(f.absent)
	w.unchanged(without)
	w.apply(with)
	w.Run0(f.effect)
}

// unchanged requires that an apply costs one command, and writes nothing at all: no file or folder of the
// machine changes, and nothing is logged.
func (w *world) unchanged(s *spec.Spec) {
	w.t.Helper()
	// Earlier log entries of others, such as the sudo of a test, arrive first.
	cursor := w.Run0("journalctl --sync && journalctl --quiet --no-pager --lines=0 --show-cursor | sed 's/^-- cursor: //'")
	w.Run0("touch /var/since")
	w.runs = 0
	state, err := converge.Apply(context.Background(), way{w}, s, converge.Options{ConfirmWithin: time.Hour})
	require.NoError(w.t, err)
	require.Empty(w.t, changes(state))
	require.Equal(w.t, 1, w.runs, "an unchanged machine costs one command")
	require.Empty(w.t, w.written(cursor))
}

// written lists the files and folders that changed since /var/since was written, and what was logged behind
// the cursor of the journal.
func (w *world) written(cursor string) string {
	w.t.Helper()
	return w.Run0("find / /run /tmp /dev/shm -xdev \\( -newer /var/since -o -cnewer /var/since \\) "+busy+" | sort -u") +
		w.Run0("journalctl --quiet --no-pager --output=short --after-cursor='"+cursor+"' | grep -vE '"+talkative+"' || :")
}

// busy is what a machine writes without our doing, and talkative the units that log: those of this program do.
const (
	busy      = `-not -path '/proc/*' -not -path '/sys/*' -not -path '/dev/*' -not -path / -not -path /var -not -path /var/since -not -path /run -not -path '/run/systemd*' -not -path '/run/udev*' -not -path '/run/log*' -not -path '/run/fail2ban*' -not -path '/run/user*' -not -path '/run/lock*' -not -path '/var/log/*' -not -path '/var/lib/fail2ban*' -not -path '/var/lib/systemd/*' -not -path '/var/cache/private*'`
	talkative = `fail2ban|homestak-gitops\[|systemd-(tmpfiles|journald|logind|hostnamed|udevd|timedated|networkd|resolved)|systemd\[1\]: .*(apt-daily|tmpfiles|e2scrub|fstrim|dpkg-db|logrotate|Hostname|hostnamed|motd|homestak-gitops|network-online|hs-daemon|fail2ban|ssh)`
)

// A spec with everything in it is applied, and leaves nothing behind when it is dropped but
// what is said to stay: the name, homes, and accounts that are locked.
func TestST02AWholeSpec(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	w.Run0("printf '127.0.0.1 localhost\\n' >/etc/hosts; chmod 644 /etc/hosts")
	s := w.whole()
	w.apply(s)
	w.unchanged(s)
	require.Equal(t, "600 root root", w.Run0("stat -c '%a %U %G' /var/lib/homestak-gitops-spec/owned.json"))
	w.apply(parse(t, `"access": {"former_users": "remove"}`))
	w.Run0("rm -r /home/ann /home/bob /etc/homestak-test")
	w.apply(parse(t, `"identity": {"hostname": "vm"}`))
	require.JSONEq(t, `{"version": 1, "entries": []}`, w.Run0("cat /var/lib/homestak-gitops-spec/owned.json"))
	require.Empty(t, w.Run0("ls -A /var/lib/homestak-gitops-spec/found /var/lib/homestak-gitops-spec/revert | grep -v :; find / -xdev -name '*homestak-new*'"))
}

// A file of the site reaches the machine byte for byte, however it is made and as large as it may be.
func TestST02ContentOfAFileOfTheSite(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	binary := make([]byte, 1<<20)
	for i := range binary {
		binary[i] = byte(i * i >> 3)
	}
	site, found := hcl.Load(fstest.MapFS{
		"files/logo.bin": {Data: binary}, "files/too-large": {Data: append(bytes.Clone(binary), 0)},
		"site.hcl": {Data: []byte(`site "home" {}
spec "base" {
  config {
    file "/srv/logo.bin" {
      source = "files/logo.bin"
      mode   = "0640"
    }
  }
}
spec "large" {
  config {
    file "/srv/x" {
      source = "files/too-large"
    }
  }
}
`)},
	}, hcl.Options{Kinds: proxmox.Kinds()})
	require.Equal(t, []string{`unreadable file "files/too-large"`}, problems(found))
	require.Contains(t, found[0].Detail, "1048577 bytes are too many: at most 1 MiB are read")
	require.Equal(t, "site.hcl:13:7", found[0].At.String())

	s, found := spec.Resolve(site, &model.Node{Name: "edge", Spec: "base"})
	require.Empty(t, found)
	document, err := json.Marshal(s)
	require.NoError(t, err)
	s, err = spec.Read(document)
	require.NoError(t, err)
	sum := fmt.Sprintf("%x", sha256.Sum256(binary))

	w := begin(t)
	s.Identity = &spec.Identity{}
	w.apply(s)
	require.Equal(t, sum, w.Run0("sha256sum /srv/logo.bin | cut -c1-64"))
	w.unchanged(s)
	w.Run0(`printf '\377\000changed' >/srv/logo.bin`)
	state, err := converge.Observe(context.Background(), way{w}, s)
	require.NoError(t, err)
	shown, err := json.Marshal(state.Changes())
	require.NoError(t, err)
	require.Contains(t, string(shown), `"after":"sha256:`+sum)
	require.NotContains(t, string(shown), `\ufffd`)
	w.apply(s)
	require.Equal(t, sum, w.Run0("sha256sum /srv/logo.bin | cut -c1-64"))
	w.apply(spec.Empty("edge"))
	w.Run0("[ ! -e /srv/logo.bin ]")
}

// disks are the disks of a machine: files that the kernel shows as block devices. In the
// machine they are /dev/sdX, with the folder in /sys that a disk of QEMU has there; that
// folder is made up, since a loop device has no serial number.
type disks struct {
	*world
	files, loops []string
}

// withDisks boots a machine with empty disks of so many MiB, in the order of the serials.
func withDisks(t *testing.T, mib int, serials ...string) *disks {
	t.Helper()
	nspawn.Need(t)
	d := &disks{}
	binds := []nspawn.Bind{}
	for i := range serials {
		name := filepath.Join(t.TempDir(), fmt.Sprintf("disk-%d.img", i))
		require.NoError(t, os.WriteFile(name, nil, 0o600))
		require.NoError(t, os.Truncate(name, int64(mib)<<20))
		out, err := exec.Command("losetup", "--find", "--show", name).CombinedOutput()
		if err != nil {
			nspawn.Without(t, "this machine has no loop devices: "+string(out))
		}
		loop := strings.TrimSpace(string(out))
		t.Cleanup(func() { _ = exec.Command("losetup", "--detach", loop).Run() }) // once the machine is off
		d.files, d.loops = append(d.files, name), append(d.loops, loop)
		binds = append(binds, nspawn.Bind{From: loop, To: loop, Write: true})
	}
	d.world = begin(t, binds...)
	// nspawn makes /sys read-only; a folder mounted over it is for this machine alone.
	d.Run0("mkdir -p /run/block && mount --bind /run/block /sys/block")
	for i, serial := range serials {
		var at syscall.Stat_t
		require.NoError(t, syscall.Stat(d.loops[i], &at))
		minor := at.Rdev&0xff | at.Rdev>>12&^0xff
		dev := d.dev(i)
		d.Run0(fmt.Sprintf("mknod /dev/%[1]s b 7 %[2]d && mkdir -p /run/block/%[1]s/device /run/block/%[1]s/holders && echo 7:%[2]d >/run/block/%[1]s/dev && printf '\\000\\200\\000\\020%[3]s' >/run/block/%[1]s/device/vpd_pg80", dev, minor, serial))
		d.size(i, mib)
	}
	return d
}

func (*disks) dev(i int) string { return fmt.Sprintf("sd%c", 'b'+i) }

func (d *disks) size(i, mib int) {
	d.Run0(fmt.Sprintf("echo %d >/run/block/%s/size", mib*2048, d.dev(i)))
}

// grow makes a disk larger, as the host does.
func (d *disks) grow(i, mib int) {
	d.t.Helper()
	require.NoError(d.t, os.Truncate(d.files[i], int64(mib)<<20))
	said, err := exec.Command("losetup", "--set-capacity", d.loops[i]).CombinedOutput()
	require.NoError(d.t, err, string(said))
	d.size(i, mib)
}

func mounting(path, disk, more string) string {
	return fmt.Sprintf(`{"path": %q, "disk": %q, "fstype": "ext4"%s}`, path, disk, more)
}

func mountSpec(t *testing.T, mounts ...string) *spec.Spec {
	t.Helper()
	return parse(t, `"config": {"mounts": [`+strings.Join(mounts, ", ")+`]}`)
}

// refused requires that a spec cannot be applied, for a reason.
func (w *world) refused(s *spec.Spec, why string) {
	w.t.Helper()
	_, err := converge.Apply(context.Background(), way{w}, s, converge.Options{})
	require.ErrorContains(w.t, err, why)
}

// An empty disk is formatted once and mounted; what is on it stays whatever happens to the
// spec, and a larger disk gets a larger file system.
func TestST02ADiskIsFormattedAndMounted(t *testing.T) {
	t.Parallel()
	d := withDisks(t, 512, "other", "data")
	d.Run0("printf '# static\\nproc /proc proc defaults 0 0\\n' >/etc/fstab")
	s := mountSpec(t, mounting("/srv/a/data", "data", `, "options": ["noatime", "nodev"]`))
	require.Contains(t, d.observe(s).Steps()[0].Text, "format disk data as ext4 and mount it at /srv/a/data")
	d.apply(s)
	require.Equal(t, "/srv/a/data ext4 data", d.Run0("echo $(findmnt -no TARGET,FSTYPE,LABEL /srv/a/data)"))
	require.Equal(t, "# static\nproc /proc proc defaults 0 0\nLABEL=data /srv/a/data ext4 nofail,nodev,noatime 0 2", strings.ReplaceAll(d.Run0("cat /etc/fstab"), "noatime,nodev", "nodev,noatime"))
	require.Contains(t, d.Run0("findmnt -no OPTIONS /srv/a/data"), "nodev,noatime")
	d.Run0("[ -z \"$(blkid -p /dev/sdb)\" ] && echo kept >/srv/a/data/file && umount /srv/a/data && mount -a && [ -e /srv/a/data/file ]")
	d.unchanged(s)

	// Drift, as people make it.
	for _, c := range []struct{ do, change string }{
		{"umount /srv/a/data", `config.mount./srv/a/data.disk "data (not mounted)" → data`},
		{"sed -i /data/d /etc/fstab", `config.mount./srv/a/data.disk "data (until the next restart)" → data`},
		{"mount -o remount,ro,noatime,nodev /srv/a/data", `config.mount./srv/a/data.options -ro`},
		{"sed -i s/noatime,// /etc/fstab", `config.mount./srv/a/data.options -"otherwise in /etc/fstab"`},
		{"sed -i s/LABEL=data/\\\\/dev\\\\/sdc/ /etc/fstab", `config.mount./srv/a/data.disk "data (/dev/sdc in /etc/fstab)" → data`},
	} {
		d.Run0(c.do)
		require.Contains(t, changes(d.observe(s)), c.change, c.do)
		d.apply(s)
		require.Equal(t, "kept", d.Run0("cat /srv/a/data/file"), c.do)
		d.unchanged(s)
	}

	other := mountSpec(t, mounting("/srv/a/data", "data", `, "options": ["nosuid"]`))
	require.Contains(t, changes(d.observe(other)), "config.mount./srv/a/data.options +nosuid -noatime -nodev")
	d.apply(other)
	require.Regexp(t, `^rw,nosuid,relatime`, d.Run0("findmnt -no OPTIONS /srv/a/data"))

	d.grow(1, 1024)
	// The kernel lets only who has CAP_SYS_RESOURCE (24) grow a mounted file system. Where the
	// tests lack it, the disk is unmounted for as long as it takes.
	d.Run0("if [ $((0x$(awk '/CapEff/ {print $2}' /proc/self/status) >> 24 & 1)) = 0 ]; then printf '#!/bin/sh\\numount $1 && e2fsck -fp $1 && /usr/sbin/resize2fs $1 && mount /srv/a/data\\n' >/usr/local/sbin/resize2fs; chmod 755 /usr/local/sbin/resize2fs; fi")
	require.Contains(t, changes(d.observe(other)), `config.mount./srv/a/data.size "512 of 1024 MiB" → "whole disk"`)
	d.apply(other)
	d.Run0("[ $(df -m --output=size /srv/a/data | tail -n1) -gt 900 ] && [ -e /srv/a/data/file ]")
	d.unchanged(other)

	// A mount in use stays, and the message names the process.
	d.Run0("systemd-run --quiet --unit=user --working-directory=/srv/a/data sleep infinity")
	d.refused(spec.Empty("edge"), "/srv/a/data is in use by sleep (")
	require.Contains(t, d.Run0("cat /etc/fstab"), "LABEL=data")
	d.Run0("systemctl stop user")
	d.apply(spec.Empty("edge"))
	d.Run0("! findmnt /srv/a/data && [ ! -e /srv/a ] && [ -d /srv ] && [ \"$(cat /etc/fstab)\" = \"$(printf '# static\\nproc /proc proc defaults 0 0')\" ]")

	// The disk comes back with its data.
	require.Equal(t, "mount disk data at /srv/a/data", d.observe(s).Steps()[0].Text)
	d.apply(s)
	require.Equal(t, "kept", d.Run0("cat /srv/a/data/file"))
	d.apply(mountSpec(t, mounting("/srv/elsewhere", "data", "")))
	require.Equal(t, "kept", d.Run0("cat /srv/elsewhere/file && [ ! -e /srv/a ]"))
}

// Nothing that holds anything is ever formatted, and nothing that is not declared.
func TestST13ADiskWithDataIsNeverFormatted(t *testing.T) {
	t.Parallel()
	d := withDisks(t, 64, "data", "part", "more")
	s := mountSpec(t, mounting("/srv/data", "data", ""))
	sum := func() string { return d.Run0("cat /dev/sdb /dev/sdc /dev/sdd | sha256sum") }
	for _, c := range []struct{ do, says string }{
		{"mkfs.ext4 -q -L old /dev/sdb", "disk data (/dev/sdb) contains ext4 with label old: a disk with data is never formatted"},
		{"mkfs.ext4 -q -F /dev/sdb", "disk data (/dev/sdb) contains ext4 without a label"},
		{"mkswap /dev/sdb", "disk data (/dev/sdb) contains swap without a label"},
		{"wipefs -qa /dev/sdb; mkfs.ext3 -q -F -L data /dev/sdb", "disk data (/dev/sdb) contains ext3, and fstype is ext4"},
		{"wipefs -qa /dev/sdb; printf '\\000\\000\\002\\000\\203\\000\\000\\000\\000\\010\\000\\000\\000\\100\\000\\000' | dd of=/dev/sdb bs=1 seek=446 conv=notrunc; printf '\\125\\252' | dd of=/dev/sdb bs=1 seek=510 conv=notrunc", "disk data (/dev/sdb) contains a partition table (dos)"},
		{"wipefs -qa /dev/sdb; mkdir /run/block/sdb/holders/dm-0", "disk data (/dev/sdb) contains partitions, or parts of something else"},
		{"rmdir /run/block/sdb/holders/dm-0; mkfs.ext4 -q -F -L data /dev/sdc; mkfs.ext4 -q -F -L data /dev/sdd", "two file systems have the label data: /dev/sdc and /dev/sdd"},
		{"wipefs -qa /dev/sdd", "disk data is /dev/sdb by its serial number, but the file system with the label data is on /dev/sdc"},
		{"wipefs -qa /dev/sdc; printf '\\000\\200\\000\\000' >/run/block/sdb/device/vpd_pg80", "no file system of this machine has the label data, and no disk that serial number, so nothing is formatted: empty are /dev/sdb of 64 MiB, /dev/sdc of 64 MiB, /dev/sdd of 64 MiB. If one of them is the disk, run mkfs.ext4 -L data on it"},
	} {
		d.Run0(c.do)
		before := sum()
		d.refused(s, c.says)
		require.Equal(t, before, sum(), c.do)
		d.Run0("! findmnt /srv/data; [ ! -e /srv/data ] && ! grep -q data /etc/fstab")
	}
	// By hand, as the message says.
	d.Run0("mkfs.ext4 -q -L data /dev/sdd && mkdir /srv/data && echo x >/srv/data/hidden")
	d.refused(s, "/srv/data is not empty, and a mount would hide what is in it")
	d.Run0("rm /srv/data/hidden")
	d.apply(s)
	d.unchanged(s)
	d.apply(spec.Empty("edge"))
	d.Run0("[ -d /srv/data ] && ! findmnt /srv/data") // the folder was there
}

// A disk that gets data between the observation and the format is not formatted.
func TestST13ADiskThatIsFilledInBetween(t *testing.T) {
	t.Parallel()
	d := withDisks(t, 64, "data")
	s := mountSpec(t, mounting("/srv/data", "data", ""))
	state := d.observe(s)
	d.Run0("mkfs.ext4 -q -L precious /dev/sdb")
	err := state.Apply(context.Background(), way{d.world}, state.Steps(), converge.Options{})
	require.ErrorContains(t, err, "/dev/sdb has changed since it was read")
	require.Equal(t, "precious", d.Run0("blkid -p -s LABEL -o value /dev/sdb"))
}

// A line that was there before us comes back.
func TestST11AMountThatWasThere(t *testing.T) {
	t.Parallel()
	d := withDisks(t, 64, "data")
	d.Run0("mkfs.ext4 -q -L data /dev/sdb && mkdir /srv/data && echo '/dev/sdb	/srv/data	ext4	ro	0	0' >/etc/fstab && mount /srv/data")
	s := mountSpec(t, mounting("/srv/data", "data", ""))
	d.apply(s)
	d.unchanged(s)
	require.Equal(t, "LABEL=data /srv/data ext4 nofail 0 2", d.Run0("cat /etc/fstab"))
	require.Regexp(t, "^rw,", d.Run0("findmnt -no OPTIONS /srv/data"))
	d.apply(spec.Empty("edge"))
	require.Equal(t, "/dev/sdb	/srv/data	ext4	ro	0	0", d.Run0("cat /etc/fstab"))
	d.Run0("findmnt /srv/data")
}

// A change by hand is found, named, and reverted; an addition by hand is reported and stays.
func TestST10DriftInsideAMachine(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	s := w.whole()
	w.apply(s)
	good := w.snapshot()
	for _, c := range []struct{ name, do, change string }{
		{"a line of sshd", "sed -i s/^PermitRootLogin.*/PermitRootLogin\\ yes/ /etc/ssh/sshd_config.d/00-homestak-gitops.conf", "posture.ssh.permit_root_login yes → no"},
		{"a line of sshd that has no effect yet", "echo MaxSessions 1 >>/etc/ssh/sshd_config.d/00-homestak-gitops.conf", "posture.ssh.port \"2222 (/etc/ssh/sshd_config.d/00…\" → 2222"},
		{"a service stopped", "systemctl stop hs-daemon", "platform.services.hs-daemon \"enabled, stopped\" → enabled"},
		{"a service disabled", "systemctl disable hs-daemon", "platform.services.hs-daemon \"disabled, running\" → enabled"},
		{"a package removed", "apt-get -y remove hs-tool", "platform.packages +hs-tool"},
		{"a user removed from a group", "gpasswd -d ann ops", "access.user.ann.groups +ops"},
		{"a user made administrator", "usermod -aG sudo bob", "access.user.bob.groups -sudo"},
		{"another shell", "usermod -s /bin/sh ann", "access.user.ann.shell /bin/sh → /bin/bash"},
		{"a key removed", "sed -i /b@laptop/d /home/ann/.ssh/authorized_keys", "access.user.ann.ssh_keys +\"b@laptop SHA256:X75Mb3nqVpJG\""},
		{"a sudo rule", "sed -i 's/NOPASSWD: //' /etc/sudoers.d/zz-homestak-gitops", "access.user.ann.sudo \"\" → nopasswd"},
		{"a further sudo rule", "echo 'eve ALL=(ALL) ALL' >>/etc/sudoers.d/zz-homestak-gitops", "access.sudoers -\"eve ALL=(ALL) ALL\""},
		{"a kernel parameter", "echo 0 >/proc/sys/net/ipv4/ip_forward", "config.sysctl.net.ipv4.ip_forward \"0 (1 after the next restart)\" → 1"},
		{"the time zone", "ln -sf /usr/share/zoneinfo/UTC /etc/localtime", "config.timezone UTC → Europe/Berlin"},
		{"the name", "hostname other", "identity.hostname \"edge (running as other)\" → edge"},
		{"a file", "echo changed >/etc/motd", "config.file./etc/motd.content \"changed\\n\" → \"welcome\\n\""},
		{"the mode of a file", "chmod 600 /etc/motd", "config.file./etc/motd.mode 0600 → 0644"},
		{"a file removed", "rm /etc/homestak-test/app.conf", "config.file./etc/homestak-test/app.conf.content none → \"it's \\\"here\\\"\\n\""},
		{"the jail", "rm /etc/fail2ban/jail.d/zz-homestak-gitops.local", "posture.fail2ban.jail none → on"},
	} {
		w.Run0(c.do)
		require.Contains(t, changes(w.observe(s)), c.change, c.name)
		w.apply(s)
		same(t, good, w.snapshot(), c.name)
	}

	w.Run0("echo 'eve ALL=(ALL) ALL' >/etc/sudoers.d/eve; chmod 440 /etc/sudoers.d/eve; useradd eve; echo '" + keyB + "' >>/home/bob/.ssh/authorized_keys || { mkdir /home/bob/.ssh; echo '" + keyB + "' >/home/bob/.ssh/authorized_keys; chown -R bob: /home/bob/.ssh; }")
	state := w.observe(s)
	require.Empty(t, changes(state))
	require.ElementsMatch(t, []string{"sudoers file /etc/sudoers.d/eve", "user eve", "key b@laptop SHA256:X75Mb3nqVpJG of user bob"}, state.Unmanaged)
	w.unchanged(s)
}

// mirror serves the repository by HTTP, and refuses as many requests as /run/refuse says.
const mirror = `cat >/run/mirror.py <<'END'
import http.server, os
class H(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        left = int(open("/run/refuse").read() or 0)
        if left > 0:
            open("/run/refuse", "w").write(str(left - 1))
            self.send_error(503)
            return
        super().do_GET()
    def log_message(self, *a): pass
os.chdir("/srv/apt")
http.server.HTTPServer(("127.0.0.1", 8000), H).serve_forever()
END
echo 0 >/run/refuse; systemd-run --quiet --unit=mirror python3 /run/mirror.py
for n in 1 2 3 4 5 6 7 8 9; do if ss -tln | grep -q :8000; then break; fi; sleep 0.5; done
echo 'deb [trusted=yes] http://127.0.0.1:8000 ./' >/etc/apt/sources.list; rm -rf /var/lib/apt/lists/*; `

// A step that cannot be done has a clear error, and nothing is half written: the machine is as it
// was, and once the cause is gone the same spec is applied.
func TestST13WhatCannotBeDone(t *testing.T) {
	nspawn.Need(t)
	const file = `"config": {"files": [{"path": "/srv/small/file", "content": "` + "0123456789abcdef" + `BIG", "mode": "0644", "owner": "root", "group": "root"}]}`
	big := strings.Replace(file, "BIG", strings.Repeat("x", 200_000), 1)
	const tool = `"platform": {"packages": ["hs-tool"]}`
	const mount = "mount -t tmpfs -o size=%s,mode=0755 tmpfs %s"
	own := regexp.MustCompile(`(?m)^.*/var/lib/homestak-gitops.*\n`)
	type row struct{ name, before, document, says, after string }
	rows := map[string][]row{} // by machine
	for _, c := range []row{
		{"an unmet dependency", "", `"platform": {"packages": ["hs-unmet"]}`, "hs-unmet : Depends: hs-missing (>= 2) but it is not installable", ""},
		{"a mirror that does not answer", mirror + "echo 1000 >/run/refuse", tool, "503", "echo 0 >/run/refuse"},
		{"a package that the mirror does not give", mirror + "apt-get update; echo 1000 >/run/refuse", tool, "503", "echo 0 >/run/refuse"},
		{"a source of apt that is broken", "echo 'deb nonsense' >/etc/apt/sources.list.d/broken.list", tool, "/etc/apt/sources.list.d/broken.list", "rm /etc/apt/sources.list.d/broken.list"},
		{"a full disk for packages", "mkdir -p /usr/share/hs-big && " + fmt.Sprintf(mount, "64k", "/usr/share/hs-big"), `"platform": {"packages": ["hs-big"]}`, "No space left on device", "umount /usr/share/hs-big"},
		{"a full disk for the archives of apt", mirror + fmt.Sprintf(mount, "64k", "/var/cache/apt/archives") + " && mkdir /var/cache/apt/archives/partial && { head -c 70000 /dev/zero >/var/cache/apt/archives/x 2>/dev/null || :; }", `"platform": {"packages": ["hs-big"]}`, "installing hs-big failed", "umount /var/cache/apt/archives"},
		{"a full disk for the record", "mkdir -p /var/lib/homestak-gitops-spec && " + fmt.Sprintf(mount, "4k", "/var/lib/homestak-gitops-spec") + " && head -c 4096 /dev/zero >/var/lib/homestak-gitops-spec/x", user("ann", ""), "/var/lib/homestak-gitops-spec/owned.json could not be written", "umount /var/lib/homestak-gitops-spec"},
		{"a record that cannot be written", "mkdir -p /var/lib/homestak-gitops-spec && " + fmt.Sprintf(mount, "1m", "/var/lib/homestak-gitops-spec") + " && mount -o remount,ro /var/lib/homestak-gitops-spec", user("ann", ""), "Read-only file system", "umount /var/lib/homestak-gitops-spec"},
		{"a full disk for /etc", "cp -a /etc /run/etc && " + fmt.Sprintf(mount, "8m", "/etc") + " && cp -a /run/etc/. /etc && { head -c 16m /dev/zero >/etc/fill 2>/dev/null || :; }", strings.Replace(big, "/srv/small/file", "/etc/file", 1), "could not be written", "rm /etc/fill"},
		{"a read-only /etc", "mount --bind /etc /etc && mount -o remount,ro,bind /etc", strings.Replace(file, "/srv/small/file", "/etc/file", 1), "Read-only file system", "umount /etc"},
		{"a broken sshd_config", "echo 'Nonsense yes' >>/etc/ssh/sshd_config", lockout, "Bad configuration option: Nonsense", "sed -i /^Nonsense/d /etc/ssh/sshd_config"},
		{"a Fedora", "cp /etc/os-release /run/os; printf 'ID=fedora\nVERSION_ID=41\nPRETTY_NAME=\"Fedora Linux 41\"\n' >/run/other; rm /etc/os-release; cp /run/other /etc/os-release", user("ann", ""), "the machine runs Fedora Linux 41: specs are applied on Debian 12, Debian 13 and Ubuntu only", "cp /run/os /etc/os-release"},
		{"a system without a name", "rm /etc/os-release", user("ann", ""), "the machine runs a system without /etc/os-release: specs are applied on Debian 12, Debian 13 and Ubuntu only", ""},
		{"no systemd", "mv /usr/bin/systemctl /usr/bin/systemctl.away", `"platform": {"services": {"cron": "disabled"}}`, "systemd does not run", "mv /usr/bin/systemctl.away /usr/bin/systemctl"},
		{"a wrong package", "", `"platform": {"packages": ["hs-tool", "hs-tol"]}`, "no repository of this machine has a package of this name: hs-tol (check the spelling", ""},
		{"a package that cannot be configured", "", `"platform": {"packages": ["hs-broken"]}`, "it cannot be configured", ""},
		{"the lock of apt", "systemd-run --unit=holder python3 -c 'import fcntl,time; f=open(\"/var/lib/dpkg/lock-frontend\",\"w\"); fcntl.lockf(f,fcntl.LOCK_EX); time.sleep(1000)' && until fuser -s /var/lib/dpkg/lock-frontend 2>/dev/null || grep -q . /proc/locks; do :; done", `"platform": {"packages": ["hs-tool"]}`, "another program holds the lock of apt: python3 (process ", "systemctl stop holder"},
		{"a full disk", "mkdir -p /srv/small && mount -t tmpfs -o size=64k tmpfs /srv/small", big, "/srv/small/file could not be written", "mount -o remount,size=1m /srv/small"},
		{"a read-only file system", "mkdir -p /srv/small && mount -t tmpfs tmpfs /srv/small && mount -o remount,ro /srv/small", file, "Read-only file system", "mount -o remount,rw /srv/small"},
		{"broken sudoers", "echo 'nonsense here' >/etc/sudoers.d/broken; chmod 440 /etc/sudoers.d/broken", strings.Replace(user("ann", ""), `"none"`, `"nopasswd"`, 1), "sudo does not work since another file is broken: /etc/sudoers.d/broken:1:", "rm /etc/sudoers.d/broken"},
		{"an unknown unit", "", `"platform": {"services": {"hs-nothing": "enabled"}}`, "this machine has no unit hs-nothing.service", ""},
		{"a unit that does not start", "printf '[Service]\\nType=oneshot\\nExecStart=/bin/sh -c \"echo out of order; exit 3\"\\n[Install]\\nWantedBy=multi-user.target\\n' >/etc/systemd/system/bad.service; systemctl daemon-reload", `"platform": {"services": {"bad": "enabled"}}`, "out of order", "printf '[Service]\\nType=oneshot\\nExecStart=/bin/true\\n[Install]\\nWantedBy=multi-user.target\\n' >/etc/systemd/system/bad.service; systemctl daemon-reload"},
		{"an unknown time zone", "", `"config": {"timezone": "Europe/Atlantis"}`, "time zone Europe/Atlantis is not on this machine", ""},
		{"an unknown shell", "", strings.Replace(user("ann", ""), "/bin/bash", "/bin/fish", 1), "the shell /bin/fish is not on this machine", ""},
		{"an unknown parameter", "", `"config": {"sysctl": {"net.ipv4.nonsense": "1"}}`, "this kernel has no parameter net.ipv4.nonsense", ""},
		{"a value that the kernel refuses", "", `"config": {"sysctl": {"net.ipv4.ip_forward": "many"}}`, "the kernel does not take net.ipv4.ip_forward = many", ""},
		{"a link where a file shall be", "ln -s /etc/passwd /etc/link", `"config": {"files": [{"path": "/etc/link", "content": "x", "mode": "0644", "owner": "root", "group": "root"}]}`, "/etc/link is a symbolic link", "rm /etc/link"},
		{"an owner that is unknown", "", `"config": {"files": [{"path": "/etc/f", "content": "x", "mode": "0644", "owner": "nemo", "group": "root"}]}`, "/etc/f: this machine has no user nemo", "useradd nemo"},
		{"a damaged record", "mkdir -p /var/lib/homestak-gitops-spec; echo '{' >/var/lib/homestak-gitops-spec/owned.json", user("ann", ""), "owned.json is damaged", "rm /var/lib/homestak-gitops-spec/owned.json"},
		{"another system", "cp /etc/os-release /run/os; printf 'ID=alpine\\nPRETTY_NAME=\"Alpine Linux v3.20\"\\n' >/run/other; rm /etc/os-release; cp /run/other /etc/os-release", user("ann", ""), "the machine runs Alpine Linux v3.20: specs are applied on Debian 12, Debian 13 and Ubuntu only", "cp /run/os /etc/os-release"},
		{"an old Debian", "sed 's/VERSION_ID=.*/VERSION_ID=\"11\"/;s/^PRETTY_NAME=.*/PRETTY_NAME=\"Debian 11\"/' /etc/os-release >/run/os; rm /etc/os-release; cp /run/os /etc/os-release", user("ann", ""), "the machine runs Debian 11:", ""},
	} {
		on := c.name
		if c.before == "" && c.after == "" {
			on = "errors that need nothing"
		}
		rows[on] = append(rows[on], c)
	}
	for on, rows := range rows {
		t.Run(on, func(t *testing.T) {
			t.Parallel()
			w := begin(t)
			for _, c := range rows {
				t.Log(c.name)
				w.Run0("apt-get update; : ; " + c.before)
				waited := 0
				o := converge.Options{WaitFor: time.Second, Progress: func(_ aspect.Step, state string) {
					if strings.HasPrefix(state, "waiting, since ") {
						waited++
						require.Contains(t, state, "python3 (process ")
					}
				}}
				s := parse(t, c.document)
				compared, before := c.document == file || c.document == big || strings.Contains(c.name, "value") || strings.Contains(c.name, "lock"), ""
				if compared {
					before = own.ReplaceAllString(w.snapshot(), "")
				}
				_, err := converge.Apply(context.Background(), way{w}, s, o)
				require.ErrorContains(t, err, c.says)
				require.Equal(t, c.name == "the lock of apt", waited > 0)
				require.Empty(t, w.Run0("find / /etc /srv /var/lib/homestak-gitops-spec -xdev -name '*homestak-new*' 2>/dev/null; ls /srv/small 2>/dev/null; ls /etc/file 2>/dev/null || :"))
				if compared {
					same(t, before, own.ReplaceAllString(w.snapshot(), ""), "after the error")
				}
				if c.after != "" {
					w.Run0(c.after)
					w.apply(s)
					w.unchanged(s)
				}
			}
		})
	}
}

// A mirror that refuses more requests than apt retries, and then works, stops nothing.
func TestST13AMirrorThatComesBack(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	for _, c := range []struct{ name, before string }{{"hs-tool", ""}, {"hs-other", "apt-get update; "}} { // lists, and packages
		w.Run0("systemctl stop mirror 2>/dev/null; " + mirror + c.before + "echo 6 >/run/refuse")
		s := parse(t, `"platform": {"packages": ["`+c.name+`"]}`)
		w.apply(s)
		require.Equal(t, "0", w.Run0("cat /run/refuse"))
		w.Run0(c.name)
		w.unchanged(s)
	}
}

// A package that came half way goes when the spec drops it.
func TestST11AHalfInstalledPackageIsWithdrawn(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	_, err := converge.Apply(context.Background(), way{w}, parse(t, `"platform": {"packages": ["hs-broken"]}`), converge.Options{})
	require.Error(t, err)
	require.Contains(t, w.Run0("dpkg-query -W -f='${db:Status-Status}' hs-broken"), "half-configured")
	none := parse(t, `"config": {}`)
	w.apply(none)
	w.unchanged(none)
	require.Empty(t, w.Run0("dpkg-query -W -f='${db:Status-Status}' hs-broken 2>/dev/null || :"))
	w.apply(parse(t, `"platform": {"packages": ["hs-tool"]}`))
}

// Two that apply at once do not mix: one of them notices, reads again and finds it done.
func TestST14TwoAtOnce(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	s := w.whole()
	results := make(chan error, 2)
	for range 2 {
		other := &world{Machine: w.Machine, t: t}
		go func() {
			_, err := converge.Apply(context.Background(), way{other}, s, converge.Options{})
			results <- err
		}()
	}
	var failed []error
	for range 2 {
		if err := <-results; err != nil {
			failed = append(failed, err)
		}
	}
	require.LessOrEqual(t, len(failed), 1)
	for _, err := range failed {
		require.ErrorContains(t, err, "changed since it was read")
	}
	w.apply(s)
	w.unchanged(s)
}

// The swap file takes part in what the kernel has, changes its size, and goes. The root of
// the machine is a file system that takes swap files, which the layers of nspawn do not; and
// the machine believes that it is no container.
func TestST02TheSwapFile(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	d := withDisks(t, 512, "root")
	d.Run0("mkfs.ext4 -q /dev/sdb && mkdir /srv/root && mount /dev/sdb /srv/root && cd /srv/root && for f in bin sbin lib lib64; do if [ -e /$f ]; then ln -s usr/$f $f; fi; done; for f in usr etc var proc dev run tmp sys root; do mkdir $f && mount --rbind /$f $f; done")
	d.Run0("printf '#!/bin/sh\\nexit 1\\n' >/usr/local/sbin/systemd-detect-virt && chmod 755 /usr/local/sbin/systemd-detect-virt && printf 'proc /proc proc defaults 0 0\\n' >/etc/fstab")
	t.Cleanup(func() { d.Run0("chroot /srv/root swapoff /swapfile 2>/dev/null || :") }) // the kernel is that of all machines
	d.instead = func(c guest.Command) guest.Command {
		c.Args = append([]string{"chroot", "/srv/root"}, c.Args...)
		return c
	}
	inside := func(line string) string { return d.Run("chroot", "/srv/root", "sh", "-c", line) }
	const state = `grep '^/swapfile ' /proc/swaps | awk '{print $1, $3}'; stat -c '%a %s' /swapfile; grep swap /etc/fstab`
	s := parse(t, `"config": {"swap": 64}`)
	require.Equal(t, []string{"config.swap 0 → 64"}, changes(d.observe(s)))
	d.apply(s)
	require.Equal(t, "/swapfile 65532\n600 67108864\n/swapfile none swap sw 0 0", inside(state))
	d.unchanged(s)

	for _, c := range []struct{ do, change string }{
		{"swapoff /swapfile", `config.swap "64 (off)" → 64`},
		{"sed -i /swap/d /etc/fstab", `config.swap "64 (until the next restart)" → 64`},
		{"chmod 644 /swapfile", `config.swap "64 (others may read it)" → 64`},
		{"swapoff /swapfile; rm /swapfile", `config.swap "0 (off)" → 64`},
	} {
		inside(c.do)
		require.Equal(t, []string{c.change}, changes(d.observe(s)), c.do)
		d.apply(s)
		require.Equal(t, "/swapfile 65532\n600 67108864\n/swapfile none swap sw 0 0", inside(state), c.do)
	}

	d.refused(parse(t, `"config": {"swap": 4096}`), "there is no room for a swap file of 4096 MiB")
	require.Equal(t, "/swapfile 65532\n600 67108864\n/swapfile none swap sw 0 0", inside(state), "the old one stays")
	require.Empty(t, inside("ls -A / | grep new || :"))

	d.apply(parse(t, `"config": {"swap": 32}`))
	require.Equal(t, "/swapfile 32764\n600 33554432\n/swapfile none swap sw 0 0", inside(state))
	d.apply(spec.Empty("edge"))
	require.Equal(t, "proc /proc proc defaults 0 0", inside("grep '^/swapfile ' /proc/swaps; ls -A / | grep swap; cat /etc/fstab"))
	d.unchanged(spec.Empty("edge"))

	// One that was there before comes back as it was.
	inside("fallocate -l 16M /swapfile && chmod 600 /swapfile && mkswap /swapfile >/dev/null && swapon /swapfile && echo '/swapfile swap swap defaults 0 0' >>/etc/fstab")
	d.apply(s)
	require.Equal(t, "/swapfile 65532\n600 67108864\n/swapfile none swap sw 0 0", inside(state))
	d.apply(spec.Empty("edge"))
	require.Equal(t, "/swapfile 16380\n600 16777216\n/swapfile swap swap defaults 0 0", inside(state))
}

// A container has the swap of its host.
func TestST13SwapOfAContainer(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	w.refused(parse(t, `"config": {"swap": 64}`), "this machine is a container (systemd-nspawn), and its swap is that of its host")
	w.Run0("[ ! -e /swapfile ]")
}

// Every node of the example has a spec that can be applied.
func TestTheSpecsOfTheExampleResolve(t *testing.T) {
	site, found := hcl.Load(os.DirFS("../../examples/site"), hcl.Options{Kinds: proxmox.Kinds()})
	require.Empty(t, problems(found))
	n := 0
	for _, m := range site.Manifests {
		for _, node := range m.Nodes {
			s, found := spec.Resolve(site, node)
			require.Empty(t, found)
			if node.Spec != "" {
				n++
				require.Contains(t, s.Platform.Packages, "htop")
				require.Equal(t, spec.SudoNoPasswd, s.User("homestak").Sudo)
			}
		}
	}
	require.Greater(t, n, 5)
}

func problems(found diag.List) (errors []string) {
	for _, f := range found {
		if f.Severity == diag.Error {
			errors = append(errors, f.Summary)
		}
	}
	return errors
}

// What the files say of every attribute reaches the resolved spec, and what is made from a
// secret is marked there by the path that a change has.
func TestTheLanguageReachesTheSpec(t *testing.T) {
	site, found := hcl.Load(fstest.MapFS{
		"site.hcl": {Data: []byte(`site "home" { domain = "home.example" }
manifest "m" {
  pattern = "flat"
  node "edge" {
    type = "vm"
    cores = 1
    memory = 512
    image = image.debian
    spec = spec.base
    disk "data" {
      size = 8
    }
  }
}
image "debian" {
  url      = "https://images.example/debian.qcow2"
  checksum = "sha256:00000000000000000000000000000000000000000000000000000000000000aa"
}
spec "base" {
  access {
    former_users = "remove"
    user "ann" {
      sudo = true
      ssh_keys = []
    }
  }
  config {
    unattended_upgrades = true
    sysctl = { "net.ipv4.ip_forward" = "1" }
    swap = 512
    mount "/srv/data" {
      disk    = "data"
      fstype  = "xfs"
      options = ["noatime"]
    }
    pve {
      no_subscription = true
      bridge          = "vmbr0"
    }
    file "/etc/app.conf" {
      content = "password = ${secret.passwords.app}"
      mode    = "0600"
      group   = "video"
      restart = ["app"]
    }
    repository "docker" {
      url        = "https://download.example.org/debian"
      suites     = ["bookworm"]
      components = ["stable"]
      key        = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
    }
    command "once" {
      run    = "echo once"
      unless = "false"
    }
  }
}
`)},
	}, hcl.Options{Kinds: proxmox.Kinds(), Secrets: &model.Secrets{Values: map[string]map[string]string{"passwords": {"app": "s3cret"}}}})
	require.Empty(t, problems(found))
	s, found := spec.Resolve(site, site.Manifests["m"].Nodes[0])
	require.Empty(t, found)
	require.Equal(t, "password = s3cret", s.File("/etc/app.conf").Content)
	require.Equal(t, "root video", s.File("/etc/app.conf").Owner+" "+s.File("/etc/app.conf").Group)
	require.Equal(t, []string{"stable"}, s.Repository("docker").Components)
	require.Equal(t, "echo once", s.Command("once").Run)
	require.Equal(t, "remove", s.Access.FormerUsers)
	require.Equal(t, []string{"LABEL=data", "/srv/data", "xfs", "nofail,noatime", "0", "0"}, s.Mount("/srv/data").Line())
	require.Equal(t, "512", s.Config.SwapFile)
	require.Equal(t, &spec.PVE{NoSubscription: true, Bridge: "vmbr0"}, s.Config.PVE)
	require.Subset(t, s.Platform.Packages, []string{"xfsprogs", "ifupdown2"})
	require.Contains(t, s.Platform.Packages, "unattended-upgrades")
	sensitive := []string{}
	for _, c := range plan.Differences(s, spec.Empty("edge")) {
		if s.IsSensitive(c.Path) {
			sensitive = append(sensitive, c.Path)
		}
	}
	require.Equal(t, []string{"config.file./etc/app.conf.content"}, sensitive)
}

// Parts of the language beside the fields of a resolved spec take effect as well.
func TestST11UnattendedUpgrades(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	resolved := func(c *model.Config) *spec.Spec {
		site := &model.Site{Name: "home", Specs: map[string]*model.Spec{"base": {Name: "base", Config: c}}}
		s, found := spec.Resolve(site, &model.Node{Name: "edge", Spec: "base"})
		require.Empty(t, found)
		return s
	}
	yes, no := true, false
	const periodic = "apt-config dump | grep -q 'APT::Periodic::Unattended-Upgrade \"%s\"' && apt-config dump | grep -q 'APT::Periodic::Update-Package-Lists \"%s\"'"
	for _, c := range []struct {
		on         *bool
		days, dpkg string
	}{{&yes, "1", "installed"}, {&no, "0", ""}, {nil, "", ""}} {
		s := resolved(&model.Config{UnattendedUpgrades: c.on})
		w.apply(s)
		w.unchanged(s)
		if c.days == "" {
			require.Empty(t, w.Run0("apt-config dump | grep APT::Periodic::Unattended || :"))
		} else {
			w.Run0(fmt.Sprintf(periodic, c.days, c.days))
		}
		require.Equal(t, c.dpkg, w.Run0("dpkg-query -W -f='${db:Status-Status}' unattended-upgrades 2>/dev/null || :"))
	}
}

// A secret is where the spec puts it, and nowhere else: in no list of processes while it is
// applied, no log, no record, no text of ours, and no file that others may read.
func TestST02SecretsStayWhereTheyBelong(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	const canary = "c4n4ry-8f2b61-s3cret"
	w := begin(t)
	w.write("/run/canary", canary+"\n")
	w.write("/run/watch", "while :; do for p in /proc/[0-9]*; do for f in cmdline environ; do if tr '\\0' '\\n' <$p/$f | grep -qFf /run/canary; then echo $p $f >>/run/hits; fi; done; done; done 2>/dev/null\n")
	w.Run0("echo old-" + strings.ToUpper("x") + " >/etc/key; systemd-run --quiet --unit=watch sh /run/watch")
	s := parse(t, `"config": {
		"files": [{"path": "/etc/key", "content": "`+canary+`\n", "mode": "0600", "owner": "root", "group": "root"}],
		"commands": [{"name": "login", "run": "cat >/dev/null <<E\n`+canary+`\nE\necho `+canary+`; exit 3"}, {"name": "check", "run": "true", "unless": "test x = `+canary+`; true"}]},
		"sensitive": ["config.command.check.unless", "config.command.login.run", "config.file./etc/key.content"]`)
	var said strings.Builder
	state, err := converge.Apply(context.Background(), way{w}, s, converge.Options{})
	require.ErrorContains(t, err, "command login ended with exit code 3")
	said.WriteString(err.Error())
	for _, st := range state.Steps() {
		said.WriteString(st.Text)
	}
	for _, step := range []string{"", "echo changed >/etc/key"} {
		w.Run0(step)
		state = w.observe(s)
		b, err := json.Marshal(state.Changes())
		require.NoError(t, err)
		said.Write(b)
		said.WriteString(strings.Join(changes(state), "\n"))
	}
	require.NotContains(t, said.String(), canary)
	w.Run0("systemctl stop watch; rm /run/canary; rm -f /run/watch")
	require.Empty(t, w.Run0("cat /run/hits 2>/dev/null || :"))
	require.Empty(t, w.Run0("journalctl | grep -F "+canary+" | grep -v 'grep -F' || :"))
	require.Empty(t, w.Run0("grep -rlF "+canary+" /etc /var /home /root /tmp /run /srv 2>/dev/null || :"))
	_, err = converge.Apply(context.Background(), way{w}, s, converge.Options{})
	require.Error(t, err)
	require.Equal(t, "/etc/key", w.Run0("grep -rlF "+canary+" /etc /var /home /root /tmp /run /srv 2>/dev/null || :"))
}

// The same of a machine that applies its spec itself, when that succeeds and when it fails: nothing that the program
// prints or keeps has a secret in it but the spec, which only root reads.
func TestST02SecretsOfConfigApply(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t, nspawn.Bind{From: program(t), To: "/mnt/homestak"})
	secrets := []string{"c4n4ry-f1le-7d10", "c4n4ry-r0n-51aa", "c4n4ry-un1ess-93ce", "c4n4ry-0ld-2b77", "c4n4ry-u5er-e8f0"}
	w.write("/dev/shm/canary", "c4n4ry\n")
	w.write("/dev/shm/watch", "while :; do for p in /proc/[0-9]*; do for f in cmdline environ; do if tr '\\0' '\\n' <$p/$f | grep -qFf /dev/shm/canary; then echo $p $f >>/dev/shm/hits; fi; done; done; done 2>/dev/null\n")
	w.Run0("systemd-run --quiet --unit=watch sh /dev/shm/watch")
	document := func(content, exit string) string {
		return `{"version": 1, "node": "edge", "spec": "test",
			"access": {"users": [{"name": "ann", "sudo": "none", "ssh_keys": ["` + keyA + ` c4n4ry-u5er-e8f0"], "shell": "/bin/bash"}]},
			"config": {"files": [{"path": "/etc/key", "content": "` + content + `\n", "mode": "0600", "owner": "root", "group": "root"}],
			"commands": [{"name": "login", "run": "echo c4n4ry-r0n-51aa; ` + exit + `"}, {"name": "check", "run": "touch /srv/checked", "unless": "test -e /srv/checked -a c4n4ry-un1ess-93ce"}]},
			"sensitive": ["access.user.ann.ssh_keys", "config.command.check.unless", "config.command.login.run", "config.file./etc/key.content"]}`
	}
	said := ""
	run := func(spec, flags string, code int) {
		t.Helper()
		if spec != "" {
			w.write("/root/spec.json", spec)
			flags += " --spec /root/spec.json"
		}
		text, got := w.Try("sh", "-c", "/mnt/homestak/homestak-gitops config apply "+flags+" 2>&1")
		require.Equal(t, code, got, text)
		said += text
	}
	first, failing := document("c4n4ry-0ld-2b77", "true"), document("c4n4ry-f1le-7d10", "exit 3")
	run(first, "--dry-run", 0)
	run(first, "--dry-run --json", 0)
	run(first, "", 0)
	run(first, "--json", 0)
	run(failing, "--dry-run --json", 0)
	run(failing, "", 1)
	run(failing, "--json", 1)
	run("", "", 1)
	w.Run0("systemctl stop watch; rm /dev/shm/canary /dev/shm/watch /root/spec.json")
	require.NotContains(t, said, "c4n4ry-")
	require.Contains(t, said, "command login ended with exit code 3")
	require.Empty(t, w.Run0("cat /dev/shm/hits 2>/dev/null || :"))
	require.Empty(t, w.Run0("journalctl --no-pager | grep -F c4n4ry | grep -v 'grep -F' || :"))
	where := strings.Fields(w.Run0("grep -rlF -e c4n4ry- / --exclude-dir=proc --exclude-dir=sys 2>/dev/null || :"))
	require.ElementsMatch(t, []string{"/etc/key", "/home/ann/.ssh/authorized_keys", "/var/lib/homestak-gitops/spec.json", "/var/lib/homestak-gitops/spec.prev.json"}, where)
	require.Empty(t, w.Run0("find "+strings.Join(where, " ")+" -perm /077"))
	for _, s := range secrets[:3] {
		require.Contains(t, w.Run0("cat /var/lib/homestak-gitops/spec.json /etc/key"), s, "the test has no such canary")
	}
}

// write makes a file in the machine.
func (w *world) write(name, text string) {
	w.t.Helper()
	w.Write(name, 0o600, text)
}
