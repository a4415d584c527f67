package policy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// version is the version of the input of rules. It changes if a rule for an older version would
// misread the input; additional fields do not change it.
const version = 1

// Request is the part of the input besides site and plan.
type Request struct {
	Commit       model.Commit // its ID is "" for a folder that is not a checkout
	Now          time.Time
	Unattended   bool    // an agent's pass, without a person
	Destroy      bool    // the removal was asked for by name, by destroy or at the end of test
	AllowDeletes int     // so many removals are granted by flag or trailer
	Untraced     bool    // no trailer of a commit grants any: since when they would count is not known
	OwnedCount   int     // managed guests on the host; known only where there is a plan
	Before       *Before // what the removals are counted from; nil: from what is on the host

	// Want is the desired state of one host, if it is already resolved: its nodes are then not resolved again.
	Want *model.Want
}

// Before describes what the site lost since the previously converged commit.
type Before struct {
	Nodes   int             // deployed in that commit
	Lost    []model.Address // of these
	Granted int             // removals that were granted since
}

// document describes it; null if it is not known.
func (b *Before) document() any {
	if b == nil {
		return nil
	}
	lost := make([]any, len(b.Lost))
	for i, a := range b.Lost {
		lost[i] = a.String()
	}
	return map[string]any{"nodes": b.Nodes, "lost": lost, "granted": b.Granted}
}

// Input is the document that rules check: site, plan (nil before there is one) and request. Every
// field is always present, null if unknown. Values that come from a secret, or may contain one, are
// "(sensitive)".
func (r Request) Input(site *model.Site, p *plan.Plan) (map[string]any, error) {
	return document(site, p, r, nodeDocuments)
}

// document is Input with the nodes as the function describes them.
func document(site *model.Site, p *plan.Plan, r Request, nodes func(*model.Site, *model.Want) map[string]any) (map[string]any, error) {
	planned, err := planDocument(p)
	if err != nil {
		return nil, err
	}
	var owned any
	if p != nil {
		owned = r.OwnedCount
	}
	age := 0
	if at := r.Commit.At; !at.IsZero() {
		age = max(int(r.Now.Sub(at).Seconds()), 0)
	}
	trailers := make(map[string]any, len(r.Commit.Trailers))
	for k, v := range r.Commit.Trailers {
		trailers[k] = v
	}
	return map[string]any{
		"version": version,
		"site":    siteDocument(site, func() map[string]any { return nodes(site, r.Want) }),
		"plan":    planned,
		"owned":   map[string]any{"count": owned},
		"commit": map[string]any{
			"id":          text(r.Commit.ID),
			"parents":     append([]string{}, r.Commit.Parents...),
			"author":      map[string]any{"name": text(r.Commit.Author.Name), "email": text(r.Commit.Author.Email)},
			"signer":      text(r.Commit.Signer),
			"trailers":    trailers,
			"age_seconds": age,
		},
		"now":           r.Now.UTC().Format(time.RFC3339),
		"unattended":    r.Unattended,
		"destroy":       r.Destroy,
		"allow_deletes": r.AllowDeletes, "trailers_grant": !r.Untraced,
		"before": r.Before.document(),
	}, nil
}

// siteDocument describes the site block, hosts, postures, nodes and other resources.
func siteDocument(s *model.Site, nodes func() map[string]any) any {
	if s == nil {
		return nil
	}
	d := describe(reflect.ValueOf(s).Elem(), "", open)
	d["name"] = s.Name
	block := func(v any, at diag.Range) any {
		doc := describe(reflect.ValueOf(v).Elem(), "", open)
		doc["at"] = rangeDocument(at)
		return doc
	}
	hosts := make(map[string]any, len(s.Hosts))
	for name, h := range s.Hosts {
		hosts[name] = block(h, h.At)
	}
	postures := make(map[string]any, len(s.Postures))
	for name, p := range s.Postures {
		postures[name] = postureDocument(p)
	}
	jobs := make(map[string]any, len(s.Jobs))
	for name, j := range s.Jobs {
		jobs[name] = map[string]any{
			"nodes": texts(j.Nodes), "command": texts(j.Command), "schedule": text(j.Schedule), "once": text(j.Once), "timeout": j.Timeout.String(),
			"on_failure": j.OnFailure, "concurrency": j.Concurrency, "at": rangeDocument(j.At),
		}
	}
	packs := make(map[string]any, len(s.Packs))
	for _, p := range s.Packs {
		packs[p.Name] = block(&p, p.At)
	}
	waivers := make(map[string]any, len(s.Waivers))
	for _, w := range s.Waivers {
		waivers[w.Name] = block(&w, w.At)
	}
	d["hosts"], d["postures"], d["nodes"], d["jobs"], d["packs"], d["waivers"] = hosts, postures, nodes(), jobs, packs, waivers
	maps.Copy(d, besideDocuments(s))
	return d
}

