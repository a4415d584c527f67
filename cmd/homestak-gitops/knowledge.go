package main

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// knowledge is what the process of an agent knows beside the agent's status: where the
// commits that count declare things, and what on the host is not ours. The agent's
// goroutine writes it and those of the socket read it, hence the lock. Nothing is
// decided by it; it holds no more than answers need, since it stays between passes.
type knowledge struct {
	identity string

	mu        sync.Mutex
	api       string
	manifests []string  // that the last valid site deploys on the host
	commits   []commit  // the last valid ones, the newest last: the head, and what is in force
	foreign   []foreign // guests that are not ours
	unknown   []model.Unknown
}

// commit is where a commit declares the objects of the host.
type commit struct {
	id string
	at map[string]declaration // by address
}

// declaration is where the site says that something shall be.
type declaration struct {
	Manifest string     `json:"manifest"` // "" for what stands beside the manifests
	Node     string     `json:"node"`     // "" for what is no node
	At       diag.Range `json:"at"`
}

// foreign is a guest that is not ours.
type foreign struct {
	VMID int    `json:"vmid"`
	Name string `json:"name"`
	Kind string `json:"kind"`
	Why  string `json:"why"`
}

// site learns from a site that was read. One that does not converge moves nothing.
func (k *knowledge) site(d engine.Desired) {
	if d.Site == nil || d.Site.Hosts[k.identity] == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	api := strings.TrimRight(d.Site.Hosts[k.identity].API, "/")
	if d.Findings.HasErrors() {
		if k.api == "" {
			k.api = api // as long as no good site says where the host is
		}
		return
	}
	k.api = api
	k.manifests = []string{}
	for name, m := range d.Site.Manifests {
		if m.Host == k.identity {
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
		c.at[addr.String()] = declaration{r.Manifest, r.Node, r.At}
	}
	k.commits = append(k.commits, c)
	if len(k.commits) > 2 {
		k.commits = slices.Delete(k.commits, 0, 1)
	}
}

// observed learns from a look at the host.
func (k *knowledge) observed(have model.Observed) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.foreign = k.foreign[:0:0]
	for _, f := range have.Unmanaged {
		k.foreign = append(k.foreign, foreign{f.VMID, f.Name, f.Kind, f.Why})
	}
	k.unknown = slices.Clone(have.Unknown)
}

// host gives the API of the host and the manifests that are deployed there.
func (k *knowledge) host() (api string, manifests []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.api, slices.Clone(k.manifests)
}

// declared tells where a commit declares an address, and which addresses it has.
// Whether anything is known of the commit says ok.
func (k *knowledge) declared(id, address string) (at *declaration, all []string, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.commits {
		if c.id != id {
			continue
		}
		if d, there := c.at[address]; there {
			at = &d
		}
		return at, slices.Sorted(maps.Keys(c.at)), true
	}
	return nil, nil, false
}

// beyond gives what on the host is not ours, and what of it could not be seen.
func (k *knowledge) beyond() ([]foreign, []model.Unknown) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.foreign), slices.Clone(k.unknown)
}
