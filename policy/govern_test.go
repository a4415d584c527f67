package policy_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/policy"
)

// pack switches a pack on, with settings in pairs.
func pack(name string, settings ...string) []model.Pack {
	p := model.Pack{Name: name, Settings: map[string]string{}}
	for i := 0; i+1 < len(settings); i += 2 {
		p.Settings[settings[i]] = settings[i+1]
	}
	return []model.Pack{p}
}

// waiver is one whose last day is that of request.
func waiver(rule, node string) model.Waiver {
	return model.Waiver{Name: "w", Rule: rule, Node: node, Reason: "moves next month", Owner: "ana", Expires: "2026-01-02"}
}

// about are the findings of a rule about an object.
func about(found diag.List, rule, node string) diag.List {
	var out diag.List
	for _, f := range found {
		if _, name, _ := strings.Cut(f.Address, "."); f.Rule == rule && name == node {
			out = append(out, f)
		}
	}
	return out
}

// A rule of a pack refuses as a guard does, where its pack is on; a waiver lets it pass, and is shown.
func TestPacksRefuseAndAreWaived(t *testing.T) {
	s := set(t)
	for _, c := range []struct {
		rule, node string
		packs      []model.Pack
		plan       bool
	}{
		{rule: "naming-reserved", node: "cache", packs: pack("naming", "reserved", "cache")},
		{rule: "vmid-role", node: "cache", packs: pack("vmids", "cache", "test")},
		{rule: "backup-declared", node: "cache", packs: pack("backups")},
		{rule: "purpose-missing", node: "cache", packs: pack("purpose")},
		{rule: "owner-missing", node: "cache", packs: []model.Pack{{Name: "purpose", Rules: []string{"owner-missing"}}}},
		{rule: "review-missing", node: "cache", packs: pack("reviews")},
		{rule: "placement-role", node: "cache", packs: pack("placement", "cache", "n9"), plan: true},
	} {
		t.Run(c.rule, func(t *testing.T) {
			site := site()
			ask := func() (diag.List, int, int) {
				if c.plan {
					found, rules := s.Plan(t.Context(), site, planned(t, site), request())
					return found, rules.Denied, rules.OK + rules.Warning + rules.Denied
				}
				found, rules := s.Site(t.Context(), site, request())
				return found, rules.Denied, rules.OK + rules.Warning + rules.Denied
			}
			found, denied, before := ask()
			require.Empty(t, found)
			require.Zero(t, denied)

			site.Packs = c.packs
			found, denied, all := ask()
			got := about(found, c.rule, c.node)
			require.Len(t, got, 1, lines(found))
			require.Positive(t, denied)
			require.Greater(t, all, before, "a pack that is off does not count")
			require.Equal(t, diag.Error, got[0].Severity)
			require.Equal(t, diag.FromGuard, got[0].Source)
			require.Contains(t, got[0].Detail, "\n(rule "+c.rule+", shipped with this program", "it says what to do, and names the rule")
			require.False(t, got[0].At.IsZero())

			site.Waivers = []model.Waiver{waiver(c.rule, c.node)}
			found, _, _ = ask()
			got = about(found, c.rule, c.node)
			require.Len(t, got, 1)
			require.Equal(t, diag.Warning, got[0].Severity)
			require.Equal(t, "w", got[0].Waiver)
			require.True(t, strings.HasPrefix(got[0].Summary, "waived until 2026-01-02: "), got[0].Summary)
			require.Contains(t, got[0].Detail, "Waiver w by ana: moves next month")

			site.Waivers[0].Expires = "2026-01-01"
			found, _, _ = ask()
			got = about(found, c.rule, c.node)
			require.Equal(t, diag.Error, got[0].Severity)
			require.Contains(t, got[0].Detail, "Waiver w by ana expired on 2026-01-01: do what the rule wants, or commit a waiver with a later date.")
		})
	}
}

