package sim_test

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
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// tofuVar names the folder of tofu and terraform-provider-proxmox, and asks for the
// tests with them, which take minutes and two programs that take longer to build.
const tofuVar = "HOMESTAK_TOFU"

// configuration is a configuration of the provider bpg/proxmox, of files in testdata/tofu.
type configuration struct {
	files   []string
	version string // of Proxmox VE; any if it is empty

	// imports are forgotten and found again: ids by the address.
	imports map[string]string
}

func configurations() map[string]configuration {
	return map[string]configuration{
		"vm":         {files: []string{"vm.tf"}},
		"ct":         {files: []string{"ct.tf"}},
		"access":     {files: []string{"access.tf"}},
		"datacenter": {files: []string{"datacenter.tf"}},
		"groups":     {files: []string{"datacenter.tf", "ha_groups.tf"}, version: "8.4"},
		"rules":      {files: []string{"datacenter.tf", "ha_rules.tf"}, version: "9.2"},
		"firewall":   {files: []string{"firewall.tf"}},
		"node":       {files: []string{"node.tf"}},
		"life":       {files: []string{"life.tf"}, imports: map[string]string{"proxmox_virtual_environment_vm.plain": "father/500"}},
		"root":       {files: []string{"root.tf"}},
	}
}

// TestTofu applies what an owner of a host writes for OpenTofu and the provider
// bpg/proxmox, edits it, and takes it away. After every step the provider, which reads
// all that it wrote, has to find nothing that differs.
func TestTofu(t *testing.T) {
	bin := os.Getenv(tofuVar)
	if bin == "" {
		t.Skip("not asked for: make tofu")
	}
	for name, s := range configurations() {
		for _, version := range []string{"8.4", "9.2"} {
			if s.version != "" && s.version != version {
				continue
			}
			t.Run(name+"/"+version, func(t *testing.T) {
				h := startHost(t, pve.Config{Version: version, Nodes: []string{"mother"}})
				dir := t.TempDir()
				for _, file := range append(s.files, "provider.tf") {
					text, err := os.ReadFile(filepath.Join("testdata", "tofu", file))
					require.NoError(t, err)
					require.NoError(t, os.WriteFile(filepath.Join(dir, file), text, 0o600))
				}
				require.NoError(t, os.WriteFile(filepath.Join(dir, "tiny.iso"), bytes.Repeat([]byte("iso"), 1<<10), 0o600))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "debian.tar.gz"), debianArchive(t), 0o600))
				tofu := newTofu(t, bin, dir, h)
				before := h.Snapshot()
				for _, edited := range []string{"edited=false", "edited=true"} {
					tofu.do("apply", "-auto-approve", "-var", edited)
					tofu.do("plan", "-detailed-exitcode", "-var", edited) // 2 if anything differs
				}
				made := h.Snapshot().Guests
				for _, address := range slices.Sorted(maps.Keys(s.imports)) {
					tofu.do("state", "rm", address)
					tofu.do("import", "-var", "edited=true", address, s.imports[address])
					tofu.do("apply", "-auto-approve", "-var", "edited=true") // of what no guest tells
					tofu.do("plan", "-detailed-exitcode", "-var", "edited=true")
				}
				require.Equal(t, made, h.Snapshot().Guests, "what is found again stays as it was")
				tofu.do("destroy", "-auto-approve", "-var", "edited=true")
				require.Eventually(t, h.idle, 5*time.Minute, 10*time.Millisecond, "files are removed by tasks without a waiting client")
				after := h.Snapshot()
				require.Equal(t, before.Guests, after.Guests)
				require.Equal(t, before.Pools, after.Pools)
				require.Equal(t, before.Volumes, after.Volumes)
				require.Empty(t, after.Unimplemented)
				require.Empty(t, strangeCalls(after.Requests))
				require.Empty(t, h.broken.all(), "answers that are not what the API table promises")
			})
		}
	}
}

// tofu is OpenTofu in one folder.
type tofu struct {
	t    *testing.T
	bin  string
	dir  string
	env  []string
	host *host
}

