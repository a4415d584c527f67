package model

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Output is a text that is rendered from the site and from what is observed, for readers other than this program.
type Output struct {
	Name       string            `hcl:"name,label"`
	Template   string            `hcl:"template" doc:"HCL template, such as file(\"outputs/hosts.tmpl\"), with the values in [outputs.md](outputs.md). In quotes, write $${ for ${."`
	To         string            `hcl:"to,optional" doc:"Where the agent writes it: a path below outputs of its data folder, or an absolute one in output_folders of agent.hcl. Without it, only homestak-gitops output prints it."`
	Host       string            `hcl:"host,optional" ref:"host" doc:"Host whose agent writes it (default: every host without a parent)."`
	Repository *OutputRepository `hcl:"repository,block" doc:"Commit it to a repository instead; to is its path there."`

	File string // of the site that is the template; "": another expression
	At   diag.Range
}

// OutputRepository is where an output is committed.
type OutputRepository struct {
	URL     string `hcl:"url" doc:"https://… or ssh://…"`
	Branch  string `hcl:"branch,optional" doc:"Branch (default: outputs); each output needs its own."`
	Key     string `hcl:"key,optional" secret:"true" doc:"ssh: private key without passphrase, such as secret.ssh_keys.deploy."`
	HostKey string `hcl:"host_key,optional" doc:"ssh: keys of the server, as ssh-keyscan prints them."`
	Token   string `hcl:"token,optional" secret:"true" doc:"https: token that may push."`
}

// WrittenBy reports whether the agent of a host writes the output.
func (o *Output) WrittenBy(s *Site, identity string) bool {
	h := s.Hosts[identity]
	return o.To != "" && (o.Host == identity || o.Host == "" && h != nil && h.Parent == "")
}

// Rendered is the text of an output, or why there is none.
type Rendered struct {
	Text  string
	Error string // "": there is a text
}

// NodeFacts is what is observed of a node, for outputs. The zero value is that of a node of which nothing is known.
type NodeFacts struct {
	VMID    int
	Address string // "" if not known
	PVENode string
	Phase   string
}

// OutputFacts is what templates of outputs see, as a document: every attribute is always there, "" or empty if it
// has no value. Seen has what is observed, by the names of nodes. Only what a reader may know is in it: no secret.
func OutputFacts(s *Site, seen map[string]NodeFacts, static func(*Resource) string) map[string]any {
	nodes, hosts := map[string]any{}, map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(s.Manifests)) {
		m := s.Manifests[name]
		for _, n := range m.Nodes {
			if m.Host != "" {
				nodes[n.Name] = nodeFacts(s, m, n, seen[n.Name], static)
			}
		}
	}
	for name, h := range s.Hosts {
		user, port, address := "root", 22, ""
		if h.SSH != nil {
			user, port, address = h.SSH.User, h.SSH.Port, h.SSH.Address
		}
		hosts[name] = map[string]any{"name": name, "parent": h.Parent, "api": h.API, "address": address, "user": user, "port": port, "node": h.PVENode(), "nodes": texts(h.AllNodes())}
	}
	return map[string]any{
		"nodes": nodes, "hosts": hosts,
		"site": map[string]any{"name": s.Name, "domain": s.Domain, "timezone": s.Timezone, "dns": texts(s.DNS), "gateway": s.Gateway, "owner": s.Owner, "purpose": s.Purpose},
	}
}

func nodeFacts(s *Site, m *Manifest, n *Node, seen NodeFacts, static func(*Resource) string) map[string]any {
	on := m.On(n)
	r := n.Resource
	if w := s.Resolved[on]; w != nil && w.State[r.Addr] != nil {
		r = w.State[r.Addr]
	} else if s.Kinds.Get(r.Addr.Kind) != nil {
		r, _ = s.Resolve(r, s.HostFor(on), n)
	}
	hostname, domain := n.Name, s.Domain
	if spec := s.Specs[n.Spec]; spec != nil && spec.Identity != nil {
		hostname, domain = cmp.Or(spec.Identity.Hostname, hostname), cmp.Or(spec.Identity.Domain, domain)
	}
	address := seen.Address
	if address == "" {
		address = static(r)
	}
	if _, err := netip.ParseAddr(address); err != nil {
		address = ""
	}
	tags, _ := ValueOf(r.Spec, "tags").([]string)
	checks := []any{}
	for _, c := range s.Checks(n) {
		if !c.Sensitive {
			checks = append(checks, map[string]any{"name": c.Name, "way": c.Way(), "http": c.HTTP, "tcp": c.TCP})
		}
	}
	phase := seen.Phase
	if phase == "" && n.Planned {
		phase = "planned"
	}
	return map[string]any{
		"name": n.Name, "type": n.Type, "manifest": m.Name, "host": on, "parent": n.Parent, "pve_node": seen.PVENode, "vmid": cmp.Or(seen.VMID, n.VMID), "address": address,
		"hostname": hostname, "domain": domain, "fqdn": strings.TrimSuffix(hostname+"."+domain, "."), "user": cmp.Or(TextOf(r.Spec, "ci_user"), s.VMUser), "tags": texts(tags), "mode": n.Mode, "spec": n.Spec,
		"planned": n.Planned, "phase": phase, "role": n.Role, "owner": n.Owner, "purpose": n.Purpose, "services": texts(n.Services), "stacks": texts(n.Stacks),
		"review_by": n.ReviewBy, "storage_tier": n.Tier, "checks": checks,
	}
}

// texts is a list for a document: never null.
func texts(l []string) []string { return append([]string{}, l...) }
