package clients_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// providerVar names the folder of the test programs of the provider bpg/proxmox, one for
// each of its packages with acceptance tests, and asks for them; they take a quarter of
// an hour, and longer to build.
const providerVar = "HOMESTAK_PROVIDER"

// providerFails are the provider's own tests that fail here, each with the reason. A
// name stands for those below it, too.
var providerFails = map[string]string{
	"fwprovider_access/TestAccRealmOpenID":         "it sets audiences, which the API table does not have",
	"fwprovider_nodes/TestAccResourceDownloadFile": "it looks at the sizes and contents of what was downloaded, and nothing is; then it goes on by SSH",
}

// beyondAPI is said by a test that does something on a node by SSH, which is no
// part of the API.
var beyondAPI = regexp.MustCompile(`over SSH|open SSH client`)

// TestProvider runs the acceptance tests of the provider, which were written against
// real hosts.
func TestProvider(t *testing.T) {
	programs, bin := os.Getenv(providerVar), os.Getenv(tofuVar)
	if programs == "" {
		t.Skip("not asked for: make provider")
	}
	files, err := filepath.Glob(filepath.Join(programs, "*"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	known := map[string]bool{}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			h := startHost(t, pve.Config{Node: "pve", Nodes: []string{"pve2"}, Storages: []pve.Storage{
				{Name: "local", Type: "dir", Content: []string{"iso", "vztmpl", "backup", "snippets", "import", "images", "rootdir"}},
				{Name: "local-lvm", Type: "lvmthin", Content: []string{"images", "rootdir"}},
				{Name: "zfs", Type: "zfspool", Content: []string{"images", "rootdir"}},
			}})
			passed, beyond, skipped := 0, 0, 0
			for test, r := range acceptance(t, h, file, bin) {
				at := failsAt(name + "/" + test)
				switch {
				case r.action == "pass":
					passed++
				case r.action == "skip":
					skipped++
				case beyondAPI.MatchString(r.said):
					beyond++
				case at != "":
					known[at] = true
				default:
					t.Errorf("%s:\n%s", test, r.said)
				}
			}
			t.Logf("%d passed, %d go by SSH, %d were left out by themselves", passed, beyond, skipped)
			require.Empty(t, h.broken.all(), "answers that are not what the API table promises")
		})
	}
	for at, why := range providerFails {
		t.Logf("fails: %s: %s", at, why)
	}
	if len(files) > 1 {
		require.ElementsMatch(t, slices.Collect(maps.Keys(providerFails)), slices.Collect(maps.Keys(known)), "those that fail no longer need no reason")
	}
}

// failsAt is the entry of providerFails that speaks of a test.
func failsAt(test string) string {
	for at := range providerFails {
		if test == at || strings.HasPrefix(test, at+"/") {
			return at
		}
	}
	return ""
}

// result is how a test ended, and what it said.
type result struct{ action, said string }

// acceptance runs a test program and tells of the tests that have none below them.
func acceptance(t *testing.T, h *host, program, bin string) map[string]*result {
	t.Helper()
	program, err := filepath.Abs(program)
	require.NoError(t, err)
	bin, err = filepath.Abs(bin)
	require.NoError(t, err)
	_, secret, _ := strings.Cut(h.Token(), "=")
	cmd := exec.CommandContext(t.Context(), "go", "tool", "test2json", program, "-test.v=test2json", "-test.timeout=25m", "-test.parallel=1") // Two of its tests write one node's notes.
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(),
		"TF_ACC=1", "TF_ACC_TERRAFORM_PATH="+filepath.Join(bin, "tofu"), "TF_ACC_PROVIDER_NAMESPACE=hashicorp",
		"TF_ACC_PROVIDER_HOST=registry.opentofu.org", "TF_CLI_CONFIG_FILE="+os.DevNull, "CHECKPOINT_DISABLE=1",
		"PROXMOX_VE_ENDPOINT="+h.api, "PROXMOX_VE_API_TOKEN="+h.Token(), "PROXMOX_VE_INSECURE=true",
		"PROXMOX_VE_USERNAME=root@pam", "PROXMOX_VE_PASSWORD="+secret,
		"PROXMOX_VE_ACC_NODE_NAME=pve", "PROXMOX_VE_ACC_NODE_2_NAME=pve2", "PROXMOX_VE_ACC_ZFS_DATASTORE_ID=zfs",
		"PROXMOX_VE_ACC_IFACE_NAME=eth0", "PROXMOX_VE_ACC_NODE_SSH_PORT=1", // Where nobody listens.
	)
	out, _ := cmd.Output() // What failed is read from it.
	results := map[string]*result{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var event struct{ Action, Test, Output string }
		if json.Unmarshal(lines.Bytes(), &event) != nil || event.Test == "" {
			continue
		}
		r := results[event.Test]
		if r == nil {
			r = &result{action: "fail"} // Until it says otherwise: the program may die.
			results[event.Test] = r
		}
		switch event.Action {
		case "output":
			r.said += event.Output
		case "pass", "fail", "skip":
			r.action = event.Action
		}
	}
	require.NotEmpty(t, results, string(out))
	maps.DeleteFunc(results, func(name string, _ *result) bool {
		for other := range results {
			if strings.HasPrefix(other, name+"/") {
				return true
			}
		}
		return false
	})
	return results
}
