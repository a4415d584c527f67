package push

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
)

// way says how a guest is entered; it is a value.
type way struct {
	guest model.Address // the vm or ct
	via   model.Via
	user  string       // of logins by SSH
	ports []int        // where its sshd may listen, in the order in which they are tried
	ip    netip.Addr   // that the spec gives it; not valid if it gives none
	near  []netip.Addr // gateways that the files name for it
	agent bool         // the files say that its guest agent answers
	gone  bool         // the node no longer has a spec: the guest is not entered again once nothing is left of it

	delivers bool   // the node applies its spec itself, and only has to learn its parent
	barred   string // why it cannot be entered for that, and what to do; "" if it can
}

const (
	sshPort = 22
	root    = "root"
	lxc     = "ct"
)

// inside returns the desired state inside a node, for model.Kind.Inside. A guest that should be off cannot be
// entered, so nothing is wanted there. Nor is one by SSH without a key for the login, unless the spec asks for SSH
// by name: see docs/decisions/0014-ways-into-guests.md.
func (c Config) inside(of *model.Resource, in model.Scope) (*model.Resource, diag.List) {
	if of.Addr.Kind == model.HostKind {
		return c.onHost(in)
	}
	if in.Earlier != nil {
		return c.withdrawn(of, in)
	}
	if in.Node.Mode == model.ModePull {
		return c.pulled(of, in)
	}
	declared := in.Site.Specs[in.Node.Spec]
	if declared == nil || model.TextOf(of.Spec, "power") == "stopped" {
		return nil, nil
	}
	known, missing := withoutMissing(in.Site, declared)
	if isByDefault(declared) { // the default leaves out what cannot work
		switch why := c.cannotLogIn(of, in); {
		case why != "":
			return &model.Resource{Deferred: "not applied, " + why}, nil
		case len(missing) > 0:
			return &model.Resource{Deferred: fmt.Sprintf("not applied, since the value of %s is not known here: provide it with --secrets FILE", strings.Join(missing, ", "))}, nil
		}
		if name := placeholder(in.Site, declared); name != "" {
			return &model.Resource{Deferred: fmt.Sprintf("not applied, since secret.ssh_keys[%q] is not a public key: put in the one line of the .pub file", name)}, nil
		}
	}
	w := wayInto(of, in.Site, declared)
	want, found := spec.Resolve(known, in.Node)
	found = append(found, w.problems(declared)...)
	found = append(found, w.lockout(declared, want)...)
	w.listens(want)
	return &model.Resource{
		Spec: want, Private: w, At: declared.At, Sensitive: want.Sensitive, Missing: missing,
		Report: declared.Config != nil && declared.Config.Drift == "report",
	}, found
}

// wayInto is the way into a guest by its spec.
func wayInto(of *model.Resource, site *model.Site, declared *model.Spec) *way {
	via := model.ViaSSH
	if declared.Access != nil {
		via = cmp.Or(declared.Access.Via, via)
	}
	return &way{guest: of.Addr, via: via, user: cmp.Or(model.TextOf(of.Spec, "ci_user"), root), near: declared.Gateways(site), agent: hasAgent(of)}
}

// isByDefault reports whether a spec leaves open how its guests are entered.
func isByDefault(declared *model.Spec) bool {
	return declared.Access == nil || declared.Access.Via == ""
}

// cannotLogIn says why a login by SSH to a guest cannot work, and what to do; "" if it can.
func (c Config) cannotLogIn(of *model.Resource, in model.Scope) string {
	switch {
	case !c.hasKey(in.Host):
		return fmt.Sprintf("no SSH key to log in with: set key in ssh of host %s, or via in access of the spec", in.Host.Name)
	case c.Unsimulated(in.Site, of) != "":
		return "since " + c.Unsimulated(in.Site, of)
	case !hasAddress(of):
		return "no address is known: set ip in the first nic, or agent = true"
	}
	return ""
}

// listens takes from a spec where the machine answers.
func (w *way) listens(want *spec.Spec) {
	w.ip, _ = want.Network.Static()
	if want.Posture.SSH != nil {
		w.ports = ports(want.Posture.SSH.Port)
	}
	if !slices.Contains(w.ports, sshPort) {
		w.ports = append(w.ports, sshPort) // until the spec is applied
	}
}

// withdrawn returns the desired state inside a node that lost its spec: nothing of it. The node is entered as the earlier spec says.
func (c Config) withdrawn(of *model.Resource, in model.Scope) (*model.Resource, diag.List) {
	was := in.Earlier
	if was.Host == nil {
		return nil, nil
	}
	if model.TextOf(of.Spec, "power") == "stopped" {
		return &model.Resource{Deferred: "the guest is declared off"}, nil
	}
	r, found := c.inside(of, model.Scope{Site: was.Site, Host: in.Host, Manifest: was.Node.Manifest, Node: was.Node, Name: in.Name, Needs: in.Needs})
	found = slices.DeleteFunc(found, func(f diag.Finding) bool { return f.Severity != diag.Error })
	switch {
	case found.HasErrors():
		return nil, found
	case r == nil || r.Deferred != "":
		return r, found
	}
	w := r.Private.(*way)
	w.gone = true
	return &model.Resource{Spec: r.Spec.(*spec.Spec).Withdrawn(), Private: w, At: in.Node.At}, nil
}

// hasKey reports whether there is any key to log in to guests of a host with.
func (c Config) hasKey(h *model.Host) bool {
	return h.SSH != nil && h.SSH.Key != "" || len(c.PrivateKeys) > 0 || c.AgentSocket != ""
}

