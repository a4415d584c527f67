package kind

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Observation has what a pass has read of the host so far. The kinds only read it, side by
// side, but that of guests, which adds what it has read of them.
type Observation struct {
	Host    *Host
	Want    *model.Want
	View    *api.View
	Configs map[api.GuestRef]Reading
	known   map[api.GuestRef]*Known // of the guests in Configs that could be read
	Guests  map[int]api.ListedGuest // as the nodes themselves show them

	// volumes are all volumes on a storage of a node. Several kinds ask for some of it, and
	// the storage is asked once in a pass: PVE closes the connection after each such
	// question. Only storages of View.Folders are in it.
	volumes map[api.NodeStorage]*listing
}

// Reading is the result of reading the configuration of one guest.
type Reading struct {
	Config api.GuestConfig
	Err    error
	Known  *Known // nil: nothing is remembered of it
}

// Known is what a Host remembers of a guest from one full observation to the next. It counts as long as PVE answers with
// the same rows, to the byte: they are not decoded again then. Any other answer is decoded. What it has is immutable.
type Known struct {
	sum    [2]uint64 // see api.ConfigText
	config api.GuestConfig
	// Derived is what package inventory concludes from the configuration, the place of the guest and Host.ID, none of which
	// change while the Known counts. It must not depend on anything else, such as the time or the site.
	Derived atomic.Value
}

// listing is an answer that several wait for and the first of them gets.
type listing struct {
	asked atomic.Bool
	there chan struct{} // closed when list and err are
	list  []map[string]json.RawMessage
	err   error
}

// NewObservation is the start of an observation: v is what the cluster lists.
func NewObservation(h *Host, want *model.Want, v *api.View) *Observation {
	obs := &Observation{Host: h, Want: want, View: v, Configs: map[api.GuestRef]Reading{}, known: map[api.GuestRef]*Known{}, volumes: map[api.NodeStorage]*listing{}}
	for _, at := range v.Folders {
		obs.volumes[at] = &listing{there: make(chan struct{})}
	}
	return obs
}

// Wants reports whether the site declares any object of a kind.
func (obs *Observation) Wants(kind string) bool {
	for addr := range obs.Want.State {
		if addr.Kind == kind {
			return true
		}
	}
	return false
}

// Volumes lists the volumes on a storage that have a type of content, as api.ListVolumes does. In
// a folder their names begin with the type (PVE/Storage/Plugin.pm, parse_volname).
func (obs *Observation) Volumes(ctx context.Context, at api.NodeStorage, content string) ([]map[string]json.RawMessage, error) {
	all, ok := obs.volumes[at]
	if !ok {
		return obs.Host.API.ListVolumes(ctx, at, content)
	}
	if all.asked.CompareAndSwap(false, true) {
		all.list, all.err = obs.Host.API.ListVolumes(ctx, at, "")
		close(all.there)
	}
	select {
	case <-all.there:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var out []map[string]json.RawMessage
	for _, e := range all.list {
		if strings.HasPrefix(api.Text(e["volid"]), at.Storage+":"+content+"/") {
			out = append(out, e)
		}
	}
	return out, all.err
}

// ReadConfigs reads guests side by side into Configs. One that cannot be read has its error
// there; only a refused login ends it all.
func (obs *Observation) ReadConfigs(ctx context.Context, guests []api.ListedGuest) error {
	answers := make([]Reading, len(guests))
	g, gctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(obs.Host.Width, len(guests)) { // a goroutine for each guest would spend more time on growing its stack than on its answer
		g.Go(func() error {
			var text api.ConfigText
			for i := int(next.Add(1)) - 1; i < len(guests); i = int(next.Add(1)) - 1 {
				answers[i] = obs.readConfig(gctx, &text, guests[i].Ref())
				if err := answers[i].Err; api.ClassOf(err) == api.NoLogin {
					return err
				}
				if gctx.Err() != nil {
					return gctx.Err()
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, guest := range guests {
		obs.Configs[guest.Ref()] = answers[i]
		if k := answers[i].Known; k != nil {
			obs.known[guest.Ref()] = k
		}
	}
	return nil
}

// readConfig reads one guest. text is used for nothing else meanwhile.
func (obs *Observation) readConfig(ctx context.Context, text *api.ConfigText, at api.GuestRef) Reading {
	if err := text.Read(ctx, obs.Host.API, at); err != nil {
		return Reading{Err: err}
	}
	sum := text.Sum()
	if before := obs.Host.remembered(at); before != nil && before.sum == sum {
		return Reading{Config: before.config, Known: before}
	}
	cfg, err := text.Config()
	if err != nil {
		return Reading{Err: err}
	}
	r := Reading{Config: cfg}
	if text.Distinct(cfg) { // else the order of the rows may count
		r.Known = &Known{sum: sum, config: cfg}
	}
	return r
}

// Remember keeps what was read for the next observation, in place of what was kept before.
func (obs *Observation) Remember() {
	known := obs.known // what is kept must not have the rest of the observation with it
	obs.Host.known.Store(&known)
}
