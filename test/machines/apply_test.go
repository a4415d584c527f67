package machines_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
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
		name: "timezone", with: `"config": {"timezone": "America/Denver"}`, without: `"config": {}`,
		effect: `[ "$(date +%Z)" = MST ] || [ "$(date +%Z)" = MDT ] && { [ ! -e /etc/timezone ] || [ "$(cat /etc/timezone)" = America/Denver ]; }`, absent: `[ "$(date +%Z)" = UTC ] && { [ ! -e /etc/timezone ] || [ "$(cat /etc/timezone)" = Etc/UTC ]; }`,
	},
	{
		name: "timezone that is a link to another", with: `"config": {"timezone": "UTC"}`, without: `"config": {}`,
		effect: `[ "$(readlink /etc/localtime)" = /usr/share/zoneinfo/UTC ]`, absent: `[ "$(readlink -f /etc/localtime)" = /usr/share/zoneinfo/Etc/UTC ] && [ "$(readlink /etc/localtime)" != /usr/share/zoneinfo/UTC ]`,
	},
	{
		name: "timezone where a file is", with: `"config": {"timezone": "America/Denver"}`, without: `"config": {}`,
		before: "rm /etc/localtime && cp /usr/share/zoneinfo/Asia/Tokyo /etc/localtime && chmod 640 /etc/localtime",
		effect: `[ "$(readlink /etc/localtime)" = /usr/share/zoneinfo/America/Denver ]`,
		absent: `[ ! -L /etc/localtime ] && cmp /etc/localtime /usr/share/zoneinfo/Asia/Tokyo && [ "$(stat -c %a /etc/localtime)" = 640 ] && [ -z "$(ls -A /var/lib/homestak-gitops/found)" ] && { [ ! -e /etc/timezone ] || [ "$(cat /etc/timezone)" = Etc/UTC ]; }`,
	},
	{
		name: "package", with: `"platform": {"packages": ["hs-tool"]}`, without: `"platform": {}`,
		effect: `[ "$(hs-tool)" = tool ] && [ -f /usr/share/hs-lib/data ]`, absent: `! command -v hs-tool && [ ! -e /usr/share/hs-lib/data ]`,
	},
	{
		name: "package that something else needs", with: `"platform": {"packages": ["hs-tool"]}`, without: `"platform": {"packages": ["hs-needer"]}`,
		effect: `[ "$(hs-tool)" = tool ]`, absent: `[ "$(hs-tool)" = tool ] && apt-mark showauto | grep -qx hs-tool`,
	},
	{
		name: "one of two packages", with: `"platform": {"packages": ["hs-tool", "hs-other"]}`, without: `"platform": {"packages": ["hs-other"]}`,
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
		name: "service of a package of the same run disabled", with: `"platform": {"packages": ["hs-daemon"], "services": {"hs-daemon": "disabled"}}`, without: `"platform": {}`,
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
		name: "user", with: user("ann", ""), without: `"access": {}`,
		effect: `id ann && [ -d /home/ann ] && [ "$(getent passwd ann | cut -d: -f7)" = /bin/bash ]`,
		absent: `id ann && [ -d /home/ann ] && [ "$(getent shadow ann | cut -d: -f8)" = 1 ]`,
	},
	{
		name: "user that is removed", with: user("ann", ""), without: `"access": {"former_users": "remove"}`,
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
		name: "groups", with: user("ann", `, "groups": ["video", "ops"]`), without: user("ann", `, "groups": ["video"]`),
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
		name: "sudo", with: strings.Replace(user("ann", ""), `"none"`, `"nopasswd"`, 1), without: user("ann", ""),
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
		absent: `sshd -T | grep -qx 'port 22' && sshd -T | grep -qx 'passwordauthentication yes' && [ ! -e /var/lib/homestak-gitops/revert/sshd.sh ]`,
	},
	{
		name: "fail2ban", with: `"posture": {"fail2ban": {}}, "platform": {"services": {"fail2ban": "enabled"}}`, without: `"posture": {}`,
		effect: `systemctl is-active fail2ban`, absent: `[ -z "$(ls /etc/fail2ban/jail.d | grep homestak)" ]`,
	},
	{
		name: "sysctl", with: `"config": {"sysctl": {"net.ipv4.ip_forward": "1", "net.ipv4.conf.all.accept_redirects": "0"}}`, without: `"config": {"sysctl": {"net.ipv4.conf.all.accept_redirects": "0"}}`,
		effect: `[ "$(cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf/all/accept_redirects | tr '\n' ' ')" = "1 0 " ]`,
		absent: `[ "$(cat /proc/sys/net/ipv4/ip_forward)" = 0 ] && ! grep -q forward /etc/sysctl.d/zz-homestak-gitops.conf`,
	},
	{
		name: "file", with: `"config": {"files": [{"path": "/etc/homestak-test/a b", "content": "x'\u0001\n", "mode": "600", "owner": "root", "group": "video"}]}`, without: `"config": {}`,
		effect: `[ "$(stat -c '%a %U %G' '/etc/homestak-test/a b')" = "600 root video" ] && printf "x'\001\n" | cmp - '/etc/homestak-test/a b'`, absent: `[ ! -e '/etc/homestak-test/a b' ]`,
	},
	{
		name: "file that was there", with: `"config": {"files": [{"path": "/etc/motd", "content": "mine\n", "mode": "0644", "owner": "root", "group": "root"}]}`, without: `"config": {}`,
		before: "echo theirs >/etc/motd && chmod 640 /etc/motd && chgrp adm /etc/motd",
		effect: `[ "$(cat /etc/motd)" = mine ]`, absent: `[ "$(cat /etc/motd)" = theirs ] && [ "$(stat -c '%a %G' /etc/motd)" = "640 adm" ] && [ -z "$(ls /var/lib/homestak-gitops/found)" ]`,
	},
	{
		name: "file that a service reads", with: `"config": {"files": [{"path": "/etc/hs-daemon.conf", "content": "mine\n", "mode": "0644", "owner": "root", "group": "root", "restart": ["hs-daemon"]}]}`, without: `"config": {}`,
		before: "apt-get update && apt-get -y install hs-daemon && systemctl show -p MainPID hs-daemon >/run/pid",
		effect: `[ "$(systemctl show -p MainPID hs-daemon)" != "$(cat /run/pid)" ] && systemctl show -p MainPID hs-daemon >/run/pid`, absent: `[ "$(cat /etc/hs-daemon.conf)" = shipped ] && ! systemctl show -p MainPID hs-daemon | grep -qxFf /run/pid && systemctl show -p MainPID hs-daemon >/run/pid`,
	},
	{
		name: "repository", with: `"platform": {"packages": ["hs-extra"]}, "config": {"repositories": [{"name": "extra", "url": "file:/srv/apt/extra", "suites": ["./"], "key": "KEY"}]}`, without: `"config": {}`,
		effect: `hs-extra && [ "$(stat -c %a /etc/apt/keyrings/homestak-extra.asc)" = 644 ]`,
		absent: `! command -v hs-extra && ! ls /etc/apt/sources.list.d /etc/apt/keyrings | grep homestak && ! apt-cache show hs-extra`,
	},
	{
		name: "repository with components", with: `"config": {"repositories": [{"name": "parts", "url": "file:/srv/apt/parts", "suites": ["stable"], "components": ["main"], "key": "KEY"}]}, "platform": {"packages": ["hs-part"]}`,
		without: `"config": {"repositories": [{"name": "parts", "url": "file:/srv/apt/parts", "suites": ["stable"], "components": ["other"], "key": "KEY"}]}`,
		effect:  `hs-part && grep -qx 'Components: main' /etc/apt/sources.list.d/homestak-parts.sources`,
		absent:  `! command -v hs-part && ! apt-cache show hs-part && grep -qx 'Components: other' /etc/apt/sources.list.d/homestak-parts.sources`,
	},
	{
		name: "commands", with: `"config": {"commands": [{"name": "make", "run": "echo x >>/srv/made", "creates": "/srv/made"}, {"name": "check", "run": "echo y >>/srv/log; touch /srv/flag", "unless": "[ -e /srv/flag ]"},
			{"name": "once", "run": "echo z >>/srv/once"}]}`, without: `"config": {}`,
		effect: `[ "$(cat /srv/made /srv/log /srv/once | tr -d '\n')" = xyz ]`, absent: `[ "$(cat /srv/made /srv/log | tr -d '\n')" = xy ] && rm /srv/once`,
	},
}

