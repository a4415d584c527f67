package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/specserve"
)

// follower has what is served, and reads again what changes. It belongs to the goroutine of Run.
type follower struct {
	o Options
	opened

	catalog *specserve.Catalog
	asked   chan struct{} // requests a check now
	history history

	repository *serve.Snapshot // at the commit of catalog; nil: none
	absent     string          // why
	again      time.Time       // when to try once more; zero: not before something changes

	folder   watched
	problems reported
}

// errUnsteady is a folder that changed while it was read.
var errUnsteady = errors.New("the site folder changed while it was read")

// check reads again what changed, and publishes it. At once means not to wait until a change of the
// site folder is complete.
func (f *follower) check(ctx context.Context, atOnce bool) {
	renewed := f.credentials.Check()
	next := f.reload(ctx, atOnce)
	if next != nil {
		f.catalog = next
		f.show(ctx)
		f.o.Log.Info("serving another version", "commit", next.Commit, "nodes", len(next.Names()))
	}
	retry := next == nil && !f.again.IsZero() && time.Now().After(f.again)
	if retry {
		f.show(ctx)
	}
	if renewed || retry || next != nil {
		f.publish()
	}
}

// ask asks for a check. It does not wait: one that is due counts for all who ask until then.
func (f *follower) ask() {
	select {
	case f.asked <- struct{}{}:
	default:
	}
}

// publish makes what is in force what requests see.
func (f *follower) publish() {
	f.opened.publish(specserve.View{Catalog: f.catalog, Repository: f.repository, NoRepository: f.absent})
}

// show sets the repository to the commit of the catalog. If that fails the specs are served nevertheless.
func (f *follower) show(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, loadPatience)
	defer cancel()
	s, err := f.history.at(ctx, f.o.Site.Dir, f.catalog.Commit)
	f.repository, f.absent, f.again = s, "", time.Time{}
	if why, is := errors.AsType[notServedError](err); is {
		f.absent = why.Error()
		f.o.Log.Info("the repository of the site is not served", "reason", f.absent)
		err = nil
	} else if s == nil {
		f.absent = "it cannot be read; the log of the server says why"
		f.again = time.Now().Add(retryAfter)
	}
	if f.problems.News("repository", err) {
		f.o.Log.Error("the repository of the site is served only in part", "error", err)
	}
}

// report logs a problem, once as long as it stays the same.
func (f *follower) report(about string, err error) {
	if f.problems.News(about, err) {
		f.o.Log.Error("a change is not served: the last good version stays in force", "of", about, "error", err)
	}
}

// reload loads the site again if its folder changed; nil if it did not, or is not good.
func (f *follower) reload(ctx context.Context, atOnce bool) *specserve.Catalog {
	state, err := f.state()
	f.report("folder", err)
	if err != nil || bytes.Equal(state, f.folder.served) || !f.folder.changed(state) && !atOnce {
		return nil
	}
	next, found, err := f.load(ctx, state)
	if errors.Is(err, errUnsteady) || ctx.Err() != nil {
		return nil // to be tried again
	}
	f.folder.loaded(state)
	f.report("site", explained(err))
	if err != nil {
		return nil
	}
	for _, x := range found {
		f.o.Log.Warn("finding", "text", x.String())
	}
	return next
}

// state sums up all files that a load reads.
func (f *follower) state() ([]byte, error) {
	return stateOf(f.o.Site.Dir, f.o.Site.Secrets, f.o.Site.Keys.Files())
}

// load loads the site in the folder, which has a state.
func (f *follower) load(ctx context.Context, state []byte) (*specserve.Catalog, diag.List, error) {
	ctx, cancel := context.WithTimeout(ctx, loadPatience)
	defer cancel()
	folder, err := site.Open(ctx, f.o.Site)
	if err != nil {
		return nil, nil, err
	}
	defer folder.Close()
	in := specserve.CatalogInput{Site: folder.Desired.Site, Commit: folder.Desired.Commit, Host: f.o.Host, Policies: folder.Policies()}
	var unknown error // what the nodes need
	if in.Site != nil && in.HasChild() {
		in.Needs, unknown = folder.Needs()
	}
	if again, err := f.state(); err != nil || !bytes.Equal(state, again) {
		return nil, nil, errors.Join(errUnsteady, err)
	}
	if err := folder.Check(); err != nil {
		return nil, folder.Desired.Findings, err
	}
	if unknown != nil {
		return nil, folder.Desired.Findings, unknown
	}
	made, found := specserve.MakeCatalog(in)
	found = slices.Concat(folder.Desired.Findings, found)
	if made == nil {
		return nil, found, folder.CheckFindings(found)
	}
	return made, found, nil
}

// loadPatience is the time limit of a load.
const loadPatience = 2 * time.Minute

// explained adds the first error to an error that counts them, for the log.
func explained(err error) error {
	invalid, ok := errors.AsType[*site.InvalidError](err)
	if !ok {
		return err
	}
	for _, x := range invalid.Found {
		if x.Severity == diag.Error {
			return fmt.Errorf("%w; the first: %s", err, x.String())
		}
	}
	return err
}

// close frees what is open, once the server has ended.
func (f *follower) close() {
	f.history.close()
	f.opened.close()
}
