package site

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// renderRequest asks a child to render templates.
type renderRequest struct {
	Templates map[string]string
	Facts     map[string]any
}

// rendering is the last result of rendering the outputs of a tree.
type rendering struct {
	of    [sha256.Size]byte // the facts
	texts map[string]model.Rendered
}

// renderer returns how the outputs of a site are rendered: as its rules are evaluated, and not again with the facts of the last
// result. A text with the value of a secret is an error.
func renderer(s *Sandbox, site *model.Site, last *rendering) func(context.Context, map[string]any) (map[string]model.Rendered, error) {
	templates := map[string]string{}
	for name, o := range site.Outputs {
		templates[name] = o.Template
	}
	secrets := site.Secrets.Long()
	return func(ctx context.Context, facts map[string]any) (out map[string]model.Rendered, err error) {
		b, err := json.Marshal(facts)
		if err != nil {
			return nil, err
		}
		of := sha256.Sum256(b)
		if last.texts != nil && of == last.of {
			return last.texts, nil
		}
		if s == nil {
			out = hcl.Render(templates, facts)
		} else if out, err = s.render(ctx, renderRequest{templates, facts}); err != nil {
			return nil, err
		}
		for name := range maps.Clone(out) {
			if slices.ContainsFunc(secrets, func(v string) bool { return strings.Contains(out[name].Text, v) }) {
				out[name] = model.Rendered{Error: "it contains the value of a secret"}
			}
		}
		*last = rendering{of, out}
		return out, nil
	}
}

// render renders templates in the child that evaluates rules.
func (s *Sandbox) render(ctx context.Context, r renderRequest) (map[string]model.Rendered, error) {
	a, _, err := s.do(ctx, nil, request{Render: &r})
	return a.Texts, err
}
