// Package sim_test compares the simulator with recordings of real hosts, and lets programs of other people work against it, as
// they work against a real host: what they were written for is the best judge of
// how true it is.
package sim_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/sim/pve/simtest"
	"github.com/homestak/homestak-gitops/test/released"
)

// requireVar asks for these tests, which take a minute and programs that few machines
// have.
const requireVar = "HOMESTAK_CLIENTS"

// TestAnsible plays the modules for Proxmox VE of Ansible's community.general, which
// speak through the Python library proxmoxer.
func TestAnsible(t *testing.T) {
	if os.Getenv(requireVar) != "require" {
		t.Skip("not asked for: make clients")
	}
	player, err := exec.LookPath("ansible-playbook")
	require.NoError(t, err, "install ansible and python3-proxmoxer")
	for _, play := range []string{"vm", "ct"} {
		t.Run(play, func(t *testing.T) {
			t.Parallel()
			sim := simulate(t)
			template := filepath.Join(t.TempDir(), "debian-12-standard_12.7-1_amd64.tar.gz")
			require.NoError(t, os.WriteFile(template, debianArchive(t), 0o600))
			user, secret, _ := strings.Cut(sim.Token, "=")
			_, tokenID, _ := strings.Cut(user, "!")
			vars, err := json.Marshal(map[string]string{
				"api_host": strings.TrimPrefix(sim.API, "https://"), "token_id": tokenID, "token_secret": secret,
				"node": sim.Node, "template": template, "ansible_python_interpreter": "/usr/bin/python3",
			})
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), player, "--extra-vars", string(vars), filepath.Join("testdata", play+".yml"))
			cmd.Env = append(os.Environ(), "ANSIBLE_NOCOLOR=1", "ANSIBLE_LOCALHOST_WARNING=false", "ANSIBLE_INVENTORY_UNPARSED_WARNING=false", "PYTHONWARNINGS=ignore")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Regexp(t, `failed=0 +skipped=0`, string(out))
		})
	}
}

// debianArchive is the least that PVE takes for the root file system of a Debian 12.
func debianArchive(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	files := tar.NewWriter(packed)
	for name, text := range map[string]string{"./etc/debian_version": "12.7\n", "./bin/sh": "#!\n"} {
		require.NoError(t, files.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))}))
		_, err := io.WriteString(files, text)
		require.NoError(t, err)
	}
	require.NoError(t, files.Close())
	require.NoError(t, packed.Close())
	return out.Bytes()
}

// simulator is the verb sim, running as a process.
type simulator struct{ API, Node, Token string }

func simulate(t *testing.T) simulator {
	t.Helper()
	bin, err := released.Path(t.Context(), t.TempDir())
	require.NoError(t, err)
	cmd := exec.Command(bin, "sim", "--listen", "127.0.0.1:0", "--json", "--task-time", "50ms")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait())
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	var s simulator
	require.NoError(t, json.Unmarshal([]byte(line), &s), line)
	return s
}

