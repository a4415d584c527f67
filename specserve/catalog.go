package specserve

// Catalog has what a server serves of one commit: the encoded spec of each node, the credentials of the site, and its
// rules for access. It is immutable.

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// CatalogInput is the input of MakeCatalog.
type CatalogInput struct {
	Site     *model.Site // that passes converge to; it must have no errors
	Commit   string
	Host     string // only nodes of manifests that are deployed on it; "" for those of all hosts
	Agent    string // only nodes that the agent of this identity manages: those right on it; "" for all
	Way      string // what the children of that agent live on: the hosts and nodes above it, and itself; "": it is not known
	Needs    needs  // of all nodes; nil: children get no values of secrets
	Policies *policy.Set
	Moved    []string // hosts that have another parent by now, and are served until they turn to it
}

// on reports whether the catalog is about the nodes of a manifest.
func (in *CatalogInput) on(m *model.Manifest) bool {
	return m.Host != "" && (in.Host == "" || m.Host == in.Host)
}

// has reports whether a node of such a manifest is in the catalog.
func (in *CatalogInput) has(m *model.Manifest, n *model.Node) bool {
	return in.Agent == "" || m.On(n) == in.Agent && in.Site.Left != in.Agent
}

// hosts lists the hosts among the children.
func (in *CatalogInput) hosts() (names []string) {
	for name, h := range in.Site.Hosts {
		mine := in.Agent == h.Parent || in.Agent == "" && (in.Host == "" || in.Host == h.Parent)
		if h.Parent != "" && mine && in.Site.Left != h.Parent || slices.Contains(in.Moved, name) {
			names = append(names, name)
		}
	}
	return names
}

// HasChild reports whether the catalog has a child, so that it should be made with Needs.
func (in *CatalogInput) HasChild() bool {
	for _, m := range in.Site.Manifests {
		for _, n := range m.Nodes {
			if in.on(m) && n.Type == model.PVEType && in.has(m, n) {
				return true
			}
		}
	}
	return len(in.hosts()) > 0
}

// Catalog is a commit as a server has it. A nil one has no nodes.
type Catalog struct {
	Commit string

	way         string // Input.Way
	nodes       map[string]*Node
	names       []string          // of the nodes, sorted
	suspended   map[string]string // nodes that are not served, with their manifests
	credentials credentials
	policies    *policy.Set
	in          CatalogInput
}

// Node is a node of the catalog.
type Node struct {
	Name    string
	Spec    string         // name of its spec, "" for none
	Posture *model.Posture // nil: the site has none for it
	Run     *spec.Run      // when it asks for its spec or commands; nil: it does not
	Entered bool           // commands are run on it by entering it
	Child   bool           // it has an agent of its own, which follows the repository
	Host    bool           // it is a host, which nothing but its reports show
	Moved   bool           // it is a host that has another parent by now
	Removed bool           // it has left the site, and is still there

	document []byte // the resolved spec as JSON
	config   []byte // what a child needs for its subtree, as JSON
}

// removed is a child that has left the site, and is still there.
func removed(name string) *Node { return &Node{Name: name, Child: true, Removed: true} }

// MakeCatalog makes the catalog of a commit, and reports problems of its specs and credentials. With errors it
// returns none: a commit is served as a whole or not at all.
func MakeCatalog(in CatalogInput) (*Catalog, diag.List) {
	c := &Catalog{Commit: in.Commit, way: in.Way, nodes: map[string]*Node{}, suspended: map[string]string{}, policies: in.Policies, in: in}
	var found diag.List
	for _, name := range slices.Sorted(maps.Keys(in.Site.Manifests)) {
		m := in.Site.Manifests[name]
		if !in.on(m) {
			continue
		}
		if m.Suspend || slices.Contains(in.Site.Suspended, name) {
			for _, n := range m.Nodes {
				c.suspended[n.Name] = name
			}
			continue
		}
		for _, n := range m.Nodes {
			if !in.has(m, n) {
				continue
			}
			node, l := makeNode(in.Site, n)
			found = append(found, l...)
			if node.Child {
				node.config, l = makeConfig(in, n.Name)
				found = append(found, l...)
			}
			c.nodes[n.Name] = node
		}
	}
	for _, name := range in.hosts() {
		config, l := makeConfig(in, name)
		found = append(found, l...)
		c.nodes[name] = &Node{Name: name, Child: true, Host: true, Moved: slices.Contains(in.Moved, name), config: config}
	}
	c.names = slices.Sorted(maps.Keys(c.nodes))
	var l diag.List
	c.credentials, l = readCredentials(in.Site.Secrets)
	if found = append(found, l...).Sorted(); found.HasErrors() {
		return nil, found
	}
	return c, found
}

// room is the part of a response that is reserved for pins and a token.
const room = 16 << 10

func makeNode(site *model.Site, n *model.Node) (*Node, diag.List) {
	resolved, found := spec.Resolve(site, n)
	document, err := json.Marshal(resolved)
	if err != nil {
		found = append(found, diag.FromError(fmt.Errorf("write the spec of node %s: %w", n.Name, err)))
	}
	if most := wire.MaxSpec - room; len(document) > most {
		found = append(found, diag.Errorf(n.At, fmt.Sprintf("the spec of node %s is too large to be fetched", n.Name), "It has %d KiB, %d KiB are the most: let the node download large files.", len(document)>>10, most>>10))
	}
	return &Node{Name: n.Name, Spec: resolved.Name, Posture: site.Postures[resolved.Posture.Name], Child: n.Type == model.PVEType, Run: resolved.Run, Entered: !n.TakesCommands(), document: document}, found
}

// Node finds a node; nil if the commit does not have it.
func (c *Catalog) Node(name string) *Node {
	if c == nil {
		return nil
	}
	return c.nodes[name]
}

// Names are the names of all nodes, sorted. The caller must not change them.
func (c *Catalog) Names() []string {
	if c == nil {
		return nil
	}
	return c.names
}

// Suspended is the suspended manifest that a node belongs to; "" if it belongs to none.
func (c *Catalog) Suspended(name string) string {
	if c == nil {
		return ""
	}
	return c.suspended[name]
}

// Own are the members of a response beside the spec, named as in wire.Spec.
type Own struct {
	Pins  []string          `json:"pins"`
	Token string            `json:"token,omitempty"`
	Agent map[string]string `json:"agent,omitempty"`
}

// Answer is the document for a node, a wire.Spec. The tag is that of wire.Spec: a new token is not a
// new spec.
func (n *Node) Answer(own Own) (document []byte, tag string, err error) {
	return own.join(n.document)
}

// join makes an answer of a document and what it has beside that, and its tag.
func (own Own) join(to []byte) (document []byte, tag string, err error) {
	if document, err = own.with(to); err != nil {
		return nil, "", err
	}
	tagged := document
	if own.Token != "" {
		own.Token = ""
		if tagged, err = own.with(to); err != nil {
			return nil, "", err
		}
	}
	sum := sha256.Sum256(tagged)
	return document, `"` + hex.EncodeToString(sum[:]) + `"`, nil
}

// with joins two objects that have members.
func (own Own) with(document []byte) ([]byte, error) {
	text, err := json.Marshal(own)
	return slices.Concat(document[:len(document)-1], []byte{','}, text[min(1, len(text)):]), err
}
