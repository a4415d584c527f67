package hcl

import (
	"reflect"
	"runtime"
	"slices"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"golang.org/x/sync/errgroup"

	"github.com/homestak/homestak-gitops/engine/model"
)

// maxCached bounds the text whose syntax trees a Loader keeps between two loads;
// a tree takes some 25 times the memory of its text.
const maxCached = 1 << 20

// nodeBlock is the block type of a node: it stands in manifests only.
const nodeBlock = "node"

// blockType is a row of the language: a block that may stand at the top of a file.
type blockType struct {
	name   string
	doc    string
	spec   reflect.Type // the struct whose tags are its schema; nil for locals and variable
	named  bool         // TYPE.NAME stands for its name
	once   bool
	labels int
	kind   *model.Kind // of what becomes a resource of its own
}

// blockTypes is the table of all types, in the order of the reference page.
func blockTypes(kinds model.Kinds) []blockType {
	row := func(name, doc string, spec any) blockType {
		return blockType{name: name, doc: doc, spec: reflect.TypeOf(spec), named: true, labels: 1}
	}
	types := []blockType{
		{name: "site", doc: "Defaults for everything. There is exactly one.", spec: reflect.TypeFor[model.Site](), once: true, labels: 1},
		row("host", "A PVE host or cluster that roots a tree.", model.Host{}),
		row("preset", "A size.", model.Preset{}),
		row("posture", "A level of security.", model.Posture{}),
		row("spec", "What a node should become, on the inside.", model.Spec{}),
		row("manifest", "A deployment: topology, mode, nodes.", model.Manifest{}),
		{name: "locals", doc: "Values with a name, used as local.NAME."},
		{name: "variable", doc: "A value that --var NAME=VALUE can set, used as var.NAME.", labels: 1},
	}
	for _, k := range kinds {
		if k.Block != nodeBlock && k.Block != "" { // what no file declares is only ever found on a host
			types = append(types, blockType{name: k.Block, doc: k.Doc, spec: reflect.TypeOf(k.New()).Elem(), named: true, labels: 1, kind: k})
		}
	}
	return types
}

// tree is what the files of a site declare, sorted by type and name.
type tree struct {
	*findings
	kinds    model.Kinds
	current  string // file at work, for the last resort
	complete bool   // every file was read and parsed: what is not declared does not exist

	types  []blockType
	blocks map[string][]*block          // by type, in the order of files and lines
	named  map[string]map[string]*block // by type and name
	roots  map[string]bool              // types that a reference can begin with
	texts  map[string]string            // one copy of each short text
}

func newTree(kinds model.Kinds) *tree {
	return &tree{
		findings: &findings{sources: map[string][]byte{}}, kinds: kinds, types: blockTypes(kinds), texts: map[string]string{},
		blocks: map[string][]*block{}, named: map[string]map[string]*block{}, roots: map[string]bool{},
	}
}

// block is a block at the top of a file.
type block struct {
	btype   *blockType
	name    string
	body    *hclsyntax.Body
	at      hclv2.Range // type and label
	invalid bool        // it has a finding of its own, so what builds on it has none
}

type fileKey struct {
	name string
	sum  sum
}

// parsed is a file as syntax; its body is incomplete where the file has errors.
type parsed struct {
	body  *hclsyntax.Body
	diags hclv2.Diagnostics
	size  int
}

// parseCache is what a Loader keeps of the files that it parsed last.
type parseCache map[fileKey]*parsed

// parseAll parses the files that the cache lacks, and leaves these files alone in it. Parsing is
// most of a load, and one file has nothing to do with the next: they are parsed
// side by side, and everything that finds or keeps something is done here.
func (tree *tree) parseAll(files []source, cache *parseCache) []*hclsyntax.Body {
	known, kept := *cache, 0
	*cache = parseCache{}
	results, panics := make([]*parsed, len(files)), make([]any, len(files))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, f := range files {
		tree.current = f.name
		tree.findSecrets(f.name, f.data)
		if results[i] = known[fileKey{f.name, f.sum}]; results[i] != nil || !tree.checkFile(f.name, f.data) {
			continue
		}
		g.Go(func() error {
			defer func() { panics[i] = recover() }()
			results[i] = parse(f)
			return nil
		})
	}
	_ = g.Wait() // parsing has no error; what is wrong with a file is in its diagnostics
	var bodies []*hclsyntax.Body
	for i, f := range files {
		tree.current = f.name
		if panics[i] != nil {
			panic(panics[i])
		}
		p := results[i]
		if p == nil {
			tree.complete = false
			continue
		}
		tree.addDiagnostics(p.diags, false)
		if p.diags.HasErrors() {
			tree.complete = false
			continue
		}
		if kept += p.size; kept <= maxCached {
			(*cache)[fileKey{f.name, f.sum}] = p
		}
		bodies = append(bodies, p.body)
	}
	return bodies
}

