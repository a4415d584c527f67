package lang

import (
	"reflect"
	"slices"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// maxCached bounds the text whose syntax trees a Loader keeps between two loads;
// a tree takes some 25 times the memory of its text.
const maxCached = 1 << 20

// NodeBlock is the block type of a node; only manifests have it.
const NodeBlock = "node"

// BlockType describes a block that may be at the top level of a file.
type BlockType struct {
	Name   string
	Doc    string
	Spec   reflect.Type // the struct whose tags are its schema; nil for locals and variable
	Named  bool         // TYPE.NAME stands for its name
	once   bool
	labels int
	guest  bool        // its name is the address of a guest, such as vm.web
	Kind   *model.Kind // of what becomes a resource of its own
}

// BlockTypes is the table of all types, in the order of the reference page.
func BlockTypes(kinds model.Kinds) []BlockType {
	row := func(name, doc string, spec any) BlockType {
		return BlockType{Name: name, Doc: doc, Spec: reflect.TypeOf(spec), Named: true, labels: 1}
	}
	types := []BlockType{
		{Name: "site", Doc: "Defaults for everything. There is exactly one.", Spec: reflect.TypeFor[model.Site](), once: true, labels: 1},
		row("host", "A PVE host or cluster: the root of a tree, or below a parent.", model.Host{}),
		row("preset", "A size.", model.Preset{}),
		row("posture", "A security level.", model.Posture{}),
		row("spec", "The desired state inside a node.", model.Spec{}),
		row("manifest", "A deployment: nodes on a host.", model.Manifest{}),
		row("job", "A command that nodes run on a schedule, or once.", model.Job{}),
		row("notify", "Where the agent without a parent sends messages about incidents, or statuses of commits.", model.Notify{}),
		row("output", "A text for other programs, such as a hosts file, rendered from the site and what is observed.", model.Output{}),
		row("pack", "A shipped pack of rules that this site follows.", model.Pack{}),
		row("waiver", "Permits what a rule denies, for one node and until a day.", model.Waiver{}),
		{Name: "locals", Doc: "Values that are used as local.NAME."},
		{Name: "variable", Doc: "A value that --var NAME=VALUE can set, used as var.NAME.", labels: 1},
	}
	types = append(types,
		BlockType{Name: "moved", Doc: "A renamed node, whose guest stays.", Spec: reflect.TypeFor[model.Moved]()},
		BlockType{Name: "removed", Doc: "What happens to a guest whose node left the site, by its address, such as vm.web.", Spec: reflect.TypeFor[model.Removed](), labels: 1, guest: true},
	)
	for _, k := range kinds {
		if k.Block != NodeBlock && k.Block != "" { // what no file declares is only ever found on a host
			types = append(types, BlockType{Name: k.Block, Doc: k.Doc, Spec: reflect.TypeOf(k.New()).Elem(), Named: true, labels: 1, Kind: k})
		}
	}
	return types
}

// Tree has the declarations of a site, sorted by type and name.
type Tree struct {
	*Findings
	Kinds    model.Kinds
	Current  string // current file, for the last resort
	Complete bool   // every file was read and parsed: what is not declared does not exist

	Types  []BlockType
	Blocks map[string][]*Block          // by type, in the order of files and lines
	Named  map[string]map[string]*Block // by type and name
	roots  map[string]bool              // types that a reference can begin with
	texts  map[string]string            // one copy of each short text
}

// NewTree returns an empty tree for the blocks of the language and of kinds.
func NewTree(kinds model.Kinds) *Tree {
	return &Tree{
		Findings: &Findings{Sources: map[string][]byte{}}, Kinds: kinds, Types: BlockTypes(kinds), texts: map[string]string{},
		Blocks: map[string][]*Block{}, Named: map[string]map[string]*Block{}, roots: map[string]bool{},
	}
}

// Block is a block at the top of a file.
type Block struct {
	Type    *BlockType
	Name    string
	Body    *hclsyntax.Body
	At      hclv2.Range // type and label
	Invalid bool        // it has a finding, so what depends on it gets none
}

type fileKey struct {
	name string
	sum  Sum
}

// parsedFile is a file as syntax; its body is incomplete where the file has errors.
type parsedFile struct {
	body  *hclsyntax.Body
	diags hclv2.Diagnostics
	size  int
}

// Cache has the parsed files of a Loader's last load.
type Cache map[fileKey]*parsedFile

// ParseAll parses the files that the cache lacks, and drops all others from it. Parsing takes most
// of the time of a load, so files are parsed in parallel; findings and the cache are written here
// only.
func (tree *Tree) ParseAll(files []Source, cache *Cache) []*hclsyntax.Body {
	known, kept := *cache, 0
	*cache = Cache{}
	results, panics := make([]*parsedFile, len(files)), make([]any, len(files))
	var left []int
	for i, f := range files {
		tree.Current = f.Name
		tree.FindSecrets(f.Name, f.Data)
		if results[i] = known[fileKey{f.Name, f.Sum}]; results[i] == nil && tree.CheckFile(f.Name, f.Data) {
			left = append(left, i)
		}
	}
	parse := func(i int) {
		defer func() { panics[i] = recover() }()
		results[i] = parseFile(files[i])
	}
	diag.InParallel(len(left), func(n int) { parse(left[n]) }) // parsing never fails; errors are in the diagnostics of a file
	var bodies []*hclsyntax.Body
	for i, f := range files {
		tree.Current = f.Name
		if panics[i] != nil {
			panic(panics[i])
		}
		p := results[i]
		if p == nil {
			tree.Complete = false
			continue
		}
		tree.AddDiagnostics(p.diags, false)
		if p.diags.HasErrors() {
			tree.Complete = false
			continue
		}
		if kept += p.size; kept <= maxCached {
			(*cache)[fileKey{f.Name, f.Sum}] = p
		}
		bodies = append(bodies, p.body)
	}
	return bodies
}

// parseFile returns nil if a file cannot be parsed at all.
func parseFile(f Source) *parsedFile {
	file, diags := hclsyntax.ParseConfig(f.Data, f.Name, hclv2.InitialPos)
	body, ok := file.Body.(*hclsyntax.Body)
	if !ok {
		return nil
	}
	return &parsedFile{body: body, diags: diags, size: len(f.Data)}
}

// Collect sorts the blocks of all files by type and name.
func (tree *Tree) Collect(bodies []*hclsyntax.Body) {
	types := map[string]*BlockType{}
	var known []string
	for i := range tree.Types {
		t := &tree.Types[i]
		types[t.Name], tree.Named[t.Name] = t, map[string]*Block{}
		tree.roots[t.Name] = t.Named
		known = append(known, t.Name)
	}
	for _, body := range bodies {
		tree.Current = body.SrcRange.Filename
		for _, a := range SortedAttributes(body) {
			tree.Errorf(a.NameRange, "attribute outside of any block", "%s is at the top level of the file: move it to the block it belongs to, or to locals.", Clip(a.Name, MaxQuoted))
		}
		for _, b := range body.Blocks {
			t := types[b.Type]
			switch {
			case t != nil:
				tree.collectBlock(t, b)
			case b.Type == NodeBlock:
				tree.Errorf(b.TypeRange, "node outside of a manifest", "A node is part of a deployment: put it into a manifest block.")
			default:
				tree.Errorf(b.TypeRange, "unknown block "+Quote(b.Type), "%s", tree.Nearest(b.Type, known))
			}
		}
	}
}

func (tree *Tree) collectBlock(t *BlockType, b *hclsyntax.Block) {
	n := &Block{Type: t, Body: b.Body, At: b.DefRange()}
	switch {
	case len(b.Labels) != t.labels && t.labels == 0:
		tree.Errorf(n.At, t.Name+" has no name", "Write it as %s { … }.", t.Name)
		return
	case len(b.Labels) != t.labels:
		tree.Errorf(n.At, t.Name+" needs one name", `Write it as %s "NAME" { … }.`, t.Name)
		return
	case t.labels > 0:
		n.Name = tree.Intern(b.Labels[0])
		if !t.guest {
			tree.CheckName(b.LabelRanges[0], t.Name, n.Name)
		}
	}
	if t.once && len(tree.Blocks[t.Name]) > 0 {
		first := tree.Blocks[t.Name][0]
		tree.Errorf(n.At, "second "+t.Name+" block", "There is exactly one; the first is at %s.", DiagRange(first.At))
		return
	}
	if first := tree.Named[t.Name][n.Name]; first != nil && t.labels > 0 {
		tree.Errorf(n.At, "duplicate "+t.Name+" "+Quote(n.Name), "The first is at %s: rename or remove one of them.", DiagRange(first.At))
		return
	}
	tree.Named[t.Name][n.Name] = n
	tree.Blocks[t.Name] = append(tree.Blocks[t.Name], n)
}

// indefinite puts a or an before the name of a block.
func indefinite(block string) string {
	if strings.ContainsRune("aeio", rune(block[0])) {
		return "an " + block
	}
	return "a " + block
}

// CheckName checks a name against the rule for names.
func (tree *Tree) CheckName(at hclv2.Range, what, name string) bool {
	valid := ValidName(name)
	if what == "variable" {
		valid = hclsyntax.ValidIdentifier(name) && len(name) <= 63
	}
	if !valid {
		tree.Errorf(at, Quote(name)+" is not a valid name for "+indefinite(what), "A name starts with a letter, contains only letters (a to z), digits and dashes, does not end with a dash, and has at most 63 characters.")
	}
	return valid
}

// ValidName reports whether a name is a DNS label (RFC 1035) that starts with a
// letter, so that it can be written as a reference without quotes.
func ValidName(s string) bool {
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

// SortedAttributes lists the attributes of a body in the order of the file.
func SortedAttributes(b *hclsyntax.Body) []*hclsyntax.Attribute {
	list := make([]*hclsyntax.Attribute, 0, len(b.Attributes))
	for _, a := range b.Attributes {
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b *hclsyntax.Attribute) int { return a.SrcRange.Start.Byte - b.SrcRange.Start.Byte })
	return list
}

// IsNamed reports whether a reference can begin with a block type.
func (tree *Tree) IsNamed(root string) bool { return tree.roots[root] }

// Intern returns the shared copy of a short text, so that ten thousand nodes share repeated names.
func (tree *Tree) Intern(s string) string {
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
