// Package aspect implements the parts of a spec, one file for each: packages, services, users, … An aspect owns
// some attributes of spec.Spec. It reads them from a machine, and plans the steps that change them.
//
// Read in this order: Of (the definition of an aspect), All (the table of contents), then fail2ban.go, the shortest
// one. The packages below have those of the network, of disks and of Proxmox VE. Package converge runs them all.
package aspect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// Query is the input of an aspect: the wanted and the recorded state.
type Query struct {
	Want   *spec.Spec
	Record *guest.Record
	OS     OS
	Login  string // the user by whose login we are on the machine: root, or who became root by sudo
}

// OS is the operating system of the machine.
type OS struct {
	ID      string // debian or ubuntu
	Version string // 12, 24.04
	Name    string // for people
}

// Stage orders the steps of all aspects. Prerequisites come first, withdrawals last, so that access is never
// interrupted; except services, because two of them may need the same port. Steps of one stage are in the order of
// the aspects: disks are mounted after the packages with their programs, and unmounted after their users are
// removed. The aspects of the packages below come after those of this one.
type Stage int

// The stages, in their order.
const (
	StageIdentity Stage = iota // its name and its address, over which packages are fetched
	StageSources
	StageStop // services that shall not run any more
	StagePackages
	StageTimezone
	StageUsers
	StageKeys
	StageSudo
	StageFiles
	StageSysctl
	StageJail
	StageStart // services
	StageSSHD
	StageCommands
	StageWithdrawSudo
	StageWithdrawKeys
	StageWithdrawUsers
	StageWithdrawGroups
	StageWithdrawFiles
	StageWithdrawPackages
	StageWithdrawSources
)

// Step is one thing to do to a machine. It may run again after it was cut off anywhere.
type Step struct {
	Aspect string
	Stage  Stage
	Text   string // what it does, as a person would order it: "install htop"

	// Wait is a script that changes nothing and ends with guest.ExitBusy, and the reason, as long as another
	// program is in the way. It returns within seconds and is repeated. Most steps need not wait.
	Wait string

	// Supplies marks a step that fetches packages, or makes apt know where they are. If it fails, the steps
	// behind it that can do without are done all the same.
	Supplies bool
	// Needs is a shell condition that checks for something that a package may bring, such as a program, a user or a
	// unit. If a step that supplies packages failed, a step whose condition fails waits for it. Empty: the step
	// needs no package.
	Needs string
	// State is a script that changes nothing and prints in one line how far the step is. It runs every few seconds beside
	// the other scripts of the step. Empty: they take a moment only.
	State string

	// Ask is a script that changes nothing, but what apt keeps as a cache. The step ends if it
	// fails; else its answer completes the step by Learn, which may be nil. Most steps know all they need.
	Ask   string
	Learn func(answer string, s *Step)

	Keep   []guest.RecordEntry // recorded before the script runs
	Script string              // POSIX shell with set -e and the functions of guest.Script
	After  []guest.RecordEntry // recorded when it is done, in place of the entries of the same name
	// Done completes After and Drop by what the script printed. Most steps know it before.
	Done func(out string, s *Step)
	Drop []guest.RecordKey // recorded no more when it is done

	// Restore undoes the script if it would lock us out: the machine runs it unless the new state is confirmed from
	// outside in time. Empty: nothing can lock us out.
	Restore string
	// Part distinguishes steps of one aspect that are restored separately: letters and digits.
	Part string

	// Change is the rest of the step if it may cut its own connection: the machine runs it after Script, and
	// restores the old state at once if it fails. It needs Restore. The confirmation reads its result.
	Change string
	// Address is the machine's address after Change; invalid if unknown.
	Address netip.Addr
	// Finish is a script that removes what the machine kept to undo the step, such as a copy of a file. It runs when the
	// step holds: behind Script, or when the new state is confirmed. It comes before the record says so, so one that
	// was cut off is repeated with the step.
	Finish string
	// Check is a script that fails if the change does not work. It is used if there is no connection from outside.
	Check string
}

// Of defines an aspect; F is what its probe finds on a machine, a plain value.
type Of[F any] struct {
	Name  string   // letters only
	Doc   string   // one sentence for people
	Paths []string // attributes of spec.Spec that are its own, with all below them

	// Probe is a POSIX shell fragment that changes nothing. It reads the wanted and the recorded entries.
	Probe func(q *Query) string
	// Parse reads the answer.
	Parse func(q *Query, rows [][]string) (F, error)
	// Fill writes into have what the machine has of the wanted and recorded entries, and nothing else.
	Fill func(q *Query, found F, have *spec.Spec)
	// Unmanaged lists unmanaged entries that people should know of. May be nil.
	Unmanaged func(q *Query, found F) []string
	// Steps computes the steps to the wanted state. It is called only if something differs.
	Steps func(q *Query, found F) []Step
}

