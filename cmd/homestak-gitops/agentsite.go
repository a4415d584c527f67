package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/view"
)

// agentSite reads the sites of commits and opens the ways to their hosts. All of it
// belongs to the agent's goroutine, which calls load and open; only facts and files
// have other readers, and keep themselves.
type agentSite struct {
	files    func(commit string) (fs.FS, error)
	notes    func(commit string) diag.List
	identity string
	secrets  string // file, "" for none
	log      *slog.Logger
	facts    *control.Facts

	noted  string    // the commit whose notes were taken last, and
	note   diag.List // what they are
	reader reader
	tree   liveFiles
	way    *way
	sims   map[string]*pvesim.Host // nil: hosts are real
}

// way is the way to a host, and for whom it was made.
type way struct {
	host   *model.Host
	site   string
	driver *proxmox.Driver
}

// load reads the site of a commit; see agent.Options. The secrets are read each
// time: where they changed, the loader takes the site for another one.
func (s *agentSite) load(ctx context.Context, c model.Commit) engine.Desired {
	d := s.read(ctx, c)
	s.facts.Site(d)
	return d
}

func (s *agentSite) read(ctx context.Context, c model.Commit) engine.Desired {
	tree, err := s.files(c.ID)
	if errors.Is(err, fs.ErrNotExist) {
		text := strings.TrimSuffix(err.Error(), ": "+fs.ErrNotExist.Error())
		err = fmt.Errorf("%s\nwhere the site is in the repository says path in agent.hcl, or --path", text)
	}
	if err != nil {
		return engine.Desired{Commit: c.ID, Findings: diag.List{plain(err)}}
	}
	if s.noted != c.ID {
		s.noted, s.note = c.ID, s.notes(c.ID)
	}
	found := slices.Clone(s.note)
	if _, err := fs.Stat(tree, secretsName); err == nil {
		at := diag.Range{File: secretsName, Start: diag.Pos{Line: 1, Column: 1}, End: diag.Pos{Line: 1, Column: 1}}
		found = append(found, trackedSecrets(at))
	}
	secrets, l := s.readSecrets()
	return s.reader.read(ctx, tree, reading{Commit: c, Tree: c.ID, Secrets: secrets, Unattended: true, Found: append(found, l...)})
}

// trackedSecrets is the finding about secrets in the repository.
func trackedSecrets(at diag.Range) diag.Finding {
	return diag.Errorf(at, secretsName+" is tracked by git",
		"Everyone who can read the repository, now or later, has these secrets.\n"+
			"Take it out:   git rm --cached %[1]s && echo %[1]s >> .gitignore && git commit\n"+
			"Then change every secret in it: the old values stay in the history.", secretsName)
}

// readSecrets reads the file of secrets as it is now.
func (s *agentSite) readSecrets() (*model.Secrets, diag.List) {
	if s.secrets == "" {
		return nil, nil
	}
	data, err := os.ReadFile(s.secrets)
	if err != nil {
		return nil, diag.List{diag.Errorf(diag.Range{}, "secrets cannot be read", "%v. The file is named by secrets_file in agent.hcl, or by --secrets.", err)}
	}
	info, err := os.Stat(s.secrets)
	return parseSecrets(s.secrets, data, info, err)
}

// open gives the way to a host. It is the same one as long as nothing changes that it
// depends on, so that connections stay alive from pass to pass.
func (s *agentSite) open(d engine.Desired, h *model.Host) (engine.Driver, error) {
	tree, err := s.files(d.Commit)
	if err != nil {
		return nil, fmt.Errorf("read the files of commit %s: %w", view.Short(d.Commit), err)
	}
	s.tree.set(tree)
	if w := s.way; w != nil && w.site == d.Site.Name && sameHost(w.host, h) {
		return w.driver, nil
	}
	cfg := proxmox.Config{Host: h, Site: d.Site.Name, Owner: h.Name, Files: &s.tree}
	if s.sims != nil {
		sim := s.sims[h.Name]
		if sim == nil {
			sim = pvesim.New(simOf(d.Site, h))
			s.sims[h.Name] = sim
		}
		cfg.Transport, cfg.Token = sim, sim.Token()
	}
	driver, err := proxmox.Open(cfg)
	if err != nil {
		return nil, err
	}
	if s.way != nil {
		s.log.Info("reconnecting to the host: its block or its token changed", "host", h.Name)
	}
	s.way = &way{h, d.Site.Name, driver}
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
type liveFiles struct{ at atomic.Pointer[fs.FS] }

func (l *liveFiles) set(tree fs.FS) { l.at.Store(&tree) }

// Open opens a file of that tree.
func (l *liveFiles) Open(name string) (fs.File, error) {
	tree := l.at.Load()
	if tree == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return (*tree).Open(name)
}