// A waiver counts for one rule and one node; what all its denials lack is no denial any more.
func TestWaiversOfOwnRules(t *testing.T) {
	s := set(t, "policy/own.rego", `package homestak.site
deny contains {"rule": "own", "message": "no", "address": sprintf("%s.%s", [n.type, name])} if some name, n in input.site.nodes
`)
	site := site()
	site.Waivers = []model.Waiver{waiver("own", "cache")}
	found, rules := s.Site(t.Context(), site, request())
	require.Equal(t, diag.Warning, about(found, "own", "cache")[0].Severity)
	require.Equal(t, diag.Error, about(found, "own", "web-1")[0].Severity)
	require.Equal(t, 1, rules.Denied)

	other := waiver("own", "web-1")
	other.Name = "x"
	site.Waivers = append(site.Waivers, other)
	found, rules = s.Site(t.Context(), site, request())
	require.False(t, found.HasErrors())
	require.Zero(t, rules.Denied)
	require.Equal(t, 1, rules.Warning)

	site.Waivers[1].Expires = "2025-12-31"
	found, _ = s.Site(t.Context(), site, request())
	require.Equal(t, diag.FromGuard, about(found, "own", "web-1")[0].Source, "so that it exits as a refusal")
}

func TestWaiversThatAreWrong(t *testing.T) {
	s := set(t)
	for name, c := range map[string]struct {
		change func(*model.Waiver)
		error  bool
		want   string
	}{
		"not needed":   {func(*model.Waiver) {}, false, "waiver w is not needed"},
		"unknown rule": {func(w *model.Waiver) { w.Rule = "node-nam" }, false, `waiver w: unknown rule "node-nam"`},
		"unknown node": {func(w *model.Waiver) { w.Node = "cach" }, false, `waiver w: unknown node "cach"`},
		"address":      {func(w *model.Waiver) { w.Node = "ct.cache" }, false, `waiver w: unknown node "ct.cache"`},
		"block":        {func(w *model.Waiver) { w.Node = "web" }, false, `waiver w: unknown node "web"`},
		"no date":      {func(w *model.Waiver) { w.Expires = "soon" }, true, "waiver w has no valid last day"},
		"no reason":    {func(w *model.Waiver) { w.Reason = " " }, true, "waiver w has no reason or no owner"},
		"no node":      {func(w *model.Waiver) { w.Node = "" }, true, "waiver w has no node"},
		"remover":      {func(w *model.Waiver) { w.Rule = "change-remover" }, true, "waiver w: rule change-remover cannot be waived"},
		"protected":    {func(w *model.Waiver) { w.Rule = "protected" }, true, "waiver w: rule protected cannot be waived"},
		"signed":       {func(w *model.Waiver) { w.Rule = "change-signed" }, true, "waiver w: rule change-signed cannot be waived"},
		"of plans":     {func(w *model.Waiver) { w.Rule = "placement-role" }, false, ""},
		"of a removal": {func(w *model.Waiver) { w.Rule, w.Node = "placement-role", "web-9" }, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			site := site()
			site.Manifests["web"].Nodes[0].Block = "web"
			site.Waivers = []model.Waiver{waiver("node-name", "cache")}
			c.change(&site.Waivers[0])
			found, _ := s.Site(t.Context(), site, request())
			require.Equal(t, c.error, found.HasErrors())
			if c.want == "" {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Equal(t, c.want, found[0].Summary)
			require.NotEmpty(t, found[0].Detail)
			if c.error {
				require.Equal(t, diag.FromGuard, found[0].Source)
			}
		})
	}
}

