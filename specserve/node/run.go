package node

// The verbs of config fetch the spec of the machine that they run on from a parent, and apply it.

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime/debug"
	"time"

	"github.com/homestak/homestak-gitops/drivers/local"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Source is a parent: from a file, or given by the user.
type Source struct {
	File string // as wire.LoadParent reads it

	Server    string // "": that of the file
	Pins      []string
	TokenFile string
	Node      string // whose spec the other one is asked for
}

// Run is one run of a verb.
type Run struct {
	Folder string
	Note   func(format string, args ...any) // a line for people about what is under way
	Seen   func(*converge.State)            // gets what the machine had before

	Machine converge.Machine                                                     // nil: this one
	Dial    func(ctx context.Context, network, address string) (net.Conn, error) // nil: the network
}

// machine is the one to work on.
func (r Run) machine() converge.Machine {
	if r.Machine == nil {
		return local.New()
	}
	return r.Machine
}

// open returns the parent. Its renewals are stored if a file names it.
func (r Run) open(s Source) (Server, error) {
	var p wire.Parent
	var err error
	if s.Server != "" {
		s.File = ""
		p, err = wire.ParentByHand(s.Node, s.Server, s.TokenFile, s.Pins)
	} else {
		p, err = wire.LoadParent(s.File)
	}
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
	}
	return Server{File: s.File, Client: &client.Client{Parent: p, Dial: r.Dial, Agent: "homestak-gitops/" + version, Failed: func(err error, pause time.Duration) {
		r.Note("%s\ntrying again in %s", err, pause.Round(time.Second))
	}}}, err
}

// lock waits for its turn on this machine.
func (r Run) lock(ctx context.Context) (unlock func(), err error) {
	return Folder{Path: r.Folder}.Lock(ctx, func() { r.Note("waiting for another run on this machine") })
}

// Fetch fetches the spec and keeps it. It reports whether that is another one than before.
func (r Run) Fetch(ctx context.Context, from Source) (changed bool, err error) {
	if _, err := r.open(from); err != nil {
		return false, err
	}
	unlock, err := r.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	f := Folder{Path: r.Folder}
	changed, err = r.fetch(ctx, f, from)
	if err != nil && ctx.Err() == nil {
		err = errors.Join(err, f.Fail(err, time.Now()))
	}
	return changed, err
}

// fetch asks a parent as it is known now: another run may have renewed pins and token just before.
func (r Run) fetch(ctx context.Context, f Folder, from Source) (changed bool, err error) {
	s, err := r.open(from)
	if err != nil {
		return false, &wire.Error{Code: wire.CodeConnection, Message: err.Error(), Cause: err, Hint: "fetch by hand: config fetch --server"}
	}
	return f.Fetch(ctx, s)
}

// Apply applies the spec in a file, or the one that was fetched last for "". from is the parent to ask for it
// first; nil for none. It returns the applied spec, and how many settings differed.
func (r Run) Apply(ctx context.Context, from *Source, file string) (want *spec.Spec, changed int, err error) {
	f := Folder{Path: r.Folder}
	if from == nil {
		want, err = f.Wanted(file, false)
	}
	if err == nil {
		err = r.isRoot()
	}
	if err != nil {
		return want, 0, err
	}
	asks := false
	defer func() {
		if asks && ctx.Err() == nil { // after the lock was given back
			r.takeTasks(ctx, *from)
		}
	}()
	unlock, err := r.lock(ctx)
	if err != nil {
		return want, 0, err
	}
	defer unlock()
	left := func(differ int) { r.Note(`%d settings differ and are left as they are (drift = "report")`, differ) }
	n := Node{Folder: f, Machine: r.machine(), Seen: r.Seen, Left: left, Options: converge.Options{
		Started:  func(s aspect.Step) { r.Note("%s", s.Text) },
		Progress: func(s aspect.Step, state string) { r.Note("%s: %s", s.Text, state) },
	}}
	if from != nil {
		n.Options.Parent = func(ctx context.Context) error {
			s, err := r.open(*from)
			if err != nil {
				return err
			}
			return s.Client.Answers(ctx)
		}
		want, changed, err = n.Run(ctx, func(ctx context.Context) error {
			_, err := r.fetch(ctx, f, *from)
			return err
		})
		if want == nil || want.Run == nil || !want.Run.Pushed {
			r.report(ctx, f, *from)
		}
		asks = true
		return want, changed, err
	}
	if want, err = f.Wanted(file, true); err != nil { // it is stored under the lock
		return want, 0, err
	}
	changed, err = n.Apply(ctx, want)
	return want, changed, err
}

// report sends the report to the parent, as it is known by now. If that fails the next run does it; the spec stays
// applied.
func (r Run) report(ctx context.Context, f Folder, to Source) {
	s, err := r.open(to)
	if err != nil || s.Client.Parent.Token == "" || ctx.Err() != nil {
		return // no report without a token; a failed read was reported before
	}
	if err := f.Report(ctx, s, time.Now()); err != nil {
		r.Note("the parent has no report of this run: %s", err)
	}
}

// Observe compares this machine with a spec, and changes nothing.
func (r Run) Observe(ctx context.Context, file string) (*converge.State, error) {
	want, err := Folder{Path: r.Folder}.Wanted(file, false)
	if err == nil {
		err = r.isRoot()
	}
	if err != nil {
		return nil, err
	}
	return converge.Observe(ctx, r.machine(), want)
}

func (r Run) isRoot() error {
	if r.Machine == nil && os.Geteuid() != 0 {
		return errors.New("config apply reads and changes the whole system: run it as root")
	}
	return nil
}
