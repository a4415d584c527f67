package integration_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// ST-7: a site that is right exits 0.
func TestAValidSite(t *testing.T) {
	s := begin(t, pve.Config{})
	s.deploy("web", vm("web", "count = 2"))
	s.says(0, "validate")
	v := document[verdictDoc](t, s.says(0, "validate", "--json"))
	require.True(t, *v.Valid)
	require.Empty(t, *v.Findings)
	require.Empty(t, s.requests(), "validate reaches no host")
}

// ST-7: every mistake of every file is told in one run, each at its place. A site
// with mistakes exits 1 where it is asked for them, and 3 where it shall converge.
func TestAnInvalidSite(t *testing.T) {
	// The mistakes of a schema, of references, and of rules that several blocks
	// break together, each in a file of its own.
	mistakes := map[string]struct {
		text string
		at   string // FILE:LINE:COLUMN
		says string
	}{
		"unknown attribute":    {manifest("a1", "  node \"a1\" {\n    type = \"vm\"\n    preset = preset.vm-small\n    image = image.debian-12\n    memroy = 1\n  }\n"), "8:5", "memory"},
		"unknown block":        {"manifst \"a2\" {\n}\n", "1:1", "manifest"},
		"missing attribute":    {"preset \"a3\" {\n  cores = 2\n}\n", "1:1", "memory"},
		"wrong type":           {"preset \"a4\" {\n  cores  = \"many\"\n  memory = 2048\n}\n", "2:12", "number"},
		"unknown preset":       {manifest("a5", "  node \"a5\" {\n    type = \"vm\"\n    preset = preset.vm-smal\n    image = image.debian-12\n  }\n"), "6:14", "vm-small"},
		"unknown image":        {manifest("a6", "  node \"a6\" {\n    type = \"vm\"\n    preset = preset.vm-small\n    image = image.debian-21\n  }\n"), "7:13", "debian-12"},
		"unknown host":         {strings.Replace(manifest("a7", vm("a7")), "host.father", "host.fahter", 1), "3:13", "father"},
		"unknown spec":         {manifest("a8", vm("a8", "spec = spec.base")), "8:12", "spec"},
		"unknown local":        {"preset \"a9\" {\n  cores  = local.cores\n  memory = 2048\n}\n", "2:12", "local"},
		"duplicate node":       {manifest("b1", vm("twice")+vm("twice")), "9:3", "twice"},
		"parent that is a vm":  {manifest("b2", vm("b2-parent")+vm("b2", "parent = node.b2-parent")), "13:5", "pve"},
		"VMID out of range":    {manifest("b3", vm("b3", "vmid = 50")), "8:5", "50"},
		"shrunken address":     {manifest("b4", vm("b4", "nic \"lan\" {", "  ip = \"10.0.0.300/24\"", "}")), "9:7", "10.0.0.300"},
		"pattern against tree": {strings.Replace(manifest("b5", vm("b5")), "flat", "star", 1), "2:13", "star"},
		"node without size":    {manifest("b6", "  node \"b6\" {\n    type = \"vm\"\n    image = image.debian-12\n  }\n"), "4:3", "size"},
		"vm without image":     {manifest("b7", "  node \"b7\" {\n    type = \"vm\"\n    preset = preset.vm-small\n  }\n"), "4:3", "image"},
	}
	s := begin(t, pve.Config{})
	s.deploy("web", vm("web"))
	for name, m := range mistakes {
		s.write("mistakes/"+strings.ReplaceAll(name, " ", "-")+".hcl", m.text)
	}

	text := s.says(1, "validate")
	v := document[verdictDoc](t, s.says(1, "validate", "--json"))
	require.False(t, *v.Valid)
	for name, m := range mistakes {
		file := "mistakes/" + strings.ReplaceAll(name, " ", "-") + ".hcl"
		t.Run(name, func(t *testing.T) {
			named := strings.Contains(text.err, file+":"+m.at+": error: ")
			require.True(t, named, "the text does not name %s:%s", file, m.at)
			require.True(t, slices.ContainsFunc(*v.Findings, func(f findingDoc) bool {
				return f.At.File == file && fmt.Sprintf("%d:%d", f.At.Line, f.At.Column) == m.at &&
					strings.Contains(*f.Summary+*f.Detail, m.says)
			}), "no finding with %q at %s:%s", m.says, file, m.at)
		})
	}
	for _, f := range *v.Findings {
		require.NotNil(t, f.At, "%s has no place", *f.Summary)
		require.NotZero(t, f.At.Line, *f.Summary)
		require.NotZero(t, f.At.Column, *f.Summary)
	}

	s.says(3, "plan")
	s.says(3, "apply", "--yes")
	s.says(3, "destroy", "-M", "web", "--yes")
	require.Empty(t, s.requests(), "an invalid site reached the host")
}

// ST-7: a file that cannot be parsed hides no mistake of another file but one: what
// it may declare is not called unknown.
func TestAFileThatCannotBeParsed(t *testing.T) {
	s := begin(t, pve.Config{})
	s.write("broken.hcl", "preset \"large\" {\n  cores = = 2\n}\n")
	s.deploy("web", vm("web-1", "memroy = 1")+vm("web-2", "vmid = 50"))
	r := s.says(1, "validate")
	require.Contains(t, r.err, "broken.hcl:2:11: error: ")
	require.Contains(t, r.err, "manifests/web.hcl:8:5: error: ")
	require.Contains(t, r.err, "manifests/web.hcl:14:5: error: ")
}

// manifest is the text of a manifest of the host; its nodes begin in line 4.
func manifest(name, nodes string) string {
	return fmt.Sprintf("manifest %q {\n  pattern = \"flat\"\n  host    = host.father\n%s}\n", name, nodes)
}
