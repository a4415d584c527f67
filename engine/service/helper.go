package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/guest/asroot"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Helper applies the spec of a host for its agent, as root.
type Helper struct {
	Config  *Config // of the agent
	UID     int     // of the agent
	Folder  string  // of root's: for the state, and a copy of the repository
	Program string  // version of this program
	Kinds   model.Kinds
	Sandbox *site.Sandbox // evaluates commits
	Machine converge.Machine
	Log     *slog.Logger
}

// newHelper makes what answers the agent. It reads nothing that the agent may change, but
// the token for its parent.
func newHelper(o Helper) (*asroot.Server, error) {
	c := o.Config
	for path, name := range map[string]string{
		"agent.hcl": c.File, "secrets_file": c.SecretsFile, "age_key_file": c.AgeKeyFile,
		"repository.auth.known_hosts_file": c.Repository.Auth.KnownHostsFile, "repository.auth.ca_file": c.Repository.Auth.CAFile,
	} {
		if err := notOf(o.UID, name); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	transport, err := helperTransport(o)
	if err != nil {
		return nil, err
	}
	r := c.Repository
	repo, err := source.OpenRepository(source.Options{
		Dir: filepath.Join(o.Folder, cloneDir), URL: r.URL, Branch: r.Branch, Path: r.Path, MaxPack: int64(r.MaxSize) << 20, Log: o.Log, Transport: transport,
		Auth: source.Auth{
			TokenFile: r.Auth.TokenFile, Username: r.Auth.Username, KeyFile: r.Auth.KeyFile,
			KnownHostsFile: r.Auth.KnownHostsFile, CAFile: r.Auth.CAFile,
		},
	})
	if err != nil {
		return nil, err
	}
	loader := site.NewLoader(o.Kinds)
	loader.Sandbox = o.Sandbox
	load := &site.Commits{Loader: loader, Files: repo.Files, Notes: repo.Notes, Secrets: c.SecretsFile, Keys: site.Keys{Env: c.env, File: c.AgeKeyFile}}
	return &asroot.Server{
		UID: o.UID, Commits: repo, Machine: o.Machine, State: filepath.Join(o.Folder, "state.json"), Log: o.Log,
		Resolve: func(ctx context.Context, commit model.Commit) (*spec.Spec, error) {
			return hostSpec(ctx, load, c.Identity, commit)
		},
	}, nil
}

// helperIdle is the time without a request after which the helper ends. systemd starts it again for the next one, then of the
// program that is installed by then. In one pass it is asked up to three times.
const helperIdle = 30 * time.Second

// Run answers the requests that come over the socket of the service manager, until there are none for a while, or
// stop is closed. Then the running step is finished.
func (o Helper) Run(ctx context.Context, stop <-chan struct{}) error {
	given, err := activation.Listeners()
	if err != nil {
		return fmt.Errorf("take the socket of the service manager: %w", err)
	}
	if len(given) != 1 {
		return fmt.Errorf("the service manager passes %d sockets, and the helper answers one: start homestak-gitops-host.socket", len(given))
	}
	ln, ok := given[0].(*net.UnixListener)
	if !ok {
		return errors.New("the socket of the helper is not a unix socket: see homestak-gitops-host.socket")
	}
	if err := durable.ClaimFormat(o.Folder, o.Program); err != nil {
		return err
	}
	h, err := newHelper(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	return h.Serve(ctx, ln, helperIdle)
}

// hostSpec resolves the spec of a host at a commit; nil if it has none.
func hostSpec(ctx context.Context, load *site.Commits, host string, commit model.Commit) (*spec.Spec, error) {
	d := load.Load(ctx, commit)
	if err := firstOf(d.Findings); err != nil {
		return nil, fmt.Errorf("commit %s is not valid: %w", commit.ID, err)
	}
	if d.Site == nil {
		return nil, fmt.Errorf("commit %s has no site", commit.ID)
	}
	h := d.Site.Hosts[host]
	if h == nil || h.Spec == "" {
		return nil, nil //nolint:nilnil // none is an answer, also of a commit without the host: it left the site
	}
	want, found := spec.Resolve(d.Site, h.Machine())
	if err := firstOf(found); err != nil {
		return nil, fmt.Errorf("spec %s of host %s: %w", h.Spec, host, err)
	}
	return want, nil
}

// firstOf returns the first error of some findings; nil if there is none.
func firstOf(found diag.List) error {
	for _, f := range found {
		if f.Severity == diag.Error {
			return errors.New(strings.TrimSpace(f.Summary + "\n" + f.Detail))
		}
	}
	return nil
}

// notOf returns an error for a file that a user could change: it decides what root does.
func notOf(uid int, name string) error {
	if name == "" {
		return nil
	}
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	owner := -1
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		owner = int(st.Uid)
	}
	if uid != 0 && owner == uid || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("the agent or others may change %s, which decides what root does: chown root %[1]s && chmod go-w %[1]s", name)
	}
	return nil
}

// pinsFile has the pins that the parent announced to the helper.
const pinsFile = "pins.json"

// helperTransport returns the way to the repository of a parent. Nil: the repository is not the parent's.
func helperTransport(o Helper) (http.RoundTripper, error) {
	parent, err := rootsParentOf(o)
	if err != nil || parent == nil || !strings.HasPrefix(o.Config.Repository.URL, strings.TrimRight(o.Config.Parent.URL, "/")+"/") {
		return nil, err
	}
	return &learning{RoundTripper: client.NewTransport(parent.now, o.Config.Parent.URL, nil), parent: *parent, log: o.Log}, nil
}