// Aspect is an aspect whatever it finds.
type Aspect struct {
	Name, Doc string
	Paths     []string
	Probe     func(q *Query) string
	// Read fills have by the answer to the probe.
	Read func(q *Query, answer guest.Answer, have *spec.Spec) (Reading, error)
}

// Reading is the result of one answer.
type Reading struct {
	Unmanaged []string
	Steps     func() []Step
}

// Aspect is the same without its type.
func (a Of[F]) Aspect() Aspect {
	return Aspect{Name: a.Name, Doc: a.Doc, Paths: a.Paths, Probe: a.Probe, Read: func(q *Query, answer guest.Answer, have *spec.Spec) (Reading, error) {
		if answer.Code != 0 {
			return Reading{}, fmt.Errorf("the probe ended with exit code %d", answer.Code)
		}
		rows, err := guest.AnswerRows(answer.Text)
		if err != nil {
			return Reading{}, err
		}
		for i := range rows {
			for len(rows[i]) < 2 { // so that parsers need not check it
				rows[i] = append(rows[i], "")
			}
		}
		found, err := a.Parse(q, rows)
		if err != nil {
			return Reading{}, err
		}
		a.Fill(q, found, have)
		r := Reading{Steps: func() []Step {
			steps := a.Steps(q, found)
			for i := range steps {
				steps[i].Aspect = a.Name
			}
			return steps
		}}
		if a.Unmanaged != nil {
			r.Unmanaged = a.Unmanaged(q, found)
		}
		return r, nil
	}}
}

// All is the table of contents of this package, in the order of the probe.
func All() []Aspect {
	return []Aspect{
		hostname.Aspect(), pull.Aspect(), repositories.Aspect(), packages.Aspect(), timezone.Aspect(), users.Aspect(), keys.Aspect(), sudo.Aspect(),
		files.Aspect(), sysctl.Aspect(), services.Aspect(), sshd.Aspect(), fail2ban.Aspect(), commands.Aspect(),
	}
}

// Owns reports whether an attribute belongs to the aspect.
func (a Aspect) Owns(path string) bool {
	return slices.ContainsFunc(a.Paths, func(p string) bool {
		if prefix, last, ok := strings.Cut(p, ".*."); ok {
			rest, below := strings.CutPrefix(path, prefix+".")
			return below && strings.HasSuffix(rest, "."+last)
		}
		return path == p || strings.HasPrefix(path, p+".")
	})
}

// Guard names what is restored together.
func (s *Step) Guard() string {
	if s.Part == "" {
		return s.Aspect
	}
	return s.Aspect + "-" + s.Part
}

// isLogin reports whether a user is the one we log in as. Removing access from that user may lock us out.
func (q *Query) isLogin(user string) bool { return user == q.Login }

// all joins conditions of the shell; "" where there is none.
func all(conditions ...string) string {
	return strings.Join(slices.DeleteFunc(conditions, func(c string) bool { return c == "" }), " && ")
}

// onDisk is the condition that the disk is mounted which the spec wants a path to be on; "" if it wants none.
func (q *Query) onDisk(path string) string {
	var out []string
	for _, m := range q.Want.Config.Mounts {
		if strings.HasPrefix(path, strings.TrimSuffix(m.Path, "/")+"/") {
			out = append(out, "cut -d' ' -f5 /proc/self/mountinfo | grep -qxF -- "+guest.Quote(m.Path))
		}
	}
	return all(out...)
}

// unitThere is the condition that systemd knows a unit.
func unitThere(name string) string {
	return `[ "$(systemctl show -p LoadState --value -- ` + guest.Quote(unitFile(name)) + `)" != not-found ]`
}

// Items lists the wanted and the recorded entries of an aspect, each once, sorted.
func (q *Query) Items(aspect string, wanted []string) []string {
	all := slices.Concat(wanted, q.Record.Items(aspect))
	slices.Sort(all)
	return slices.Compact(all)
}

// script joins commands, one a line.
func script(lines ...string) string { return guest.Lines(lines...) }

// list writes names for a sentence, and not too many of them.
func list(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
