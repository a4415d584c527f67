package integration_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// ST-2: an agent pushes a spec with secrets into a guest, finds them changed, and fails with them. They are where the
// spec puts them, and nowhere else: in nothing that the program prints, logs or keeps, in no task of the
// host, in no arguments or environment of a process in the guest, and in no file there that others may read.
func TestST02SecretsOfAPush(t *testing.T) {
	const mark = "c4n4ry-"
	guests := &sim.Guests{}
	t.Cleanup(guests.Close)
	f := follow(t, pve.Config{BootTime: time.Nanosecond, TaskTime: time.Millisecond, Systems: guests}, byFile())
	config, err := os.ReadFile(f.config)
	require.NoError(t, err)
	secrets := regexp.MustCompile(`secrets_file = "(.*)"`).FindSubmatch(config)[1]
	text, err := os.ReadFile(string(secrets))
	require.NoError(t, err)
	text = append(text, "passwords:\n  file: c4n4ry-f1le-7d10\n  run: c4n4ry-r0n-51aa\n  unless: c4n4ry-un1ess-93ce\n  failing: c4n4ry-fa1l-e8f0\n"...)
	require.NoError(t, os.WriteFile(string(secrets), text, 0o600))

	f.deploy("web", vm("web-1", `agent = true`))
	f.push("A machine with nothing in it")
	f.says(0, "agent", "--once", "--config", f.config)
	inside := guests.Machine("10000")
	require.NotNil(t, inside)
	var mu sync.Mutex
	processes, shown := 0, []string{}
	inside.K.Watch(func(args, env []string) {
		mu.Lock()
		defer mu.Unlock()
		processes++
		if all := strings.Join(append(args, env...), "\n"); strings.Contains(all, mark) {
			shown = append(shown, all)
		}
	})

	spec := func(content, failing string) string {
		return fmt.Sprintf(`spec "base" {
  access {
    via = "agent"
  }
  config {
    file "/etc/app.key" {
      content = "${secret.passwords.%s}\n"
      mode    = "0600"
    }
    file "/etc/sudoers.d/app" {
      content = "# ${secret.passwords.file}\nDefaults lecture=never\n"
      mode    = "0440"
    }
    command "login" {
      run    = "[ -n '${secret.passwords.run}' ] && touch /srv/in"
      unless = "[ -e /srv/in ] || [ x = '${secret.passwords.unless}' ]"
    }
%s  }
}
`, content, failing)
	}
	f.write("specs.hcl", spec("run", ""))
	f.deploy("web", vm("web-1", `agent = true`, `spec = spec.base`))
	commit := f.push("With secrets inside")
	f.begins()
	f.converged(commit)
	var said strings.Builder
	ask := func() {
		for _, verb := range [][]string{{"status"}, {"status", "--json"}, {"history"}, {"history", "--json"}, {"events"}, {"events", "--json"}, {"why", "guest.web-1"}, {"why", "vm.web-1"}} {
			r := run(t, f.dir, append(verb, "--config", f.config)...)
			said.WriteString(r.out + r.err)
		}
		for _, format := range []string{"--json", "--format=markdown", "--format=text"} {
			r := run(t, f.dir, "plan", format, "--host", "father", "--secrets", string(secrets))
			require.Zero(t, r.code, r.err)
			require.NotEmpty(t, r.out)
			said.WriteString(r.out + r.err)
		}
	}
	ask()

	// Another content, and another one by hand.
	f.write("specs.hcl", spec("file", ""))
	ask() // it is not pushed yet: the plans have the difference
	f.converged(f.push("Another secret"))
	out, code := inside.Shell("cat /etc/app.key; echo by hand >/etc/app.key")
	require.Zero(t, code, out)
	require.Equal(t, "c4n4ry-f1le-7d10\n", out, "the test has no such canary")
	f.until("it is put back", func(agent.Status) bool {
		out, _ := inside.Shell("cat /etc/app.key")
		return out == "c4n4ry-f1le-7d10\n"
	})

	// A command that prints a secret, and fails.
	f.write("specs.hcl", spec("file", "    command \"fails\" {\n      run = \"echo ${secret.passwords.failing}; echo ${secret.passwords.failing} >&2; exit 3\"\n    }\n"))
	bad := f.push("A command that fails")
	f.until("the pass on it has ended", func(s agent.Status) bool {
		return s.State == agent.Idle && s.Last != nil && s.Last.Commit == bad && s.Last.Outcome != engine.Done
	})
	ask()
	said.WriteString(f.agent.said())
	f.ends()

	require.Contains(t, said.String(), "command fails ended with exit code 3")
	require.NotContains(t, said.String(), mark)
	require.NoError(t, filepath.WalkDir(f.data, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			content, err := os.ReadFile(name)
			require.NoError(t, err)
			require.NotContains(t, string(content), mark, name)
		}
		return err
	}))
	for _, task := range f.host.Snapshot().Tasks {
		require.NotContains(t, fmt.Sprintf("%+v", task), mark)
	}
	for _, r := range f.requests() {
		require.NotContains(t, r.path, mark)
	}
	mu.Lock()
	defer mu.Unlock()
	require.Greater(t, processes, 100)
	require.Empty(t, shown)
	inside.K.Watch(nil)
	out, _ = inside.Shell("find / -type f 2>/dev/null | while read -r f; do grep -lF " + mark + " \"$f\" 2>/dev/null; done")
	where := strings.Fields(out)
	require.ElementsMatch(t, []string{"/etc/app.key", "/etc/sudoers.d/app"}, where)
	out, code = inside.Shell("stat -c '%a %U' " + strings.Join(where, " "))
	require.Zero(t, code)
	require.Equal(t, "600 root\n440 root\n", out)
}
