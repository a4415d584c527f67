package clients_test

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
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

// story is a configuration of the provider bpg/proxmox, of files in testdata/tofu.
type story struct {
	files   []string
	version string // of Proxmox VE; any if it is empty

	// imports are forgotten and found again: ids by the address.
	imports map[string]string
}

func stories() map[string]story {
	return map[string]story{
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
	for name, s := range stories() {
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
				require.Eventually(t, h.idle, 5*time.Minute, 10*time.Millisecond, "files go by tasks that nobody waits for")
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
