package site

import (
	"context"
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

// renderer returns how the outputs of a site are rendered: as its rules are evaluated. A text with the value of a secret is
// an error.
func renderer(s *Sandbox, site *model.Site) func(context.Context, map[string]any) (map[string]model.Rendered, error) {
	templates := map[string]string{}
	for name, o := range site.Outputs {
		templates[name] = o.Template
	}
	secrets := site.Secrets.Long()
	return func(ctx context.Context, facts map[string]any) (out map[string]model.Rendered, err error) {
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
		return out, nil
	}
}

// render renders templates in the child that evaluates rules.
func (s *Sandbox) render(ctx context.Context, r renderRequest) (map[string]model.Rendered, error) {
	a, err := s.ask(ctx, request{Render: &r})
	return a.Texts, err
}
