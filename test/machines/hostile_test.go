package machines_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// hostileStrings create /pwned, or a line that begins with PWNED, wherever something takes them for more than one
// word: a shell, an option of a command, a line of a file, a pattern, a format.
var hostileStrings = []string{
	"$(touch /pwned)", "`touch /pwned`", "a;touch /pwned", "a\ntouch /pwned\n", "a'$(touch /pwned)'", `a"$(touch /pwned)"`, "a' ; touch /pwned ; '", `a" ; touch /pwned ; "`,
	"a|touch /pwned", "a&touch /pwned&", "a&&touch /pwned", "${IFS}$(touch${IFS}/pwned)", "a\\\ntouch /pwned", "a\r\ntouch /pwned", "a #\ntouch /pwned", "a}\ntouch /pwned\n{",
	"a\n} </dev/null\ntouch /pwned\n{", "EOF\ntouch /pwned\nEOF", "a\x01touch /pwned", "a%stouch /pwned%n", "a(touch /pwned)", "a<(touch /pwned)", "a>/pwned", "a\nPWNED=1", "a\tPWNED",
	"-o APT::Update::Pre-Invoke::=touch /pwned", "--root=/pwned", "-e", "--", "-", "@", "a:b:c", "a:0:0", "../../../elsewhere", "/../../elsewhere", "~/elsewhere", "*", "[a-z]*", "{a,b}", "a b", "", " ", "\\", "'", `"`, "$", "$0", "!",
	"a/b", "a=b", "a\u202etouch", "a\u009b31m", "é", strings.Repeat("a", 300), strings.Repeat("../", 200) + "elsewhere", "a\n[Service]\nExecStart=/bin/touch /pwned", "a ALL=(ALL) NOPASSWD: ALL\nPWNED ALL=(ALL) NOPASSWD: ALL",
	"a\nProxyCommand touch /pwned\nPWNED", "command=\"touch /pwned\" ssh-ed25519 AAAA\nPWNED", "a] trusted=yes\nPWNED http://192.0.2.1/", "%i", "%%", "a::b", "0", "-1", "00", "1e9", "nan", "true", "null", "a,b", "a;b",
}

