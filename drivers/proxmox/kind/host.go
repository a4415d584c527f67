package kind

import (
	"context"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/images"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Host is a host or cluster as the kinds use it. Safe for concurrent use. Between two calls it keeps connections, and what
// saves work if the next answers are the same; see Known.
type Host struct {
	API   *api.Client
	Model *model.Host
	ID    owner.Identity    // who we are, in ownership tags
	VMIDs []model.VMIDRange // that the site may use; none: it names none
	Width int               // how many requests of one sort are sent side by side
	Files fs.FS             // the site's files, for images that are uploaded; may be nil
	Near  *images.Near      // what downloads that do not run on the host come from; nil: the network alone

	Parent   Parent                     // of nodes in mode pull; nil without a server
	Delivers func(context.Context) bool // whether containers can learn it; nil: they do not

	Copies  turns[int]    // of container templates, by VMID: PVE locks one as long as it is copied (PVE/API2/LXC.pm, clone_vm), and refuses another copy meanwhile
	Fetches turns[string] // of images to nodes, by node and volume

	known atomic.Pointer[map[api.GuestRef]*Known] // of the last full observation; nil before the first
}

// remembered is what is known of a guest since the last full observation; nil if nothing is.
func (h *Host) remembered(at api.GuestRef) *Known {
	if all := h.known.Load(); all != nil {
		return (*all)[at]
	}
	return nil
}

// Parent serves nodes in mode pull their specs. Its methods may be called from any goroutine.
type Parent interface {
	// FirstBoot is the user-data of a node that is about to be created, with a token of its own, and with the
	// site's user_data. Its error has no secret.
	FirstBoot(node, spec, userData string) (string, error)
	// HasReported reports whether the node has reported since then.
	HasReported(node string) bool
}

// turns lets one at a time work on a thing.
type turns[K comparable] struct {
	mu sync.Mutex
	of map[K]chan struct{} // full while one works
}

// Take waits for the turn, which ends by the function that it returns. The error is that
// of the context, with what was waited for.
func (t *turns[K]) Take(ctx context.Context, thing K, what string) (done func(), err error) {
	t.mu.Lock()
	if t.of == nil {
		t.of = map[K]chan struct{}{}
	}
	turn := t.of[thing]
	if turn == nil {
		turn = make(chan struct{}, 1)
		t.of[thing] = turn
	}
	t.mu.Unlock()
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
	}
}