// noEffect are fields that change nothing on a machine by themselves, with the reason.
var noEffect = map[string]string{
	"posture.name": "it only names where the settings are from",
	"config.drift": "it decides what happens to a difference, see drivers/push",

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
	for _, f := range fields {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			w := begin(t)
			if strings.HasPrefix(f.name, "repository") && w.key == "" {
				nspawn.Without(t, "gpg is missing, to sign a repository with")
			}
			if f.before != "" {
				w.Run0(f.before)
			}
			key, err := json.Marshal(w.key)
			require.NoError(t, err)
			with, without := parse(t, strings.ReplaceAll(f.with, `"KEY"`, string(key))), parse(t, strings.ReplaceAll(f.without, `"KEY"`, string(key)))
			w.apply(with)
			w.Run0(f.effect)
			w.unchanged(with)
			w.apply(without)
			w.Run0(f.absent)
			w.unchanged(without)
			w.apply(with)
			w.Run0(f.effect)
		})
	}
}

// unchanged requires that an apply costs one command, and writes nothing at all: no file or folder of the
// machine changes, and nothing is logged.
func (w *world) unchanged(s *spec.Spec) {
	w.t.Helper()
	// What others logged before, such as the sudo of a test, arrives first.
	cursor := w.Run0("journalctl --sync && journalctl --quiet --no-pager --lines=0 --show-cursor | sed 's/^-- cursor: //'")
	w.Run0("touch /var/since")
	w.runs = 0
	state, err := converge.Apply(context.Background(), way{w}, s, converge.Options{})
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

// busy is what a machine writes by itself, and talkative who logs by itself:
// the units of this program do.
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
	require.Equal(t, "600 root root", w.Run0("stat -c '%a %U %G' /var/lib/homestak-gitops/owned.json"))
	w.apply(parse(t, `"access": {"former_users": "remove"}`))
	w.Run0("rm -r /home/ann /home/bob /etc/homestak-test")
	w.apply(parse(t, `"identity": {"hostname": "vm"}`))
	require.JSONEq(t, `{"version": 1, "entries": []}`, w.Run0("cat /var/lib/homestak-gitops/owned.json"))
	require.Empty(t, w.Run0("ls -A /var/lib/homestak-gitops/found /var/lib/homestak-gitops/revert | grep -v :; find / -xdev -name '*homestak-new*'"))
}
