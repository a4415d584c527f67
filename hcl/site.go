package hcl

import (
	"encoding/pem"
	"maps"
	"slices"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"

	"github.com/homestak/homestak-gitops/engine/model"
)

// decodeSite decodes everything but the manifests.
func (l *load) decodeSite() {
	site := &model.Site{
		Hosts: map[string]*model.Host{}, Presets: map[string]*model.Preset{},
		Postures: map[string]*model.Posture{}, Specs: map[string]*model.Spec{}, Manifests: map[string]*model.Manifest{},
		Objects: model.State{}, Secrets: l.opts.Secrets, Kinds: l.opts.Kinds,
	}
	l.site = site
	for _, b := range l.blocks["site"] {
		site.At = diagRange(b.at)
		l.decode(b, site, false)
		l.checkSite(b, site)
	}
	if len(l.blocks["site"]) == 0 && l.complete {
		l.errorf(l.firstFile(), "no site block", `The files have no site "NAME" { … }, which names the site and holds its defaults. There must be exactly one.`)
	}
	for _, b := range l.blocks["posture"] {
		v := &model.Posture{At: diagRange(b.at)}
		l.decode(b, v, false)
		site.Postures[b.name] = v
	}
	for _, b := range l.blocks["preset"] {
		v := &model.Preset{At: diagRange(b.at)}
		l.decode(b, v, false)
		site.Presets[b.name] = v
	}
	for _, b := range l.blocks["spec"] {
		v := &model.Spec{At: diagRange(b.at)}
		d := l.decode(b, v, true)
		v.Sensitive, v.Missing = d.sensitive, d.missing
		markSecretChecks(v)
		site.Specs[b.name] = v
	}
	for _, b := range l.blocks["host"] {
		l.decodeHost(b, site)
	}
	for _, k := range l.opts.Kinds {
		if k.Block == nodeBlock {
			continue
		}
		for _, b := range l.blocks[k.Block] {
			l.decodeObject(b, k, site)
		}
	}
}

// decode decodes a block at the top of a file into its struct, with all defaults.
func (l *load) decode(b *block, target any, secrets bool) *Decoder {
	l.current = b.at.Filename
	d := &Decoder{evaluator: l.evaluator, schemas: l.schemas, what: b.btype.name + " " + quote(b.name), scope: l.base}
	p := l.schemas.part(target, b.btype.name)
	p.secrets = secrets
	if p.label >= 0 {
		p.value.Field(p.label).SetString(b.name)
	}
	var extra []string
	if b.btype.name == "manifest" {
		extra = []string{nodeBlock}
	}
	d.body(b.body, b.at, extra, p)
	if b.btype.kind == nil {
		l.schemas.fill(p.value, b.btype.name)
	}
	d.finish()
	b.invalid = b.invalid || d.invalid
	return d
}

// firstFile is the start of the first file, for what the files lack as a whole.
func (l *load) firstFile() hclv2.Range {
	for _, name := range slices.Sorted(maps.Keys(l.sources)) {
		return fileStart(name)
	}
	return hclv2.Range{}
}

func (l *load) checkSite(b *block, s *model.Site) {
	for _, r := range s.VMIDRanges {
		if r.From > r.To && r.To != 0 {
			l.errorf(innerAt(b, "vmid_range", r.Name), "vmid_range "+quote(r.Name)+" is empty", "It begins at %d and ends before that, at %d.", r.From, r.To)
		}
	}
	if s.VMIDDefault == "" {
		return
	}
	if names := rangeNames(s); !slices.Contains(names, s.VMIDDefault) {
		l.errorf(b.body.Attributes["vmid_default"].Expr.Range(), "unknown vmid_range "+quote(s.VMIDDefault), "%s", l.nearestOr(s.VMIDDefault, names, "The site declares no vmid_range."))
	}
}

func rangeNames(s *model.Site) []string {
	var names []string
	for _, r := range s.VMIDRanges {
		names = append(names, r.Name)
	}
	return names
}

// innerAt finds an inner block by type and name; the block around it without one.
func innerAt(b *block, typ, name string) hclv2.Range {
	for _, inner := range b.body.Blocks {
		if inner.Type == typ && len(inner.Labels) == 1 && inner.Labels[0] == name {
			return inner.DefRange()
		}
	}
	return b.at
}

func (l *load) decodeHost(b *block, site *model.Site) {
	h := &model.Host{At: diagRange(b.at)}
	d := l.decode(b, h, false)
	h.Ranges = d.ranges
	site.Hosts[b.name] = h
	if _, declared := b.body.Attributes["api_token"]; !declared && l.opts.Secrets != nil {
		h.APIToken = l.opts.Secrets.Values["api_tokens"][b.name]
	}
	h.TokenMissing = h.APIToken == ""
	if u := h.API; h.SSH != nil && h.SSH.Address == "" {
		h.SSH.Address = hostOf(u)
	}
	if h.InsecureTLS {
		l.warnf(b.body.Attributes["insecure_tls"].SrcRange, "host "+quote(b.name)+" is trusted blindly",
			"Whoever stands between can read the API token. Set fingerprint instead: pvenode cert info shows it on the host.")
	}
	if h.CA != "" {
		l.readCA(b, h)
	}
}

// readCA takes the certificates of the file that the attribute ca names.
func (l *load) readCA(b *block, h *model.Host) {
	at := b.body.Attributes["ca"].Expr.Range()
	data, problem := l.read(h.CA)
	if problem != "" {
		l.errorf(at, "unreadable file "+quote(h.CA), "%s.", upperFirst(problem))
		return
	}
	for rest := data; ; {
		var p *pem.Block
		if p, rest = pem.Decode(rest); p == nil {
			break
		}
		if strings.Contains(p.Type, "PRIVATE KEY") {
			l.errorf(at, plaintextSecret+quote(h.CA)+" holds a private key", plaintextDetail)
			return
		}
		if p.Type == "CERTIFICATE" {
			h.CAPEM = data
		}
	}
	if h.CAPEM == nil {
		l.errorf(at, "no certificate in "+quote(h.CA), "The file must hold the CA certificate in PEM form, as /etc/pve/pve-root-ca.pem does.")
	}
}

// decodeObject decodes a block that is a resource by itself.
func (l *load) decodeObject(b *block, k *model.Kind, site *model.Site) {
	spec := k.New()
	d := l.decode(b, spec, true)
	addr := model.Address{Kind: k.Name, Name: b.name}
	site.Objects[addr] = &model.Resource{
		Addr: addr, Spec: spec, Needs: d.needs, At: diagRange(b.at), Ranges: d.ranges, Sensitive: d.sensitive, Missing: d.missing,
	}
	if b.invalid {
		l.invalid[addr.String()] = true
	}
}
