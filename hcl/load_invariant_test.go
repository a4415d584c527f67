package hcl_test

import (
	"bytes"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// good is the tree of the archive that has everything.
func good(t testing.TB) (fstest.MapFS, hcl.Options) {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/good.txtar")
	require.NoError(t, err)
	site := fstest.MapFS{}
	o := hcl.Options{Kinds: testKinds(), Vars: map[string]string{"workers": "3"}}
	for _, f := range archive.Files {
		switch f.Name {
		case "secrets":
			o.Secrets, _ = hcl.ParseSecrets("secrets.yaml", f.Data, nil)
		case "want", "dump", "vars":
		default:
			site[f.Name] = &fstest.MapFile{Data: f.Data}
		}
	}
	return site, o
}

func TestLoaderSeesEveryChange(t *testing.T) {
	site, o := good(t)
	site["lib/motd"] = &fstest.MapFile{Data: []byte("one")}
	site["more.hcl"] = &fstest.MapFile{Data: []byte("locals {\n  motd = file(\"lib/motd\")\n}\npreset \"more\" {\n  cores  = 1\n  memory = 1024\n}\n")}
	var l hcl.Loader
	first, found := l.Load(site, o)
	require.Empty(t, found)
	hashes := []string{first.SourceHash}
	again, _ := l.Load(site, o)
	require.Same(t, first, again, "nothing changed")

	changes := []func(){
		func() { site["lib/motd"] = &fstest.MapFile{Data: []byte("two")} },
		func() { delete(site, "lib/motd") },
		func() { site["lib/motd"] = &fstest.MapFile{Data: []byte("three")} },
		func() {
			site["more.hcl"] = &fstest.MapFile{Data: bytes.Replace(site["more.hcl"].Data, []byte("1024"), []byte("2048"), 1)}
		},
		func() { site["tls/ca.pem"] = &fstest.MapFile{Data: append([]byte("\n"), site["tls/ca.pem"].Data...)} },
		func() { site["new.hcl"] = &fstest.MapFile{Data: []byte("# new\n")} },
		func() { delete(site, "new.hcl") },
	}
	last := first
	for _, change := range changes {
		change()
		var fresh hcl.Loader
		got, found := l.Load(site, o)
		want, wantFound := fresh.Load(site, o)
		require.NotSame(t, last, got)
		require.Equal(t, dump(want), dump(got))
		require.Equal(t, wantFound, found)
		require.Equal(t, want.SourceHash, got.SourceHash)
		hashes = append(hashes, got.SourceHash)
		last = got
	}
	slices.Sort(hashes)
	require.Len(t, slices.Compact(hashes), len(changes), "each state of the files has a hash of its own; the last one is the one before new.hcl came")

	for name, change := range map[string]func(*hcl.Options){
		"variables": func(o *hcl.Options) { o.Vars = map[string]string{"workers": "4"} },
		"no values": func(o *hcl.Options) { o.Secrets = nil },
		"values": func(o *hcl.Options) {
			s := *o.Secrets
			s.Values = maps.Clone(s.Values)
			s.Values["passwords"] = map[string]string{"vm_root": "other"}
			o.Secrets = &s
		},
		"kinds": func(o *hcl.Options) { o.Kinds = testKinds() },
	} {
		before, _ := l.Load(site, o)
		other := o
		change(&other)
		got, _ := l.Load(site, other)
		require.NotSame(t, before, got, name)
	}
}

func TestSameInputSameSite(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	for _, name := range archives {
		archive, err := txtar.ParseFile(name)
		require.NoError(t, err)
		tree, o, _, _ := unpack(t, archive)
		var wantText, wantDump string
		for i := range 10 {
			site, found := hcl.Load(tree, o)
			var text strings.Builder
			diag.Text(&text, found)
			got := dump(site)
			if i == 0 {
				wantText, wantDump = text.String(), got
			}
			require.Equal(t, wantText, text.String(), name)
			require.Equal(t, wantDump, got, name)
		}
	}
}

// No finding of any archive repeats a value of its secrets.
func TestSecretsStayAway(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	for _, name := range archives {
		archive, err := txtar.ParseFile(name)
		require.NoError(t, err)
		tree, o, _, _ := unpack(t, archive)
		if o.Secrets == nil {
			continue
		}
		_, found := hcl.Load(tree, o)
		for _, f := range found {
			text := f.Summary + f.Detail + f.Code
			for _, section := range o.Secrets.Values {
				for _, v := range section {
					if len(v) >= 6 {
						require.NotContains(t, text, v)
					}
				}
			}
			require.NotContains(t, text, "very-secret")
			require.NotContains(t, text, "00000000-0000-0000-0000-000000000001")
		}
	}
}

// The site never depends on whether the values of secrets are known, but for what
// is made from them.
func TestNodesDoNotDependOnSecrets(t *testing.T) {
	tree, o := good(t)
	known, _ := hcl.Load(tree, o)
	o.Secrets = nil
	unknown, found := hcl.Load(tree, o)
	require.Empty(t, found)
	require.Equal(t, known.Specs["base"].Access, unknown.Specs["base"].Access)
	require.True(t, unknown.Hosts["father"].TokenMissing)
	for i, n := range known.Manifests["web"].Nodes {
		other := unknown.Manifests["web"].Nodes[i]
		require.Equal(t, n.Resource.Addr, other.Resource.Addr)
		require.Equal(t, n.Resource.Sensitive, other.Resource.Sensitive)
		require.Equal(t, len(n.Resource.Sensitive) > 0, len(other.Resource.Missing) > 0)
	}
}

func TestResolvedSiteIsReadyForAHost(t *testing.T) {
	tree, o := good(t)
	site, found := hcl.Load(tree, o)
	require.Empty(t, found)
	want, found := site.Want("father")
	require.Empty(t, found)
	var got []string
	for _, a := range want.State.Addresses() {
		got = append(got, fmt.Sprint(a, " needs ", want.State[a].Needs))
	}
	require.Equal(t, []string{
		"ct.cache needs [template.debian-12-ct pool.guests]",
		"image.debian-12 needs []",
		"pool.guests needs []",
		"pve.inner needs [image.debian-12 pool.guests]",
		"template.debian-12-ct needs []",
		"vm.db-a needs [image.debian-12 pve.inner pool.guests]",
		"vm.db-b needs [image.debian-12 pve.inner pool.guests]",
	}, got)
	require.Equal(t, 2048, want.State[model.Address{Kind: "vm", Name: "db-a"}].Spec.(*guest).Memory)
	require.Equal(t, 0, site.Manifests["web"].Nodes[0].Resource.Spec.(*guest).Memory, "the site itself stays as declared")
}
