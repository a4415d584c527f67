// Package converge makes a machine match its spec: it reads the machine with one command, compares it with the
// spec, and runs the remaining steps. It keeps no state except on the machine, so an interrupted apply is repeated
// from the beginning.
//
// Read in this order: Observe (the probe), State (observations, changes and steps), Apply (rounds of both), run.go
// (one step with its record), guard.go (the revert of changes that could lock us out).
package converge

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Machine is the part of guest.Machine that is needed.
type Machine interface {
	// Run runs a command inside the machine as root and waits for its end. It may have run
	// the command although it returns an error.
	Run(ctx context.Context, c guest.Command) (guest.Output, error)
}

// State is a machine as it was observed, with its spec. It is immutable once Observe has returned it.
type State struct {
	Want, Have *spec.Spec
	Record     *guest.Record
	OS         aspect.OS
	Login      string   // the user by whose login the commands ran: root, or who became root by sudo
	Unmanaged  []string // "user bob": unmanaged entries that people should know of
	Unknown    []Unknown
	Trips      int // commands that the observation took

	sum      string // of the file of the record, as it was read
	readings []reading
	armed    []string // aspects whose last change is not confirmed yet
}

// Unknown is an aspect that could not be read. No change follows from it.
type Unknown struct{ Aspect, Why string }

type reading struct {
	aspect.Aspect
	aspect.Reading
}

// unsupportedError reports a machine that aspects are not written for.
type unsupportedError struct{ Found string }

func (e *unsupportedError) Error() string {
	return fmt.Sprintf("the machine runs %s: specs are applied on Debian 12, Debian 13 and Ubuntu only", e.Found)
}

// Hopeless is true: no time makes another system of it.
func (*unsupportedError) Hopeless() bool { return true }

// Observe reads a machine. It changes nothing there. It takes one command, and a second one
// if the machine has a record of things that the spec does not name.
func Observe(ctx context.Context, m Machine, want *spec.Spec) (*State, error) {
	known := &guest.Record{}
	for trip := 1; ; trip++ {
		s, err := observe(ctx, m, want, known)
		if err != nil {
			return nil, fmt.Errorf("observing %s: %w", cmp.Or(want.Node, "the machine"), err)
		}
		s.Trips = trip
		if trip == 2 || s.covered(known) {
			return s, nil
		}
		known = s.Record
	}
}

// covered reports whether the probe that was made for one record asked about everything
// that the one on the machine names.
func (s *State) covered(known *guest.Record) bool {
	if len(s.Record.Entries) == 0 {
		return true
	}
	for _, a := range aspects() {
		asked := a.Probe(&aspect.Query{Want: s.Want, Record: known, OS: s.OS})
		if asked != a.Probe(&aspect.Query{Want: s.Want, Record: s.Record, OS: s.OS}) {
			return false
		}
	}
	return true
}

func observe(ctx context.Context, m Machine, want *spec.Spec, known *guest.Record) (*State, error) {
	boundary, err := boundary()
	if err != nil {
		return nil, err
	}
	all := aspects()
	q := &aspect.Query{Want: want, Record: known}
	fragments := []guest.Fragment{
		{Name: "record", Body: "if [ -f " + guest.RecordFile + " ]; then row record <" + guest.RecordFile + "; fi"},
		{Name: "armed", Body: "for _f in " + revertFolder + "/*.sh " + revertFolder + "/*.sh.[0-9]*; do if [ -f \"$_f\" ]; then printf %s \"${_f##*/}\" | row armed; fi; done"},
	}
	for _, a := range all {
		fragments = append(fragments, guest.Fragment{Name: a.Name, Body: a.Probe(q)})
	}
	first := "printf '%s.uid %s\\n' " + boundary + " \"$(id -u)\"\n" +
		"printf '%s.login %s\\n' " + boundary + " \"${SUDO_USER:-root}\"\n" +
		"if [ -r /etc/os-release ]; then printf '%s.os %s\\n' " + boundary + " \"$(tr '\\n' '\\t' </etc/os-release | tr -cd '[:print:]\\t')\"; fi\n"
	out, err := m.Run(ctx, guest.Probe(boundary, first+guest.MoveRecord, fragments))
	if err != nil {
		return nil, err
	}
	s := &State{Want: want}
	if err := s.readFirst(boundary, out); err != nil {
		return nil, err
	}
	if out.Code != 0 || out.Signal != 0 {
		return nil, fmt.Errorf("the probe ended with %s", ending(out))
	}
	if out.Cut {
		return nil, fmt.Errorf("the answer of the machine is longer than %d bytes", guest.OutputLimit)
	}
	answers, err := guest.ReadProbe(boundary, out.Out, fragments)
	if err != nil {
		return nil, err
	}
	return s, s.read(answers, all, out.Err)
}

