// Package proxmox makes a Proxmox VE host hold what a site says: it observes the
// host, proves what of it is ours, and carries out the steps of a plan. It is the
// only user of the Proxmox client library.
//
// Read kinds.go first (the table of contents), then kind.go (what a kind is),
// owner.go (how ownership is proved), then any kind's file. transport.go and
// task.go hold what makes PVE's answers trustworthy: typed errors, no repeated
// writes, an own wait for tasks.
//
// PVE's quirks that the code relies on are named where it does, with the file of
// PVE they stand in.
package proxmox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	pve "github.com/luthermonson/go-proxmox"
	"golang.org/x/sync/errgroup"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

const (
	// DefaultConcurrency is how many requests are in flight at once, to all nodes together.
	DefaultConcurrency = 10
	// perNode is how many of them go to one PVE node: it has three workers, and one more keeps them busy.
	perNode = 4
)

// Config says which host to drive, and as whom.
type Config struct {
	Host        *model.Host
	Site        string            // name of the site, in owner marks
	Owner       string            // who we are in owner marks: the host's name for its agent and for the command line
	Token       string            // user@realm!name=secret; Host.APIToken if empty
	Transport   http.RoundTripper // nil: TLS to Host.API; a simulator in process otherwise
	Files       fs.FS             // the site's files, for images that are uploaded; may be nil
	Concurrency int               // DefaultConcurrency if 0
}

// Driver drives one host or cluster. Safe for concurrent use; it keeps nothing
// between two calls but connections.
type Driver struct {
	c     *client
	host  *model.Host
	id    identity
	width int
	files fs.FS

	copies turns
}

// Open makes a driver. It sends no request; errors are those of the configuration.
func Open(cfg Config) (*Driver, error) {
	h := cfg.Host
	width := cfg.Concurrency
	if width <= 0 {
		width = DefaultConcurrency
	}
	token := cfg.Token
	if token == "" {
		token = h.APIToken
	}
	user, secret, ok := strings.Cut(token, "=")
	if !ok || !strings.Contains(user, "!") || !strings.Contains(user, "@") || secret == "" {
		return nil, tokenProblem(h, token)
	}
	base, err := url.Parse(strings.TrimSuffix(h.API, "/"))
	if err != nil || base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("api %q of host %s is no https URL such as https://192.0.2.10:8006", h.API, h.Name)
	}
	inner := cfg.Transport
	if inner == nil {
		if inner, err = newTLSTransport(h, width); err != nil {
			return nil, fmt.Errorf("host %s: %w", h.Name, err)
		}
	}
	tr := &transport{inner: inner, all: make(chan struct{}, width), perNode: map[string]chan struct{}{}}
	for _, n := range hostNodes(h) {
		tr.perNode[n] = make(chan struct{}, max(perNode, width/max(len(h.Nodes), 1)))
	}
	c := &client{http: &http.Client{Transport: tr}, base: base.String() + apiPrefix, token: token}
	c.api = pve.NewClient(c.base, pve.WithHTTPClient(c.http), pve.WithAPIToken(user, secret), pve.WithUserAgent(userAgent))
	c.tasks = &tasks{c: c, pollers: map[string]*poller{}, usual: map[string]time.Duration{}}
	return &Driver{c: c, host: h, id: identity{cfg.Site, cfg.Owner, h.Name}, width: width, files: cfg.Files}, nil
}

// tokenProblem says what is wrong with a token without showing any of it.
func tokenProblem(h *model.Host, token string) error {
	if token == "" {
		return &loginError{fmt.Sprintf("no API token for host %s: put api_tokens.%s (user@realm!name=secret) into secrets.yaml or the file named by --secrets", h.Name, h.Name)}
	}
	return &loginError{fmt.Sprintf("the API token for host %s is not of the form user@realm!name=secret", h.Name)}
}

// loginError is a token that cannot work, found before any request.
type loginError struct{ text string }

// Error says what is missing.
func (e *loginError) Error() string { return e.text }

// Observe tells what the host holds. An error means that nothing could be seen;
// whatever part of the host stayed dark is in Observed.Unknown.
func (d *Driver) Observe(ctx context.Context, want *model.Want) (model.Observed, error) {
	all := model.Observed{At: time.Now().UTC(), State: model.State{}, Taken: map[int]string{}}
	v, err := d.readView(ctx)
	if err != nil {
		return all, fmt.Errorf("observing host %s at %s: %w", d.host.Name, d.host.API, err)
	}
	all.Unknown = v.unknown
	kinds := table()
	parts := make([]model.Observed, len(kinds))
	g, gctx := errgroup.WithContext(ctx)
	l := newLook(want, v)
	for i, k := range kinds {
		g.Go(func() error {
			var err error
			parts[i], err = k.look(gctx, d, l)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return all, fmt.Errorf("observing host %s: %w", d.host.Name, err)
	}
	for _, p := range parts {
		merge(&all, p)
	}
	if err := d.findObstacles(ctx, l, &all); err != nil {
		return all, fmt.Errorf("observing host %s: %w", d.host.Name, err)
	}
	slices.SortFunc(all.Foreign, func(a, b model.Foreign) int { return a.VMID - b.VMID })
	return all, nil
}

func merge(all *model.Observed, p model.Observed) {
	maps.Copy(all.State, p.State)
	maps.Copy(all.Taken, p.Taken)
	all.Foreign = append(all.Foreign, p.Foreign...)
	all.Pending = append(all.Pending, p.Pending...)
	all.Undeclared = append(all.Undeclared, p.Undeclared...)
	all.Unknown = append(all.Unknown, p.Unknown...)
	all.Findings = append(all.Findings, p.Findings...)
	all.Recall = append(all.Recall, p.Recall...)
	all.Obstacles = append(all.Obstacles, p.Obstacles...)
}

// Apply carries out one step and returns when it is done on the host. After an
// error the host may hold a part of it; observing again tells which.
func (d *Driver) Apply(ctx context.Context, s plan.Step) error {
	if k := kindsByName()[s.Address.Kind]; k != nil {
		return k.apply(ctx, d, s)
	}
	return fmt.Errorf("no driver for %s", s.Address)
}

// order sends a request that makes something, and waits until it is done.
func (d *Driver) order(ctx context.Context, path string, p params) error {
	upid, err := d.c.post(ctx, path, p)
	return d.settled(ctx, upid, err)
}

// settled waits for the task of a write that was just sent. Where the answer of
// the write was lost, it returns errLost: the work may be done or not, and the
// caller must look.
func (d *Driver) settled(ctx context.Context, upid string, err error) error {
	if err != nil {
		if classOf(err) == classUnknown {
			return errors.Join(errLost, err)
		}
		return err
	}
	err = d.c.tasks.wait(ctx, upid)
	if err != nil && classOf(err) == classUnknown {
		return errors.Join(errLost, err)
	}
	return err
}

// errLost marks a write whose outcome is not known.
var errLost = errors.New("whether it was done is not known")
