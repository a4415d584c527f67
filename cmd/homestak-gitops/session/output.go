package session

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// output is an output of the site.
type output struct {
	Name  string `json:"name"`
	To    string `json:"to"`
	Text  string `json:"text"`
	Error string `json:"error"` // why there is no text, "" if there is
}

// outputNames lists the outputs of the site; the error names one that it does not have.
func (s *Session) outputNames(wanted ...string) ([]string, error) {
	declared := s.Desired.Site.Outputs
	for _, name := range wanted {
		if declared[name] == nil {
			return nil, fmt.Errorf("the site has no output %q\n%s", name, diag.DidYouMean(name, slices.Collect(maps.Keys(declared))))
		}
	}
	if len(wanted) > 0 {
		return wanted, nil
	}
	return slices.Sorted(maps.Keys(declared)), nil
}

// outputs reads the host, and renders outputs of the site.
func (s *Session) outputs(ctx context.Context, h *model.Host, names []string) ([]output, error) {
	p, err := s.PassOver(h, plan.Scope{RefreshOnly: true})
	if err != nil {
		return nil, err
	}
	p.Verdict = func(context.Context, *plan.Plan) (bool, error) { return true, nil } // guests say their addresses
	r := s.Observe(ctx, p)
	if r.Plan == nil || r.NotObserved() {
		s.ui.Findings(r.Findings)
		return nil, ui.ExitOfPass(r)
	}
	texts, err := r.Outputs(ctx)
	out := []output{}
	for _, name := range names {
		out = append(out, output{name, s.Desired.Site.Outputs[name].To, texts[name].Text, texts[name].Error})
	}
	return out, err
}

// outputList is the document of the verb.
type outputList struct {
	Outputs  []output  `json:"outputs"`
	Findings diag.List `json:"findings"`
}

// PrintOutput prints one output of the site of a verb, or lists their names.
func (o *Opener) PrintOutput(ctx context.Context, f *Flags, wanted []string) error {
	o.UI.Document = func(err error) any { return outputList{[]output{}, ui.ErrorFindings(err)} }
	s, _, h, err := o.Reach(ctx, f)
	if err != nil {
		return err
	}
	defer s.Close()
	names, err := s.outputNames(wanted...)
	if err != nil {
		return err
	}
	if len(wanted) == 0 && !o.UI.JSON {
		return o.UI.Show(nil, strings.Join(append(names, ""), "\n"))
	}
	list, err := s.outputs(ctx, h, names)
	switch {
	case err == nil && o.UI.JSON:
		return o.UI.Emit(outputList{list, diag.List{}})
	case err != nil:
		return err
	case list[0].Error != "":
		return fmt.Errorf("output %s cannot be rendered: %s", list[0].Name, list[0].Error)
	}
	o.UI.Data = true
	_, err = io.WriteString(o.UI.Stdout, list[0].Text)
	return err
}
