package hcl_test

import (
	"encoding/csv"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// exampleOutputs are the outputs of the example site, with an address of one node that only its guest knows, and a planned node.
func exampleOutputs(t *testing.T) map[string]string {
	t.Helper()
	kinds := proxmox.Kinds()
	site, found := hcl.Load(os.DirFS("../examples/site"), hcl.Options{Kinds: kinds})
	require.Empty(t, found.Errors(), found)
	for _, n := range site.Manifests["web"].Nodes {
		n.Planned = n.Name == "web-2"
	}
	templates := map[string]string{}
	for name, o := range site.Outputs {
		templates[name] = o.Template
	}
	facts := model.OutputFacts(site, map[string]model.NodeFacts{
		"db":    {VMID: 10000, Address: "192.0.2.20", PVENode: "father", Phase: "operating"},
		"web-1": {VMID: 10002, Address: "2001:db8::21", PVENode: "father", Phase: "registered"},
		"ns-a":  {VMID: 10001, PVENode: "father", Phase: "operating"},
	}, func(r *model.Resource) string {
		for _, c := range kinds.Get(r.Addr.Kind).Claims(r.Spec) {
			if ip, err := netip.ParseAddr(c.Value); err == nil {
				return ip.String()
			}
		}
		return ""
	})
	out := map[string]string{}
	for name, r := range hcl.Render(templates, facts) {
		require.Empty(t, r.Error, name)
		out[name] = r.Text
	}
	require.Len(t, out, 10)
	return out
}

// The ten outputs of the example site are as their golden texts, which TestReaders gives to the programs that read them.
func TestOutputsOfTheExample(t *testing.T) {
	texts := exampleOutputs(t)
	for name, text := range texts {
		golden := filepath.Join("testdata", "outputs", name)
		if *update {
			require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o755))
			require.NoError(t, os.WriteFile(golden, []byte(text), 0o600))
			continue
		}
		want, err := os.ReadFile(golden)
		require.NoError(t, err)
		require.Equal(t, string(want), text, name)
	}

	var devices []struct {
		Name, Address string
		VMID          int
		Planned       bool
	}
	require.NoError(t, json.Unmarshal([]byte(texts["devices"]), &devices))
	require.Len(t, devices, 5)
	var services []struct {
		Service, Node string
		Checks        []string
	}
	require.NoError(t, json.Unmarshal([]byte(texts["services"]), &services))
	require.Equal(t, "postgresql", services[0].Service)
	var compose struct {
		Stacks map[string][]struct{ Node, Address string }
	}
	require.NoError(t, yaml.Unmarshal([]byte(texts["compose"]), &compose))
	require.Equal(t, "web-1", compose.Stacks["shop"][0].Node)
	require.Len(t, compose.Stacks["shop"], 1, "a planned node has no stack")
	for line := range strings.Lines(texts["backups"]) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		require.Len(t, fields, 4, line)
		_, err := strconv.Atoi(fields[1])
		require.NoError(t, err, line)
	}
	for line := range strings.Lines(texts["hosts"]) {
		if fields := strings.Fields(line); fields[0] != "#" {
			_, err := netip.ParseAddr(fields[0])
			require.NoError(t, err, line)
		}
	}
	table := csv.NewReader(strings.NewReader(texts["lifecycle"]))
	table.Comma = '|'
	rows, err := table.ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 7)
	require.NotContains(t, texts["prometheus"], "web-2", "a planned node is no target")
}

