// Package proxmox drives Proxmox VE: it observes a host, verifies which of its objects are managed,
// and carries out the steps of a plan.
//
// Read kinds.go first, the table of contents. Then read package kind (what a kind is), package
// owner (how ownership is verified), and the package of any kind. The guests are in the packages
// guest (what they are), inventory and provision; resolve.go completes declared ones. Package api makes PVE's answers
// reliable: typed errors, no repeated writes, waiting for tasks.
//
// Where the code relies on a quirk of PVE, it names the file of PVE's source.
package proxmox

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"slices"
	"sort"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/inventory"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	engineguest "github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/images"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Config says which host to drive, and as whom.
type Config struct {
	Host        *model.Host
	Site        string            // name of the site, in ownership tags
	Owner       string            // the owner in ownership tags: the host's name, for its agent and for the command line
	VMIDs       []model.VMIDRange // that the site may use
	Token       string            // user@realm!name=secret; Host.APIToken if empty
	Transport   http.RoundTripper // nil: TLS to Host.API; a simulator in process otherwise
	Files       fs.FS             // the site's files, for images that are uploaded; may be nil
	Near        *images.Near      // what downloads that do not run on the host come from; nil: the network alone
	Concurrency int               // requests in flight at once, to all nodes together; api.DefaultConcurrency if 0
	Parent      kind.Parent       // serves nodes in mode pull their specs; nil: no server

	// Delivers reports whether containers in mode pull get their parent from outside. Nil: they do not.
	Delivers func(context.Context) bool

	// Keys are the keys that prove the guests of an owner, the current one first, at most two; none: the site has no key.
	// See [model.Secrets.OwnershipKeys]. Nil: there are none.
	Keys func(owner string) [][]byte
	// Moved are former addresses of guests; see owner.Identity.
	Moved map[model.Address]model.Address
	// KeyMissing: the site has a key, and its value is not known here.
	KeyMissing bool
	// Believes takes a signed ownership tag for valid if no key is known here. The driver must not change anything then.
	Believes bool

	Sent func(method string, status int) // called after each request; see api.Config
}

// Driver drives one host or cluster. Safe for concurrent use; see kind.Host for what it keeps
// between two calls.
type Driver struct {
	host *kind.Host
}

// Open makes a driver. It sends no request; its errors are those of the configuration.
func Open(cfg Config) (*Driver, error) {
	c, err := api.Open(api.Config{Host: cfg.Host, Token: cfg.Token, Transport: cfg.Transport, Concurrency: cfg.Concurrency, Sent: cfg.Sent})
	if err != nil {
		return nil, err
	}
	id := owner.Identity{Site: cfg.Site, Owner: cfg.Owner, Host: cfg.Host.Name, Keys: cfg.Keys, KeyMissing: cfg.KeyMissing, Believes: cfg.Believes, Moved: cfg.Moved}
	return &Driver{&kind.Host{API: c, Model: cfg.Host, ID: id, VMIDs: cfg.VMIDs, Width: c.Width, Files: cfg.Files, Near: cfg.Near, Parent: cfg.Parent, Delivers: cfg.Delivers}}, nil
}

// Client is the client of the host's API, for packages that only read.
func (d *Driver) Client() *api.Client { return d.host.API }

// Observe reads the state of the host. An error means that nothing could be observed; parts of the
// host that could not be seen are in Observed.Unknown.
func (d *Driver) Observe(ctx context.Context, want *model.Want) (model.Observed, error) {
	all := model.Observed{At: time.Now().UTC(), State: model.State{}, Taken: map[int]string{}}
	if len(want.Changed) > 0 {
		some, enough, err := inventory.Changed(ctx, d.host, want)
		if err != nil {
			return all, fmt.Errorf("observing guests of host %s at %s: %w", d.host.Model.Name, d.host.Model.API, err)
		}
		if enough {
			some.At, some.ReadEdits = all.At, d.readEdits(some.State)
			return some, nil
		}
	}
	v, err := d.host.API.ReadView(ctx, d.host.Model)
	if err != nil {
		return all, fmt.Errorf("observing host %s at %s: %w", d.host.Model.Name, d.host.Model.API, err)
	}
	all.Unknown = v.Unknown
	kinds := table()
	parts := make([]model.Observed, len(kinds))
	g, gctx := errgroup.WithContext(ctx)
	obs := kind.NewObservation(d.host, want, v)
	for i, k := range kinds {
		g.Go(func() error {
			var err error
			parts[i], err = k.Observe(gctx, obs)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return all, fmt.Errorf("observing host %s: %w", d.host.Model.Name, err)
	}
	obs.Remember()
	all = model.Together(slices.Insert(parts, 0, all)...)
	aged, err := inventory.Backups(ctx, obs, all.State)
	if err != nil {
		return all, fmt.Errorf("observing host %s: %w", d.host.Model.Name, err)
	}
	all = model.Together(all, aged)
	all.Places = inventory.Places(obs, all.State)
	problems, err := inventory.Preflight(ctx, kindsByName(), obs, all)
	if err != nil {
		return all, fmt.Errorf("observing host %s: %w", d.host.Model.Name, err)
	}
	all.Unknown = problems.Unknown(all.Unknown)
	all.Preflight = slices.Concat(all.Preflight, problems.Found, parentless(ctx, d.host, want))
	sort.Slice(all.Unmanaged, func(i, j int) bool { return all.Unmanaged[i].VMID < all.Unmanaged[j].VMID })
	all.ReadEdits = d.readEdits(all.State)
	return all, nil
}

// readEdits is model.Observed.ReadEdits for guests that were observed.
func (d *Driver) readEdits(guests model.State) func(context.Context, []model.Address) map[model.Address][]model.Edit {
	return func(ctx context.Context, of []model.Address) map[model.Address][]model.Edit {
		return inventory.Edits(ctx, d.host, guests, of)
	}
}

// Apply carries out one step and returns when it is done on the host. After an error a part of it
// may be done; the next observation shows which.
func (d *Driver) Apply(ctx context.Context, s plan.Step) error {
	if k := kindsByName()[s.Address.Kind]; k != nil {
		return k.Apply(ctx, d.host, s)
	}
	return fmt.Errorf("no driver for %s", s.Address)
}

// IsDenied reports whether the host refused the login, or the token lacks a privilege.
func IsDenied(err error) bool { return api.IsDenied(err) }

// Machine is the way into the guest of an address, see openGuest. It sends no request. near are
// gateways that the files name.
func (d *Driver) Machine(addr model.Address, at model.Guest, near []netip.Addr) engineguest.Machine {
	return openGuest(d.host, addr, api.GuestRef{Node: at.Node, VMID: at.VMID, LXC: addr.Kind == "ct"}, near)
}
