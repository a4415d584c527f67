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
	obs := &Observation{Host: h, Want: want, View: v, Configs: map[api.GuestRef]Reading{}, volumes: map[api.NodeStorage]*listing{}}
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
		return api.ListVolumes(ctx, obs.Host.API, at, content)
	}
	if all.asked.CompareAndSwap(false, true) {
		all.list, all.err = api.ListVolumes(ctx, obs.Host.API, at, "")
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
			for i := int(next.Add(1)) - 1; i < len(guests); i = int(next.Add(1)) - 1 {
				cfg, err := api.ReadConfig(gctx, obs.Host.API, guests[i].Ref())
				answers[i] = Reading{cfg, err}
				if api.ClassOf(err) == api.NoLogin {
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
	}
	return nil
}
