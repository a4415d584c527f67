package hcl

import (
	"maps"
	"slices"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// move is a moved block: the names of a former node and of the one that has its guest now.
type move struct {
	from, to     string
	fromAt, toAt diag.Range
}

// decodeMoves decodes the blocks moved and removed. The nodes in them are names, since the former ones are not declared.
func (l *load) decodeMoves() {
	for _, b := range l.Blocks["removed"] {
		var r model.Removed
		l.decodeBlock(b, &r, false)
		addr, err := model.ParseAddress(b.Name)
		switch {
		case err != nil || !slices.Contains([]string{"vm", "ct", typePVE}, addr.Kind):
			l.Errorf(b.At, "removed "+lang.Quote(b.Name)+" is not the address of a guest", `Write the type and name of its node: removed "vm.NAME" or removed "ct.NAME".`)
		case addr.Kind == typePVE && !r.Destroy:
			l.Errorf(b.At, "a pve node cannot be given up", "Its own agent empties it when it leaves the site. To keep it, suspend its manifest.")
		case !b.Invalid:
			if l.site.Removed == nil {
				l.site.Removed = model.Removals{}
			}
			l.site.Removed[addr] = r
		}
	}
	for _, b := range l.Blocks["moved"] {
		l.Current = b.At.Filename
		var m move
		for _, a := range lang.SortedAttributes(b.Body) {
			switch a.Name {
			case "from":
				m.from, m.fromAt = l.nodeName(a)
			case "to":
				m.to, m.toAt = l.nodeName(a)
			default:
				l.Errorf(a.NameRange, "unknown attribute "+lang.Quote(a.Name)+" in moved", "It has the attributes from and to.")
			}
		}
		for _, inner := range b.Body.Blocks {
			l.Errorf(inner.DefRange(), "unknown block "+lang.Quote(inner.Type)+" in moved", "It has the attributes from and to.")
		}
		if m.fromAt.IsZero() || m.toAt.IsZero() {
			l.Errorf(b.At, "moved without from and to", "Write both, each on a line of its own: from = node.OLD and to = node.NEW.")
			continue
		}
		if m.from != "" && m.to != "" {
			l.moves = append(l.moves, m)
		}
	}
}

// nodeName reads node.NAME, or a text; "" after a finding.
func (l *load) nodeName(a *hclsyntax.Attribute) (string, diag.Range) {
	at := lang.DiagRange(a.Expr.Range())
	if t, ok := a.Expr.(*hclsyntax.ScopeTraversalExpr); ok && len(t.Traversal) == 2 && t.Traversal.RootName() == lang.NodeBlock {
		if name, ok := t.Traversal[1].(hclv2.TraverseAttr); ok {
			return name.Name, at
		}
	}
	v, diags := a.Expr.Value(nil)
	if diags.HasErrors() || v.IsNull() || v.Type() != cty.String || !lang.ValidName(v.AsString()) {
		l.ErrorAt(at, a.Name+" is not a node", `Write node.NAME, or "NAME-KEY" for one instance of count or for_each.`)
		return "", at
	}
	return v.AsString(), at
}

// checkRemoved rejects removed blocks of guests that are still declared.
func (rs *rules) checkRemoved() {
	for _, m := range rs.deployed() {
		for _, n := range m.Nodes {
			if _, found := rs.site.Removed[n.Resource.Addr]; found {
				b := rs.Named["removed"][n.Resource.Addr.String()]
				rs.Errorf(b.At, n.Resource.Addr.String()+" is removed and declared", "Its node is at %s: remove the node or this block.", n.At)
			}
		}
	}
}

// checkMoved works out which guest each moved block gives to which node.
func (rs *rules) checkMoved() {
	byFrom, byTo := map[string]move{}, map[string]move{}
	for _, m := range rs.moves {
		if first, twice := byFrom[m.from]; twice {
			rs.ErrorAt(m.fromAt, "node "+m.from+" is moved twice", "The other block is at %s: a guest has one node.", first.fromAt)
		}
		if first, twice := byTo[m.to]; twice {
			rs.ErrorAt(m.toAt, "two nodes are moved to "+m.to, "The other block is at %s: a node has one guest.", first.toAt)
		}
		byFrom[m.from], byTo[m.to] = m, m
	}
	declared := map[string]*model.Node{}
	blocks := map[string][]*model.Node{}
	for _, m := range rs.deployed() {
		for _, n := range m.Nodes {
			declared[n.Name] = n
			if n.Name != n.Block {
				blocks[n.Block] = append(blocks[n.Block], n)
			}
		}
	}
	rs.site.Moved = map[model.Address]model.Address{}
	for _, m := range rs.moves {
		to, seen := m.to, []string{m.from}
		for next, more := byFrom[to]; more && !slices.Contains(seen, to); next, more = byFrom[to] {
			seen, to = append(seen, to), next.to
		}
		if slices.Contains(seen, to) {
			rs.ErrorAt(m.fromAt, "node "+m.from+" is moved to itself", "%s: remove one of the blocks.", strings.Join(append(seen, to), " → "))
			continue
		}
		pairs := map[string]*model.Node{}
		if n := declared[to]; n != nil {
			pairs[m.from] = n
		}
		for _, n := range blocks[to] {
			pairs[m.from+strings.TrimPrefix(n.Name, to)] = n
		}
		if left := rs.removed(to); len(pairs) == 0 && left.Kind != "" {
			if former := (model.Address{Kind: left.Kind, Name: m.from}); !rs.isDeclared(m, m.from) {
				rs.site.Removed[former] = rs.site.Removed[left]
			}
			continue
		}
		if len(pairs) == 0 && rs.Complete {
			rs.ErrorAt(m.toAt, "node "+to+" is not declared", "A guest is moved to a node of a manifest with a host: correct the name, or remove the block if that node left the site.")
		}
		for from, n := range pairs {
			rs.move(m, from, n)
		}
	}
}

// move gives the guest of a former node to n.
func (rs *rules) move(m move, from string, n *model.Node) {
	switch {
	case rs.isDeclared(m, from):
	case n.Type == typePVE:
		rs.ErrorAt(m.toAt, "a pve node cannot be moved", "Its own agent knows it by its name: keep the name.")
	case n.Mode == model.ModePull:
		rs.ErrorAt(m.toAt, "a node in mode pull cannot be moved", "It fetches its spec by its name: keep the name, or set the mode push first.")
	default:
		rs.site.Moved[model.Address{Kind: n.Type, Name: from}] = n.Resource.Addr
	}
}

// isDeclared rejects a former node that is still declared.
func (rs *rules) isDeclared(m move, from string) bool {
	for _, other := range rs.deployed() {
		if f := other.byName[strings.ToLower(from)]; f != nil {
			rs.ErrorAt(m.fromAt, "node "+from+" is moved and declared", "It is at %s: remove the node or this block.", f.At)
			return true
		}
	}
	return false
}

// removed finds the removed block of a node; the zero address if there is none.
func (rs *rules) removed(node string) model.Address {
	for _, a := range slices.SortedFunc(maps.Keys(rs.site.Removed), model.Address.Compare) {
		if a.Name == node {
			return a
		}
	}
	return model.Address{}
}
