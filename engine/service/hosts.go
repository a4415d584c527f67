package service

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"reflect"
	"runtime/debug"
	"slices"
	"sync/atomic"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/view"
)

// hosts loads the sites of commits and opens their hosts. It belongs to the agent's
// goroutine, which calls load and open; only facts and tree have other readers, and
// synchronise by themselves.
type hosts struct {
	commits site.Commits
	make    open // by Options.Open
	log     *slog.Logger
	facts   *control.Facts

	tree   liveFiles
	opened *opened // nil: no host yet
	alone  bool    // the process is that of this agent alone, and GOGC is not set
}

// loadGarbage is the garbage, as a percentage of what is in use, at which it is collected while a commit is loaded. A load leaves
// much garbage, and the site stays for days between what was not collected: the less there is, the fewer pages the site keeps
// in use. A commit that was loaded before costs nothing.
const loadGarbage = 30

// open opens a host of a site; see engine.Pass.
type open = func(d engine.Desired, h *model.Host) (engine.Driver, error)

// opened is the driver of a host, and for whom it was made.
type opened struct {
	host   *model.Host
	site   string
	keys   map[string]string // of ownership
	awaits bool              // whether there are any
	moved  map[model.Address]model.Address
	ranges []model.VMIDRange
	driver engine.Driver
}

// load loads the site of a commit; see agent.Options.
func (s *hosts) load(ctx context.Context, c model.Commit) engine.Desired {
	if s.alone {
		defer debug.SetGCPercent(debug.SetGCPercent(loadGarbage))
	}
	d := s.commits.Load(ctx, c)
	s.facts.Site(d)
	return d
}

// open opens a host. The driver is the same one as long as nothing changes that it depends
// on, so that connections are kept from pass to pass.
func (s *hosts) open(d engine.Desired, h *model.Host) (engine.Driver, error) {
	tree, err := s.commits.Files(d.Commit)
	if err != nil {
		return nil, fmt.Errorf("read the files of commit %s: %w", view.Short(d.Commit), err)
	}
	s.tree.set(tree, d.Commit)
	keys := d.Site.Secrets.OwnershipSecrets()
	if o := s.opened; o != nil && o.site == d.Site.Name && sameHost(o.host, h) && maps.Equal(o.keys, keys) && o.awaits == d.AwaitsSecrets &&
		maps.Equal(o.moved, d.Site.Moved) && slices.Equal(o.ranges, d.Site.VMIDRanges) {
		return o.driver, nil
	}
	driver, err := s.make(d, h)
	if err != nil {
		return nil, err
	}
	if s.opened != nil {
		s.log.Info("reconnecting to the host: its block, its token, the ownership key, moved blocks or VMID ranges changed", "host", h.Name)
		if r, ok := s.opened.driver.(engine.Releaser); ok {
			r.Release() // no pass does it any more, and checks connect between passes
		}
	}
	s.opened = &opened{h, d.Site.Name, keys, d.AwaitsSecrets, d.Site.Moved, d.Site.VMIDRanges, driver}
	return driver, nil
}

// sameHost compares what a driver is made of: all but where it is declared.
func sameHost(a, b *model.Host) bool {
	if a == b {
		return true
	}
	x, y := *a, *b
	x.At, x.Ranges, y.At, y.Ranges = diag.Range{}, nil, diag.Range{}, nil
	return reflect.DeepEqual(x, y)
}

// liveFiles is the tree of the commit that is converged to: a driver outlives commits.
// Steps read it from other goroutines while the agent's sets it.
type liveFiles struct{ at atomic.Pointer[liveTree] }

// liveTree is the tree of a commit.
type liveTree struct {
	fs.FS
	commit string
}

func (l *liveFiles) set(tree fs.FS, commit string) { l.at.Store(&liveTree{tree, commit}) }

// Commit is the commit of that tree; "" before the first.
func (l *liveFiles) Commit() string {
	if tree := l.at.Load(); tree != nil {
		return tree.commit
	}
	return ""
}

// Open opens a file of that tree.
func (l *liveFiles) Open(name string) (fs.File, error) {
	tree := l.at.Load()
	if tree == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return tree.Open(name)
}
