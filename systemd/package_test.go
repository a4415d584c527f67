package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// The package is refused where a newer program wrote, and nothing that the agent may put into its folder holds up or misleads the
// installation, which root runs.
func TestAPackageReadsTheFormat(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("package/preinst")
	require.NoError(t, err)
	for name, test := range map[string]struct {
		make func(file string) error
		want string // that it says; "": it is installed
	}{
		"none":      {func(string) error { return nil }, ""},
		"equal":     {written("3 1.0.0\n"), ""},
		"newer":     {written("4 1.1.0~rc1\n"), "version 1.1.0~rc1 introduced its format 4."},
		"terminal":  {written("4 1\x1b[2J\x07\n"), "version 12J introduced"},
		"no number": {written("x\n"), ""},
		"pipe":      {func(file string) error { return syscall.Mkfifo(file, 0o600) }, ""},
		"endless":   {func(file string) error { return os.Symlink("/dev/zero", file) }, ""},
		"not the agent's": {func(file string) error {
			if err := os.WriteFile(file+".other", []byte("4 secret\n"), 0o600); err != nil {
				return err
			}
			return os.Symlink(file+".other", file)
		}, ""},
	} {
		dir := t.TempDir()
		folder := filepath.Join(dir, "homestak-gitops")
		require.NoError(t, os.Mkdir(folder, 0o700))
		require.NoError(t, test.make(filepath.Join(folder, "format")), name)
		script := strings.NewReplacer("/var/lib", dir, "@FORMAT@", "3", "@VERSION@", "0.9.0").Replace(string(text))
		said, err := exec.CommandContext(t.Context(), "sh", "-c", script, "preinst", "upgrade", "0.8.0").CombinedOutput()
		if test.want == "" {
			require.NoError(t, err, "%s: %s", name, said)
			require.Empty(t, string(said), name)
			continue
		}
		require.Error(t, err, name)
		require.Contains(t, string(said), test.want, name)
	}
}

// written writes a text.
func written(text string) func(file string) error {
	return func(file string) error { return os.WriteFile(file, []byte(text), 0o600) }
}

// The package stops each unit before its program goes, and purging disables it.
func TestAPackageTakesItsUnitsAway(t *testing.T) {
	t.Parallel()
	stops, err := os.ReadFile("package/prerm")
	require.NoError(t, err)
	disables, err := os.ReadFile("package/postrm")
	require.NoError(t, err)
	units, err := filepath.Glob("homestak-gitops*.*")
	require.NoError(t, err)
	require.Greater(t, len(units), 5)
	for _, unit := range units {
		if strings.HasSuffix(unit, ".conf") {
			continue
		}
		require.Contains(t, string(stops), " "+unit)
		text, err := os.ReadFile(unit)
		require.NoError(t, err)
		if _, target, wanted := strings.Cut(string(text), "WantedBy="); wanted {
			require.Contains(t, string(disables), "/"+strings.TrimSpace(target)+".wants/"+unit)
		}
	}
}

// The changelog has what is not released first, then each version once, the newest first, with its day. make release takes the
// section of its version.
func TestTheChangelogHasVersions(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../CHANGELOG.md")
	require.NoError(t, err)
	heads := regexp.MustCompile(`(?m)^## .*$`).FindAllString(string(text), -1)
	require.Equal(t, "## [Unreleased]", heads[0])
	days := []string{}
	for _, head := range heads[1:] {
		m := regexp.MustCompile(`^## \[\d+\.\d+\.\d+\] - (\d{4}-\d{2}-\d{2})$`).FindStringSubmatch(head)
		require.NotNil(t, m, head)
		days = append(days, m[1])
	}
	require.NotEmpty(t, days)
	require.True(t, slices.IsSortedFunc(days, func(a, b string) int { return strings.Compare(b, a) }), "%v", days)
	slices.Sort(heads)
	require.Len(t, slices.Compact(heads), len(days)+1)
}