// TestFence switches guests off and on as clusters do that fence a node of theirs: with
// the agent of fence-agents, which logs in by password for every action.
func TestFence(t *testing.T) {
	if os.Getenv(requireVar) != "require" {
		t.Skip("not asked for: make clients")
	}
	agent, err := exec.LookPath("fence_pve")
	require.NoError(t, err, "install fence-agents")
	h := startHost(t, pve.Config{Guests: 6, Nodes: []string{"mother"}})
	address, port, _ := strings.Cut(strings.TrimPrefix(h.api, "https://"), ":")
	_, secret, _ := strings.Cut(h.Token(), "=")
	for kind, guest := range runningOnes(h) {
		t.Run(kind, func(t *testing.T) {
			fence := func(action string, more ...string) (code int, said string) {
				t.Helper()
				args := append([]string{
					"--ip=" + address, "--ipport=" + port, "--ssl-insecure", "--username=root@pam", "--password=" + secret, "--pve-node-auto",
					"--vmtype=" + kind, "--plug=" + strconv.Itoa(guest), "--action=" + action,
				}, more...)
				cmd := exec.CommandContext(t.Context(), agent, args...)
				out, err := cmd.CombinedOutput()
				if cmd.ProcessState == nil {
					require.NoError(t, err)
				}
				return cmd.ProcessState.ExitCode(), string(bytes.TrimSpace(out))
			}
			for _, step := range []struct {
				action string
				code   int
				said   string
				runs   bool
			}{
				{"status", 0, "Status: ON", true},
				{"off", 0, "Success: Powered OFF", false},
				{"status", 2, "Status: OFF", false},
				{"on", 0, "Success: Powered ON", true},
				{"reboot", 0, "Success: Rebooted", true},
			} {
				code, said := fence(step.action)
				require.Equal(t, step.code, code, said)
				require.Contains(t, said, step.said)
				now, _ := h.Snapshot().Guest(guest)
				require.Equal(t, step.runs, now.Running, step.action)
			}
			if kind == "qemu" {
				code, said := fence("reboot", "--method=cycle")
				require.Equal(t, 0, code, said)
			}
		})
	}
	require.Empty(t, h.broken.all(), "answers that are not what the API table promises")
}

// runningOnes are a guest that runs of either kind.
func runningOnes(h *host) map[string]int {
	found := map[string]int{}
	for _, g := range h.Snapshot().Guests {
		if g.Running {
			found[g.Kind] = g.VMID
		}
	}
	return found
}

// host is what the verb sim serves, in this process, so that it can be looked at.
type host struct {
	*pve.Host
	api string

	seen   lineLog // requests
	broken lineLog // promises of the API table
}

// idle says whether no task runs.
func (h *host) idle() bool {
	return !slices.ContainsFunc(h.Snapshot().Tasks, func(t pve.Task) bool { return t.End.IsZero() })
}

// lineLog collects lines until all takes them.
type lineLog struct {
	mu    sync.Mutex // Requests come on many goroutines.
	lines []string
}

func (r *lineLog) note(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
}

// all takes the lines.
func (r *lineLog) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := r.lines
	r.lines = nil
	return lines
}

func startHost(t *testing.T, c pve.Config) *host {
	t.Helper()
	h := &host{}
	c.TaskTime, c.Promise = 50*time.Millisecond, h.broken.note
	c.Record = func(r *http.Request, body []byte, status int) {
		h.seen.note(fmt.Sprint(status, " ", r.Method, " ", r.URL, " ", string(body)))
	}
	h.Host = pve.New(c)
	h.api, _ = simtest.Listen(t, h.Host)
	return h
}

// libraryFails are the library's own integration tests that fail, each with the
// reason.
var libraryFails = map[string]string{
	"TestClusterResources": "it does not expect entries of type sdn, which a real PVE 8.4 lists as well",
}

// libraryLong is a test that wants a download of half a minute, where others wait five
// seconds for theirs: it has a host of its own.
const libraryLong = "TestTask"

// libraryConsoles are tests of consoles, which are not simulated. They do not expect that
// opening one can fail, and panic.
const libraryConsoles = "TestNode_TermProxy|TestNode_VncProxy"

// libraryTerminal is where TestNode_NewVirtualMachine types into a terminal.
var libraryTerminal = regexp.MustCompile(`(?s)// TODO while this connects.*?(// Reboot disabled)`)

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
// with what they lack beside them, one call brought up to the library's own signature,
// and without consoles.
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
				which := [][]string{{"-skip", "^(" + libraryLong + "|" + libraryConsoles + ")$"}, {"-run", "^" + libraryLong + "$"}}[i]
				passed[i], failed[i] = runLibrary(t, folder, c, which...)
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
		content = bytes.ReplaceAll(content, []byte("vm.Delete(context.TODO())"), []byte("vm.Delete(context.TODO(), nil)"))
		write(filepath.Base(file), libraryTerminal.ReplaceAll(content, []byte("fmt.Println(vm.Status)\n\n$1")))
	}
	write("helpers_test.go", []byte(libraryHelpers))
	for _, name := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join("..", "..", name))
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
	c.Guests = 1
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
