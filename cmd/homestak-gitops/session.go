package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/drivers/config"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/view"
)

// session is a verb at work on the site in a folder.
type session struct {
	*site.Folder
	app   *app
	flags *siteFlags
	net   network
	// guests is how guests are entered: what is learned of one pass is known in the next.
	guests config.Config
}

// Close closes the folder, and ends simulated guests.
func (s *session) Close() {
	s.net.end()
	s.Folder.Close()
}

// open loads the site of a verb and checks it with its policies. What is wrong with the
// site is in its findings; an error means that there is no such folder, or flags that make
// no sense.
func (a *app) open(ctx context.Context, f *siteFlags) (*session, error) {
	var net network
	if f.sim {
		var err error
		if net, err = simulatedNetwork(); err != nil {
			return nil, err
		}
	}
	return a.openOn(ctx, f, net)
}

// openOn is open for a site whose hosts are on a network.
func (a *app) openOn(ctx context.Context, f *siteFlags, net network) (*session, error) {
	vars, err := f.variables()
	if err := errors.Join(f.check(), err); err != nil {
		return nil, err
	}
	guests := net.guests(guestsOf(a.env))
	folder, err := site.Open(ctx, site.FolderOptions{Kinds: net.kinds(guests), Dir: f.dir, Secrets: f.secrets, Keys: site.Keys{Env: a.env}, Vars: vars, Mode: f.mode})
	if err != nil {
		return nil, err
	}
	s := &session{Folder: folder, app: a, flags: f, net: net, guests: guests}
	a.opened = s
	return s, nil
}

// reach opens the site of a verb that works on a host, and chooses the manifest of -M, nil
// without it, and the host.
func (a *app) reach(ctx context.Context, f *siteFlags) (*session, *model.Manifest, *model.Host, error) {
	s, err := a.open(ctx, f)
	if err != nil {
		return nil, nil, nil, err
	}
	m, h, err := s.choose()
	if err != nil {
		s.Close()
		return nil, nil, nil, err
	}
	return s, m, h, nil
}

// reachDeployed is reach for a verb that needs a manifest to have a host of its own.
func (a *app) reachDeployed(ctx context.Context, f *siteFlags, verb string) (*session, *model.Host, error) {
	s, m, h, err := a.reach(ctx, f)
	if err != nil {
		return nil, nil, err
	}
	if err := site.CheckDeployed(m, verb, h); err != nil {
		s.Close()
		return nil, nil, err
	}
	return s, h, nil
}

// reachManifest is reach for a verb about one manifest, which may be a recipe.
func (a *app) reachManifest(ctx context.Context, f *siteFlags, verb string) (*session, *model.Manifest, *model.Host, error) {
	a.documentFailure(verb)
	if f.manifest == "" {
		return nil, nil, nil, fmt.Errorf("%s what? name a manifest with -M", verb)
	}
	return a.reach(ctx, f)
}

// documentFailure makes a failed report the document of --json where a verb makes none.
func (a *app) documentFailure(verb string) {
	a.ui.document = func(err error) any { return engine.Failure(verb, a.opened.commit(), exit.Findings(err)) }
}

// choose finds the host of this run and, with -M, the manifest. It refuses a site that must
// not converge.
func (s *session) choose() (*model.Manifest, *model.Host, error) {
	if err := s.Check(); err != nil {
		return nil, nil, err
	}
	return s.choice()
}

// choice finds host and manifest of a site that loaded.
func (s *session) choice() (*model.Manifest, *model.Host, error) {
	m, err := s.Manifest(s.flags.manifest)
	if err != nil {
		return nil, nil, err
	}
	h, err := s.Host(s.flags.host, m)
	return m, h, err
}

// commit is that of the site, for documents; "" as long as no site is open.
func (s *session) commit() string {
	if s == nil {
		return ""
	}
	return s.Desired.Commit
}

// access says how the hosts of the site are opened, for an owner of guests ("": the host).
func (s *session) access(owner string) drivers.Access {
	return drivers.Access{Owner: owner, Files: s.Files(), Transport: s.net.transport, Guests: s.guests}
}

// guestsOf says how guests are entered by who runs a verb.
func guestsOf(env func(string) string) config.Config {
	keys := &config.KnownHosts{}
	if dir, err := service.LockDir(env); err == nil {
		keys.Path = filepath.Join(dir, knownHosts)
	}
	return config.Config{HostKeys: keys}.WithKeysOf(env)
}

// knownHosts is the file of the data folder with the host keys of guests.
const knownHosts = "known_hosts"

// pass begins a pass of this session; the verb adds what it is about. The parent of simulated nodes
// lasts as long as the session.
//
//nolint:contextcheck,nolintlint // it is meant; the linter looks for this line at its callers
func (s *session) pass(h *model.Host, owner string) *engine.Pass {
	p := s.Pass(h, func(d engine.Desired, h *model.Host) (engine.Driver, error) {
		access := s.access(owner)
		if err := s.net.serve(&access, d, s.Policies()); err != nil {
			return nil, err
		}
		driver, err := access.Open(d, h)
		if err == nil && s.app.ui.verbose {
			driver = view.Logged(driver, h, s.app.ui.notef)
		}
		return driver, err
	})
	p.Stop, p.Health.Simulated = s.app.stopping.once, s.net.reaches
	if s.net.parent != nil {
		p.Health.Reported = s.net.parent.reported
	}
	return p
}

// lock takes the write lock of a host for a verb; see service.Verb. The lock is kept and
// waited for in the context of the process.
//
//nolint:contextcheck,nolintlint // it is meant; the linter looks for this line at its callers
func (a *app) lock(h *model.Host, verb string) (release func(), err error) {
	ctx, cancel := a.stopping.soon(a.stopping.ctx)
	unlock, err := a.verb(verb).Lock(ctx, h)
	if err != nil {
		cancel()
		return nil, err
	}
	return func() { unlock(); cancel() }, nil
}

func (a *app) verb(name string) service.Verb {
	return service.Verb{Name: name, Env: a.env, Note: a.ui.notef}
}
