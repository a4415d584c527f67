package model

import (
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Pack switches a shipped pack of rules on.
type Pack struct {
	Name     string            `hcl:"name,label"`
	Rules    []string          `hcl:"rules,optional" doc:"Those of its rules that count (default: all)."`
	Settings map[string]string `hcl:"settings,optional" doc:"Values that its rules use."`

	At diag.Range
}

// RuleSkipped is the rule of a node that left out a phase of its life. The agent reports it, and no policy.
const RuleSkipped = "life/skipped"

// Waiver permits what one rule denies, for one node and until a day.
type Waiver struct {
	Name    string `hcl:"name,label"`
	Rule    string `hcl:"rule" doc:"The rule, as its finding shows it."`
	Node    string `hcl:"node" doc:"Node, image, posture or other object that the finding names."`
	Reason  string `hcl:"reason" doc:"Why it is permitted; shown wherever it is used."`
	Owner   string `hcl:"owner" doc:"Who answers for it."`
	Expires string `hcl:"expires" quoted:"true" doc:"Last day on which it counts, such as 2027-03-31, in UTC."`

	At diag.Range
}

// Expired reports whether its last day has passed. A date that cannot be read has.
func (w *Waiver) Expired(now time.Time) bool {
	_, err := time.Parse(time.DateOnly, w.Expires)
	return err != nil || now.UTC().Format(time.DateOnly) > w.Expires
}

// Governed reports whether the site has packs or waivers: then what its policies say of it depends on the day.
func (s *Site) Governed() bool { return len(s.Packs)+len(s.Waivers) > 0 }
