package notify

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/model"
)

// kind is what a message is about.
type kind string

// The kinds.
const (
	kindFiring   kind = "firing"
	kindReminder kind = "reminder"
	kindResolved kind = "resolved"
	kindTest     kind = "test"
	kindStatus   kind = "status" // of a commit
)

// message is a message, as it is stored until it is sent.
type message struct {
	ID       string     `json:"id"` // kept when it is resent
	Kind     kind       `json:"kind"`
	At       time.Time  `json:"at"`
	Agent    string     `json:"agent,omitempty"`
	Incident string     `json:"incident,omitempty"` // the same one in all messages about it
	Since    time.Time  `json:"since,omitzero"`
	Flaps    bool       `json:"flaps,omitempty"`
	Members  []incident `json:"members,omitempty"`
	More     int        `json:"more,omitempty"` // members that it does not list

	Commit  string `json:"commit,omitempty"` // of a status
	Context string `json:"context,omitempty"`
	State   string `json:"state,omitempty"`
	Text    string `json:"text,omitempty"`
}

// newID returns a unique ID.
func newID() string { return rand.Text() }

// state is the stored state of all notifiers. It is immutable once stored: the next one is a copy.
type state struct {
	Version   int                       `json:"version"`
	Notifiers map[string]*notifierState `json:"notifiers"`
}

// notifierState is the stored state of one.
type notifierState struct {
	Open    []group              `json:"open"`
	Ended   map[string]time.Time `json:"ended"` // by key: incidents that resolved within flap
	Queue   []message            `json:"queue"`
	Dropped int                  `json:"dropped"` // messages, until a day after the last of them
	Lost    time.Time            `json:"lost,omitzero"`
	Set     map[string]string    `json:"set,omitempty"` // by commit and context: the state that was queued last
}

const stateVersion = 1

// readState reads the stored state. With an error it returns an empty one, which costs messages that are sent twice.
func readState(file string) (state, error) {
	s := state{Version: stateVersion, Notifiers: map[string]*notifierState{}}
	text, err := durable.ReadPrivate(file)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	var was state
	if err == nil {
		err = json.Unmarshal(text, &was)
	}
	if err == nil && was.Version != stateVersion {
		err = fmt.Errorf("its version is %d, this program reads %d", was.Version, stateVersion)
	}
	if err != nil {
		return s, fmt.Errorf("read the state of notifications in %s: %w", file, err)
	}
	maps.DeleteFunc(was.Notifiers, func(_ string, of *notifierState) bool { return of == nil })
	return was, nil
}

// without is a copy of a state without the messages that were sent, and without notifiers that the site lacks; nil rules
// keep all.
func (s state) without(rules map[string]*model.Notify, sent map[string]bool) state {
	next := state{Version: stateVersion, Notifiers: make(map[string]*notifierState, len(s.Notifiers))}
	for name, of := range s.Notifiers {
		if rules != nil && rules[name] == nil {
			continue
		}
		c := *of
		c.Open, c.Ended, c.Set = slices.Clone(of.Open), maps.Clone(of.Ended), maps.Clone(of.Set)
		c.Queue = slices.DeleteFunc(slices.Clone(of.Queue), func(m message) bool { return sent[m.ID] })
		next.Notifiers[name] = &c
	}
	return next
}

// of returns the state of a notifier, and creates it if there is none.
func (s state) of(name string) *notifierState {
	of := s.Notifiers[name]
	if of == nil {
		of = &notifierState{}
		s.Notifiers[name] = of
	}
	if of.Ended == nil {
		of.Ended = map[string]time.Time{}
	}
	return of
}

// mostQueued is the number of messages in the queue of a receiver.
const mostQueued = 200

// queue appends a message.
func (s *notifierState) queue(m message) { s.Queue = append(s.Queue, m) }

// first is the message to send next. Statuses of the newest commit come first: a forge that lost an older commit rejects its
// statuses, not always with a final error.
func (s *notifierState) first() message {
	newest := s.Queue[len(s.Queue)-1].Commit
	return s.Queue[slices.IndexFunc(s.Queue, func(m message) bool { return m.Commit == newest })]
}

// bound drops messages that are too old, and the oldest of too many.
func (s state) bound(now time.Time) {
	for _, of := range s.Notifiers {
		before := len(of.Queue)
		of.Queue = slices.DeleteFunc(of.Queue, func(m message) bool { return past(now, m.At, tooOld) && now.After(m.At) })
		of.Queue = of.Queue[max(0, len(of.Queue)-mostQueued):]
		of.lose(before-len(of.Queue), now)
		if past(now, of.Lost, tooOld) {
			of.Dropped, of.Lost = 0, time.Time{}
		}
	}
}

// lose counts dropped messages.
func (s *notifierState) lose(messages int, now time.Time) {
	if messages > 0 {
		s.Dropped += messages
		s.Lost = now.UTC()
	}
}
