package sops

import (
	"encoding/base64"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// entry is the entry of a file with the metadata of SOPS.
const entry = "sops"

// Unknown is the tag of values that are encrypted, as long as they are not decrypted.
const Unknown = "!unknown"

// File is a file encrypted by SOPS.
type File struct {
	// Root is the map of the file without its entry sops. Encrypted values have the tag Unknown,
	// and those that were decrypted the tag of their type, such as !!str.
	Root *yaml.Node

	name     string
	scalars  []*leaf // in the order in which the MAC covers them
	clear    map[*yaml.Node]bool
	groups   []group
	needed   int // groups that it takes to decrypt the file
	keysLine int // the first of their keys
	mac      value
	macLine  int
	macAbout string // the additional data of the MAC
	onlyEnc  bool   // the MAC covers encrypted values only
}

// leaf is a value of the file that is not a map or a list.
type leaf struct {
	node  *yaml.Node
	path  []string
	value *value // nil: it is not encrypted

	inList bool // it is an element of a list, where comments are encrypted as elements are
}

// group is a group of recipients, each of whom can decrypt the same: the key of all values or, where
// there are several groups, a share of it.
type group []dataKey

// dataKey is that, encrypted for one recipient.
type dataKey struct{ recipient, armored string }

// value is the text ENC[AES256_GCM,data:…,iv:…,tag:…,type:…].
type value struct {
	data, iv []byte // data has the tag at its end
	kind     string
}

// IsEncrypted reports whether a document has the metadata of SOPS.
func IsEncrypted(doc *yaml.Node) bool {
	_, meta := metadata(doc)
	return meta != nil
}

// metadata finds the entry sops: its index among the entries of the map, and its value.
func metadata(doc *yaml.Node) (int, *yaml.Node) {
	if doc.Kind == yaml.DocumentNode && len(doc.Content) > 0 {
		doc = doc.Content[0]
	}
	if doc.Kind != yaml.MappingNode {
		return 0, nil
	}
	for i := 0; i+1 < len(doc.Content); i += 2 {
		if doc.Content[i].Kind == yaml.ScalarNode && doc.Content[i].Value == entry {
			return i, doc.Content[i+1]
		}
	}
	return 0, nil
}

// Parse reads a document for which IsEncrypted holds; name is what findings call the file. It
// takes the document over. With errors among the findings the file cannot be decrypted, but its
// names can be read.
func Parse(name string, doc *yaml.Node) (*File, diag.List) {
	f := &File{name: name, clear: map[*yaml.Node]bool{}}
	p := &parser{File: f}
	p.readable(doc)
	i, meta := metadata(doc)
	f.Root = doc
	if doc.Kind == yaml.DocumentNode {
		f.Root = doc.Content[0]
	}
	p.metadata(meta)
	own := *f.Root
	own.Content = slices.Concat(f.Root.Content[:i], f.Root.Content[i+2:])
	f.Root = &own
	p.comments(f.Root)
	var around []string
	if doc.Kind == yaml.DocumentNode {
		p.comments(&yaml.Node{HeadComment: doc.HeadComment, LineComment: doc.LineComment, FootComment: doc.FootComment, Line: doc.Line})
		around = comments(doc.HeadComment, doc.LineComment)
	}
	p.walkMap(f.Root, nil, nil, append(around, comments(own.HeadComment, own.LineComment)...))
	return f, p.found
}

// InClear reports whether the rules of the file leave a value unencrypted.
func (f *File) InClear(n *yaml.Node) bool { return f.clear[n] }

// Recipients lists who can decrypt the file.
func (f *File) Recipients() []string {
	var out []string
	for _, g := range f.groups {
		for _, k := range g {
			out = append(out, k.recipient)
		}
	}
	return out
}

// at is a line of the file.
func (f *File) at(line int) diag.Range {
	at := diag.Pos{Line: max(line, 1), Column: 1}
	return diag.Range{File: f.name, Start: at, End: at}
}

// parser is the reading of one file.
type parser struct {
	*File
	found  diag.List
	rule   rule
	noRule bool // it is not known which values have to be encrypted
	depth  int  // of the maps and lists around
}

const (
	maxFound = 20  // findings of one file
	maxDepth = 100 // maps and lists inside each other
)

func (p *parser) errorf(line int, summary, detail string, args ...any) {
	if len(p.found) < maxFound {
		p.found = append(p.found, diag.Errorf(p.at(line), summary, detail, args...))
	}
}

const (
	editHint  = "Change the file with sops only: sops edit FILE."
	wholeHint = "Restore the file from the last good commit."
)

// otherKeys are the entries for keys that are not of age, and whose they are.
func otherKeys() [][2]string {
	return [][2]string{
		{"pgp", "PGP"},
		{"kms", "AWS KMS"},
		{"gcp_kms", "Google Cloud KMS"},
		{"hckms", "Huawei Cloud KMS"},
		{"azure_kv", "Azure Key Vault"},
		{"hc_vault", "HashiCorp Vault"},
	}
}

func (p *parser) metadata(meta *yaml.Node) {
	if meta.Kind != yaml.MappingNode {
		p.errorf(meta.Line, "the entry sops is not a map", "%s", wholeHint)
		return
	}
	p.names(meta)
	p.version(meta)
	p.recipients(meta)
	p.rules(meta)
	p.signature(meta)
}

// recipients reads the recipients of the data key.
func (p *parser) recipients(meta *yaml.Node) {
	p.keysLine, p.needed = meta.Line, 1
	kinds := others(meta)
	groups := items(field(meta, "key_groups"))
	p.lists(meta)
	for _, n := range groups {
		p.lists(n)
	}
	if len(kinds) > 0 || items(field(meta, "age")) != nil || groups == nil {
		groups = []*yaml.Node{meta}
	}
	readable := 0
	kinds = nil
	for _, n := range groups {
		g := p.group(n)
		if kinds = append(kinds, others(n)...); len(g) > 0 {
			readable++
		}
		p.groups = append(p.groups, g)
	}
	p.threshold(meta, len(groups))
	switch {
	case p.found.HasErrors():
	case readable > 0 && readable < p.needed:
		p.errorf(meta.Line, p.name+" has too few key groups with age recipients", "It takes %d of its %d groups to decrypt it, and %d have an age recipient. This program decrypts with age only: add a recipient to more groups of .sops.yaml, and run sops updatekeys FILE.", p.needed, len(groups), readable)
	case readable > 0:
	case len(kinds) > 0:
		slices.Sort(kinds)
		p.errorf(meta.Line, p.name+" has no age recipient", "It is encrypted for %s, and this program decrypts with age only. On a machine with one of these keys: sops rotate -i --add-age RECIPIENT FILE.", strings.Join(slices.Compact(kinds), " and "))
	default:
		p.errorf(meta.Line, p.name+" has no recipient", "No key can decrypt it. %s", wholeHint)
	}
}

// group reads the age recipients of a group.
func (p *parser) group(from *yaml.Node) (out group) {
	for _, n := range items(field(from, "age")) {
		recipient, enc := field(n, "recipient"), field(n, "enc")
		if !isText(recipient) || !isText(enc) {
			continue // reported by lists
		}
		if len(out) == 0 && len(p.groups) == 0 {
			p.keysLine = n.Line
		}
		out = append(out, dataKey{recipient.Value, enc.Value})
	}
	return out
}

// threshold reads how many of the groups are required; all of them unless the file says otherwise.
func (p *parser) threshold(meta *yaml.Node, groups int) {
	p.needed = groups
	n := field(meta, "shamir_threshold")
	if n == nil {
		return
	}
	needed, err := strconv.Atoi(n.Value)
	switch {
	case err != nil || strconv.Itoa(needed) != n.Value || groups > 1 && (needed < 2 || needed > groups):
		p.errorf(n.Line, "shamir_threshold is not a number of groups", "It has to be from 2 to %d, the number of key groups. %s", max(groups, 2), wholeHint)
	case groups > 1:
		p.needed = needed
	}
}

// others lists the kinds of recipients that are not of age.
func others(n *yaml.Node) []string {
	var out []string
	for _, kind := range otherKeys() {
		if items(field(n, kind[0])) != nil {
			out = append(out, kind[1])
		}
	}
	return out
}

// signature reads the MAC and its metadata.
func (p *parser) signature(meta *yaml.Node) {
	if n := field(meta, "mac_only_encrypted"); n != nil && n.ShortTag() != "!!null" {
		only, err := strconv.ParseBool(n.Value)
		if err != nil {
			p.errorf(n.Line, "mac_only_encrypted is neither true nor false", "%s", editHint)
		}
		p.onlyEnc = only
	}
	changed := field(meta, "lastmodified")
	if changed == nil {
		p.errorf(meta.Line, p.name+" has no lastmodified", "The MAC cannot be checked without it. %s", editHint)
	} else if at, err := time.Parse(time.RFC3339, changed.Value); err != nil || !isText(changed) {
		p.errorf(changed.Line, "lastmodified is not a time", "The MAC cannot be checked without it. %s", editHint)
	} else {
		p.macAbout = at.Format(time.RFC3339)
	}
	n := field(meta, "mac")
	if n == nil || n.Value == "" {
		p.errorf(meta.Line, p.name+" has no MAC", "Without it changes go unnoticed, so the file is not read. %s", editHint)
		return
	}
	p.macLine = n.Line
	v, ok := parseValue(n.Value)
	if !ok || !isText(n) || v.kind != "str" {
		p.errorf(n.Line, "the MAC of "+p.name+" is damaged", "It is not a complete ENC[…]. %s", wholeHint)
		return
	}
	p.mac = *v
}

// rule says which values are encrypted. One of its fields is set at most; see rules.
type rule struct {
	suffix        string
	re, commentRE *regexp.Regexp
	unless        bool // what matches is left in the clear
}

// rules reads which values have to be encrypted. A file may have one rule; without one, names
// that end in _unencrypted are left in the clear.
func (p *parser) rules(meta *yaml.Node) {
	var given []string
	for _, r := range []struct {
		name        string
		re, comment bool
	}{
		{"unencrypted_suffix", false, false},
		{"encrypted_suffix", false, false},
		{"unencrypted_regex", true, false},
		{"encrypted_regex", true, false},
		{"unencrypted_comment_regex", true, true},
		{"encrypted_comment_regex", true, true},
	} {
		n := field(meta, r.name)
		if n == nil || n.ShortTag() == "!!null" || isText(n) && n.Value == "" {
			continue
		}
		given = append(given, r.name)
		if !isText(n) {
			p.errorf(n.Line, r.name+" is not a string", "It decides which values are encrypted. Quote it. %s", editHint)
			p.noRule = true
		}
		p.rule = rule{unless: strings.HasPrefix(r.name, "un")}
		if !r.re {
			p.rule.suffix = n.Value
			continue
		}
		re, err := regexp.Compile(n.Value)
		if err != nil {
			p.errorf(n.Line, r.name+" is not a regular expression", "It decides which values are encrypted. Fix it in .sops.yaml, and encrypt the file again.")
			p.noRule = true
			continue
		}
		if p.rule.re = re; r.comment {
			p.rule.re, p.rule.commentRE = nil, re
		}
	}
	switch {
	case len(given) > 1:
		p.noRule = true
		p.errorf(meta.Line, p.name+" has several rules for what is encrypted", "Only one of %s is allowed.", strings.Join(given, " and "))
	case len(given) == 0:
		p.rule = rule{suffix: "_unencrypted", unless: true}
	}
}

// encrypts reports whether the value at a path is encrypted. Comments are those before it and
// before all maps and lists that it is in.
func (r rule) encrypts(path, comments []string) bool {
	var hit bool
	switch {
	case r.re != nil:
		hit = slices.ContainsFunc(path, r.re.MatchString)
	case r.commentRE != nil:
		hit = slices.ContainsFunc(comments, r.commentRE.MatchString)
	case r.suffix != "":
		hit = slices.ContainsFunc(path, func(s string) bool { return strings.HasSuffix(s, r.suffix) })
	}
	return hit != r.unless
}

// comments splits comments into lines, without their number signs.
func comments(texts ...string) []string {
	var out []string
	for _, text := range texts {
		for line := range strings.SplitSeq(text, "\n") {
			if line != "" {
				out = append(out, line[1:])
			}
		}
	}
	return out
}

// walkMap walks a map in the order of SOPS. outer are the comments above the map, and before those at its
// beginning. Comments before an entry apply to that entry.
func (p *parser) walkMap(n *yaml.Node, path, outer, before []string) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, child := n.Content[i], n.Content[i+1]
		before = append(before, comments(key.HeadComment, key.LineComment)...)
		after := comments(key.FootComment)
		if child.Kind == yaml.ScalarNode {
			before = append(before, comments(child.HeadComment, child.LineComment)...)
			after = slices.Concat(comments(child.FootComment), after)
		}
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" {
			p.errorf(key.Line, "a name in "+p.name+" is not a string", "SOPS encrypts values by their names, which have to be strings.")
		}
		p.walk(child, append(slices.Clip(path), key.Value), slices.Concat(outer, before), false)
		before = after
	}
}

