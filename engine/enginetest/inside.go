package enginetest

import (
	"slices"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Room is the desired state inside a box by its spec: the packages of that.
type Room struct {
	Packages []string `hcl:"packages,optional"`
}

// insideKinds are those of these tests with what is inside of boxes: inner.NAME.
func insideKinds() model.Kinds {
	return append(Kinds(), &model.Kind{
		Name: "inner", New: func() any { return &Room{} },
		Inside: func(_ *model.Resource, in model.Scope) (*model.Resource, diag.List) {
			if in.Earlier != nil {
				return &model.Resource{Spec: &Room{}, At: in.Node.At}, nil
			}
			spec := in.Site.Specs[in.Node.Spec]
			if spec == nil || in.Node.Mode == model.ModePull {
				return nil, nil
			}
			return &model.Resource{
				Spec: &Room{slices.Clone(spec.Platform.Packages)}, At: spec.At,
				Report: spec.Config != nil && spec.Config.Drift == "report",
			}, nil
		},
	})
}

// InsideSite is a site where each box has a spec with the package nginx.
func InsideSite(sizes map[string]int) *model.Site {
	s := Site(sizes)
	s.Kinds = insideKinds()
	s.Specs = map[string]*model.Spec{"base": {Name: "base", Platform: &model.Platform{Packages: []string{"nginx"}}}}
	for _, n := range s.Manifests["web"].Nodes {
		n.Spec, n.Mode = "base", model.ModePush
	}
	return s
}