// hostileFields are the fields of a spec that hold text. declares writes one of them in a spec of the site's language;
// "" for a field that the language derives. document writes it in the document that a node is served.
var hostileFields = []struct{ name, declares, document string }{
	{"hostname", `identity { hostname = %s }`, `"identity": {"hostname": %s}`},
	{"domain", `identity { domain = %s }`, `"identity": {"hostname": "edge", "domain": %s}`},
	{"user", `access { user %s { ssh_keys = [] } }`, `"access": {"users": [{"name": %s, "sudo": "nopasswd", "ssh_keys": []}]}`},
	{"group", `access { user "ann" { groups = [%s] } }`, `"access": {"users": [{"name": "ann", "sudo": "none", "ssh_keys": [], "groups": [%s]}]}`},
	{"shell", `access { user "ann" { shell = %s } }`, `"access": {"users": [{"name": "ann", "sudo": "none", "ssh_keys": [], "shell": %s}]}`},
	{"sudo", "", `"access": {"users": [{"name": "ann", "sudo": %s, "ssh_keys": []}]}`},
	{"former users", `access { former_users = %s }`, `"access": {"former_users": %s, "users": []}`},
	{"port", "", `"posture": {"ssh": {"port": %s, "permit_root_login": "no", "password_authentication": "no"}}`},
	{"root login", "", `"posture": {"ssh": {"port": "22", "permit_root_login": %s, "password_authentication": "no"}}`},
	{"passwords", "", `"posture": {"ssh": {"port": "22", "permit_root_login": "no", "password_authentication": %s}}`},
	{"package", `platform { packages = [%s] }`, `"platform": {"packages": [%s]}`},
	{"service", `platform { services { enable = [%s] } }`, `"platform": {"services": {%s: "enabled"}}`},
	{"disabled service", `platform { services { disable = [%s] } }`, `"platform": {"services": {%s: "disabled"}}`},
	{"service state", "", `"platform": {"services": {"cron": %s}}`},
	{"timezone", `config { timezone = %s }`, `"config": {"timezone": %s}`},
	{"sysctl", `config { sysctl = { %s = "1" } }`, `"config": {"sysctl": {%s: "1"}}`},
	{"sysctl value", `config { sysctl = { "vm.swappiness" = %s } }`, `"config": {"sysctl": {"vm.swappiness": %s}}`},
	{"file", `config { file %s { content = "x" } }`, `"config": {"files": [{"path": %s, "content": "x", "mode": "0644", "owner": "root", "group": "root"}]}`},
	{"content", `config { file "/etc/app" { content = %s } }`, `"config": {"files": [{"path": "/etc/app", "content": %s, "mode": "0644", "owner": "root", "group": "root"}]}`},
	{"mode", `config { file "/etc/app" { content = "x", mode = %s } }`, `"config": {"files": [{"path": "/etc/app", "content": "x", "mode": %s, "owner": "root", "group": "root"}]}`},
	{"owner", `config { file "/etc/app" { content = "x", owner = %s } }`, `"config": {"files": [{"path": "/etc/app", "content": "x", "mode": "0644", "owner": %s, "group": "root"}]}`},
	{"file's group", `config { file "/etc/app" { content = "x", group = %s } }`, `"config": {"files": [{"path": "/etc/app", "content": "x", "mode": "0644", "owner": "root", "group": %s}]}`},
	{"restart", `config { file "/etc/app" { content = "x", restart = [%s] } }`, `"config": {"files": [{"path": "/etc/app", "content": "x", "mode": "0644", "owner": "root", "group": "root", "restart": [%s]}]}`},
	{"repository", `config { repository %s { url = "http://192.0.2.1/", suites = ["a"], components = ["b"] } }`, `"config": {"repositories": [{"name": %s, "url": "file:/srv/none", "suites": ["./"]}]}`},
	{"repository's url", `config { repository "r" { url = %s, suites = ["a"], components = ["b"] } }`, `"config": {"repositories": [{"name": "r", "url": %s, "suites": ["./"]}]}`},
	{"suite", `config { repository "r" { url = "http://192.0.2.1/", suites = [%s], components = ["b"] } }`, `"config": {"repositories": [{"name": "r", "url": "file:/srv/none", "suites": [%s]}]}`},
	{"component", `config { repository "r" { url = "http://192.0.2.1/", suites = ["a"], components = [%s] } }`, `"config": {"repositories": [{"name": "r", "url": "file:/srv/none", "suites": ["a"], "components": [%s]}]}`},
	{"repository's key", `config { repository "r" { url = "http://192.0.2.1/", suites = ["a"], components = ["b"], key = %s } }`, `"config": {"repositories": [{"name": "r", "url": "file:/srv/none", "suites": ["./"], "key": %s}]}`},
	{"command", `config { command %s { run = "true", creates = "/etc/hostname" } }`, `"config": {"commands": [{"name": %s, "run": "true", "unless": "true"}]}`},
	{"creates", `config { command "c" { run = "true", creates = %s } }`, `"config": {"commands": [{"name": "c", "run": "true", "creates": %s}]}`},
	{"bridge", `config { pve { bridge = %s } }`, `"config": {"pve": {"bridge": %s}}`},
	{"mount", `config { mount %s { disk = "data" } }`, `"config": {"mounts": [{"path": %s, "label": "data", "fstype": "ext4"}]}`},
	{"fstype", `config { mount "/srv/data" { disk = "data", fstype = %s } }`, `"config": {"mounts": [{"path": "/srv/data", "label": "data", "fstype": %s}]}`},
	{"mount option", `config { mount "/srv/data" { disk = "data", options = [%s] } }`, `"config": {"mounts": [{"path": "/srv/data", "label": "data", "fstype": "ext4", "options": [%s]}]}`},
	{"address", `network { ip = %s }`, `"network": {"ip": %s}`},
	{"gateway", `network { gateway = %s }`, `"network": {"ip": "192.0.2.9/24", "gateway": %s}`},
	{"name server", `network { dns = [%s] }`, `"network": {"ip": "dhcp", "dns": [%s]}`},
	{"trigger", `run { trigger = %s }`, `"run": {"trigger": %s, "interval_seconds": 60}`},
}

