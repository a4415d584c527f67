package proxmox

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// look is what a pass has read of the host so far; the kinds only read it, side by side,
// but that of guests, which leaves there what it has read of them.
type look struct {
	want   *model.Want
	view   *view.View
	read   map[view.GuestRef]reading
	guests map[int]view.Listed // as the nodes themselves show them

	// whole is all that is on a storage of a node. Several kinds ask for some of it, and
	// the storage is asked once in a pass: PVE closes the connection after each such
	// question. Only storages of view.folders are in it.
	whole map[view.NodeStorage]*listing
}

// listing is an answer that several wait for and the first of them gets.
type listing struct {
	asked atomic.Bool
	there chan struct{} // closed when list and err are
	list  []map[string]json.RawMessage
	err   error
}

func newLook(want *model.Want, v *view.View) *look {
	l := &look{want: want, view: v, read: map[view.GuestRef]reading{}, whole: map[view.NodeStorage]*listing{}}
	for _, at := range v.Folders {
		l.whole[at] = &listing{there: make(chan struct{})}
	}
	return l
}

// content lists the volumes of a kind that are on a storage, as Driver.content does. In
// a folder their names begin with the kind (PVE/Storage/Plugin.pm, parse_volname).
func (l *look) content(ctx context.Context, d *Driver, at view.NodeStorage, kind string) ([]map[string]json.RawMessage, error) {
	whole, ok := l.whole[at]
	if !ok {
		return d.content(ctx, at.Node, at.Storage, kind)
	}
	if whole.asked.CompareAndSwap(false, true) {
		whole.list, whole.err = d.content(ctx, at.Node, at.Storage, "")
		close(whole.there)
	}
	select {
	case <-whole.there:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var out []map[string]json.RawMessage
	for _, e := range whole.list {
		if strings.HasPrefix(api.Text(e["volid"]), at.Storage+":"+kind+"/") {
			out = append(out, e)
		}
	}
	return out, whole.err
}
