package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
)

// Scope is the limits and grants of a plan. It is in a plan file, since a plan from a file can be compared only
// with one that was made in the same way.
type Scope struct {
	Manifest    string   `json:"manifest,omitempty"`
	Targets     []string `json:"targets,omitempty"`
	RefreshOnly bool     `json:"refresh_only,omitempty"`

	AllowDeletes int      `json:"allow_deletes,omitempty"` // what was granted when it was made
	AllowOrphans []string `json:"allow_orphans,omitempty"`
}

// Document is the plan document: a plan and its scope.
type Document struct {
	Plan       *Plan
	Scope      Scope
	Attributes []Attribute // of the resources for which all attributes were requested; nil for none
}

// MarshalJSON writes the plan, with the key scope if it was limited to anything, and attributes if they were requested.
func (d Document) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(d.Plan)
	if err != nil {
		return nil, err
	}
	sc, err := json.Marshal(d.Scope)
	if err != nil {
		return nil, err
	}
	if string(sc) != "{}" {
		b = slices.Concat(b[:len(b)-1], []byte(`,"scope":`), sc, []byte("}"))
	}
	if d.Attributes == nil {
		return b, nil
	}
	all, err := json.Marshal(d.Attributes)
	return slices.Concat(b[:len(b)-1], []byte(`,"attributes":`), all, []byte("}")), err
}

// WriteFile writes a plan file. It names hosts and guests, so only its owner may read it.
func (d Document) WriteFile(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("keep the plan: %w", err)
	}
	e := json.NewEncoder(f)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	err = e.Encode(d)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("keep the plan in %s: %w", name, err)
	}
	return nil
}

// ReadFile reads a plan file.
func ReadFile(name string) (Document, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return Document{}, fmt.Errorf("open the plan: %w\na plan is kept in a file by: homestak-gitops plan --out FILE", err)
	}
	d, err := Read(text)
	if err != nil {
		return Document{}, fmt.Errorf("%s: %w\na plan is kept in a file by: homestak-gitops plan --out FILE", name, err)
	}
	return d, nil
}

// Read reads a plan document.
func Read(text []byte) (Document, error) {
	p, err := read(bytes.NewReader(text))
	if err != nil {
		return Document{}, err
	}
	var doc struct {
		Scope      Scope       `json:"scope"`
		Attributes []Attribute `json:"attributes"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return Document{}, err
	}
	return Document{p, doc.Scope, doc.Attributes}, nil
}
