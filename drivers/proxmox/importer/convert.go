package importer

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// Conversion is a site that was made of the YAML files of the predecessor.
type Conversion struct {
	Files  map[string][]byte `json:"-"`
	Names  []string          `json:"files"`
	Left   []conversionNote  `json:"left"`  // what has no place in the site
	Review []conversionNote  `json:"check"` // what the site has, and should be checked
}

// conversionNote is about one key of a file of the predecessor.
type conversionNote struct {
	File string `json:"file"`
	Line int    `json:"line"`
	Key  string `json:"key"`
	Why  string `json:"why"`
}

// folders are the folders of the predecessor that are read.
func folders() []string {
	return []string{"hosts", "nodes", "presets", "postures", "specs", "manifests"}
}

// otherFolders are what else its tree may have, each with the reason why it is not converted.
func otherFolders() [][2]string {
	return [][2]string{
		{"envs", "manifests replaced it: convert the tree of a later version"},
		{"tls", "the predecessor did not use it: put the fingerprint of a host into its host block"},
		{"v2", "its folders have to be at the top: move them there"},
		{"vms", "presets replaced it: convert the tree of a later version"},
	}
}

// The files of secrets of the predecessor, and those of a site.
const (
	plainSecrets     = "secrets.yaml"
	encryptedSecrets = "secrets.yaml.enc"
	sopsSecrets      = "secrets.sops.yaml"
)

// converter makes the files of a site.
type converter struct {
	dir   fs.FS
	size  int // bytes that were read
	found diag.List
	out   *Conversion

	site      parsed[siteYAML]
	hosts     []parsed[hostYAML]
	nodes     []parsed[nodeYAML]
	presets   []parsed[presetYAML]
	postures  []parsed[postureYAML]
	specs     []parsed[specYAML]
	manifests []parsed[manifestYAML]
}

// Convert makes a site of the YAML files of the predecessor in a folder. program is named in its files, and key is the
// ownership key of the new site. With errors among the findings nothing is made: they are mistakes in the YAML, at
// their lines. No finding and no note repeats a secret.
func Convert(dir fs.FS, name, program, key string) (*Conversion, diag.List) {
	c := &converter{dir: dir, out: &Conversion{Files: map[string][]byte{}, Left: []conversionNote{}, Review: []conversionNote{}}}
	c.readAll()
	secrets := c.secrets(key)
	if c.found.HasErrors() {
		return nil, c.found.Sorted()
	}
	head := []string{"Converted from the YAML of the predecessor by " + program + "."}
	write := func(file string, blocks []hcl.Block) {
		if len(blocks) > 0 {
			c.out.Files[file] = hcl.Write(head, blocks)
		}
	}
	machines := c.machines()
	write("site.hcl", []hcl.Block{c.siteBlock(name)})
	for _, b := range c.hostBlocks(machines) {
		write(path.Join("hosts", b.Label+".hcl"), []hcl.Block{b})
	}
	write("presets.hcl", c.presetBlocks())
	write("postures.hcl", c.postureBlocks())
	write("specs.hcl", c.specBlocks(machines))
	write("images.hcl", c.imageBlocks(machines))
	for _, m := range machines {
		file := free(path.Join("manifests", cmp.Or(Label(m.v.Name), "manifest")), func(name string) bool { return c.out.Files[name+".hcl"] != nil })
		write(file+".hcl", []hcl.Block{c.manifestBlock(m)})
	}
	maps.Copy(c.out.Files, secrets)
	c.out.Names = slices.Sorted(maps.Keys(c.out.Files))
	return c.out, nil
}

// mistake reports an error in the YAML.
func (c *converter) mistake(at diag.Range, summary, detail string, args ...any) {
	if len(c.found) < mostMistakes {
		c.found = append(c.found, diag.Errorf(at, summary, detail, args...))
	}
}

// comments are what is above a block: notes about the keys of a file.
type comments struct {
	c    *converter
	file *yamlFile
	text []string
}

// left notes that a key has no place in the site.
func (t *comments) left(key, why string, args ...any) {
	t.c.out.Left = append(t.c.out.Left, t.note("Not converted:", key, fmt.Sprintf(why, args...)))
}

// review notes that what became of a key should be checked.
func (t *comments) review(key, why string, args ...any) {
	t.c.out.Review = append(t.c.out.Review, t.note("Check:", key, fmt.Sprintf(why, args...)))
}

func (t *comments) note(what, key, why string) conversionNote {
	t.text = append(t.text, diag.Line(strings.TrimSuffix(what+" "+key+": ", " : ")+" "+why+"."))
	return conversionNote{t.file.name, t.file.at(key).Start.Line, diag.Line(key), diag.Line(why)}
}