func newTofu(t *testing.T, bin, dir string, h *host) *tofu {
	t.Helper()
	bin, err := filepath.Abs(bin)
	require.NoError(t, err)
	config := filepath.Join(t.TempDir(), "tofurc")
	text := "provider_installation {\n  dev_overrides {\n    \"bpg/proxmox\" = \"" + bin + "\"\n  }\n}\n"
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	env := append(os.Environ(),
		"TF_CLI_CONFIG_FILE="+config, "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1",
		"TF_VAR_endpoint="+h.api, "TF_VAR_token="+h.Token(), "TF_VAR_node="+h.Node(),
	)
	for _, command := range []string{"apply", "destroy", "import", "plan"} {
		env = append(env, "TF_CLI_ARGS_"+command+"=-no-color -input=false -compact-warnings")
	}
	return &tofu{t: t, bin: filepath.Join(bin, "tofu"), dir: dir, host: h, env: env}
}

// do runs a command, which has to end well. Where it does not, what it asked last is
// told, too.
func (o *tofu) do(args ...string) {
	o.t.Helper()
	o.host.seen.all()
	cmd := exec.CommandContext(o.t.Context(), o.bin, args...)
	cmd.Dir, cmd.Env = o.dir, o.env
	out, err := cmd.CombinedOutput()
	if err == nil {
		return
	}
	asked := o.host.seen.all()
	require.NoError(o.t, err, "tofu %s\n%s\nIts last requests:\n%s", strings.Join(args, " "), out, strings.Join(asked[max(0, len(asked)-40):], "\n"))
}

// strangeCalls are requests for what is not in the API table.
func strangeCalls(requests map[string]int) (strange []string) {
	for name := range requests {
		verb, path, _ := strings.Cut(name, " ")
		if m, _, _ := pveapi.Lookup(verb, path); m == nil {
			strange = append(strange, name)
		}
	}
	slices.Sort(strange)
	return strange
}

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

// providerUnsimulated are the test programs about methods that answer 501, since no kind, verb or client in CI asks for
// them, with those methods.
var providerUnsimulated = map[string]string{
	"fwprovider_cluster_acme":    "/cluster/acme",
	"fwprovider_nodes_apt":       "/nodes/{node}/apt",
	"fwprovider_nodes_disks_zfs": "/nodes/{node}/disks",
	"fwprovider_nodes_hardware":  "/nodes/{node}/hardware",
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
			if methods, ok := providerUnsimulated[name]; ok {
				t.Skip("not simulated: " + methods)
			}
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
			t.Logf("%d passed, %d need SSH, %d skipped themselves", passed, beyond, skipped)
			require.Empty(t, h.broken.all(), "answers that are not what the API table promises")
		})
	}
	for at, why := range providerFails {
		t.Logf("fails: %s: %s", at, why)
	}
	if len(files) > 1 {
		for name := range providerUnsimulated {
			require.Contains(t, files, filepath.Join(programs, name))
		}
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
	cmd := exec.CommandContext(t.Context(), "go", "tool", "test2json", program, "-test.v=test2json", "-test.timeout=0", "-test.parallel=1") // Two of its tests write one node's notes.
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(),
		"TF_ACC=1", "TF_ACC_TERRAFORM_PATH="+filepath.Join(bin, "tofu"), "TF_ACC_PROVIDER_NAMESPACE=hashicorp",
		"TF_ACC_PROVIDER_HOST=registry.opentofu.org", "TF_CLI_CONFIG_FILE="+os.DevNull, "CHECKPOINT_DISABLE=1",
		"PROXMOX_VE_ENDPOINT="+h.api, "PROXMOX_VE_API_TOKEN="+h.Token(), "PROXMOX_VE_INSECURE=true",
		"PROXMOX_VE_USERNAME=root@pam", "PROXMOX_VE_PASSWORD="+secret,
		"PROXMOX_VE_ACC_NODE_NAME=pve", "PROXMOX_VE_ACC_NODE_2_NAME=pve2", "PROXMOX_VE_ACC_ZFS_DATASTORE_ID=zfs",
		"PROXMOX_VE_ACC_IFACE_NAME=eth0", "PROXMOX_VE_ACC_NODE_SSH_PORT=1", // A port without a listener.
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
