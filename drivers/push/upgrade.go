package push

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Upgrade gives the agent of a host with a parent the program of that parent. No other machine enters such a host, so root does on it what
// a parent does in a guest, in the same steps: the program before is kept until the agent has reported with the new one, and comes
// back otherwise. It may be cut off anywhere, and done again.
type Upgrade struct {
	Machine  machine
	Parent   wire.Parent
	OS, Arch string // as Go names them
	Version  string // of this program
	// Reported says why the parent has not taken a report of the agent that runs; nil if it has.
	Reported func(ctx context.Context) error
	Within   time.Duration // how long a new program has to report; 0: 5 minutes
	Say      func(format string, args ...any)
}

// wanted is the agent of a host with a program. What it needs to know of its parent it knows.
func (u *Upgrade) wanted(sum, version string) AgentWant {
	return joinWant(wire.Parent{}, Program{Sum: sum, System: u.OS + "-" + u.Arch, Version: version})
}

// Do upgrades the agent, if its parent has a later program, or ends what was begun before.
func (u *Upgrade) Do(ctx context.Context) error {
	found, err := u.wanted("", "").Observe(ctx, u.Machine)
	switch {
	case err != nil:
		return err
	case found.program == "":
		return errors.New("no program is in /usr/local/bin: a package upgrades its own")
	case found.Interrupted() && found.program == found.upgrade:
		u.Say("an upgrade was interrupted")
		found.want = u.wanted(found.upgrade, found.upgrade[:min(12, len(found.upgrade))])
		return u.prove(ctx, found)
	case found.Interrupted(): // the one before is in its place
		if err := runCommand(ctx, u.Machine, guest.Script("set -e\n"+guest.Lock+"drop "+oldFile+" "+upgradeFile+"; rm -rf "+oldUnits+"\n"+start)); err != nil {
			return err
		}
	}
	ask := &client.Client{Parent: u.Parent, Agent: "homestak-gitops/" + u.Version}
	has, err := ask.Announced(ctx, u.OS, u.Arch)
	if err != nil {
		return err
	}
	sum, version := has.Sum, has.Version
	switch {
	case sum == found.program:
		u.Say("the program is that of the parent")
		return nil
	case has.Keep != "":
		u.Say("the program stays: %.500s", has.Keep)
		return nil
	}
	if now, next := semantic(u.Version), semantic(version); !semver.IsValid(next) || semver.IsValid(now) && semver.Compare(next, now) < 0 {
		return fmt.Errorf("the parent has version %.100q of the program, and this is %s: an older one is not taken\nupgrade the parent, or install its program here by hand", version, u.Version)
	}
	found.want = u.wanted(sum, version)
	if err := errors.Join(found.Check(), found.Refused()); err != nil {
		return err
	}
	u.Say("fetch version %s of the program", version)
	program, err := ask.Program(ctx, u.OS, u.Arch, sum)
	if err != nil {
		return err
	}
	if err := SendProgram(ctx, u.Machine, sum, program); err != nil {
		return err
	}
	u.Say("install it")
	// It knows its own units and rights.
	if err := runCommand(ctx, u.Machine, guest.Command{Args: []string{newFile, "upgrade", "--install", sum}}); err != nil {
		return fmt.Errorf("version %s of the program does not install itself: %w", version, err)
	}
	return u.prove(ctx, found)
}

// semantic is a version as package semver reads it: releases have no v, and a tilde in front of a pre-release.
func semantic(version string) string {
	return "v" + strings.ReplaceAll(strings.TrimPrefix(version, "v"), "~", "-")
}

// Install puts this program, which was sent, in the place of the one before, if it has that SHA-256. The upgrade of that one goes
// on from there.
func (u *Upgrade) Install(ctx context.Context, sum string) error {
	found, err := u.wanted(sum, u.Version).Observe(ctx, u.Machine)
	if err == nil {
		err = found.Check()
	}
	if err != nil {
		return err
	}
	return found.Change(ctx, u.Machine, nil, found.Outdated())
}

// prove starts the agent with its new program, which has to report. Otherwise the one before comes back.
func (u *Upgrade) prove(ctx context.Context, found *FoundAgent) error {
	u.Say("start the agent, and wait for its report")
	err := StartAgent(ctx, u.Machine)
	if err == nil {
		err = hear(ctx, cmp.Or(u.Within, defaultUpgrade), func() error { return u.Reported(ctx) })
	}
	switch {
	case ctx.Err() != nil || errors.Is(err, guest.ErrOutcomeLost):
		return err // the next run goes on
	case err == nil:
		u.Say("the parent has its report: the upgrade is done")
		return FinishAgent(ctx, u.Machine)
	}
	u.Say("restore the program from before")
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), putBack)
	defer cancel()
	return errors.Join(fmt.Errorf("version %s of the program does not work here, so the previous one is restored: %w\njournalctl -u homestak-gitops shows what it logged", found.want.Program.Version, err), found.Back(back, u.Machine))
}

// hear polls until there is no error, or until a last error.
func hear(ctx context.Context, within time.Duration, heard func() error) error {
	end := time.NewTimer(within)
	defer end.Stop()
	every := time.NewTicker(hearEvery)
	defer every.Stop()
	for {
		err := heard()
		if err == nil {
			return nil
		}
		select {
		case <-every.C:
		case <-end.C:
			return fmt.Errorf("%w within %s", err, within.Round(time.Millisecond))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