// rootsParentOf returns nil where agent.hcl names no parent.
func rootsParentOf(o Helper) (*rootsParent, error) {
	c := o.Config
	p := c.Parent
	if p == nil || p.URL == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	if err := notOf(o.UID, c.File); err != nil {
		return nil, fmt.Errorf("agent.hcl: %w", err)
	}
	given, err := wire.ParentByHand(c.Identity, strings.TrimRight(p.URL, "/"), p.TokenFile, p.Pins)
	if err != nil {
		return nil, fmt.Errorf("parent of agent.hcl: %w", err)
	}
	return &rootsParent{given: given, uid: o.UID, tokens: filepath.Join(c.DataDir, parentFile), pins: filepath.Join(o.Folder, pinsFile)}, nil
}

// RootsParent returns the parent of agent.hcl as root trusts it, with the token of the agent. It asks the parent for its pins, and
// keeps them. Of the options, it uses Config, UID, Folder and Log.
func (o Helper) RootsParent(ctx context.Context) (wire.Parent, error) {
	parent, err := rootsParentOf(o)
	if err != nil {
		return wire.Parent{}, err
	}
	if parent == nil {
		return wire.Parent{}, errors.New("this host has no parent that it could get a program from: install it by hand")
	}
	if err := parent.learn(ctx); err != nil {
		o.Log.Warn("the pins of the parent were not renewed", "error", err)
	}
	return parent.now()
}

// rootsParent is the parent of agent.hcl as the helper knows it. It has the token that the parent renewed for the agent. The agent
// knows the pins of later keys, too, and the helper must not believe it: it learns them from the parent itself, over a connection
// by a pin that it knew.
type rootsParent struct {
	given  wire.Parent
	uid    int    // of the agent
	tokens string // the agent's file
	pins   string // the file of announced
}

// announced is what a parent said about its pins.
type announced struct {
	Given string   `json:"given"` // sums up the parent of agent.hcl: with that changed, the pins count no more
	Pins  []string `json:"pins"`
	Tag   string   `json:"tag"` // of the configuration that they were in
}

// now returns the parent of now.
func (p rootsParent) now() (wire.Parent, error) {
	known, err := helpersParent(p.tokens, p.uid, p.given)
	if a := p.read(); err == nil && a.Given != "" {
		known.Pins, err = wire.ParsePins(a.Pins)
	}
	return known, err
}

// read returns what the parent announced last; the zero value if nothing counts.
func (p rootsParent) read() announced {
	var a announced
	text, err := durable.ReadPrivate(p.pins)
	if err != nil || json.Unmarshal(text, &a) != nil || a.Given != p.sum() {
		return announced{}
	}
	return a
}

func (p rootsParent) sum() string {
	return client.ParentSum(wire.Parent{Identity: p.given.Identity, Server: p.given.Server, Pins: p.given.Pins})
}

// learn asks the parent for its pins, and keeps them.
func (p rootsParent) learn(ctx context.Context) error {
	known, err := p.now()
	if err != nil {
		return err
	}
	got, err := (&client.Client{Parent: known, Agent: "homestak-gitops-host"}).Config(ctx, p.read().Tag)
	if err != nil || got.NotModified {
		return err
	}
	text, err := json.Marshal(announced{Given: p.sum(), Pins: wire.PinTexts(got.Pins), Tag: got.ETag})
	if err != nil {
		return err
	}
	return durable.Replace(p.pins, append(text, '\n'))
}

// learning is a way to a parent on which the helper learns the parent's pins, once it answered.
type learning struct {
	http.RoundTripper

	parent rootsParent
	log    *slog.Logger
	once   sync.Once
}

// RoundTrip implements http.RoundTripper.
func (t *learning) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := t.RoundTripper.RoundTrip(r)
	if _, is := errors.AsType[*wire.PinMismatchError](err); is {
		return nil, fmt.Errorf("%w\nthe parent's key was rotated twice since the helper reached it last: run join on this machine, with a token of the parent, or put the pins that the parent's status shows into agent.hcl", err)
	}
	if err == nil {
		t.once.Do(func() {
			if err := t.parent.learn(r.Context()); err != nil {
				t.log.Warn("the pins of the parent were not renewed", "error", err)
			}
		})
	}
	return res, err
}

// mostParentFile bounds the file of the agent, in bytes: JSON may take six for one of what the parent sent.
const mostParentFile = 6 * wire.MaxSpec

// helpersParent is the parent of agent.hcl with the token of now, which the agent's file has. The file may be a link that the
// agent made, so it must be its own. The token is for the parent of now: another one than in agent.hcl is an error, since only
// root may say whom root trusts.
func helpersParent(name string, uid int, given wire.Parent) (wire.Parent, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return given, nil // the agent has not asked its parent yet
	}
	if err != nil {
		return wire.Parent{}, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return wire.Parent{}, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != uid || !info.Mode().IsRegular() {
		return wire.Parent{}, fmt.Errorf("%s is not a file of the agent", name)
	}
	text, err := io.ReadAll(io.LimitReader(f, mostParentFile))
	if err != nil {
		return wire.Parent{}, err
	}
	now, err := client.KeptParent(text, given)
	if err != nil {
		return wire.Parent{}, fmt.Errorf("%s cannot be read: %w", name, err)
	}
	if now.Server != given.Server {
		return wire.Parent{}, fmt.Errorf("the agent has the parent %.200s now, and agent.hcl names %s, which the helper trusts: run join as root, with a token of the new parent", now.Server, given.Server)
	}
	given.Token = now.Token
	return given, nil
}