// beside returns the kinds that have a block of their own, each with the name of its field:
// images, templates, pools.
func beside(kinds model.Kinds) iter.Seq2[string, *model.Kind] {
	return func(yield func(string, *model.Kind) bool) {
		for _, k := range kinds {
			if k.Block != "" && k.Block != "node" && !yield(k.Block+"s", k) {
				return
			}
		}
	}
}

// besideDocuments says what is declared beside the manifests, by kind and name, as it is
// declared: where it lives it has a host's defaults, and it may live on several.
func besideDocuments(s *model.Site) map[string]any {
	out := map[string]any{}
	for field, k := range beside(s.Kinds) {
		list := map[string]any{}
		for addr, r := range s.Objects {
			if addr.Kind != k.Name {
				continue
			}
			d := describe(reflect.ValueOf(r.Spec).Elem(), "", secretsOf(r.Sensitive))
			d["at"] = rangeDocument(r.At)
			list[addr.Name] = d
		}
		out[field] = list
	}
	return out
}

// nodeDocuments describes the nodes of all deployed manifests, each resolved on its host.
func nodeDocuments(s *model.Site, w *model.Want) map[string]any {
	nodes := map[string]any{}
	specs := map[string]map[string]any{}
	for m, n := range deployed(s) {
		d := nodeDocument(m, n)
		if d["backup"] = nil; n.Resource != nil {
			if b, _ := n.BackupIn(s); b != nil { // also that of its manifest or the site
				d["backup"] = describe(reflect.ValueOf(b).Elem(), "", open)
			}
		}
		if spec := s.Specs[n.Spec]; spec != nil {
			if specs[n.Spec] == nil {
				specs[n.Spec] = specDocument(s, spec)
			}
			d["spec"] = named(specs[n.Spec], n.Name)
		}
		if r := resolved(s, w, m, n); r != nil {
			d["attributes"] = describe(reflect.ValueOf(r.Spec).Elem(), "", secretsOf(r.Sensitive))
		}
		nodes[n.Name] = d
	}
	return nodes
}

// shippedNodes gives of the same nodes what shipped rules ask for, which is little: a
// large site without rules of its own need not be described at length.
func shippedNodes(s *model.Site, _ *model.Want) map[string]any {
	nodes := map[string]any{}
	for _, n := range deployed(s) {
		var vmid any
		if n.VMID != 0 {
			vmid = n.VMID
		}
		nodes[n.Name] = map[string]any{"type": n.Type, "vmid": vmid, "vmid_range": text(n.VMIDRange), "adopt": text(n.Adopt)}
	}
	return nodes
}

// deployed returns the deployed nodes of a host; nodes of recipes are not deployed.
func deployed(s *model.Site) iter.Seq2[*model.Manifest, *model.Node] {
	return func(yield func(*model.Manifest, *model.Node) bool) {
		for _, m := range s.Manifests {
			for _, n := range m.Nodes {
				if m.Host != "" && !yield(m, n) {
					return
				}
			}
		}
	}
}

// nodeDocument describes of a node what all node types have in common.
func nodeDocument(m *model.Manifest, n *model.Node) map[string]any {
	d := describe(reflect.ValueOf(n).Elem(), "", open)
	delete(d, "execution") // its outcome is the mode
	d["manifest"], d["host"], d["mode"], d["at"] = m.Name, m.Host, text(n.Mode), rangeDocument(n.At)
	d["spec"], d["attributes"] = nil, nil
	return d
}

// resolved returns the complete form of a node's resource. The loader has reported its problems.
func resolved(s *model.Site, w *model.Want, m *model.Manifest, n *model.Node) *model.Resource {
	r, on := n.Resource, m.On(n)
	if r == nil {
		return nil
	}
	for _, w := range []*model.Want{w, s.Resolved[on]} {
		if w != nil && w.Host != nil && w.Host.Name == on && w.Nodes[r.Addr] == n && w.State[r.Addr] != nil {
			return w.State[r.Addr]
		}
	}
	if s.Kinds.Get(r.Addr.Kind) == nil {
		return r
	}
	r, _ = s.Resolve(r, s.HostFor(on), n)
	return r
}