// walkList goes over a list, whose elements all have the path of the list.
func (p *parser) walkList(n *yaml.Node, path, outer, before []string) {
	for _, child := range n.Content {
		before = append(before, comments(child.HeadComment, child.LineComment)...)
		if slices.Contains(slices.Concat(before, comments(child.FootComment)), "") {
			p.errorf(child.Line, spell(path)+" has an empty comment", "sops would make an element of the list of it. %s", editHint)
		}
		p.walk(child, path, slices.Concat(outer, before), true)
		before = comments(child.FootComment)
	}
}

// walk goes over a value. Inside a list its comments were handled with those of the list.
func (p *parser) walk(n *yaml.Node, path, outer []string, handled bool) {
	var own []string
	if !handled {
		own = comments(n.HeadComment, n.LineComment)
	}
	p.depth++
	defer func() { p.depth-- }()
	if p.depth > maxDepth {
		p.errorf(n.Line, p.name+" is nested too deeply", "Secrets are at most three maps deep.")
		n.Kind, n.Content = yaml.ScalarNode, nil
		n.Tag = Unknown
		return
	}
	switch n.Kind {
	case yaml.MappingNode:
		p.walkMap(n, path, outer, own)
	case yaml.SequenceNode:
		p.walkList(n, path, outer, own)
	case yaml.ScalarNode:
		if n.ShortTag() != "!!null" {
			p.leaf(n, path, outer, handled)
		}
	case yaml.AliasNode, yaml.DocumentNode:
		p.errorf(n.Line, spell(path)+" is an alias", "SOPS writes no aliases, and encrypts none. %s", editHint)
	}
}

