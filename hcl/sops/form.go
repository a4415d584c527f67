package sops

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// The form of a file, as SOPS checks it before anything is decrypted. What SOPS does not read is refused here too: it
// is not the work of SOPS.

// readable checks the document with the rules of YAML that reading nodes leaves out: no name is listed twice, and every
// value fits its tag.
func (p *parser) readable(doc *yaml.Node) {
	var all map[string]any
	err := doc.Decode(&all)
	if err == nil {
		return
	}
	line := 1 // the error may quote a value
	if m := lineOf.FindStringSubmatch(err.Error()); m != nil {
		line, _ = strconv.Atoi(m[1])
	}
	p.errorf(line, p.name+" is not a document that sops reads", "Near this line a name is listed twice, or a value does not fit its tag. %s", editHint)
}

var lineOf = regexp.MustCompile(`line (\d+)`)

var (
	metaName    = regexp.MustCompile(`^[a-z0-9_]+$`)
	metaVersion = regexp.MustCompile(`^(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})(-[a-z][0-9a-z]*(\.(0|[1-9]\d{0,5}))?)?$`)
	keyOfHuawei = regexp.MustCompile(`^[^:\s]+:\S+$`)
)

// names checks the names in the metadata. SOPS ignores case where a name is missing, so one in capitals would be read
// there and overlooked here.
func (p *parser) names(n *yaml.Node) {
	for i, child := range n.Content {
		isName := n.Kind == yaml.MappingNode && i%2 == 0
		switch {
		case child.Kind == yaml.AliasNode:
			p.errorf(child.Line, "the metadata of "+p.name+" has an alias", "SOPS writes none. %s", wholeHint)
		case isName && (!isText(child) || !metaName.MatchString(child.Value)):
			p.errorf(child.Line, "a name in the metadata of "+p.name+" is not one of SOPS", "They have small letters, digits and underscores. %s", wholeHint)
		case isName && child.Value == "context":
			p.context(n.Content[i+1])
		case i > 0 && n.Kind == yaml.MappingNode && n.Content[i-1].Value == "context":
		default:
			p.names(child)
		}
	}
}

// context checks the context of a key of AWS KMS, a map of strings with names of any kind.
func (p *parser) context(n *yaml.Node) {
	text := func(n *yaml.Node) bool { return !isText(n) && n.ShortTag() != "!!null" }
	if n.ShortTag() != "!!null" && (n.Kind != yaml.MappingNode || slices.ContainsFunc(n.Content, text)) {
		p.errorf(n.Line, "a context in "+p.name+" is not a map of strings", "%s", wholeHint)
	}
}

// version checks that the version of the SOPS that made the file is one. Any counts: SOPS keeps the first when recipients
// change.
func (p *parser) version(meta *yaml.Node) {
	n := field(meta, "version")
	if n == nil {
		p.errorf(meta.Line, p.name+" has no version", "SOPS does not read it without. %s", editHint)
		return
	}
	if !metaVersion.MatchString(n.Value) || !isText(n) {
		p.errorf(n.Line, "version is not a version of SOPS", "It has three numbers. %s", editHint)
	}
}

// lists checks the lists of keys in the metadata or in one of its groups, also those that are not used: SOPS does not open
// a file in which one is damaged.
func (p *parser) lists(from *yaml.Node) {
	for _, name := range []string{"age", "key_groups"} {
		if n := field(from, name); n != nil && !isList(n) {
			p.errorf(n.Line, name+" is not a list of keys", "%s", wholeHint)
		}
	}
	for _, n := range items(field(from, "age")) {
		if !isText(field(n, "recipient")) || !isText(field(n, "enc")) {
			p.errorf(n.Line, "a recipient of "+p.name+" is damaged", "It has no recipient or no enc. %s", wholeHint)
		}
	}
	for _, kind := range otherKeys() {
		n := field(from, kind[0])
		if n != nil && !isList(n) {
			p.errorf(n.Line, kind[0]+" is not a list of keys", "%s", wholeHint)
		}
		for _, key := range items(n) {
			if damaged(kind[0], key) {
				p.errorf(key.Line, "a key of "+kind[1]+" is damaged", "%s", wholeHint)
			}
		}
	}
}

// damaged reports whether SOPS cannot read a key that is not of age.
func damaged(kind string, key *yaml.Node) bool {
	for i, v := range key.Content {
		if i%2 == 1 && key.Content[i-1].Value != "context" && !isText(v) && v.ShortTag() != "!!null" {
			return true
		}
	}
	created, id := field(key, "created_at"), field(key, "key_id")
	if created == nil || kind == "hckms" && (id == nil || !keyOfHuawei.MatchString(id.Value)) {
		return true
	}
	_, err := time.Parse(time.RFC3339, created.Value)
	return err != nil
}

// comments checks the type of encrypted comments. SOPS takes one with another type for a value, and counts it in the MAC.
func (p *parser) comments(n *yaml.Node) {
	for _, text := range comments(n.HeadComment, n.LineComment, n.FootComment) {
		if strings.HasPrefix(text, begin) && !strings.HasSuffix(text, ",type:comment]") {
			p.errorf(n.Line, "a comment of "+p.name+" is damaged", "It is encrypted with the type of a value, or cut. %s", wholeHint)
		}
	}
	for _, child := range n.Content {
		p.comments(child)
	}
}
