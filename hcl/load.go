// Package hcl reads the site language. It is the only user of hashicorp/hcl and go-cty: it returns values of
// package model, and findings for the author of the files.
//
// A load has these steps:
//
//	hcl/lang     files become blocks, sorted by type and name
//	hcl/lang     variables, locals and the site's attributes get their values
//	hcl/lang     a block becomes a struct: the tags of its fields are the schema
//	site.go      all blocks but manifests are decoded
//	node.go      count and for_each expand a node block (instances.go)
//	rules.go     checks across blocks: names, VMIDs, claims, parents and cycles (graph.go)
//
// A load does not stop at the first finding. Later steps skip what has a finding, so that one mistake is reported
// once.
//
// The same files, variables and secrets always give the same site: nothing here reads a clock, the environment or
// the network.
package hcl

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"reflect"
	"slices"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// Options are the inputs of a load, apart from the files.
type Options struct {
	Kinds    model.Kinds
	Secrets  *model.Secrets    // nil: no value is known, and every name is taken to exist
	Vars     map[string]string // values for variable blocks, by name
	Local    *model.LocalHost  // becomes that of the site; may be nil
	Position *Position         // says where the load is; may be nil
}

// Position is the position of a load; see lang.Position.
type Position = lang.Position

// Load reads the site in a tree. The findings are sorted. The site is nil if the files have no
// readable site block; with errors it is incomplete, for display and not for converging.
func Load(fsys fs.FS, o Options) (*model.Site, diag.List) {
	return new(Loader).Load(fsys, o)
}

// Loader caches parsed files, so that unchanged files are not parsed again, and the last site,
// which it returns again while no file and no option changed: the site is shared, and must not be
// modified. The zero Loader is ready to use, by one goroutine at a time.
type Loader struct {
	cache   lang.Cache
	schemas lang.Schemas
	funcs   map[string]function.Function
	last    *outcome
}

// Forget drops the parsed files, which take about twenty times the memory of their text. The next
// load with changed files parses all of them; its result is the same.
func (l *Loader) Forget() { l.cache = nil }

// outcome is a finished load with everything that it depends on.
type outcome struct {
	kinds   model.Kinds
	options lang.Sum            // over secrets and variables
	files   map[string]lang.Sum // of the language
	others  map[string]lang.Sum // read by expressions
	site    *model.Site
	found   diag.List
}

// Load is like the function Load.
func (l *Loader) Load(fsys fs.FS, o Options) (site *model.Site, found diag.List) {
	if l.schemas == nil {
		l.schemas, l.funcs = lang.Schemas{}, lang.Functions()
	}
	in := lang.Inputs{Files: fsys, Secrets: o.Secrets, Vars: o.Vars, Position: o.Position}
	r := &load{
		Evaluator: lang.NewTree(o.Kinds).Evaluator(in, l.funcs),
		schemas:   l.schemas, opts: o, invalid: map[string]bool{},
	}
	// Last resort: input that triggers a bug must cause one finding, not a crash.
	defer func() {
		if p := recover(); p != nil {
			l.last = nil
			r.Errorf(lang.FileStart(r.Current), "internal error", "Reading this file failed at %s. This is a bug in homestak-gitops: please report it with the file.", panicLocation())
			site, found = nil, r.Finish(nil)
		}
	}()
	files, whole := lang.ReadSources(fsys, r.Findings)
	r.Complete = whole
	now := &outcome{kinds: o.Kinds, options: optionsSum(o), files: map[string]lang.Sum{}, others: r.Others}
	for _, f := range files {
		r.Sources[f.Name] = f.Data
		o.Position.Count(len(f.Data))
		now.files[f.Name] = f.Sum
	}
	if whole && l.last.same(now, fsys) {
		return l.last.site, slices.Clone(l.last.found)
	}
	now.site = r.run(files, &l.cache)
	if now.site != nil {
		all := maps.Clone(now.files)
		maps.Copy(all, r.Others)
		now.site.SourceHash = hashFiles(all)
	}
	now.found = r.Finish(o.Secrets.Long())
	if l.last = now; !whole {
		l.last = nil // a file that cannot be read has no sum to compare
	}
	return now.site, slices.Clone(now.found)
}

// load is one run; the goroutine of Load owns it.
type load struct {
	*lang.Evaluator
	schemas lang.Schemas
	opts    Options

	site      *model.Site
	manifests []*manifest
	moves     []move
	total     int             // of all nodes
	invalid   map[string]bool // addresses of resources with findings of their own
}

// run goes from texts to the site.
func (l *load) run(files []lang.Source, cache *lang.Cache) *model.Site {
	if len(files) == 0 && l.Complete {
		begin := "To begin a site here: homestak-gitops init."
		if OfPredecessor(l.Inputs.Files) {
			begin = "It has YAML files of the predecessor. To make a site of them: homestak-gitops convert DIR --out NEW."
		}
		l.Errorf(hclv2.Range{}, "no site", "There is no *.hcl file in this folder. %s", begin)
		return nil
	}
	l.Collect(l.ParseAll(files, cache))
	l.Prepare(l.siteAttributes())
	l.decodeSite()
	l.decodeMoves()
	l.decodeManifests()
	r := rules{Tree: l.Tree, site: l.site, manifests: l.manifests, moves: l.moves, invalid: l.invalid}
	r.check()
	if len(l.Blocks["site"]) == 0 {
		return nil
	}
	return l.site
}

// siteAttributes are the attributes for site.NAME in expressions, with their defaults.
func (l *load) siteAttributes() map[string]cty.Value {
	all := map[string]cty.Value{}
	for _, f := range l.schemas.Of(reflect.TypeFor[model.Site]()).Attrs {
		all[f.Name] = cty.NullVal(cty.DynamicPseudoType)
		if def, ok := lang.DefaultValue("site." + f.Name).(string); ok {
			all[f.Name] = cty.StringVal(def)
		}
	}
	return all
}

// same reports whether another load would have the same result.
func (o *outcome) same(now *outcome, fsys fs.FS) bool {
	if o == nil || o.options != now.options || !slices.Equal(o.kinds, now.kinds) || !maps.Equal(o.files, now.files) {
		return false
	}
	for name, was := range o.others {
		data, problem := lang.ReadFile(fsys, name, lang.MaxOther)
		if lang.ReadSum(data, problem) != was {
			return false
		}
	}
	return true
}

func optionsSum(o Options) lang.Sum {
	h := sha256.New()
	for _, k := range slices.Sorted(maps.Keys(o.Vars)) {
		fmt.Fprintf(h, "var %q %q\n", k, o.Vars[k])
	}
	if o.Secrets != nil {
		fmt.Fprintf(h, "secrets %q %q\n", o.Secrets.Source, o.Secrets.Private)
		for _, section := range slices.Sorted(maps.Keys(o.Secrets.Values)) {
			for _, k := range slices.Sorted(maps.Keys(o.Secrets.Values[section])) {
				fmt.Fprintf(h, "%q %q %q\n", section, k, o.Secrets.Values[section][k])
			}
		}
	}
	if l := o.Local; l != nil {
		fmt.Fprintf(h, "local %q %q %q %q %q %q\n", l.Identity, l.APIToken, l.Fingerprint, l.CAPEM, l.Key, l.PublicKey)
	}
	return lang.Sum(h.Sum(nil))
}

// hashFiles hashes files, independent of their order.
func hashFiles(files map[string]lang.Sum) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		s := files[name]
		fmt.Fprintf(h, "%d %s %x\n", len(name), name, s)
	}
	return hex.EncodeToString(h.Sum(nil))
}
