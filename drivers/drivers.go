// Package drivers says what a site may declare, and opens the driver of a host: push over Proxmox VE.
package drivers

import (
	"cmp"
	"context"
	"io/fs"
	"net/http"
	"net/netip"
	"sync"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/observation"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/images"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Kinds are those that a site may declare.
func Kinds() model.Kinds { return proxmox.Kinds() }

// Access says how the hosts of a site are opened.
type Access struct {
	Owner     string       // in ownership tags; "" for the name of the host
	Files     fs.FS        // of the site, for images that are uploaded
	Transport Transport    // nil: TLS to the API of the host
	Near      *images.Near // images that need not come from the internet; nil: there are none

	// Parent serves nodes in mode pull their specs. Nil: there is no server, and none is created.
	Parent Parent

	// Sent is called from any goroutine after each request to the API of a host, with the status of the response, 0
	// for none. May be nil.
	Sent func(method string, status int)

	// Observed: Transport leads to a twin of the real host, so its guests have the ownership tags of the site. A signed tag
	// is believed if no key is known here.
	Observed bool

	awaits bool // whether the site has a key of ownership is not known yet: a parent is to say it

	// Guests says how guests are entered to apply their specs. Those of a host that has a Transport
	// are not, unless Dial of it reaches them.
	Guests push.Config
}

// Parent is the server that nodes in mode pull get their specs from, as far as their host is
// concerned. Its methods are called from several goroutines.
type Parent interface {
	// Parent returns the parent for a node that is about to be created, with a fresh token. Earlier reports of the
	// node came from another machine, and are dropped.
	Parent(node, spec string) (wire.Parent, error)
	// HasReported reports whether the node has reported since then.
	HasReported(node string) bool
	// Accepts says why a token is not one of this node, nil if it is. The error does not show it.
	Accepts(node, token string) error
	// Revoke revokes the tokens of a node, and drops what it reported. Revoked reports whether that was done, and the
	// node has used no new one since.
	Revoke(node string) error
	Revoked(node string) bool
	// Reported returns the node's last report: that it is ready, or an error. Pass it to health.Prober, so that
	// passes wait for new nodes.
	Reported(node string) (saw string, err error)
}

// firstBoots makes of a parent what its host needs.
type firstBoots struct{ Parent }

// FirstBoot is as kind.Parent wants it.
func (f firstBoots) FirstBoot(node, spec, userData string) (string, error) {
	p, err := f.Parent.Parent(node, spec)
	if err != nil {
		return "", err
	}
	return client.FirstBootUserData(p, userData)
}

// NodeFile is as push.parent wants it.
func (f firstBoots) NodeFile(node, spec string) (string, error) {
	p, err := f.Parent.Parent(node, spec)
	if err != nil {
		return "", err
	}
	return string(p.Document()), p.Check()
}

// Transport gives the way to the API of a host of a site, and the token for it. It is for
// hosts that are not on the network, such as simulators.
type Transport func(*model.Site, *model.Host) (way http.RoundTripper, token string)

// Open makes the driver of a host, with what specs say inside its guests if they are entered. It sends no request.
func (a Access) Open(d engine.Desired, h *model.Host) (engine.Driver, error) {
	a.awaits = d.AwaitsSecrets
	var host engine.Driver
	host, err := proxmox.Open(a.Proxmox(d.Site, h))
	switch {
	case err != nil && h.Spec != "" && a.enters():
		host = unopened{err} // the spec may make it a host
	case err != nil:
		return nil, err // a nil *Driver in an interface would not be nil
	case !a.enters():
		return host, nil
	}
	return a.guests().Over(host, d.Site, h), nil
}

// unopened is a host whose API cannot be opened.
type unopened struct{ err error }

func (u unopened) Observe(context.Context, *model.Want) (model.Observed, error) {
	return model.Observed{}, u.err
}

func (u unopened) Apply(context.Context, plan.Step) error { return u.err }

func (unopened) Machine(model.Address, model.Guest, []netip.Addr) guest.Machine { return nil }

// Record observes a host for a file; see [proxmox.Driver.Record].
func (a Access) Record(ctx context.Context, site *model.Site, h *model.Host) (*observation.Host, error) {
	host, err := proxmox.Open(a.Proxmox(site, h))
	if err != nil {
		return nil, err
	}
	return host.Record(ctx)
}

// Kinds are those that a site may declare, and those that follow from what it declares: what a plan
// has steps for.
func (a Access) Kinds() model.Kinds {
	if !a.enters() {
		return Kinds()
	}
	return append(Kinds(), a.guests().Kinds()...)
}

// enters reports whether guests are entered.
func (a Access) enters() bool { return a.Transport == nil || a.Guests.Dial != nil }

// guests returns how guests are entered, with the parent of those in mode pull.
func (a Access) guests() push.Config {
	c := a.Guests
	if a.Parent != nil {
		c.Parent = firstBoots{a.Parent}
	}
	return c
}

// Proxmox is the configuration of the driver for Proxmox VE.
func (a Access) Proxmox(site *model.Site, h *model.Host) proxmox.Config {
	cfg := proxmox.Config{Host: h, Site: site.Name, VMIDs: site.VMIDRanges, Owner: a.Owner, Moved: site.Moved, Files: a.Files, Near: a.Near, Sent: a.Sent}
	cfg.Owner = cmp.Or(cfg.Owner, h.Name)
	secrets := a.secrets(site, cfg.Owner)
	cfg.Keys = ownershipKeys(secrets, site.Name)
	cfg.KeyMissing = a.awaits || secrets.OwnershipKeyMissing(site.Name, cfg.Owner)
	cfg.Believes = a.Observed
	if a.Parent != nil {
		cfg.Parent, cfg.Delivers = firstBoots{a.Parent}, a.guests().Delivers
	}
	if a.Transport != nil {
		cfg.Transport, cfg.Token = a.Transport(site, h)
	}
	return cfg
}

// ownershipKeys gives the keys of an owner. It derives them once: an observation asks several times for each guest.
func ownershipKeys(secrets *model.Secrets, site string) func(owner string) [][]byte {
	var mu sync.Mutex
	known := map[string][][]byte{}
	return func(owner string) [][]byte {
		mu.Lock()
		defer mu.Unlock()
		keys, ok := known[owner]
		if !ok {
			keys = secrets.OwnershipKeys(site, owner)
			known[owner] = keys
		}
		return keys
	}
}

// secrets are those of a site, for its keys of ownership. A host that is simulated in this process starts without
// guests of the site, and ends with it: if no key is known, the simulations of this process share a generated one.
// That does not replace keys that a parent does not know yet.
func (a Access) secrets(site *model.Site, owner string) *model.Secrets {
	own := site.Secrets
	switch {
	case a.Transport == nil, a.Observed, a.awaits, len(own.OwnershipKeys(site.Name, owner)) > 0, own.HasOwnershipKey() && own.Above:
		return own
	}
	return simulated()
}

var simulated = sync.OnceValue(func() *model.Secrets {
	return &model.Secrets{Values: map[string]map[string]string{"auth": {model.OwnershipKey: model.NewOwnershipKey()}}}
})