// quoteHCL writes text as a literal of the site's language.
func quoteHCL(t *testing.T, text string) string {
	t.Helper()
	b, err := json.Marshal(text)
	require.NoError(t, err)
	return strings.NewReplacer("${", "$${", "%{", "%%{", `\u0026`, "&", `\u003c`, "<", `\u003e`, ">").Replace(string(b))
}

// declare loads a site whose one node has a spec with this body. ok is false if the site or the spec is refused.
func declare(t *testing.T, body string) (s *spec.Spec, ok bool) {
	t.Helper()
	body = strings.NewReplacer("{ ", "{\n", " }", "\n}", ", ", "\n").Replace(body)
	site, found := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte(`site "home" {
}
spec "base" {
` + body + `
}
manifest "m" {
  pattern = "flat"
  node "edge" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
    spec   = spec.base
    disk "data" {
      size = 8
    }
  }
}
image "debian" {
  url      = "https://images.example/debian.qcow2"
  checksum = "sha256:00000000000000000000000000000000000000000000000000000000000000aa"
}
`)}}, hcl.Options{Kinds: proxmox.Kinds(), Secrets: &model.Secrets{}})
	if len(problems(found)) > 0 {
		return nil, false
	}
	s, found = spec.Resolve(site, site.Manifests["m"].Nodes[0])
	return s, len(problems(found)) == 0
}

// Every string in every field of a spec is one word of every script: it runs nothing, and it adds no line to a file
// of the system. The first holds even for a document that no site could have made.
func TestS7HostileStringsInASpec(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	tried, accepted := 0, 0
	try := func(name string, s *spec.Spec) {
		state, err := converge.Observe(t.Context(), way{w}, s)
		if err != nil {
			return
		}
		for _, step := range state.Steps() {
			for _, script := range []string{step.Ask, step.Script, step.Change, step.Check, step.Finish, step.Restore} {
				if script != "" {
					_, err := way{w}.Run(t.Context(), guest.Script("set -e\n"+script))
					require.NoError(t, err, name)
				}
			}
		}
		tried++
	}
	for _, f := range hostileFields {
		if f.declares == "" {
			continue
		}
		for _, text := range hostileStrings {
			if s, ok := declare(t, strings.ReplaceAll(f.declares, "%s", quoteHCL(t, text))); ok {
				accepted++
				try(fmt.Sprintf("%s %q", f.name, text), s)
			}
		}
		require.Empty(t, w.Run0("ls -d /pwned* 2>/dev/null || :"), f.name)
		require.Empty(t, w.Run0("grep -rl ^PWNED /etc 2>/dev/null | grep -vxF /etc/app || :"), f.name)
	}
	for _, f := range hostileFields {
		for _, text := range hostileStrings {
			if !strings.Contains(text, "pwned") {
				continue // it would run nothing
			}
			b, err := json.Marshal(text)
			require.NoError(t, err)
			if s, err := spec.Read([]byte(`{"version": 1, "node": "edge", "spec": "test", ` + strings.ReplaceAll(f.document, "%s", string(b)) + `}`)); err == nil {
				try(fmt.Sprintf("%s %q in a document", f.name, text), s)
			}
		}
		require.Empty(t, w.Run0("ls -d /pwned* 2>/dev/null || :"), f.name)
	}
	t.Logf("%d specs tried, %d of them accepted from a site", tried, accepted)
	require.Greater(t, accepted, 100)
}