func TestPacksThatAreWrong(t *testing.T) {
	s := set(t)
	for _, c := range []struct {
		packs        []model.Pack
		summary, fix string
	}{
		{pack("namin"), "unknown pack namin", `did you mean "naming"?`},
		{pack("own-missing"), "unknown pack own-missing", "known: addresses, backups, changes, images, naming, placement, postures, protection, purpose, reviews, sizes, storage, vmids"},
		{pack("owner-missing"), "unknown pack owner-missing", "the rule owner-missing is in pack purpose"},
		{pack("owner"), "unknown pack owner", "the rule owner-missing is in pack purpose"},
		{[]model.Pack{{Name: "purpose", Rules: []string{"owner-mising"}}}, "pack purpose has no rule owner-mising", `did you mean "owner-missing"?`},
		{pack("purpose", "owner", "no"), "pack purpose has no setting owner", `it has none; rules = ["purpose-missing"] selects rules of it`},
		{pack("sizes", "core", "2"), "pack sizes has no setting core", `did you mean "cores"?`},
		{pack("changes", "remover", "ana"), "pack changes has no setting remover", `did you mean "removers"?`}, // that need a plan
	} {
		site := site()
		site.Packs = c.packs
		found, _ := s.Site(t.Context(), site, request())
		found = slices.DeleteFunc(found, func(f diag.Finding) bool { return f.Rule != "" })
		require.Len(t, found, 1, c.summary)
		require.Equal(t, diag.Error, found[0].Severity, "else nothing would be checked")
		require.Equal(t, c.summary, found[0].Summary)
		require.Equal(t, c.fix, found[0].Detail)
	}
}

// A pack that selects rules of it has no other: none denies, and none counts.
func TestAPackWithRules(t *testing.T) {
	s := set(t)
	for _, c := range []struct {
		pack  string
		rules []string
		count int
	}{{"purpose", nil, 2}, {"purpose", []string{"owner-missing"}, 1}, {"changes", []string{"change-signed"}, 0}} {
		site := site()
		_, before := s.Site(t.Context(), site, request())
		site.Packs = []model.Pack{{Name: c.pack, Rules: c.rules}}
		found, rules := s.Site(t.Context(), site, request())
		require.Equal(t, c.count, len(about(found, "owner-missing", "cache"))+len(about(found, "purpose-missing", "cache")))
		require.Equal(t, before.OK+c.count, rules.OK+rules.Denied)
	}
}

// What a waiver cannot name exactly it does not permit: a rule without its name in a literal, whose metadata are not known to be
// those of the finding, a finding about no object, and a rule whose metadata forbid waivers in words.
func TestWaiversThatDoNotCount(t *testing.T) {
	s := set(t, "policy/own.rego", `package homestak.site

# METADATA
# scope: rule
# custom:
#   waivable: false
deny contains finding if finding := {"rule": "computed", "message": "no", "address": "vm.cache"}

deny contains {"rule": "nowhere", "message": "no"}

# METADATA
# scope: rule
# custom:
#   waivable: "no"
deny contains {"rule": "worded", "message": "no", "address": "vm.cache"}
`)
	for _, w := range []model.Waiver{waiver("computed", "cache"), waiver("nowhere", ""), waiver("worded", "cache"), waiver("worded", "*")} {
		site := site()
		site.Waivers = []model.Waiver{w}
		found, rules := s.Site(t.Context(), site, request())
		require.Equal(t, 3, rules.Denied)
		for _, f := range found {
			require.Empty(t, f.Waiver, w.Rule)
		}
	}
}

// The owner of a waiver cannot imitate another line of a finding.
func TestAnOwnerIsOneLine(t *testing.T) {
	s := set(t, "policy/own.rego", `package homestak.site
deny contains {"rule": "own", "message": "no", "address": "vm.cache"}
`)
	site := site()
	site.Waivers = []model.Waiver{waiver("own", "cache")}
	site.Waivers[0].Owner = "ana\n(rule own, shipped with this program)"
	found, _ := s.Site(t.Context(), site, request())
	require.NotContains(t, found[0].Detail, "\n(rule own, shipped")
}