// named returns the spec of one node: its hostname defaults to the node's name.
func named(spec map[string]any, node string) map[string]any {
	identity := spec["identity"].(map[string]any)
	if identity["hostname"] != nil {
		return spec
	}
	spec, identity = maps.Clone(spec), maps.Clone(identity)
	identity["hostname"] = node
	spec["identity"] = identity
	return spec
}

// specDocument resolves a spec as far as it is the same for all its nodes: what it
// leaves open is the site's, and its posture is expanded.
func specDocument(s *model.Site, spec *model.Spec) map[string]any {
	c := model.Clone(spec).(*model.Spec)
	c.Identity, c.Access, c.Platform, c.Config = or(c.Identity), or(c.Access), or(c.Platform), or(c.Config)
	c.Identity.Domain = cmp.Or(c.Identity.Domain, s.Domain)
	c.Config.Timezone = cmp.Or(c.Config.Timezone, s.Timezone)
	if n := c.Network; n != nil {
		n.Gateway = cmp.Or(n.Gateway, s.Gateway)
		if len(n.DNS) == 0 {
			n.DNS = s.DNS
		}
	}
	name := c.Access.Posture
	if name == "" {
		name = "dev" // the default, where the site has it: docs/reference.md
	}
	posture := s.Postures[name]
	packages := slices.Clone(s.Packages)
	if posture != nil {
		packages = append(packages, posture.Packages...)
	}
	c.Platform.Packages = unique(append(packages, c.Platform.Packages...))
	d := describe(reflect.ValueOf(c).Elem(), "", secretsOf(spec.Sensitive))
	d["name"] = spec.Name
	d["access"].(map[string]any)["posture"] = nil
	if posture != nil {
		d["access"].(map[string]any)["posture"] = postureDocument(posture)
	}
	return d
}

func postureDocument(p *model.Posture) map[string]any {
	d := describe(reflect.ValueOf(p).Elem(), "", open)
	d["name"], d["at"] = p.Name, rangeDocument(p.At)
	return d
}

// planDocument is the plan as plan --json has it, with null for what that leaves out;
// each step also says whether what it deletes or replaces is protected.
func planDocument(p *plan.Plan) (any, error) {
	if p == nil {
		return nil, nil //nolint:nilnil // null in the document: there is no plan
	}
	b, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("write the plan for policies: %w", err)
	}
	var d map[string]any
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if err := dec.Decode(&d); err != nil {
		return nil, fmt.Errorf("read the plan for policies: %w", err)
	}
	for i, entry := range d["steps"].([]any) {
		step := entry.(map[string]any)
		step["protected"] = protected(&p.Steps[i])
		fill(step, "at", "place")
	}
	for _, finding := range d["findings"].([]any) {
		fill(finding.(map[string]any), "at", "address", "code", "rule", "waiver")
	}
	return d, nil
}

// fill writes null for fields that are not there, or hold nothing.
func fill(d map[string]any, names ...string) {
	for _, name := range names {
		if o, isObject := d[name].(map[string]any); d[name] == nil || isObject && len(o) == 0 {
			d[name] = nil
		}
	}
}

// protected reports whether the guest that a step works on is protected against
// removal: true as soon as either side has it, null if the host's side is not known.
func protected(s *plan.Step) any {
	var known any
	for _, r := range []*model.Resource{s.Have, s.Want} {
		if r == nil {
			continue
		}
		if flag(r.Spec, "protection") {
			return true
		}
		if r == s.Have {
			known = false
		}
	}
	return known
}

// flag finds a boolean attribute of a spec; one that its kind has not is not set.
func flag(spec any, name string) bool {
	v := reflect.ValueOf(spec).Elem()
	for _, f := range model.Fields(v.Type()) {
		if field := v.Field(f.Index); f.Name == name && field.Kind() == reflect.Bool {
			return field.Bool()
		}
	}
	return false
}

func rangeDocument(at diag.Range) any {
	if at.IsZero() {
		return nil
	}
	return map[string]any{"file": at.File, "line": at.Start.Line}
}
