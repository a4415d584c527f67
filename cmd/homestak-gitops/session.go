package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/hcl"
)

// secretsName is the file of secrets in a site folder. Git must not track it.
const secretsName = "secrets.yaml"

// session is a verb at work on a site: the folder as it lies there, loaded once.
type session struct {
	app     *app
	flags   *siteFlags
	root    *os.Root // of the site; files outside of it are never read
	reader  reader
	reading reading
	desired engine.Desired
	sims    map[string]*pvesim.Host // with --sim: the simulator of each host, made when it is reached
}

// open loads the site of a verb and holds it against its policies. What is wrong with
// the site is in its findings; an error means that there is no such folder, or flags
// that make no sense.
func (a *app) open(ctx context.Context, f *siteFlags) (*session, error) {
	vars, err := f.variables()
	if err := errors.Join(f.check(), err); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return nil, fmt.Errorf("open site folder: %w\nname the folder of a site with --site, or begin one: homestak-gitops init", err)
	}
	s := &session{app: a, flags: f, root: root, sims: map[string]*pvesim.Host{}}
	var found diag.List
	var commit model.Commit
	tree, err := source.Open(f.dir)
	if err == nil {
		commit, err = tree.Commit()
	}
	if err != nil {
		found = append(found, diag.Warnf(diag.Range{}, "the commit of the site is not known", "%v", err))
	}
	secrets, l := s.secrets(tree)
	found = append(found, l...)
	s.reading = reading{Commit: commit, Secrets: secrets, Vars: vars, Mode: f.mode, Found: found}
	s.desired = s.reader.read(ctx, root.FS(), s.reading)
	s.reader.files = hcl.Loader{} // nothing is loaded twice, and what it keeps is as large as the site
	return s, nil
}

// close frees the folder.
func (s *session) close() { _ = s.root.Close() }

// secrets reads the values of secrets: those of --secrets, else of secrets.yaml in
// the site, if git does not track it. None at all is fine: then names are known to
// nobody, and every one is taken to exist. A tracked secrets.yaml is an error also
// where it is not read.
func (s *session) secrets(tree *source.Worktree) (*model.Secrets, diag.List) {
	at := diag.Range{File: secretsName, Start: diag.Pos{Line: 1, Column: 1}, End: diag.Pos{Line: 1, Column: 1}}
	tracked, unknown := false, errors.New("the git checkout around the site cannot be read")
	if tree != nil {
		tracked, unknown = tree.Tracks(secretsName)
	}
	var found diag.List
	if tracked {
		found = diag.List{diag.Errorf(at, secretsName+" is tracked by git",
			"Everyone who can read the repository, now or later, has these secrets.\n"+
				"Take it out:   git rm --cached %[1]s && echo %[1]s >> .gitignore && git commit\n"+
				"Then change every secret in it: the old values stay in the history.", secretsName)}
	}
	if name := s.flags.secrets; name != "" {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, append(found, diag.Errorf(diag.Range{}, "secrets cannot be read", "%v", err))
		}
		info, err := os.Stat(name)
		secrets, l := parseSecrets(name, data, info, err)
		return secrets, append(found, l...)
	}
	data, err := s.root.ReadFile(secretsName)
	switch {
	case errors.Is(err, fs.ErrNotExist), tracked:
		return nil, found
	case err != nil:
		return nil, diag.List{diag.Errorf(at, "secrets cannot be read", "%v. A file elsewhere can be named with --secrets.", err)}
	case unknown != nil:
		return nil, diag.List{diag.Errorf(at, "whether git tracks "+secretsName+" is not known",
			"%v. Mend the checkout, or name a file of secrets outside of it with --secrets.", unknown)}
	}
	info, err := s.root.Stat(secretsName)
	return parseSecrets(secretsName, data, info, err)
}

func parseSecrets(name string, data []byte, info fs.FileInfo, err error) (*model.Secrets, diag.List) {
	secrets, found := hcl.ParseSecrets(name, data)
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		found = append(found, diag.Warnf(diag.Range{}, name+" can be read by others on this machine", "chmod 600 %s", name))
	}
	return secrets, found
}

// withMode gives the site with the execution mode of one run: that of every node
// directly on a host, but for pve nodes, which are always pushed at birth. What is
// below a node keeps the mode of the files.
func withMode(site *model.Site, mode string) *model.Site {
	if site == nil || mode == "" {
		return site
	}
	c := *site
	c.Manifests = maps.Clone(site.Manifests)
	for name, m := range c.Manifests {
		mm := *m
		mm.Nodes = slices.Clone(m.Nodes)
		for i, n := range mm.Nodes {
			nn := *n
			nn.Manifest = &mm
			if n.Root() && n.Type != "pve" {
				nn.Mode = mode
			}
			mm.Nodes[i] = &nn
		}
		c.Manifests[name] = &mm
	}
	return &c
}

// choose finds the host of this run and, with -M, the manifest. A site that must not
// converge is refused here.
func (s *session) choose() (*model.Manifest, *model.Host, error) {
	if err := s.sound(s.desired.Findings); err != nil {
		return nil, nil, err
	}
	return s.choice()
}

// loaded refuses a site that did not load. That policies deny it does not matter here.
func (s *session) loaded() error {
	return s.sound(slices.DeleteFunc(slices.Clone(s.desired.Findings), func(f diag.Finding) bool { return f.Source == diag.FromPolicy }))
}