// leaf reads one value.
func (p *parser) leaf(n *yaml.Node, path, comments []string, inList bool) {
	l := &leaf{node: n, path: path, inList: inList}
	p.scalars = append(p.scalars, l)
	text, isText := n.Value, n.ShortTag() == "!!str"
	if isText && text == "" {
		return // SOPS does not encrypt it
	}
	encrypted := isText && strings.HasPrefix(text, begin)
	if !p.noRule && !encrypted && !p.rule.encrypts(path, comments) {
		p.clear[n] = true
		return
	}
	n.SetString("")
	n.Tag = Unknown
	switch v, whole := parseValue(text); {
	case p.noRule:
	case !encrypted:
		p.errorf(n.Line, spell(path)+" is not encrypted", "It was written into %s without sops. If it was pushed, everyone who can read the repository has it: revoke it. Then: sops edit FILE.", p.name)
	case !p.rule.encrypts(path, comments):
		p.errorf(n.Line, spell(path)+" is encrypted against the rules of the file", "The rules leave it unencrypted, so it would not be decrypted. %s", editHint)
	case !whole:
		p.errorf(n.Line, spell(path)+" is damaged", "It is not a complete ENC[…]. %s", wholeHint)
	default:
		l.value = v
	}
}

const begin = "ENC[AES256_GCM,"