// parse gives nil where a file cannot be parsed at all.
func parse(f source) *parsed {
	file, diags := hclsyntax.ParseConfig(f.data, f.name, hclv2.InitialPos)
	body, ok := file.Body.(*hclsyntax.Body)
	if !ok {
		return nil
	}
	return &parsed{body: body, diags: diags, size: len(f.data)}
}

// collect sorts the blocks of all files by type and name.
func (tree *tree) collect(bodies []*hclsyntax.Body) {
	types := map[string]*blockType{}
	var known []string
	for i := range tree.types {
		t := &tree.types[i]
		types[t.name], tree.named[t.name] = t, map[string]*block{}
		tree.roots[t.name] = t.named
		known = append(known, t.name)
	}
	for _, body := range bodies {
		tree.current = body.SrcRange.Filename
		for _, a := range sortedAttributes(body) {
			tree.errorf(a.NameRange, "attribute outside of any block", "%s stands at the top of the file: put it into the block it belongs to, or into locals.", clip(a.Name, maxQuoted))
		}
		for _, b := range body.Blocks {
			t := types[b.Type]
			switch {
			case t != nil:
				tree.collectBlock(t, b)
			case b.Type == nodeBlock:
				tree.errorf(b.TypeRange, "node outside of a manifest", "A node is part of a deployment: put it into a manifest block.")
			default:
				tree.errorf(b.TypeRange, "unknown block "+quote(b.Type), "%s", tree.nearest(b.Type, known))
			}
		}
	}
}

func (tree *tree) collectBlock(t *blockType, b *hclsyntax.Block) {
	n := &block{btype: t, body: b.Body, at: b.DefRange()}
	switch {
	case len(b.Labels) != t.labels && t.labels == 0:
		tree.errorf(n.at, t.name+" has no name", "Write it as %s { … }.", t.name)
		return
	case len(b.Labels) != t.labels:
		tree.errorf(n.at, t.name+" needs one name", `Write it as %s "NAME" { … }.`, t.name)
		return
	case t.labels > 0:
		n.name = tree.intern(b.Labels[0])
		tree.checkName(b.LabelRanges[0], t.name, n.name)
	}
	if t.once && len(tree.blocks[t.name]) > 0 {
		first := tree.blocks[t.name][0]
		tree.errorf(n.at, "second "+t.name+" block", "There is exactly one; the first is at %s.", diagRange(first.at))
		return
	}
	if first := tree.named[t.name][n.name]; first != nil && t.labels > 0 {
		tree.errorf(n.at, "duplicate "+t.name+" "+quote(n.name), "The first is at %s: rename or remove one of them.", diagRange(first.at))
		return
	}
	tree.named[t.name][n.name] = n
	tree.blocks[t.name] = append(tree.blocks[t.name], n)
}

// checkName holds a name against the rule for names.
func (tree *tree) checkName(at hclv2.Range, what, name string) bool {
	valid := validName(name)
	if what == "variable" {
		valid = hclsyntax.ValidIdentifier(name) && len(name) <= 63
	}
	if !valid {
		tree.errorf(at, quote(name)+" is no name for a "+what, "A name starts with a letter, goes on with letters (a to z), digits and dashes, does not end with a dash, and has at most 63 characters.")
	}
	return valid
}

// validName reports whether a name is a DNS label (RFC 1035) that starts with a
// letter, so that it can be written as a reference without quotes.
func validName(s string) bool {
	if s == "" || len(s) > 63 || s[len(s)-1] == '-' || !letter(s[0]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !letter(c) && !digit(c) && c != '-' {
			return false
		}
	}
	return true
}

func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func sortedAttributes(b *hclsyntax.Body) []*hclsyntax.Attribute {
	list := make([]*hclsyntax.Attribute, 0, len(b.Attributes))
	for _, a := range b.Attributes {
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b *hclsyntax.Attribute) int { return a.SrcRange.Start.Byte - b.SrcRange.Start.Byte })
	return list
}

func (tree *tree) isNamed(root string) bool { return tree.roots[root] }

// intern gives the one copy of a short text, so that ten thousand nodes share the
// names they repeat.
func (tree *tree) intern(s string) string {
	if len(s) > 64 {
		return s
	}
	if one, ok := tree.texts[s]; ok {
		return one
	}
	s = strings.Clone(s)
	tree.texts[s] = s
	return s
}
