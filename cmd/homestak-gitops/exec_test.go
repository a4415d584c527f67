package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// Without an agent, exec enters push nodes from a folder by the access of the user, as apply does.
func TestExecWithoutAnAgent(t *testing.T) {
	t.Parallel()
	guests := &sim.Guests{}
	t.Cleanup(guests.Close)
	_, st := serve(t, pve.Config{Node: "father", Systems: guests, BootTime: time.Nanosecond}, 2)
	file := filepath.Join(st.site, "site.hcl")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	site := strings.NewReplacer(`image "debian"`, `image "debian-12"`, "image.debian", "image.debian-12\n    spec = spec.base").Replace(string(text)) + "spec \"base\" {\n  access {\n    via = \"agent\"\n  }\n}\n"
	require.NoError(t, os.WriteFile(file, []byte(site), 0o600))
	exec := func(args ...string) (ui.Exit, string, string) {
		e := st.start(t, append([]string{"exec", "--site", st.site}, args...)...)
		code := e.end()
		return code, e.out.String(), e.err.String()
	}
	code, _, stderr := exec("first", "--", "hostname")
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, stderr, "first: failed: node first does not run")
	apply := st.start(t, "apply", "--yes", "--site", st.site)
	require.Zero(t, apply.end(), apply.err.String())
	code, out, stderr := exec("first", "--", "sh", "-c", "echo one; echo two")
	require.Zero(t, code, stderr)
	require.Equal(t, "first: one\nfirst: two\n", out)
	code, out, _ = exec("--color", "always", "first", "--", "echo", "one")
	require.Zero(t, code)
	require.Regexp(t, "^\x1b\\[3[2-6]mfirst:\x1b\\[0m one\n$", out)
	code, out, _ = exec("--json", "--spec", "base", "--", "sh", "-c", "exit 7")
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, out, `"exit_code":7`)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(site, "node \"first\" {\n", "node \"first\" {\n    execution {\n      mode = \"pull\"\n    }\n", 1)), 0o600))
	code, _, stderr = exec("first", "--", "true")
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, stderr, "is in mode pull, and takes commands from the agent of host father")
	code, _, stderr = exec("frist", "--", "true")
	require.Equal(t, ui.ExitFailed, code)
	require.Contains(t, stderr, "first")
}
