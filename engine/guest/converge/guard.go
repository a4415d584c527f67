package converge

import (
	"context"
	"fmt"
	"time"

	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/record"
	"github.com/homestak/homestak-gitops/engine/guest/shell"
)

// revertFolder has one script for each aspect whose last change is not confirmed yet.
const revertFolder = record.Folder + "/revert"

// revertScript is where the machine keeps how it undoes an aspect by itself.
func revertScript(name string) string { return revertFolder + "/" + name + ".sh" }

func revertUnit(name string) string { return "homestak-gitops-revert-" + name }

// bootUnit is the unit that reverts when the machine starts: the timer does not survive
// that, and whoever is locked out restarts the machine first.
func bootUnit(name string) string {
	return "/etc/systemd/system/homestak-gitops-revert-" + name + "-boot.service"
}

func bootLink(name string) string {
	return "/etc/systemd/system/multi-user.target.wants/homestak-gitops-revert-" + name + "-boot.service"
}

// disarmBoot takes that unit away again.
func disarmBoot(name string) string { return "rm -f " + bootLink(name) + " " + bootUnit(name) + "\n" }

// within is how long a confirmation may take.
func (o Options) within() time.Duration {
	if o.ConfirmWithin > 0 {
		return o.ConfirmWithin
	}
	return time.Minute
}

// arm makes the machine restore its old state after a time, and at once if the script
// fails. A script that is there already stays: it knows the last confirmed state.
func (r *runner) arm(s aspect.Step) string {
	f, unit := revertScript(s.Aspect), revertUnit(s.Aspect)
	seconds := fmt.Sprintf("%d", int((2*r.o.within() + time.Second - 1).Seconds()))
	// Who renames the script runs it: the timer, or the confirmation, and never both.
	restore := string(shell.Script("_mine=" + f + ".$$\nmv -T " + f + " \"$_mine\" 2>/dev/null || exit 0\n" +
		"if [ -z \"${HOMESTAK_LOCKED:-}\" ]; then exec 9>/run/homestak-gitops.lock; flock -w 60 9 || :; fi\n" +
		s.Restore + "\n" + disarmBoot(s.Aspect) + "rm -f \"$_mine\"").Stdin)
	boot := "[Unit]\nDescription=Restore what nobody confirmed (" + s.Aspect + ")\n[Service]\nType=oneshot\nExecStart=/bin/sh " + f + "\n[Install]\nWantedBy=multi-user.target\n"
	return "undo() { die \"$@\"; }\n" +
		"[ -d " + revertFolder + " ] || mkdir -m 0700 " + revertFolder + "\n" +
		"rm -f " + f + ".*\n" +
		"[ -f " + f + " ] || " + shell.Put(f, restore, "0700", "root", "root") + "\n" +
		"if [ -d /run/systemd/system ]; then mkdir -p /etc/systemd/system/multi-user.target.wants; " + shell.Put(bootUnit(s.Aspect), boot, "0644", "root", "root") +
		"; ln -sfT " + bootUnit(s.Aspect) + " " + bootLink(s.Aspect) + "; fi\n" +
		"systemctl stop " + unit + ".timer >/dev/null 2>&1 || :\n" +
		"if ! systemd-run --quiet --collect --on-active=" + seconds + " --timer-property=AccuracySec=1s --unit=" + unit + " /bin/sh " + f + " >/dev/null 2>&1; then\n" +
		"  setsid sh -c 'sleep " + seconds + "; exec sh " + f + "' </dev/null >/dev/null 2>&1 9>&- &\n" +
		"fi\n" +
		"trap '_code=$?; if [ $_code -ne 0 ]; then HOMESTAK_LOCKED=1 sh " + f + " >&2 || :; systemctl stop " + unit + ".timer >/dev/null 2>&1 || :; fi; exit $_code' EXIT\n"
}

// confirm lets somebody prove that the machine can be reached, and then cancels the revert.
func (r *runner) confirm(ctx context.Context, s aspect.Step) error {
	if r.o.Confirm != nil {
		trying, cancel := context.WithTimeout(ctx, r.o.within())
		err := r.o.Confirm(trying, r.want, s)
		cancel()
		if err != nil {
			// Where the way in still works, there is no reason to wait for the timer.
			_, undone := r.run(ctx, "sh "+revertScript(s.Aspect)+"\nsystemctl stop "+revertUnit(s.Aspect)+".timer >/dev/null 2>&1 || :\n")
			if undone != nil {
				return fmt.Errorf("nobody could connect afterwards, so the machine restores the old state within %s: %w", 2*r.o.within(), err)
			}
			return fmt.Errorf("nobody could connect afterwards, so the old state is restored: %w", err)
		}
	}
	after := r.now.Without(s.Drop).With(s.After)
	f := revertScript(s.Aspect)
	body := "set -e\n" + lock + staleCheck(r.sum) +
		"mv -T " + f + " " + f + ".confirmed 2>/dev/null || die 'it was confirmed too late: the machine has restored the old state'\n" +
		"systemctl stop " + revertUnit(s.Aspect) + ".timer >/dev/null 2>&1 || :\n" + disarmBoot(s.Aspect) + "rm -f " + f + ".confirmed\n" + writeRecord(after, r.sum)
	if _, err := r.run(ctx, body); err != nil {
		return fmt.Errorf("confirming it: %w", err)
	}
	r.now, r.sum = after, record.Sum(after.Text())
	return nil
}
