package hcl

import (
	"encoding/pem"
	"maps"
	"net/url"
	"slices"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// decodeSite decodes everything but the manifests.
func (l *load) decodeSite() {
	site := &model.Site{
		Hosts: map[string]*model.Host{}, Presets: map[string]*model.Preset{},
		Postures: map[string]*model.Posture{}, Specs: map[string]*model.Spec{}, Manifests: map[string]*model.Manifest{},
		Objects: model.State{}, Secrets: l.opts.Secrets, Kinds: l.opts.Kinds, Local: l.opts.Local,
	}
	l.site = site
	for _, b := range l.Blocks["site"] {
		site.At = lang.DiagRange(b.At)
		d := l.decodeBlock(b, site, false)
		placeBackup(site.Backup, d.Ranges)
		if site.References != nil {
			site.References.Missing = d.Missing
			if !d.Invalid && len(site.References.Paths)+len(site.References.Repositories) == 0 {
				at := (&model.Resource{Ranges: d.Ranges}).RangeOf("references")
				l.ErrorAt(at, "references searches nothing", "Name files in paths, or git repositories in repositories, or remove the block.")
			}
		}
		l.checkSite(b, site)
	}
	if len(l.Blocks["site"]) == 0 && l.Complete {
		l.Errorf(l.firstFile(), "no site block", `The files have no site "NAME" { … }, which names the site and sets its defaults. There must be exactly one.`)
	}
	for _, b := range l.Blocks["posture"] {
		v := &model.Posture{At: lang.DiagRange(b.At)}
		l.decodeBlock(b, v, false)
		site.Postures[b.Name] = v
	}
	for _, b := range l.Blocks["preset"] {
		v := &model.Preset{At: lang.DiagRange(b.At)}
		l.decodeBlock(b, v, false)
		site.Presets[b.Name] = v
	}
	for _, b := range l.Blocks["spec"] {
		v := &model.Spec{At: lang.DiagRange(b.At)}
		d := l.decodeBlock(b, v, true)
		v.Ranges, v.Sensitive, v.Missing = d.Ranges, d.Sensitive, d.Missing
		flagSecretChecks(v)
		l.readFiles(b, v)
		l.checkMounts(b, v)
		site.Specs[b.Name] = v
	}
	for _, b := range l.Blocks["pack"] {
		v := model.Pack{At: lang.DiagRange(b.At)}
		l.decodeBlock(b, &v, false)
		if v.Rules != nil && len(v.Rules) == 0 {
			l.Errorf(attributeAt(b, "rules"), "rules of pack "+lang.Quote(b.Name)+" is empty", "Leave it out: then all its rules count.")
		}
		site.Packs = append(site.Packs, v)
	}
	for _, b := range l.Blocks["waiver"] {
		v := model.Waiver{At: lang.DiagRange(b.At)}
		l.decodeBlock(b, &v, false)
		site.Waivers = append(site.Waivers, v)
	}
	base := l.Base
	l.Base = l.hostScope()
	for _, b := range l.Blocks["host"] {
		l.decodeHost(b, site)
	}
	l.decodeJobs()
	l.decodeNotify()
	l.decodeOutputs()
	l.Base = base
	for _, k := range l.opts.Kinds {
		if k.Block == lang.NodeBlock {
			continue
		}
		for _, b := range l.Blocks[k.Block] {
			l.decodeObject(b, k, site)
		}
	}
}

// decodeBlock decodes a top-level block into its struct, with all defaults.
func (l *load) decodeBlock(b *lang.Block, target any, secrets bool) *lang.Decoder {
	l.Current = b.At.Filename
	d := &lang.Decoder{Evaluator: l.Evaluator, Schemas: l.schemas, What: b.Type.Name + " " + lang.Quote(b.Name), Scope: l.Base}
	p := l.schemas.Part(target, b.Type.Name)
	p.Secrets = secrets
	if p.Label >= 0 {
		p.Value.Field(p.Label).SetString(b.Name)
	}
	var extra []string
	if b.Type.Name == "manifest" {
		extra = []string{lang.NodeBlock}
	}
	d.Body(b.Body, b.At, extra, p)
	if b.Type.Kind == nil {
		l.schemas.Fill(p.Value, b.Type.Name)
	}
	d.Finish()
	b.Invalid = b.Invalid || d.Invalid
	return d
}

// firstFile is the start of the first file, for what the files lack as a whole.
func (l *load) firstFile() hclv2.Range {
	for _, name := range slices.Sorted(maps.Keys(l.Sources)) {
		return lang.FileStart(name)
	}
	return hclv2.Range{}
}

func (l *load) checkSite(b *lang.Block, s *model.Site) {
	for _, r := range s.VMIDRanges {
		if r.From > r.To && r.To != 0 {
			l.Errorf(innerAt(b, "vmid_range", r.Name), "vmid_range "+lang.Quote(r.Name)+" is empty", "It begins at %d and ends before that, at %d.", r.From, r.To)
		}
	}
	if s.VMIDDefault == "" {
		return
	}
	if names := rangeNames(s); !slices.Contains(names, s.VMIDDefault) {
		l.Errorf(b.Body.Attributes["vmid_default"].Expr.Range(), "unknown vmid_range "+lang.Quote(s.VMIDDefault), "%s", l.NearestOr(s.VMIDDefault, names, "The site declares no vmid_range."))
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
func innerAt(b *lang.Block, typ, name string) hclv2.Range {
	for _, inner := range b.Body.Blocks {
		if inner.Type == typ && len(inner.Labels) == 1 && inner.Labels[0] == name {
			return inner.DefRange()
		}
	}
	return b.At
}

// hostScope adds the names of all node blocks, for the parents of hosts: they are unique in what is deployed.
func (l *load) hostScope() *lang.Scope {
	values, known := map[string]cty.Value{}, map[string]bool{}
	for _, b := range l.Blocks["manifest"] {
		for _, inner := range b.Body.Blocks {
			if inner.Type == lang.NodeBlock && len(inner.Labels) == 1 && lang.ValidName(inner.Labels[0]) {
				values[inner.Labels[0]], known[inner.Labels[0]] = cty.StringVal(inner.Labels[0]), true
			}
		}
	}
	sc := l.Base.Child(map[string]cty.Value{lang.NodeBlock: cty.ObjectVal(values)})
	sc.Nodes = known
	return sc
}

func (l *load) decodeHost(b *lang.Block, site *model.Site) {
	h := &model.Host{At: lang.DiagRange(b.At)}
	d := l.decodeBlock(b, h, false)
	h.Ranges = d.Ranges
	site.Hosts[b.Name] = h
	if _, declared := b.Body.Attributes["api_token"]; !declared && l.opts.Secrets != nil {
		h.APIToken = l.opts.Secrets.Values["api_tokens"][b.Name]
	}
	h.TokenMissing = h.APIToken == ""
	l.checkTokenName(b, h)
	switch {
	case h.API != "":
	case h.Parent == "" && !b.Invalid:
		l.Errorf(b.At, "missing attribute \"api\" in host "+lang.Quote(b.Name), "URL of the API without path, such as https://192.0.2.10:8006. Only a host with a parent does without: its agent knows that of its own machine.")
		b.Invalid = true
	case h.Parent != "":
		h.API, h.Local = model.LocalAPI, true
	}
	if u := h.API; h.SSH != nil && h.SSH.Address == "" {
		h.SSH.Address = hostOf(u)
	}
	if h.InsecureTLS {
		l.Warnf(b.Body.Attributes["insecure_tls"].SrcRange, "host "+lang.Quote(b.Name)+" is not verified",
			"A man in the middle can read the API token. Set fingerprint instead: pvenode cert info shows it on the host.")
	}
	if h.CA != "" {
		h.CAPEM = l.readCA(b, h.CA)
	}
	site.Local.Complete(h)
}

// checkTokenName warns of a token in the secrets that is for this host by all appearances, under another name.
func (l *load) checkTokenName(b *lang.Block, h *model.Host) {
	if l.opts.Secrets == nil || b.Body.Attributes["api_token"] != nil || h.Parent != "" {
		return
	}
	tokens := l.opts.Secrets.Values["api_tokens"]
	if _, has := tokens[b.Name]; has {
		return
	}
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(tokens)), func(name string) bool { return l.Named["host"][name] != nil })
	if near := diag.Nearest(b.Name, others); near != "" {
		l.Warnf(b.At, "host "+lang.Quote(b.Name)+" has no API token", "The section api_tokens of the secrets has %s, which is not a host: write %s there.", lang.Quote(near), b.Name)
	}
}

// readCA reads the certificates from the file in the attribute ca; nil if there are none.
func (l *load) readCA(b *lang.Block, name string) (certificates []byte) {
	at := b.Body.Attributes["ca"].Expr.Range()
	data, problem := l.Read(name)
	if problem != "" {
		l.Errorf(at, "unreadable file "+lang.Quote(name), "%s.", lang.UpperFirst(problem))
		return nil
	}
	for rest := data; ; {
		var p *pem.Block
		if p, rest = pem.Decode(rest); p == nil {
			break
		}
		if strings.Contains(p.Type, "PRIVATE KEY") {
			l.Errorf(at, lang.PlaintextSecret+lang.Quote(name)+" contains a private key", lang.PlaintextDetail)
			return nil
		}
		if p.Type == "CERTIFICATE" {
			certificates = data
		}
	}
	if certificates == nil {
		l.Errorf(at, "no certificate in "+lang.Quote(name), "The file must hold the CA certificate in PEM form, as /etc/pve/pve-root-ca.pem does.")
	}
	return certificates
}

// checkMounts checks that each mount names a disk, or a folder of another machine.
func (l *load) checkMounts(b *lang.Block, spec *model.Spec) {
	if spec.Config == nil {
		return
	}
	for i := range spec.Config.Mounts {
		m := &spec.Config.Mounts[i]
		path := "config.mount." + m.Path
		refuse := func(name, summary, detail string) {
			b.Invalid = true
			l.ErrorAt(spec.RangeOf(path+name), summary, "%s", detail)
		}
		secret := slices.Contains(spec.Sensitive, path+".source") || slices.Contains(spec.Sensitive, path+".disk")
		switch {
		case secret:
			refuse(".source", "source and disk must not come from a secret", "They are shown in plans.")
		case (m.Disk == "") == (m.Source == ""):
			refuse("", "mount "+lang.Quote(m.Path)+" needs either disk or source", `Write disk = "NAME" for a disk block of the node, or source = "nas.example:/export" for a folder of another machine.`)
		case m.Source != "" && m.NetworkType() == "":
			refuse(".source", "source = "+lang.Quote(m.Source)+" is not valid", "Write it as nas.example:/export/media for NFS, or as //nas.example/media for CIFS, without spaces and commas.")
		case m.Source != "" && m.FSType != "":
			refuse(".fstype", "fstype on a mount with source", "It follows from source: remove it.")
		case m.NetworkType() != "cifs" && (m.Credentials != "" || slices.Contains(spec.Sensitive, path+".credentials")):
			refuse(".credentials", "credentials are for CIFS alone", "Remove them: NFS trusts the address of the machine.")
		case m.Credentials != "" && !slices.Contains(spec.Sensitive, path+".credentials"):
			refuse(".credentials", lang.PlaintextSecret+"credentials of mount "+lang.Quote(m.Path), lang.PlaintextDetail)
		}
	}
}

// readFiles reads the files of the site whose content a spec puts on machines.
func (l *load) readFiles(b *lang.Block, spec *model.Spec) {
	if spec.Config == nil {
		return
	}
	for i := range spec.Config.Files {
		f := &spec.Config.Files[i]
		path := "config.file." + f.Path
		has := func(name, value string) bool { // the value of a secret may not be known here
			return value != "" || slices.Contains(spec.Sensitive, path+"."+name)
		}
		declared := slices.ContainsFunc(spec.Ranges, func(r model.AttrRange) bool { return r.Path == path+".content" })
		refuse := func(name, summary, detail string, args ...any) {
			b.Invalid = true
			l.ErrorAt(spec.RangeOf(path+name), summary, detail, args...)
		}
		switch {
		case slices.Contains(spec.Sensitive, path+".source"):
			refuse(".source", "source must not come from a secret", "It names a file of the site, and is shown in plans.")
		case has("content", f.Content) && f.Source != "":
			refuse(".source", "file "+lang.Quote(f.Path)+" has both content and source", "Keep one of them.")
		case f.Source != "":
			data, err := l.ReadContent(f.Source)
			if err != nil {
				refuse(".source", "unreadable file "+lang.Quote(f.Source), "%s.", lang.UpperFirst(err.Error()))
			}
			f.Data = data
		case !declared:
			refuse("", "file "+lang.Quote(f.Path)+" has no content", `Write content = "…" for a text, content = "" for an empty file, or source = "PATH" for a file of the site.`)
		}
	}
}

// decodeObject decodes a block that is a resource of its own.
func (l *load) decodeObject(b *lang.Block, k *model.Kind, site *model.Site) {
	spec := k.New()
	d := l.decodeBlock(b, spec, true)
	addr := model.Address{Kind: k.Name, Name: b.Name}
	site.Objects[addr] = &model.Resource{
		Addr: addr, Spec: spec, Needs: d.Needs, At: lang.DiagRange(b.At), Ranges: d.Ranges, Sensitive: d.Sensitive, Missing: d.Missing,
	}
	if b.Invalid {
		l.invalid[addr.String()] = true
	}
}

// hostOf returns the name or address in a URL, "" if it is not one.
func hostOf(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return ""
	}
	return u.Hostname()
}