// read takes the answers.
func (s *State) read(answers map[string]guest.Answer, all []aspect.Aspect, complaints string) error {
	rows, err := guest.AnswerRows(answers["record"].Text)
	if err != nil || answers["record"].Code != 0 {
		return fmt.Errorf("%s cannot be read: %w", guest.RecordFile, errors.Join(err, errors.New(guest.Excerpt(complaints))))
	}
	text := ""
	if len(rows) > 0 && len(rows[0]) == 2 {
		text = rows[0][1]
	}
	if s.Record, err = guest.ReadRecord(text); err != nil {
		return err
	}
	s.sum = guest.ContentSum(text)
	armed, err := guest.AnswerRows(answers["armed"].Text)
	if err != nil {
		return err
	}
	for _, r := range armed {
		if len(r) != 2 {
			return fmt.Errorf("the machine's answer about unconfirmed changes has a row of %d fields", len(r))
		}
		name, _, _ := strings.Cut(r[1], ".sh") // one with a number behind it runs
		s.armed = append(s.armed, name)
	}
	s.Have = spec.Empty(s.Want.Node)
	q := &aspect.Query{Want: s.Want, Record: s.Record, OS: s.OS, Login: s.Login}
	for _, a := range all {
		r, err := a.Read(q, answers[a.Name], s.Have)
		if err != nil {
			s.Unknown = append(s.Unknown, Unknown{a.Name, strings.TrimSpace(err.Error() + " " + guest.Excerpt(complaints))})
			continue
		}
		s.Unmanaged = append(s.Unmanaged, r.Unmanaged...)
		s.readings = append(s.readings, reading{a, r})
	}
	if slices.Contains(s.armed, "sshd") {
		ssh := spec.SSH{}
		if s.Have.Posture.SSH != nil {
			ssh = *s.Have.Posture.SSH
		}
		ssh.Unconfirmed = true
		s.Have.Posture.SSH = &ssh
	}
	if slices.Contains(s.armed, "network") {
		network := spec.Network{}
		if s.Have.Network != nil {
			network = *s.Have.Network
		}
		network.Unconfirmed = true
		s.Have.Network = &network
	}
	if slices.Contains(s.armed, "pvebridge") {
		s.Have.Config.PVE.Bridge += " (unconfirmed)"
	}
	return nil
}

// readFirst reads who answers: what system, and as whom.
func (s *State) readFirst(boundary string, out guest.Output) error {
	uid, system := "", ""
	for line := range strings.Lines(out.Out) {
		if text, ok := strings.CutPrefix(line, boundary+".uid "); ok {
			uid = strings.TrimSpace(text)
		}
		if text, ok := strings.CutPrefix(line, boundary+".login "); ok {
			s.Login = strings.TrimSpace(text)
		}
		if text, ok := strings.CutPrefix(line, boundary+".os "); ok {
			system = text
		}
	}
	if uid == "" {
		return fmt.Errorf("the machine has no POSIX shell that answers: %s", ending(out))
	}
	fields := map[string]string{}
	for field := range strings.SplitSeq(system, "\t") {
		key, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		fields[key] = strings.Trim(value, `"'`)
	}
	s.OS = aspect.OS{ID: fields["ID"], Version: fields["VERSION_ID"], Name: cmp.Or(guest.Excerpt(fields["PRETTY_NAME"]), "a system without /etc/os-release")}
	if s.OS.ID != "ubuntu" && (s.OS.ID != "debian" || s.OS.Version != "12" && s.OS.Version != "13") {
		return &unsupportedError{s.OS.Name}
	}
	if uid != "0" {
		return fmt.Errorf("commands run as user %s and not as root: let the user of the connection use sudo without a password", guest.Excerpt(uid))
	}
	return nil
}

// Changes lists the differences between machine and spec, except those that could not be read.
func (s *State) Changes() []plan.Change {
	out := []plan.Change{}
	for _, c := range plan.Differences(s.Want, s.Have) {
		if slices.ContainsFunc(s.readings, func(r reading) bool { return r.Owns(c.Path) }) {
			c.Sensitive = c.Sensitive || s.Want.IsSensitive(c.Path)
			out = append(out, c)
		}
	}
	return out
}

// Steps lists what Apply would do, in order; empty without changes.
func (s *State) Steps() []aspect.Step {
	changes := s.Changes()
	var steps []aspect.Step
	for _, r := range s.readings {
		if slices.ContainsFunc(changes, func(c plan.Change) bool { return r.Owns(c.Path) }) {
			steps = append(steps, r.Steps()...)
		}
	}
	sort.SliceStable(steps, func(i, j int) bool { return int(steps[i].Stage) < int(steps[j].Stage) })
	return steps
}

func boundary() (string, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return "", err
	}
	return "homestak-" + hex.EncodeToString(b), nil
}

// ending says how a command ended, with the last of what it wrote.
func ending(out guest.Output) string {
	how := fmt.Sprintf("exit code %d", out.Code)
	if out.Signal != 0 {
		how = fmt.Sprintf("signal %d", out.Signal)
	}
	if text := guest.Excerpt(out.Err); text != "" {
		return how + ": " + text
	}
	return how
}