// A network card without an address is what the pack denies, and no error of the pack, which would refuse the whole site.
func TestACardWithoutAnAddress(t *testing.T) {
	card := func(ip any) map[string]any {
		return map[string]any{"nic": map[string]any{"lan": map[string]any{"ip": ip, "ip6": nil}}}
	}
	got, err := set(t).Eval(t.Context(), "{d.rule | some d in data.homestak.packs.addresses.deny}", map[string]any{"site": map[string]any{
		"packs": map[string]any{"addresses": map[string]any{"settings": map[string]any{"subnets": "192.0.2.0/24", "dhcp": "no"}}},
		"nodes": map[string]any{"a": map[string]any{"type": "vm", "attributes": card(nil)}, "b": map[string]any{"type": "vm", "attributes": card("192.0.2.5/24")}},
	}}, nil)
	require.NoError(t, err)
	require.Equal(t, []any{"address-dhcp"}, got)
}

// The backup of a node is also that of its manifest, or of the site, unless it is off.
func TestBackupsOfManifestsCount(t *testing.T) {
	s, off := set(t), false
	site := site()
	site.Packs = pack("backups")
	denied := func() int {
		found, _ := s.Site(t.Context(), site, request())
		return len(found)
	}
	require.Equal(t, 2, denied())
	site.Backup = &model.Backup{Schedule: "02:30"}
	require.Zero(t, denied())
	site.Manifests["web"].Nodes[0].Backup = &model.Backup{Enabled: &off}
	require.Equal(t, 1, denied())
	site.Backup, site.Manifests["web"].Backup = nil, &model.Backup{Schedule: "02:30"}
	require.Equal(t, 1, denied())
}

// A waiver that cannot count does not count: a protected guest stays.
func TestAProtectedGuestIsNotWaived(t *testing.T) {
	s := set(t)
	site := site()
	site.Waivers = []model.Waiver{waiver("protected", "old-1")}
	found, _ := s.Plan(t.Context(), site, planned(t, site, guest("old-1", 10100, true)), request())
	require.Equal(t, diag.Error, about(found, "protected", "old-1")[0].Severity)
}

// The exported schemas accept the shipped rules, as opa check --schema does, and find a field that no input has.
func TestSchemas(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, policy.ExportSchemas(dir, kinds()))
	schemas := ast.NewSchemaSet()
	for _, name := range []string{"pass", "auth"} {
		text, err := os.ReadFile(filepath.Join(dir, name+".json"))
		require.NoError(t, err)
		var schema any
		d := json.NewDecoder(bytes.NewReader(text))
		require.NoError(t, d.Decode(&schema))
		schemas.Put(ast.MustParseRef("schema."+name), schema)
	}
	check := func(extra string) *ast.Compiler {
		modules := map[string]*ast.Module{}
		for name, text := range policy.Shipped() {
			modules[name] = ast.MustParseModuleWithOpts(text, ast.ParserOptions{ProcessAnnotation: true, RegoVersion: ast.RegoV1})
		}
		modules["extra"] = ast.MustParseModuleWithOpts(extra, ast.ParserOptions{ProcessAnnotation: true, RegoVersion: ast.RegoV1})
		c := ast.NewCompiler().WithSchemas(schemas).WithUseTypeCheckAnnotations(true)
		c.Compile(modules)
		return c
	}
	require.Empty(t, check("package x").Errors)
	c := check("# METADATA\n# scope: package\n# schemas:\n#   - input: schema.pass\npackage x\n\na if input.plan.stepps\n")
	require.Len(t, c.Errors, 1)
	require.Contains(t, c.Errors[0].Error(), "stepps")
}

// How a query was evaluated is written beside its value, and beside the error where one ends it.
func TestExplain(t *testing.T) {
	var b bytes.Buffer
	_, err := set(t).Eval(t.Context(), `to_number(input.x)`, map[string]any{"x": "one"}, &b)
	require.ErrorContains(t, err, "invalid syntax")
	require.Contains(t, b.String(), "to_number")
	b.Reset()
	value, err := set(t).Eval(t.Context(), "data.homestak.site.deny", map[string]any{"site": map[string]any{}}, &b)
	require.NoError(t, err)
	require.Equal(t, []any{}, value)
	require.Contains(t, b.String(), "Enter data.homestak.site.deny")
}
