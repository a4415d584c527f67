// Package session runs a verb on the site in a folder: it resolves the site, host and manifest of its flags, opens
// the hosts, and runs passes over them with plan, confirmation, progress and report.
package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/site"
)

// Opener opens the site of a verb.
type Opener struct {
	UI        *ui.UI
	Stopping  *ui.Stopping
	Simulated func() (Network, error)            // the network of --sim
	Twins     func(file string) (Network, error) // that of --observed

	opened *Session // the one that was opened last, for documents; nil: none
}

// Session is a site that was opened.
type Session struct {
	*site.Folder
	Flags *Flags
	Net   Network

	opener *Opener
	ui     *ui.UI
	data   string      // the data folder of an agent of this user, "" if it is not known
	guests push.Config // how guests are entered: what is learned of one pass is known in the next
}

// Close closes the folder, and ends simulated guests.
func (s *Session) Close() {
	s.Net.End()
	s.Folder.Close()
}

// Open loads the site of a verb and checks it with its policies. Problems of the site are in its findings; an error
// means that the folder does not exist, or invalid flags.
func (o *Opener) Open(ctx context.Context, f *Flags) (*Session, error) {
	var net Network
	var err error
	switch {
	case f.Sim:
		net, err = o.Simulated()
	case f.Observed != "":
		net, err = o.Twins(f.Observed)
	}
	if err != nil {
		return nil, err
	}
	s, err := o.OpenOn(ctx, f, net)
	if err != nil {
		net.End()
	}
	return s, err
}

// OpenOn is Open for a site whose hosts are on a network. After an error that is still the caller's.
func (o *Opener) OpenOn(ctx context.Context, f *Flags, net Network) (*Session, error) {
	vars, err := f.Variables()
	if err := errors.Join(f.Check(), err); err != nil {
		return nil, err
	}
	data, err := service.LockDir(o.UI.Env)
	if err != nil {
		data = "" // a verb that changes a host says it, since it locks there
	}
	guests := net.Ways(OwnWays(data, o.UI.Env))
	folder, err := site.Open(ctx, site.FolderOptions{
		Kinds: net.Access(guests).Kinds(), Dir: f.Dir, Secrets: f.Secrets, Keys: site.Keys{Env: o.UI.Env}, Vars: vars, Mode: f.Mode,
	})
	if err != nil {
		return nil, err
	}
	o.opened = &Session{Folder: folder, Flags: f, Net: net, opener: o, ui: o.UI, data: data, guests: guests}
	return o.opened, nil
}

// Reach opens the site of a verb that works on a host, and chooses the manifest of -M, nil
// without it, and the host.
func (o *Opener) Reach(ctx context.Context, f *Flags) (*Session, *model.Manifest, *model.Host, error) {
	s, err := o.Open(ctx, f)
	if err != nil {
		return nil, nil, nil, err
	}
	m, h, err := s.Choose()
	if err != nil {
		s.Close()
		return nil, nil, nil, err
	}
	return s, m, h, nil
}

// ReachDeployed is Reach for a verb that needs a manifest to have a host of its own.
func (o *Opener) ReachDeployed(ctx context.Context, f *Flags, verb string) (*Session, *model.Host, error) {
	s, m, h, err := o.Reach(ctx, f)
	if err != nil {
		return nil, nil, err
	}
	if err := site.CheckDeployed(m, verb, h); err != nil {
		s.Close()
		return nil, nil, err
	}
	return s, h, nil
}

// ReachManifest is Reach for a verb about one manifest, which may be a recipe. From here on the document of the verb
// is a report.
func (o *Opener) ReachManifest(ctx context.Context, f *Flags, verb string) (*Session, *model.Manifest, *model.Host, error) {
	o.UI.Document = o.FailedReport(verb)
	if f.Manifest == "" {
		return nil, nil, nil, fmt.Errorf("%s: name a manifest with -M", verb)
	}
	return o.Reach(ctx, f)
}

// ReachNode opens the site of a verb about a node, which no host is needed for.
func (o *Opener) ReachNode(ctx context.Context, f *Flags, name string) (*Session, *model.Node, error) {
	s, err := o.Open(ctx, f)
	if err != nil {
		return nil, nil, err
	}
	n, err := s.node(name)
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return s, n, nil
}

