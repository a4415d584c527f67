package importer

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// The limits of what is read of the predecessor. A file has some hundred lines at most.
const (
	mostYAML     = 256 << 10 // bytes of a file
	mostOfAll    = 16 << 20  // bytes of all files
	mostMistakes = 100       // findings
)

// yamlFile is a file that was read, to find the lines of its keys.
type yamlFile struct {
	name string // its path in the folder
	key  string // its base name without extension: the name of what it declares
	root *yaml.Node
}

// parsed is a file with its content.
type parsed[T any] struct {
	*yamlFile
	v T
}

// at is the place of a key: its parts are joined by dots, and an element of a list is its name or its number.
func (f *yamlFile) at(key string) diag.Range {
	n := f.root
	for step := range strings.SplitSeq(key, ".") {
		next := child(n, step)
		if next == nil {
			break
		}
		n = next
	}
	return lineOf(f.name, n.Line)
}

func lineOf(file string, line int) diag.Range {
	at := diag.Pos{Line: max(line, 1), Column: 1}
	return diag.Range{File: file, Start: at, End: at}
}

// child is the value of a key of a map, or the element of a list; nil if there is none.
func child(n *yaml.Node, step string) *yaml.Node {
	for i, c := range n.Content {
		switch {
		case n.Kind == yaml.MappingNode && i%2 == 0 && c.Value == step:
			return n.Content[i+1]
		case n.Kind != yaml.SequenceNode:
		case strconv.Itoa(i) == step:
			return c
		default:
			if name := child(c, "name"); name != nil && c.Kind == yaml.MappingNode && name.Value == step {
				return c
			}
		}
	}
	return nil
}

// readFolder reads the YAML files of a folder, in the order of their names. A folder that does not exist has none.
func readFolder[T any](c *converter, folder string) []parsed[T] {
	var out []parsed[T]
	for _, name := range c.list(folder) {
		if f, ok := readYAML[T](c, path.Join(folder, name)); ok {
			out = append(out, f)
		}
	}
	return out
}

// list names the YAML files in a folder. A file or folder that is a link is a mistake: it may lead anywhere.
func (c *converter) list(folder string) []string {
	entries, err := fs.ReadDir(c.dir, folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		c.mistake(diag.Range{File: folder}, "the folder cannot be read", "%v.", err)
		return nil
	}
	var names []string
	for _, e := range entries {
		name := path.Join(folder, e.Name())
		switch isYAML := path.Ext(name) == ".yaml"; {
		case e.Type()&fs.ModeSymlink != 0 && (isYAML || slices.Contains(folders(), name)):
			c.mistake(lineOf(name, 1), name+" is a link", "Copy what it points to into the folder.")
		case isYAML && !e.Type().IsRegular():
			c.mistake(lineOf(name, 1), name+" is not a file", "Remove it.")
		case isYAML:
			names = append(names, e.Name())
		case path.Ext(name) == ".yml":
			(&comments{c: c, file: &yamlFile{name: name, root: &yaml.Node{}}}).left("", "the predecessor read files that end with .yaml only")
		}
	}
	return names
}

// read reads a file of a limited size.
func (c *converter) read(name string) ([]byte, bool) {
	f, err := c.dir.Open(name)
	if err != nil {
		c.mistake(lineOf(name, 1), "the file cannot be read", "%v.", err)
		return nil, false
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, mostYAML+1))
	c.size += len(data)
	switch {
	case err != nil:
		c.mistake(lineOf(name, 1), "the file cannot be read", "%v.", err)
	case len(data) > mostYAML:
		c.mistake(lineOf(name, 1), "the file is too large", "The limit is %d KiB.", mostYAML>>10)
	case c.size > mostOfAll:
		c.mistake(lineOf(name, 1), "the files are too large together", "The limit is %d MiB.", mostOfAll>>20)
	case lang.Unreadable(data) >= 0:
		c.mistake(lineOf(name, 1), "the file is not UTF-8 text", "Save it as UTF-8.")
	default:
		return data, true
	}
	return nil, false
}