// Unsimulated says why a spec cannot be applied inside of a guest that is simulated; "" if it can.
func (c Config) Unsimulated(site *model.Site, of *model.Resource) string {
	if c.Runs != nil && !c.Runs(origin(site, of)) {
		return "only guests from images of Debian 12 or 13, or of Proxmox VE, have a simulated system"
	}
	return ""
}

// origin is the source of a guest: its kind, and the names and addresses of its image or template.
func origin(site *model.Site, of *model.Resource) string {
	words := []string{of.Addr.Kind}
	for _, kind := range []string{"template", "image"} {
		name := model.TextOf(of.Spec, kind)
		if name == "" {
			continue
		}
		words = append(words, name)
		if from := site.Objects[model.Address{Kind: kind, Name: name}]; from != nil {
			words = append(words, stringsOf(from.Spec)...)
		}
	}
	return strings.Join(words, " ")
}

// placeholder finds an invalid key of a user, such as those of the example before they are replaced; "" if all are
// valid.
func placeholder(site *model.Site, declared *model.Spec) string {
	if declared.Access == nil {
		return ""
	}
	for _, u := range declared.Access.Users {
		for _, k := range site.Secrets.KeysOf(u.SSHKeys) {
			text := strings.TrimSpace(k.Text)
			if k.Secret != "" && text != "" && !model.HasPrivateKey(text) && !strings.Contains(text, "\n") && model.SSHKeyID(text) == "" {
				return k.Secret
			}
		}
	}
	return ""
}

// hasAgent reports whether the files say that a guest agent answers in a guest.
func hasAgent(of *model.Resource) bool {
	return model.ValueOf(of.Spec, "agent") == true
}

// hasAddress reports whether the address of a guest can be known: that of a VM, which a child is, too, is declared, or its guest
// agent reports it.
func hasAddress(of *model.Resource) bool {
	return of.Addr.Kind != "vm" && of.Addr.Kind != model.PVEType || hasAgent(of) || len(model.StaticAddresses(of.Spec)) > 0
}

// problems reports a way that the guest does not have.
func (w *way) problems(declared *model.Spec) diag.List {
	switch {
	case w.via == model.ViaExec && w.guest.Kind != lxc:
		return diag.List{diag.Errorf(declared.At, fmt.Sprintf("%s cannot be entered by exec", w.guest),
			`via = "exec" is pct exec, for containers of the host where the agent runs. Use ssh or agent for spec %s.`, declared.Name)}
	case w.via == model.ViaAgent && w.guest.Kind == lxc:
		return diag.List{diag.Errorf(declared.At, fmt.Sprintf("%s cannot be entered by agent", w.guest),
			`via = "agent" is the guest agent, which only VMs have. Use ssh or exec for spec %s.`, declared.Name)}
	}
	return nil
}

// lockout warns of a spec that removes the rights by which its guest is entered: it would be applied once, and
// reverted when the guest can no longer be entered.
func (w *way) lockout(declared *model.Spec, want *spec.Spec) diag.List {
	u := want.User(w.user)
	if w.via != model.ViaSSH || w.user == root || u == nil || u.Sudo == spec.SudoNoPasswd {
		return nil
	}
	return diag.List{diag.Warnf(declared.At, fmt.Sprintf("spec %s takes sudo without a password from user %s, as whom %s is entered", declared.Name, w.user, w.guest),
		`Without it, no spec can be applied there. Enter the guest as another user (vm_user of the site), or set sudo = true for the user and nopasswd = true in sudo of the posture.`)}
}

// withoutMissing takes out of a site what the spec needs of secrets whose values are not known here,
// and lists them: what is left can be resolved, but not applied.
func withoutMissing(site *model.Site, declared *model.Spec) (*model.Site, []string) {
	missing := slices.Clone(declared.Missing)
	own := *declared
	own.Missing = nil
	if declared.Access != nil {
		access := *declared.Access
		access.Users = slices.Clone(access.Users)
		for i := range access.Users {
			if keys := missingKeys(site.Secrets, access.Users[i]); len(keys) > 0 {
				missing = append(missing, keys...)
				access.Users[i].SSHKeys = &[]string{}
			}
		}
		own.Access = &access
	}
	if len(missing) == 0 {
		return site, nil
	}
	known := *site
	known.Specs = map[string]*model.Spec{declared.Name: &own}
	slices.Sort(missing)
	return &known, slices.Compact(missing)
}

// ports reads the ports of a posture.
func ports(list string) []int {
	var out []int
	for field := range strings.SplitSeq(list, ",") {
		if n, err := strconv.Atoi(strings.TrimSpace(field)); err == nil && n > 0 {
			out = append(out, n)
		}
	}
	return out
}

// missingKeys lists the keys of a user whose values are not known here.
func missingKeys(secrets *model.Secrets, u model.User) []string {
	if u.SSHKeys == nil && secrets == nil {
		return []string{"secret.ssh_keys"}
	}
	var out []string
	for _, k := range secrets.KeysOf(u.SSHKeys) {
		switch {
		case k.Secret != "" && k.Text == "":
			out = append(out, "secret.ssh_keys."+k.Secret)
		case secrets == nil && model.SSHKeyID(k.Text) == "": // so it is the name of a secret
			out = append(out, "secret.ssh_keys."+k.Text)
		}
	}
	return out
}

// stringsOf returns the values of the string attributes of a spec that files can set, compared or not, in field order.
func stringsOf(spec any) []string {
	v := reflect.ValueOf(spec).Elem()
	var out []string
	for _, f := range model.Fields(v.Type()) {
		if f.Decoded && f.Type.Kind() == reflect.String {
			out = append(out, v.Field(f.Index).String())
		}
	}
	return out
}
