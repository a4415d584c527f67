package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/keys"
)

// poll is the interval at which files are checked for changes.
const poll = time.Second

// Options configure what is served, and how.
type Options struct {
	Site site.FolderOptions
	Host string // only its nodes; "" for those of all hosts

	Dir               string // of keys and certificate
	CertFile, KeyFile string // an external certificate; "" for one of its own
	Listen            string // address; a socket of the service manager comes first

	Version string // of the program
	Program string // its file, for new nodes; "": they get none from here
	Limits  specserve.Limits
	Log     *slog.Logger

	Found func(diag.List)      // what was found in the site at the start
	Ready func(Announce) error // it serves; an error ends it

	poll   time.Duration            // 0: Poll
	notify func(state string) error // nil: the service manager
}

// Announce is the address and the pins of a server.
type Announce struct {
	Addr   net.Addr
	Pins   []string // its key and the next one
	Commit string
}

// Run serves until ctx ends. A signal of hangups makes it check its files now. A site that must not
// converge is a *site.InvalidError at the start, and later what was good stays in force.
func Run(ctx context.Context, o Options, hangups <-chan os.Signal) error {
	o.poll = cmp.Or(o.poll, poll)
	if o.notify == nil {
		o.notify = sdNotify
	}
	if err := durable.ClaimFormat(o.Dir, o.Version); err != nil {
		return err
	}
	f, err := prepare(ctx, o)
	defer f.close()
	if err != nil {
		return err
	}
	ln, err := listen(ctx, o.Listen)
	if err != nil {
		return err
	}
	if err := o.Ready(Announce{ln.Addr(), f.credentials.Certificate().Pins(), f.catalog.Commit}); err != nil {
		return errors.Join(err, ln.Close())
	}
	o.Log.Info("serving", "address", ln.Addr().String(), "commit", f.catalog.Commit, "nodes", len(f.catalog.Names()), "pin", f.credentials.Certificate().Pins()[0])
	serving, end := context.WithCancel(ctx)
	defer end()
	served := make(chan error, 1)
	go func() { served <- f.server.Serve(serving, ln) }()
	send := func(state string) {
		if err := o.notify(state); err != nil {
			o.Log.Debug("the service manager got no notice", "error", err)
		}
	}
	send(daemon.SdNotifyReady)
	ticker := time.NewTicker(o.poll)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			f.check(ctx, false)
			send(daemon.SdNotifyWatchdog)
		case <-hangups:
			send(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
			f.check(ctx, true)
			send(daemon.SdNotifyReady)
		case <-f.asked:
			f.check(ctx, true)
		case err := <-served:
			if ctx.Err() != nil {
				send(daemon.SdNotifyStopping)
			}
			return err
		case <-ctx.Done():
			send(daemon.SdNotifyStopping)
			return <-served
		}
	}
}

// prepare makes a server with all that it serves.
func prepare(ctx context.Context, o Options) (*follower, error) {
	f := &follower{o: o, asked: make(chan struct{}, 1), problems: reported{}, history: history{dir: o.Dir, log: o.Log}}
	return f, f.begin(ctx)
}

// begin loads all that is served.
func (f *follower) begin(ctx context.Context) (err error) {
	o := f.o
	files := credentialsOptions{Access: keys.Files{Dir: o.Dir}, CertFile: o.CertFile, KeyFile: o.KeyFile, Log: o.Log}
	if f.opened, err = open(files, o.Program, specserve.Options{Version: o.Version, Limits: o.Limits, Log: o.Log, Check: f.ask}); err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		state, err := f.state()
		if err != nil {
			return fmt.Errorf("%w\nname the folder of a site with --site", err)
		}
		var found diag.List
		f.catalog, found, err = f.load(ctx, state)
		if errors.Is(err, errUnsteady) && attempt < 10 && ctx.Err() == nil {
			continue
		}
		o.Found(found)
		if err != nil {
			return err
		}
		f.folder.loaded(state)
		break
	}
	f.show(ctx)
	f.publish()
	return nil
}

// listen takes the socket of the service manager (systemd.socket(5)), or opens one.
func listen(ctx context.Context, address string) (net.Listener, error) {
	given, err := activation.Listeners()
	if err != nil {
		return nil, fmt.Errorf("take the socket of the service manager: %w", err)
	}
	switch {
	case len(given) > 1 || len(given) == 1 && given[0] == nil:
		return nil, fmt.Errorf("the service manager passes %d sockets\ngive the unit one socket with ListenStream=", len(given))
	case len(given) == 1:
		return given[0], nil
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve on %s: %w\nchoose another address: --listen 127.0.0.1:0", address, err)
	}
	return ln, nil
}

// sdNotify sends one message to the service manager, if there is one.
func sdNotify(state string) error {
	_, err := daemon.SdNotify(false, state)
	return err
}