// ReachChild is ReachNode, also for a host that has a parent, which is a node of type pve to its parent.
func (o *Opener) ReachChild(ctx context.Context, f *Flags, name string) (*Session, *model.Node, error) {
	s, err := o.Open(ctx, f)
	if err != nil {
		return nil, nil, err
	}
	if err = s.Check(); err == nil {
		if c := s.Desired.Site.Child(name); c != nil && c.Node == nil {
			return s, &model.Node{Name: name, Type: model.PVEType, At: c.At}, nil
		}
	}
	n, err := s.node(name)
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return s, n, nil
}

func (s *Session) node(name string) (*model.Node, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	m, err := s.Manifest(s.Flags.Manifest)
	if err != nil {
		return nil, err
	}
	return s.Node(name, m)
}

// Choose finds the host of this run and, with -M, the manifest. It refuses a site that must
// not converge.
func (s *Session) Choose() (*model.Manifest, *model.Host, error) {
	if err := s.Check(); err != nil {
		return nil, nil, err
	}
	return s.choice()
}

// choice finds host and manifest of a site that loaded.
func (s *Session) choice() (*model.Manifest, *model.Host, error) {
	m, err := s.Manifest(s.Flags.Manifest)
	if err != nil {
		return nil, nil, err
	}
	h, err := s.Host(s.Flags.Host, m)
	if o := s.Net.Observed; err == nil && o != nil && o.Host != h.Name {
		return nil, nil, fmt.Errorf("%s is an observation of host %s, and the plan is for host %s: name the host with -H, or observe the other one", s.Flags.Observed, o.Host, h.Name)
	}
	return m, h, err
}

// FailedReport is the document of a verb that makes a report, where it ends without one.
func (o *Opener) FailedReport(verb string) func(error) any {
	return func(err error) any {
		commit := ""
		if o.opened != nil {
			commit = o.opened.Desired.Commit
		}
		return engine.Failure(verb, commit, ui.ErrorFindings(err))
	}
}

// Unplanned is the plan document where no plan could be made: empty, with the reasons.
func (o *Opener) Unplanned(host string, found diag.List) *plan.Plan {
	p := &plan.Plan{FormatVersion: plan.FormatVersion, Host: host, ObservedAt: time.Now().UTC().Truncate(time.Second), Findings: found}
	if s := o.opened; s != nil {
		p.Commit = s.Desired.Commit
		if s.Desired.Site != nil {
			p.Site = s.Desired.Site.Name
		}
	}
	return p
}

// dataDir is the data folder of an agent, which has the outputs that it wrote.
type dataDir string

// Output implements engine.Pass.
func (d dataDir) Output(o *model.Output) (text string, known bool) {
	return service.WrittenOutput(string(d), o)
}

// Access says how the hosts of the site are opened, for an owner of guests ("": the host).
func (s *Session) Access(owner string) drivers.Access {
	access := s.Net.Access(s.guests)
	access.Owner, access.Files = owner, s.Files()
	return access
}

// Pass begins a pass of this session; the verb adds what it is about. The parent of simulated nodes
// lasts as long as the session.
//
//nolint:contextcheck,nolintlint // it is meant; the linter looks for this line at its callers
func (s *Session) Pass(h *model.Host, owner string) *engine.Pass {
	p := s.Folder.Pass(h, func(d engine.Desired, h *model.Host) (engine.Driver, error) {
		access := s.Access(owner)
		if err := s.Net.Serve(&access, d, s.Policies()); err != nil {
			return nil, err
		}
		driver, err := access.Open(d, h)
		if s.Net.Observed != nil && err == nil {
			driver = observed{driver, s.Net.Observed}
		}
		if err == nil && s.ui.Verbose {
			driver = logged{driver, h, s.ui.Notef}
		}
		return driver, err
	})
	p.Stop, p.Health.Simulated = s.opener.Stopping.Once, s.Net.Reaches
	if !s.Flags.Sim {
		p.Written = dataDir(s.data)
	}
	if s.Net.Specs != nil {
		p.Health.Reported = s.Net.Specs.Reported
	}
	return p
}