// tagSize is the size of the tag of AES-GCM, in bytes.
const tagSize = 16

// parseValue reads an encrypted value.
func parseValue(s string) (*value, bool) {
	s, whole := strings.CutSuffix(s, "]")
	s, begun := strings.CutPrefix(s, begin+"data:")
	data, s, hasIV := strings.Cut(s, ",iv:")
	iv, s, hasTag := strings.Cut(s, ",tag:")
	tag, kind, hasType := strings.Cut(s, ",type:")
	if !whole || !begun || !hasIV || !hasTag || !hasType {
		return nil, false
	}
	v := &value{kind: kind}
	if strings.Contains(data+iv+tag, "\n") {
		return nil, false // base64 ignores it, SOPS does not
	}
	var end []byte
	for _, part := range []struct {
		text string
		to   *[]byte
	}{{data, &v.data}, {iv, &v.iv}, {tag, &end}} {
		var err error
		if *part.to, err = base64.StdEncoding.Strict().DecodeString(part.text); err != nil {
			return nil, false
		}
	}
	v.data = append(v.data, end...)
	return v, len(end) == tagSize && len(v.data) > tagSize && len(v.iv) > 0
}

// field is the value of a name in a map; nil if there is none.
func field(n *yaml.Node, name string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name && n.Content[i].Kind == yaml.ScalarNode {
			return n.Content[i+1]
		}
	}
	return nil
}

// isText reports whether a value is a string.
func isText(n *yaml.Node) bool {
	return n != nil && n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str"
}

// isList reports whether a value is a list of maps, or null.
func isList(n *yaml.Node) bool {
	other := func(n *yaml.Node) bool { return n.Kind != yaml.MappingNode }
	return n.ShortTag() == "!!null" || n.Kind == yaml.SequenceNode && !slices.ContainsFunc(n.Content, other)
}

// items are the elements of a list; nil if it is none, or empty.
func items(n *yaml.Node) []*yaml.Node {
	if n == nil || n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		return nil
	}
	return n.Content
}

// spell writes a path down as a reference names it.
func spell(path []string) string {
	s := clip(strings.Join(path, "."), maxShown)
	if strconv.Quote(s) != `"`+s+`"` {
		return strconv.Quote(s)
	}
	return s
}

const maxShown = 80 // characters of a name in a finding

func clip(s string, limit int) string {
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	return string([]rune(s)[:limit-1]) + "…"
}
