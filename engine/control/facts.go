package control

import (
	"slices"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Facts are known to the agent's process in addition to its status: where the last valid commits
// declare objects, and what on the host is unmanaged. The agent's goroutine writes them and the
// server's goroutines read them, hence the lock. No decision depends on them; they contain only
// what answers need, because they stay in memory between passes. The zero value is empty.
type Facts struct {
	identity string

	mu        sync.Mutex
	api       string
	manifests []string // that the last valid site deploys on the host
	commits   []commit // the last valid ones, the newest last: the head, and what is in force
	unmanaged []model.Unmanaged
	unknown   []model.Unknown
}

// commit has the declarations of a commit for the host.
type commit struct {
	id string
	at map[string]declaration // by address
}

// declaration is the position of an object's declaration.
type declaration struct {
	Manifest string     `json:"manifest"` // "" for what stands beside the manifests
	Node     string     `json:"node"`     // "" for a resource other than a node
	At       diag.Range `json:"at"`

	inside bool // a guest: it has the name of its node
}

// NewFacts returns empty facts for the host of an agent's identity.
func NewFacts(identity string) *Facts { return &Facts{identity: identity} }

// Site records a loaded site. One that does not converge changes nothing.
func (k *Facts) Site(d engine.Desired) {
	if d.Site == nil {
		return
	}
	host := d.Site.HostFor(k.identity)
	if host == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	api := strings.TrimRight(host.API, "/")
	if d.Findings.HasErrors() {
		if k.api == "" {
			k.api = api // as long as no good site says where the host is
		}
		return
	}
	k.api = api
	k.manifests = []string{}
	for name, m := range d.Site.Manifests {
		if m.Concerns(k.identity) {
			k.manifests = append(k.manifests, name)
		}
	}
	slices.Sort(k.manifests)
	if i := slices.IndexFunc(k.commits, func(c commit) bool { return c.id == d.Commit }); i >= 0 {
		c := k.commits[i]
		k.commits = append(slices.Delete(k.commits, i, i+1), c)
		return
	}
	c := commit{id: d.Commit, at: map[string]declaration{}}
	want, _ := d.Site.Want(k.identity)
	for addr, r := range want.State {
		c.at[addr.String()] = declaration{r.Manifest, r.Node, r.At, r.Inside != model.Address{}}
	}
	k.commits = append(k.commits, c)
	if len(k.commits) > 2 {
		k.commits = slices.Delete(k.commits, 0, 1)
	}
}

// Observed records an observation of the host.
func (k *Facts) Observed(have model.Observed) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unmanaged = slices.Clone(have.Unmanaged)
	k.unknown = slices.Clone(have.Unknown)
}

// host gives the API of the host and the manifests that are deployed there.
func (k *Facts) host() (api string, manifests []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.api, slices.Clone(k.manifests)
}

// declared says where a commit declares an address, and which addresses it has.
// Whether anything is known of the commit says ok.
func (k *Facts) declared(id, address string) (at *declaration, nodes, objects []string, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.commits {
		if c.id != id {
			continue
		}
		for a, d := range c.at {
			if a == address {
				at = &d
			}
			if d.Node != "" && !d.inside {
				nodes = append(nodes, a)
			} else {
				objects = append(objects, a)
			}
		}
		return at, nodes, objects, true
	}
	return nil, nil, nil, false
}

// beyond returns the unmanaged guests on the host, and the parts that could not be observed.
func (k *Facts) beyond() ([]model.Unmanaged, []model.Unknown) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.unmanaged), slices.Clone(k.unknown)
}