// Each output is accepted by the program that reads it: make readers. They are those of Debian's packages openssh-client,
// ansible-core, prometheus and bind9-utils.
func TestReaders(t *testing.T) {
	if os.Getenv("HOMESTAK_READERS") != "require" {
		t.Skip("needs ssh, ansible-inventory, promtool and named-checkzone: make readers")
	}
	dir := t.TempDir()
	for name, text := range exampleOutputs(t) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	file := func(name, text string) string {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		return filepath.Join(dir, name)
	}
	run := func(t *testing.T, args ...string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), args[0], args[1:]...)
		c.Dir = dir
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	t.Run("ssh", func(t *testing.T) {
		got := strings.Split(run(t, "ssh", "-G", "-F", filepath.Join(dir, "ssh-config"), "db"), "\n")
		require.True(t, slices.Contains(got, "hostname 192.0.2.20"), got)
		require.True(t, slices.Contains(got, "user homestak"), got)
	})
	t.Run("ansible", func(t *testing.T) {
		var got struct {
			Meta struct {
				HostVars map[string]map[string]string `json:"hostvars"`
			} `json:"_meta"`
			Web struct{ Hosts []string }
		}
		require.NoError(t, json.Unmarshal([]byte(run(t, "ansible-inventory", "-i", filepath.Join(dir, "ansible"), "--list")), &got))
		require.Equal(t, "192.0.2.20", got.Meta.HostVars["db"]["ansible_host"])
		require.Equal(t, []string{"db", "web-1"}, got.Web.Hosts)
	})
	t.Run("prometheus", func(t *testing.T) {
		require.NoError(t, os.Rename(filepath.Join(dir, "prometheus"), filepath.Join(dir, "targets.json")))
		run(t, "promtool", "check", "config", file("prometheus.yml", "scrape_configs:\n  - job_name: nodes\n    file_sd_configs:\n      - files: [targets.json]\n"))
	})
	t.Run("bind", func(t *testing.T) {
		zone := file("zone.db", "$TTL 300\n@ IN SOA ns.home.example. root.home.example. 1 3600 600 86400 300\n@ IN NS ns\nns IN A 192.0.2.53\n$INCLUDE zone\n")
		got := run(t, "named-checkzone", "-D", "home.example", zone)
		require.Contains(t, got, "db.home.example.")
		require.Contains(t, got, "2001:db8::21")
	})
}

// A template that is written in the file itself needs its signs doubled; no quotes are missing.
func TestATemplateInTheFileItself(t *testing.T) {
	for text, want := range map[string]string{
		`"${nodes.web.address} web"`:                             "In a text in quotes write $${ for ${, and %%{ for %{",
		`"%{ for n in nodes }${n.address} ${n.name}%{ endfor }"`: "In a text in quotes write $${ for ${, and %%{ for %{",
		`yes`:                         `Put a string in quotes: "yes".`,
		`"${sit.domain}"`:             `did you mean "site"?`,
		`"$${nodes.web.address} web"`: "",
	} {
		_, found := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte("site \"home\" {\n}\noutput \"hosts\" {\n  template = " + text + "\n}\n")}}, hcl.Options{Kinds: testKinds()})
		detail := ""
		for _, f := range found {
			if strings.HasPrefix(f.Summary, "unknown reference") {
				detail = f.Detail
			}
		}
		require.Contains(t, detail, want, text)
		require.Equal(t, want == "", detail == "", text)
	}
}

// What is in quotes, or computed for another purpose than to be a date, needs no other quotes.
func TestTextsThatNeedNoQuotes(t *testing.T) {
	for text, want := range map[string]string{
		`"${local.n}"`:                          "",
		`local.list[2 - 1]`:                     "",
		`local.n == 3 - 1 ? "1.10" : "1.11"`:    "",
		`substr("1.10-rc", 0, 5 - 1)`:           "",
		`local.n`:                               "version is a number, not a string",
		`"${2026-11}"`:                          "version is a number, not a string",
		`local.n == 3 ? "1.10" : (2026-11 - 1)`: "version is a number, not a string",
	} {
		site := "site \"home\" {\n  upgrade {\n    version = " + text + "\n  }\n}\nlocals {\n  n = 2\n  list = [\"1.10\", \"1.11\"]\n}\n"
		_, found := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte(site)}}, hcl.Options{Kinds: testKinds()})
		got := ""
		for _, f := range found {
			if f.Severity == diag.Error {
				got += f.Summary
			}
		}
		require.Equal(t, want, got, text)
	}
}