// The steps of the workflow that makes a release name targets that exist. make workflow runs them, too, in a clone, and without the
// forge: gh only writes down what it is to publish.
func TestTheReleaseWorkflow(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../.github/workflows/release.yml")
	require.NoError(t, err)
	var workflow struct {
		Jobs map[string]struct {
			Steps []struct {
				Run string
				Env map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &workflow))
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	targets := 0
	for _, step := range workflow.Jobs["release"].Steps {
		for _, m := range regexp.MustCompile(`(?m)^\s*make ([a-z]+)`).FindAllStringSubmatch(step.Run, -1) {
			require.Contains(t, string(makefile), "\n"+m[1]+": ## ")
			targets++
		}
	}
	require.Equal(t, 2, targets)
	if os.Getenv("HOMESTAK_WORKFLOW") == "" {
		return
	}

	dir := t.TempDir()
	clone, bin := filepath.Join(dir, "clone"), filepath.Join(dir, "bin")
	require.NoError(t, os.Mkdir(bin, 0o700))
	for name, script := range map[string]string{"sudo": "#!/bin/sh\nexec \"$@\"\n", "gh": "#!/bin/sh\nprintf '%s\\n' \"$@\" >" + dir + "/published\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700)) //nolint:gosec // it is run
	}
	t.Cleanup(func() { _ = exec.Command("gpgconf", "--homedir", dir+"/gpg", "--kill", "all").Run() })
	env := append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "RUNNER_TEMP="+dir, "GITHUB_WORKSPACE="+clone, "GITHUB_REF_NAME=v0.1.0",
		"GITHUB_SERVER_URL=https://git.example", "GITHUB_REPOSITORY=home/agent", "MAKEFLAGS=", "GNUPGHOME="+dir+"/gpg")
	run := func(in, script string, more ...string) {
		cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", script)
		cmd.Dir, cmd.Env = in, append(slices.Clone(env), more...)
		said, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", script, said)
		t.Logf("%s\n%s", script, said)
	}
	run(".", `
		git clone --quiet .. "$GITHUB_WORKSPACE"
		mkdir -m 700 "$GNUPGHOME"
		gpg --batch --quiet --passphrase '' --quick-generate-key releases ed25519 sign never
		gpg --batch --armor --export-secret-keys >"$RUNNER_TEMP/key.asc"
		minisign -G -W -p "$RUNNER_TEMP/key.pub" -s "$RUNNER_TEMP/key"`)
	secrets := map[string]string{"${{ secrets.GPG_KEY }}": "key.asc", "${{ secrets.MINISIGN_KEY }}": "key"}
	for _, step := range workflow.Jobs["release"].Steps {
		var more []string
		for name, value := range step.Env {
			if file := secrets[value]; file != "" {
				text, err := os.ReadFile(filepath.Join(dir, file))
				require.NoError(t, err)
				value = strings.TrimSpace(string(text)) // as a person pastes it
			}
			more = append(more, name+"="+value)
		}
		run(clone, step.Run, more...)
	}
	published, err := os.ReadFile(filepath.Join(dir, "published"))
	require.NoError(t, err)
	out := filepath.Join(clone, "dist/release/0.1.0")
	files := strings.Fields(string(published))
	files = files[slices.Index(files, "--notes-file")+1:]
	require.Len(t, files, 15)
	for _, name := range files {
		info, err := os.Stat(filepath.Join(out, name))
		require.NoError(t, err)
		require.NotZero(t, info.Size(), name)
	}
	run(out, `minisign -V -p "$RUNNER_TEMP/key.pub" -m SHA256SUMS && sha256sum -c SHA256SUMS && gpg --verify apt/InRelease && grep -x "URIs: https://git.example/home/agent/releases/latest/download" apt/*.sources && grep -F "[0.1.0]" notes.md
		if command -v lintian; then lintian --fail-on error ./*.deb; fi`)
}
