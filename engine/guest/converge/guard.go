package converge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
)

// revertFolder has one script for each aspect whose last change is not confirmed yet.
const revertFolder = guest.RecordFolder + "/revert"

// revertScript is the script on the machine that reverts an aspect.
func revertScript(name string) string { return revertFolder + "/" + name + ".sh" }

func revertUnit(name string) string { return "homestak-gitops-revert-" + name }

// bootUnit is the unit that reverts at boot: the timer does not survive a restart, which is the first thing that a
// person who is locked out tries.
func bootUnit(name string) string {
	return "/etc/systemd/system/homestak-gitops-revert-" + name + "-boot.service"
}

func bootLink(name string) string {
	return "/etc/systemd/system/multi-user.target.wants/homestak-gitops-revert-" + name + "-boot.service"
}

// disarmBoot takes that unit away again.
func disarmBoot(name string) string { return "rm -f " + bootLink(name) + " " + bootUnit(name) + "\n" }

// within returns the time limit of a confirmation.
func (o Options) within() time.Duration {
	if o.ConfirmWithin > 0 {
		return o.ConfirmWithin
	}
	return time.Minute
}

// arm makes the machine restore its old state after a time, and at once if the script
// fails. A script that is there already stays: it knows the last confirmed state.
func (r *runner) arm(s aspect.Step) string {
	f, unit := revertScript(s.Guard()), revertUnit(s.Guard())
	seconds := fmt.Sprintf("%d", int((2*r.o.within() + time.Second - 1).Seconds()))
	// The process that renames the script runs it: the timer or the confirmation, never both.
	stop, rest := "", ""
	if s.Change != "" { // it may wait for what never comes
		stop = "systemctl stop " + changeUnit(s.Guard()) + ".service >/dev/null 2>&1 || :\n"
		rest = "[ -n \"${HOMESTAK_LOCKED:-}\" ] || rm -f " + f + ".change " + f + ".said " + f + ".end " + f + ".outcome\n"
	}
	restore := string(guest.Script("_mine=" + f + ".$$\nmv -T " + f + " \"$_mine\" 2>/dev/null || exit 0\n" +
		"if [ -z \"${HOMESTAK_LOCKED:-}\" ]; then\n" +
		stop + guest.OpenLock + "flock -w 60 9 || :\nfi\n" +
		s.Restore + "\n" + disarmBoot(s.Guard()) + rest + "rm -f \"$_mine\"").Stdin)
	// A run that a restart interrupted has renamed the script already.
	again := "for s in " + f + ".[0-9]*; do if [ -f $$s ]; then mv -T $$s " + f + "; fi; done; exec sh " + f
	boot := "[Unit]\nDescription=Restore unconfirmed changes (" + s.Guard() + ")\n[Service]\nType=oneshot\nKillMode=process\nExecStart=/bin/sh -c '" + again + "'\n[Install]\nWantedBy=multi-user.target\n"
	return "undo() { die \"$@\"; }\n" +
		"[ -d " + revertFolder + " ] || mkdir -m 0700 " + revertFolder + "\n" +
		stop + "rm -f " + f + ".*\n" +
		"[ -f " + f + " ] || " + guest.PutFile(f, restore, "0700", "root", "root") + "\n" +
		"if [ -d /run/systemd/system ]; then mkdir -p /etc/systemd/system/multi-user.target.wants; " + guest.PutFile(bootUnit(s.Guard()), boot, "0644", "root", "root") +
		"; ln -sfT " + bootUnit(s.Guard()) + " " + bootLink(s.Guard()) + "; fi\n" +
		"systemctl stop " + unit + ".timer >/dev/null 2>&1 || :\n" +
		"if ! systemd-run --quiet --collect --on-active=" + seconds + " --timer-property=AccuracySec=1s --property=KillMode=process --unit=" + unit + " /bin/sh " + f + " >/dev/null 2>&1; then\n" +
		"  setsid sh -c 'sleep " + seconds + "; exec sh " + f + "' </dev/null >/dev/null 2>&1 9>&- &\n" +
		"fi\n" +
		"trap '_code=$?; if [ $_code -ne 0 ]; then HOMESTAK_LOCKED=1 sh " + f + " >&2 || :; systemctl stop " + unit + ".timer >/dev/null 2>&1 || :; fi; exit $_code' EXIT\n"
}

// changeUnit runs the rest of a step that may cut the connection.
func changeUnit(name string) string { return "homestak-gitops-change-" + name }

func outcomeFile(name string) string { return revertScript(name) + ".outcome" }

// launch makes the machine run the rest of a step. Its background processes, such as a DHCP client, survive its end
// (KillMode). It waits a moment, so that the caller gets the response.
func launch(s aspect.Step) string {
	f, outcome := revertScript(s.Guard()), outcomeFile(s.Guard())
	body := "exec 2>" + f + ".said\n" + guest.OpenLock + "flock -w 60 9 || exit 1\n[ -f " + f + " ] || exit 0\n" +
		"trap '_code=$?; if [ $_code -eq 0 ]; then echo ok >" + f + ".end; else { echo failed; tail -n 5 " + f + ".said; } >" + f + ".end; HOMESTAK_LOCKED=1 sh " + f + "; systemctl stop " + revertUnit(s.Guard()) + ".timer || :; fi; mv -T " + f + ".end " + outcome + "; exit $_code' EXIT\n" +
		"set -e\nsleep 1\n" + s.Change
	return guest.PutFile(f+".change", string(guest.Script(body).Stdin), "0700", "root", "root") + "\n" + detached(changeUnit(s.Guard()), f+".change")
}