// readAll reads all files.
func (c *converter) readAll() {
	c.site = parsed[siteYAML]{yamlFile: &yamlFile{name: "site.yaml", root: &yaml.Node{}}}
	top := &comments{c: c}
	known := false
	for _, name := range c.list(".") {
		switch name {
		case "site.yaml":
			c.site, known = parsedOf[siteYAML](c, name), true
		case plainSecrets:
		default:
			top.file = &yamlFile{name: name, root: &yaml.Node{}}
			top.left("", "the predecessor has no such file")
		}
	}
	for _, f := range otherFolders() {
		if info, err := fs.Stat(c.dir, f[0]); err == nil && info.IsDir() {
			top.file = &yamlFile{name: f[0], root: &yaml.Node{}}
			top.left("", "%s", f[1])
		}
	}
	c.hosts, c.nodes = readFolder[hostYAML](c, "hosts"), readFolder[nodeYAML](c, "nodes")
	c.presets, c.postures = readFolder[presetYAML](c, "presets"), readFolder[postureYAML](c, "postures")
	c.specs, c.manifests = readFolder[specYAML](c, "specs"), readFolder[manifestYAML](c, "manifests")
	if !known && len(c.hosts)+len(c.nodes)+len(c.specs)+len(c.manifests) == 0 && len(c.found) == 0 {
		c.mistake(diag.Range{}, "no files of the predecessor", "The folder has none of site.yaml, hosts, nodes, specs and manifests. Name the folder that has site.yaml.")
	}
	for _, s := range c.specs {
		if s.v.SchemaVersion != 1 {
			c.mistake(s.at("schema_version"), fmt.Sprintf("schema_version %d of a spec", s.v.SchemaVersion), "Specs have version 1.")
		}
	}
	c.checkNames()
}

func parsedOf[T any](c *converter, name string) parsed[T] {
	out, _ := readYAML[T](c, name)
	return out
}

// checkNames finds names that a block cannot have. They are in references, too.
func (c *converter) checkNames() {
	check := func(f *yamlFile, what, name string) {
		if !lang.ValidName(name) {
			c.mistake(lineOf(f.name, 1), lang.Quote(name)+" cannot be the name of a "+what, "A name has lower-case letters, digits and dashes, and begins with a letter. Rename the file, and what refers to it.")
		}
	}
	for _, f := range c.hosts {
		check(f.yamlFile, "host", f.key)
	}
	for _, f := range c.nodes {
		check(f.yamlFile, "host", f.key)
	}
	for _, f := range c.presets {
		check(f.yamlFile, "preset", f.key)
	}
	for _, f := range c.postures {
		check(f.yamlFile, "posture", f.key)
	}
	for _, f := range c.specs {
		check(f.yamlFile, "spec", f.key)
	}
	names := map[string]string{}
	for _, m := range c.manifests {
		if first := names[m.v.Name]; first != "" && m.v.Name != "" {
			c.mistake(m.at("name"), "manifest "+lang.Quote(m.v.Name)+" is there twice", "The other is in %s: rename one of them.", first)
		}
		names[m.v.Name] = m.name
	}
}

// block is a block of one struct, without what is a default.
func block(kind, label string, t *comments, value any) hcl.Block {
	shorten(reflect.ValueOf(value).Elem(), kind)
	b := hcl.Block{Type: kind, Label: label, Parts: []hcl.Part{{Value: value}}}
	if t != nil {
		b.Comment = t.text
	}
	return b
}

// shorten clears attributes that have their default, and blocks in which nothing is left. rule is the path of the block.
func shorten(v reflect.Value, rule string) {
	for _, f := range model.Fields(v.Type()) {
		field, path := v.Field(f.Index), rule+"."+f.Name
		switch {
		case !f.Decoded || f.Label:
		case f.Block && field.Kind() == reflect.Slice:
			for i := range field.Len() {
				shorten(field.Index(i), path)
			}
		case f.Block:
			if field.IsNil() {
				continue
			}
			if shorten(field.Elem(), path); field.Elem().IsZero() {
				field.SetZero()
			}
		case field.Kind() == reflect.Slice && field.Len() == 0:
			field.SetZero()
		case field.Kind() == reflect.Pointer && field.IsNil():
		default:
			if def := lang.DefaultValue(path); def != nil && reflect.DeepEqual(reflect.Indirect(field).Interface(), def) {
				field.SetZero()
			}
		}
	}
}

// Text writes the report for people: a line for what several keys have in common.
func (c *Conversion) Text(w io.Writer) {
	fmt.Fprintf(w, "%s written\n", diag.Count(len(c.Names), "file"))
	for _, name := range c.Names {
		fmt.Fprintf(w, "  %s\n", name)
	}
	var left, review groups
	for _, n := range c.Left {
		left.add(n.Why+"\x00", n.String())
	}
	for _, n := range c.Review {
		review.add(n.Why+"\x00", n.String())
	}
	left.text(w, "not converted")
	review.text(w, "check")
}

// String is the place of a note: file, line and key.
func (n conversionNote) String() string {
	if n.Key == "" {
		return n.File
	}
	return fmt.Sprintf("%s:%d %s", n.File, n.Line, n.Key)
}
