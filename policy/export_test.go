package policy

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/homestak/homestak-gitops/engine/model"
)

// Within runs something that is no policy under the limits of policies.
func (s *Set) Within(ctx context.Context, run func(context.Context, topdown.Cancel) (string, error)) (string, error) {
	return within(ctx, &s.limits, run)
}

// Limited is a Set of which only the limits work.
func Limited(limit time.Duration) *Set {
	return &Set{limits: limits{time: limit, memory: defaultMemory}}
}

// Misfits holds a document against the shape that rules are checked by. It lists the
// fields that only one of them has.
func Misfits(kinds model.Kinds, document any, auth bool) []string {
	s := shapesOf(kinds).pass
	if auth {
		s = shapesOf(kinds).auth
	}
	var out []string
	misfits("input", s, document, &out)
	return out
}

func misfits(path string, s *shape, doc any, out *[]string) {
	switch v := doc.(type) {
	case map[string]any:
		if s == nil {
			return
		}
		if s.fields == nil {
			for _, k := range sortedKeys(v) {
				misfits(path+"[_]", s.each, v[k], out)
			}
			return
		}
		for _, k := range sortedKeys(v) {
			field, has := s.fields[k]
			if !has {
				*out = append(*out, fmt.Sprintf("%s.%s is in the document only", path, k))
				continue
			}
			misfits(path+"."+k, field, v[k], out)
		}
		for _, k := range sortedKeys(s.fields) {
			if _, has := v[k]; !has {
				*out = append(*out, fmt.Sprintf("%s.%s is in the shape only", path, k))
			}
		}
	case []any:
		if s == nil {
			return
		}
		if s.fields != nil {
			*out = append(*out, path+" is a list, and an object in the shape")
			return
		}
		for _, e := range v {
			misfits(path+"[_]", s.each, e, out)
		}
	default:
	}
}

// MissingForShipped lists what shipped rules ask of nodes beyond what they get where
// there are no others.
func MissingForShipped(site *model.Site) []string {
	s, _ := Compile(context.Background(), Options{})
	fields := map[string]*shape{}
	for _, node := range shippedNodes(site, nil) {
		for name := range node.(map[string]any) {
			fields[name] = plain
		}
	}
	known := shapesOf(nil)
	known.pass.fields["site"].fields["nodes"] = listOf(object(fields))
	var out []string
	c := checker{&s.ruleset, s.compiler}
	w := c.walker(known)
	c.eachRule(func(m *ast.Module, r *ast.Rule) {
		if strings.HasPrefix(path.Base(r.Loc().File), "pack") {
			return // a site with a pack has all of it
		}
		w.misses(m, r, func(t *ast.Term, field string, _ *shape) {
			out = append(out, fmt.Sprintf("%s: %s", t.Location, field))
		})
	})
	return out
}

// Document is what rules get of a request.
func (in AuthInput) Document() map[string]any { return in.document() }

// Compiler is that of a Set.
func Compiler(s *Set) *ast.Compiler { return s.compiler }
