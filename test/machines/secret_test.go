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

// write makes a file in the machine.
func (w *world) write(name, text string) {
	w.t.Helper()
	w.Write(name, 0o600, text)
}