// detached starts a script that outlives the connection.
func detached(unit, file string) string {
	return "if ! systemd-run --quiet --collect --property=KillMode=process --unit=" + unit + " /bin/sh " + file + " >/dev/null 2>&1; then\n" +
		"  setsid sh " + file + " </dev/null >/dev/null 2>&1 9>&- &\nfi\n"
}

// changeError is a change that the machine made and reverted since it failed.
type changeError struct{ text string }

func (e *changeError) Error() string { return e.text }

// awaitChange waits until the machine has made the change, over any connection that works: the old one, or a new
// one if the change cut that. Each login gets more time than the one before, because a login to a busy machine that
// is given up too early starts over. The old connection, which may be dead, gets the same short time in each round.
func (r *runner) awaitChange(ctx context.Context, s aspect.Step) error {
	slice := max(r.o.within()/10, time.Second)
	f, outcome := revertScript(s.Guard()), outcomeFile(s.Guard())
	ask := "_n=0\nwhile { [ -f " + f + " ] || [ -f " + f + ".end ]; } && [ ! -f " + outcome + " ] && [ $_n -lt " + fmt.Sprint(slice.Milliseconds()/400) + " ]; do sleep 0.2; _n=$((_n + 1)); done\n" +
		"if grep -qx failed " + outcome + " 2>/dev/null; then cat " + outcome + "; rm -f " + f + ".*; elif [ -f " + outcome + " ]; then cat " + outcome + "; elif [ ! -f " + f + " ] && [ ! -f " + f + ".end ]; then echo none; fi"
	for patience := slice; ; patience *= 2 {
		asking, cancel := context.WithTimeout(ctx, slice)
		out, err := r.m.Run(asking, guest.Script(ask))
		cancel()
		switch how, why, _ := strings.Cut(strings.TrimSpace(out.Out), "\n"); how {
		case "ok":
			return nil
		case "failed":
			return &changeError{guest.Excerpt(why)}
		case "none":
			return &changeError{"the machine has already restored the old state, or never started"}
		}
		if err != nil && r.o.Confirm != nil {
			connecting, cancel := context.WithTimeout(ctx, patience)
			err = r.o.Confirm(connecting, r.want, s)
			cancel()
		}
		if ctx.Err() != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		if err != nil { // not at once again
			timer := time.NewTimer(slice / 10)
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
			timer.Stop()
		}
	}
}

// verify shows that the new state works.
func (r *runner) verify(ctx context.Context, s aspect.Step) error {
	ctx, cancel := context.WithTimeout(ctx, r.o.within())
	defer cancel()
	if s.Change != "" {
		if err := r.awaitChange(ctx, s); err != nil {
			return err
		}
	}
	if r.o.Confirm != nil {
		return r.o.Confirm(ctx, r.want, s)
	}
	if s.Check != "" {
		if _, err := r.run(ctx, "set -e\n"+s.Check); err != nil {
			return err
		}
	}
	if s.Change != "" && r.o.Parent != nil {
		return r.reachParent(ctx)
	}
	return nil
}

// reachParent asks the parent until it answers, or ctx ends.
func (r *runner) reachParent(ctx context.Context) error {
	for {
		err := r.o.Parent(ctx)
		if err == nil {
			return nil
		}
		timer := time.NewTimer(time.Second)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("the parent does not answer over the new network: %w", err)
		}
	}
}

// known makes an error final: no outcome was lost, since the interrupted script only reads, and no timeout is
// passed on. Otherwise the caller would retry while the machine restores its old state.
func known(err error) error {
	var passing interface{ Temporary() bool }
	if errors.Is(err, guest.ErrOutcomeLost) || errors.As(err, &passing) && passing.Temporary() {
		return errors.New(err.Error())
	}
	return err
}

// confirm verifies that the machine can be reached, and then cancels the revert.
func (r *runner) confirm(ctx context.Context, s aspect.Step) error {
	f := revertScript(s.Guard())
	if err := r.verify(ctx, s); err != nil {
		err = known(err)
		if _, failed := errors.AsType[*changeError](err); failed {
			return fmt.Errorf("it failed, so the old state is restored: %w", err)
		}
		back := "sh " + f + "\n"
		if s.Change != "" && r.o.Confirm != nil { // it may cut the connection, too
			back = detached(changeUnit(s.Guard())+"-back", f)
		}
		// If the connection still works, do not wait for the timer.
		_, undone := r.run(ctx, back+"systemctl stop "+revertUnit(s.Guard())+".timer >/dev/null 2>&1 || :\n")
		what := "no connection was possible afterwards"
		if r.o.Confirm == nil {
			what = "it does not work"
		}
		if undone != nil {
			return fmt.Errorf("%s, so the machine restores the old state within %s: %w", what, 2*r.o.within(), err)
		}
		return fmt.Errorf("%s, so the old state is restored: %w", what, err)
	}
	after := r.now.Without(s.Drop).With(s.After)
	body := "set -e\n" + guest.Lock + staleCheck(r.sum) +
		"mv -T " + f + " " + f + ".confirmed 2>/dev/null || die 'it was confirmed too late: the machine has restored the old state'\n" +
		"systemctl stop " + revertUnit(s.Guard()) + ".timer >/dev/null 2>&1 || :\n" + disarmBoot(s.Guard()) + "rm -f " + f + ".*\n" + s.Finish + writeRecord(after, r.sum)
	if _, err := r.run(ctx, body); err != nil {
		return fmt.Errorf("confirming it: %w", err)
	}
	r.now, r.sum = after, guest.ContentSum(after.Text())
	return nil
}
