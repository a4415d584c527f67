package clients_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/sim/pve/simtest"
)

// libraryFails are the library's own integration tests that fail, each with the
// reason.
var libraryFails = map[string]string{
	"TestClusterResources": "it does not expect entries of type sdn, which a real PVE 8.4 lists as well",
	"TestNode_TermProxy":   "it leaves the shell by exit, and takes it for an error that then nobody is there to say goodbye to",
	"TestNode_VncProxy":    "it sends the body null, of which PVE's server dies (TestScreen looks at a screen)",
}

// libraryLong is a test that wants a download of half a minute, where others wait five
// seconds for theirs: it has a host of its own.
const libraryLong = "TestTask"

// libraryHelpers are what the tests of the library use and no file of it has.
const libraryHelpers = `package integration

import (
	"math/rand/v2"
	"os"
)

const (
	tinycoreURL     = "https://images.test/tinycore.iso"
	ubuntuURL       = "https://images.test/ubuntu.iso"
	alpineAppliance = "https://images.test/alpine.tar.xz"
)

func nameGenerator(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = "abcdefghijklmnopqrstuvwxyz"[rand.IntN(26)]
	}
	return string(b)
}

func createTestISO(file string) error { return os.WriteFile(file, []byte("an image"), 0o600) }
`

// TestLibraryIntegration runs the integration tests of go-proxmox, as they are in the
// module cache, against a host that serves. They are copied into a temporary folder,
// with what they lack beside them and one call brought up to the library's own
// signature.
func TestLibraryIntegration(t *testing.T) {
	if os.Getenv("HOMESTAK_LIBRARY_TESTS") == "" {
		t.Skip("takes a minute of real time: set HOMESTAK_LIBRARY_TESTS=1")
	}
	folder := copyLibrary(t)
	var passed, failed [2][]string
	t.Run("side by side", func(t *testing.T) {
		for i, c := range []pve.Config{{TaskTime: 300 * time.Millisecond}, {Latency: 60 * time.Millisecond, TaskTimes: map[string]time.Duration{"download": 40 * time.Second}}} {
			t.Run([]string{"most", "long"}[i], func(t *testing.T) {
				t.Parallel()
				which := []string{"-skip", "-run"}[i]
				passed[i], failed[i] = runLibrary(t, folder, c, which, "^"+libraryLong+"$")
			})
		}
	})
	all := slices.Concat(passed[0], passed[1])
	t.Logf("passed: %s", strings.Join(all, " "))
	require.GreaterOrEqual(t, len(all), 20)
	require.ElementsMatch(t, slices.Collect(maps.Keys(libraryFails)), slices.Concat(failed[0], failed[1]))
}

// copyLibrary makes a module of the library's integration tests.
func copyLibrary(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/luthermonson/go-proxmox").Output()
	files, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "tests", "integration", "*.go"))
	if err != nil || len(files) == 0 {
		t.Skip("the module cache has no sources of go-proxmox")
	}
	folder := t.TempDir()
	write := func(name string, content []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), content, 0o600))
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		write(filepath.Base(file), bytes.ReplaceAll(content, []byte("vm.Delete(context.TODO())"), []byte("vm.Delete(context.TODO(), nil)")))
	}
	write("helpers_test.go", []byte(libraryHelpers))
	for _, name := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join("..", "..", "..", name))
		require.NoError(t, err)
		write(name, content)
	}
	return folder
}

// runLibrary runs tests in a folder against a new host.
func runLibrary(t *testing.T, folder string, c pve.Config, which ...string) (passed, failed []string) {
	t.Helper()
	c.Node, c.Token, c.Password = "pve", "root@pam!lib=secret", "secret"
	c.Storages = []pve.Storage{{Name: "local", Type: "dir", Content: []string{"iso", "vztmpl", "images", "rootdir"}}}
	c.Guests = 1 // The first is a VM that runs, whose screen is looked at.
	address, _ := simtest.Listen(t, pve.New(c))
	args := append([]string{"test", "-count=1", "-json", "-tags", "nodes,vms,containers"}, which...)
	command := exec.CommandContext(t.Context(), "go", append(args, ".")...)
	command.Dir = folder
	command.Env = append(os.Environ(), "PROXMOX_URL="+address+"/api2/json", "PROXMOX_USERNAME=root@pam", "PROXMOX_PASSWORD=secret",
		"PROXMOX_TOKENID=root@pam!lib", "PROXMOX_SECRET=secret", "PROXMOX_NODE_NAME=pve", "PROXMOX_NODE_STORAGE=local", "PROXMOX_VNC_VMID=100",
		"TZ=Etc/GMT+7") // Where its author lives: two tests compare local times.
	out, _ := command.Output() // A test that fails shows below.
	scanner := bufio.NewScanner(bytes.NewReader(out))
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var event struct{ Action, Test string }
		if json.Unmarshal(scanner.Bytes(), &event) != nil || event.Test == "" || strings.Contains(event.Test, "/") {
			continue
		}
		switch event.Action {
		case "pass":
			passed = append(passed, event.Test)
		case "fail":
			failed = append(failed, event.Test)
		}
	}
	require.NotEmpty(t, passed, string(out))
	return passed, failed
}