// readYAML reads a file as one document of a type. Keys that the type lacks are mistakes, and so are aliases: a small
// file could grow without bound by them.
func readYAML[T any](c *converter, name string) (parsed[T], bool) {
	var doc, next yaml.Node
	out := parsed[T]{yamlFile: &yamlFile{name: name, key: strings.TrimSuffix(path.Base(name), ".yaml"), root: &yaml.Node{Kind: yaml.MappingNode}}}
	data, ok := c.read(name)
	if !ok {
		return out, false
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	err := d.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return out, true // no document, and nothing is set
	}
	if err == nil {
		if err = d.Decode(&next); err == nil {
			c.mistake(lineOf(name, next.Line), "the file has several documents", "A line of three dashes begins another one: keep one.")
			return out, false
		}
	}
	if !errors.Is(err, io.EOF) {
		c.invalid(name, err)
		return out, false
	}
	if !c.plain(name, &doc) {
		return out, false
	}
	if len(doc.Content) > 0 {
		out.root = doc.Content[0]
	}
	d = yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&out.v); err != nil {
		c.invalid(name, err)
		return out, false
	}
	return out, true
}

// plain reports the first anchor, alias, merge or tag of a document; true if there is none.
func (c *converter) plain(name string, n *yaml.Node) bool {
	switch {
	case n.Kind == yaml.AliasNode, n.Anchor != "", n.Tag == "!!merge":
		c.mistake(lineOf(name, n.Line), "anchors, aliases and merges are not read", "Write the values out.")
		return false
	case n.Style&yaml.TaggedStyle != 0:
		c.mistake(lineOf(name, n.Line), "tags are not read", "Write the value without its tag.")
		return false
	}
	return !slices.ContainsFunc(n.Content, func(inner *yaml.Node) bool { return !c.plain(name, inner) })
}

// Errors of the YAML library, line by line. They name Go types.
var (
	yamlAt       = regexp.MustCompile(`line (\d+): `)
	unknownField = regexp.MustCompile(`^field (.*) not found in type `)
	wrongType    = regexp.MustCompile(`(?s)^cannot unmarshal !!(\w+).* into (\S+)$`)
	twice        = regexp.MustCompile(`^mapping key (.*) already defined at line (\d+)$`)
)

// invalid reports what the YAML library says of a file, in words of the language.
func (c *converter) invalid(name string, err error) {
	lines := []string{strings.TrimPrefix(err.Error(), "yaml: ")}
	if all, ok := errors.AsType[*yaml.TypeError](err); ok {
		lines = all.Errors
	}
	for _, text := range lines {
		line := 1
		if m := yamlAt.FindStringSubmatch(text); m != nil {
			line, _ = strconv.Atoi(m[1])
			text = strings.Replace(text, m[0], "", 1)
		}
		at := lineOf(name, line)
		if m := unknownField.FindStringSubmatch(text); m != nil {
			c.mistake(at, "unknown key "+lang.Quote(m[1]), "The predecessor has no such key here. Correct it, or remove it.")
		} else if m := wrongType.FindStringSubmatch(text); m != nil {
			c.mistake(at, "the value has the wrong type", "It is of the type %s, and has to be %s.", typeWords(m[1]), typeWords(m[2]))
		} else if m := twice.FindStringSubmatch(text); m != nil {
			c.mistake(at, "key "+lang.Clip(m[1], lang.MaxQuoted)+" is there twice", "The first is on line %s: remove one of them.", m[2])
		} else {
			c.mistake(at, "the file is not valid YAML", "%s.", lang.Clip(text, 200))
		}
	}
}

// typeWords names a type of YAML or Go.
func typeWords(t string) string {
	for _, w := range [][2]string{{"[]", "a list"}, {"seq", "a list"}, {"map", "a map"}, {"struct", "a map"}, {"YAML", "a map"}, {"string", "a string"}, {"str", "a string"}, {"int", "a whole number"}, {"float", "a number"}, {"bool", "true or false"}} {
		if strings.HasPrefix(t, w[0]) || strings.HasSuffix(t, w[0]) {
			return w[1]
		}
	}
	return lang.Clip(t, 40)
}
