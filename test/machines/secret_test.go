package machines_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

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