// sound refuses a site of which this was found.
func (s *session) sound(l diag.List) error {
	if l.HasErrors() || s.desired.Site == nil {
		return &invalidSiteError{s.flags.siteName(), l}
	}
	return nil
}

// choice finds host and manifest of a site that loaded.
func (s *session) choice() (*model.Manifest, *model.Host, error) {
	m, err := s.manifest()
	if err != nil {
		return nil, nil, err
	}
	h, err := s.host(m)
	return m, h, err
}

// commit is that of the site, for documents; "" as long as no site is open.
func (s *session) commit() string {
	if s == nil {
		return ""
	}
	return s.desired.Commit
}

// manifest gives the manifest of -M, nil without the flag.
func (s *session) manifest() (*model.Manifest, error) {
	name, site := s.flags.manifest, s.desired.Site
	if name == "" {
		return nil, nil //nolint:nilnil // no flag, no manifest, and nothing wrong
	}
	m := site.Manifests[name]
	if m == nil {
		return nil, fmt.Errorf("unknown manifest %q\n%s", name, diag.DidYouMean(name, slices.Collect(maps.Keys(site.Manifests))))
	}
	return m, nil
}

// host chooses the host of this run: that of --host, else the manifest's, else the
// only one.
func (s *session) host(m *model.Manifest) (*model.Host, error) {
	site, name := s.desired.Site, s.flags.host
	known := slices.Sorted(maps.Keys(site.Hosts))
	switch {
	case name != "":
		if site.Hosts[name] == nil {
			return nil, fmt.Errorf("unknown host %q\n%s", name, diag.DidYouMean(name, known))
		}
		if m != nil && m.Host != "" && m.Host != name {
			return nil, fmt.Errorf("manifest %s is deployed on host %s, not on %s", m.Name, m.Host, name)
		}
	case m != nil && m.Host != "":
		name = m.Host
	case len(known) == 1:
		name = known[0]
	case len(known) == 0:
		return nil, errors.New("the site has no host\ndeclare one: host \"NAME\" { api = \"https://…:8006\" }")
	default:
		return nil, fmt.Errorf("which host? the site has several\nchoose one with --host: %s", strings.Join(known, ", "))
	}
	return site.Hosts[name], nil
}

// deployed refuses a recipe, and says how it would be deployed.
func deployed(m *model.Manifest, verb string, h *model.Host) error {
	if m == nil || m.Host != "" {
		return nil
	}
	at := ""
	if !m.At.IsZero() {
		at = " (" + m.At.String() + ")"
	}
	return fmt.Errorf(`manifest %[1]s is a recipe%[2]s: it has no host, so there is nothing to %[3]s
deploy it by these two lines:
  manifest %[1]q {
    host = host.%[4]s
or run it once: homestak-gitops test -M %[1]s --host %[4]s`, m.Name, at, verb, h.Name)
}

// pass begins a pass of this session; the verb adds what it is about.
func (s *session) pass(h *model.Host, owner string) *engine.Pass {
	p := &engine.Pass{
		Host: h.Name, Commit: &s.reading.Commit,
		Load: func(context.Context) engine.Desired { return s.desired },
		Open: func(h *model.Host) (engine.Driver, error) {
			return drivers(func(_ engine.Desired, h *model.Host) (engine.Driver, error) { return s.drive(h, owner) }).Open(s.desired, h)
		},
		Stop: s.app.stopping.once,
	}
	if s.flags.sim {
		p.Health.Simulated = simulatedGuests(s.sims)
	}
	return p
}

// drive opens the way to a host, or to the simulator that stands for it.
func (s *session) drive(h *model.Host, owner string) (engine.Driver, error) {
	cfg := proxmox.Config{Host: h, Site: s.desired.Site.Name, Owner: owner, Files: s.root.FS()}
	if s.flags.sim {
		sim := s.sims[h.Name]
		if sim == nil {
			sim = pvesim.New(simOf(s.desired.Site, h))
			s.sims[h.Name] = sim
		}
		cfg.Transport, cfg.Token = sim, sim.Token()
	}
	d, err := proxmox.Open(cfg)
	if err != nil {
		return nil, err // a nil *Driver in an interface would not be nil
	}
	if s.app.ui.verbose {
		return loggingDriver{d, s.app.ui, h}, nil
	}
	return d, nil
}

// loggingDriver is a driver that reports what it observes, for -v.
type loggingDriver struct {
	engine.Driver
	ui   *ui
	host *model.Host
}

// Observe reports how long it took, and what was seen.
func (d loggingDriver) Observe(ctx context.Context, w *model.Want) (model.Observed, error) {
	d.ui.notef("looking at host %s (%s)", d.host.Name, d.host.API)
	began := time.Now()
	have, err := d.Driver.Observe(ctx, w)
	d.ui.notef("looked at host %s in %s: %d ours, %d unmanaged, %d unknown",
		d.host.Name, time.Since(began).Round(time.Millisecond), len(have.State), len(have.Unmanaged), len(have.Unknown))
	return have, err
}

// siteName is the folder of the site as the user knows it.
func (f *siteFlags) siteName() string {
	if abs, err := filepath.Abs(f.dir); err == nil && f.dir == "." {
		return abs
	}
	return f.dir
}
