package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// listed returns the plan with empty lists instead of none: the document has no null
// where a list belongs.
func (p *Plan) listed() *Plan {
	p.Steps, p.Unmanaged, p.Pending = list(p.Steps), list(p.Unmanaged), list(p.Pending)
	p.Unknown, p.Deferred, p.Findings = list(p.Unknown), list(p.Deferred), list(p.Findings)
	p.Undeclared, p.Places, p.Planned, p.Backups = list(p.Undeclared), list(p.Places), list(p.Planned), list(p.Backups)
	p.Outputs = list(p.Outputs)
	if p.Phases == nil {
		p.Phases = map[model.Address]Phase{}
	}
	return p
}

func list[L ~[]E, E any](l L) L {
	if l == nil {
		return L{}
	}
	return l
}

// MarshalJSON writes the document; lists are never null.
func (p Plan) MarshalJSON() ([]byte, error) {
	type document Plan
	return json.Marshal((*document)(p.listed()))
}

// MarshalJSON writes the step; vmid is null if it is not about a guest.
func (s Step) MarshalJSON() ([]byte, error) {
	doc := struct {
		Address  model.Address   `json:"address"`
		Node     string          `json:"node"`
		Manifest string          `json:"manifest"`
		Place    string          `json:"place,omitempty"`
		VMID     *int            `json:"vmid"`
		Action   Action          `json:"action"`
		Class    model.Class     `json:"class"`
		Reason   string          `json:"reason"`
		Changes  []Change        `json:"changes"`
		After    []model.Address `json:"after"`
		At       diag.Range      `json:"at"`
		Edits    []model.Edit    `json:"edits,omitempty"`
	}{s.Address, s.Node, s.Manifest, s.Place, nil, s.Action, s.Class, s.Reason, list(s.Changes), list(s.After), s.At, s.Edits}
	if s.VMID != 0 {
		doc.VMID = &s.VMID
	}
	return json.Marshal(doc)
}

// change is the form of Change in the document.
type change struct {
	Path      string      `json:"path"`
	Before    any         `json:"before"`
	After     any         `json:"after"`
	Sensitive bool        `json:"sensitive"`
	Class     model.Class `json:"class"`
}

// MarshalJSON writes the change without the values of a sensitive one.
func (c Change) MarshalJSON() ([]byte, error) {
	doc := change(c)
	if c.Sensitive {
		doc.Before, doc.After = masked(c.Before), masked(c.After)
	}
	return json.Marshal(doc)
}

// UnmarshalJSON reads what MarshalJSON writes, with values of the same types as
// model.Attr has.
func (c *Change) UnmarshalJSON(b []byte) error {
	var doc struct {
		change
		Before json.RawMessage `json:"before"`
		After  json.RawMessage `json:"after"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return err
	}
	before, errBefore := plainValue(doc.Before)
	after, errAfter := plainValue(doc.After)
	if err := errors.Join(errBefore, errAfter); err != nil {
		return fmt.Errorf("change of %q: %w", doc.Path, err)
	}
	*c = Change{doc.Path, before, after, doc.Sensitive, doc.Class}
	return nil
}

func plainValue(raw json.RawMessage) (any, error) {
	var v any
	if len(raw) == 0 {
		return nil, nil //nolint:nilnil // a value that is absent is nil
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case float64:
		if i, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
			return i, nil
		}
		return v, nil
	case []any:
		out := make([]string, len(v))
		for i, e := range v {
			s, ok := e.(string)
			if !ok {
				return nil, errors.New("a list has values other than strings")
			}
			out[i] = s
		}
		return out, nil
	case map[string]any:
		return nil, errors.New("a value is an object")
	default:
		return v, nil
	}
}

// maxDocument bounds a plan file; 10,000 steps take some 10 MB.
const maxDocument = 256 << 20

// read parses a plan from its document. The result can be shown and compared with a new plan, but not applied.
func read(r io.Reader) (*Plan, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	if err != nil {
		return nil, fmt.Errorf("read plan: %w", err)
	}
	if len(b) > maxDocument {
		return nil, fmt.Errorf("read plan: larger than %d MiB", maxDocument>>20)
	}
	var p Plan
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, fmt.Errorf("read plan: not a plan document: %w", err)
	}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("read plan: %w", err)
	}
	for i := range p.Steps {
		p.Steps[i].Changes, p.Steps[i].After = list(p.Steps[i].Changes), list(p.Steps[i].After)
	}
	return p.listed(), nil
}

// check reports whether a document says what every plan says.
func (p *Plan) check() error {
	major, _, _ := strings.Cut(p.FormatVersion, ".")
	ours, _, _ := strings.Cut(FormatVersion, ".")
	switch {
	case p.FormatVersion == "":
		return errors.New("not a plan document: it has no format_version")
	case major != ours:
		return fmt.Errorf("its format_version is %q, this program reads %s.x: make a new plan", p.FormatVersion, ours)
	case p.Host == "" || p.ID == "":
		return errors.New("not a plan document: host or id is missing")
	}
	seen := map[model.Address]bool{}
	for i, s := range p.Steps {
		switch {
		case s.Address == model.Address{}:
			return fmt.Errorf("step %d has no address", i+1)
		case seen[s.Address]:
			return fmt.Errorf("step %d is the second one of %s", i+1, s.Address)
		case !slices.Contains([]Action{Create, Update, Replace, Delete, Adopt, Forget}, s.Action):
			return fmt.Errorf("step %s has the unknown action %q", s.Address, s.Action)
		}
		for _, a := range s.After {
			if !seen[a] {
				return fmt.Errorf("step %s depends on %s, which is not an earlier step", s.Address, a)
			}
		}
		seen[s.Address] = true
	}
	return nil
}
