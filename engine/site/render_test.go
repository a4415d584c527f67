package site

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
)

// TestOutputsAreNotRenderedAgain with the facts of the last time: the passes of an agent that find nothing new do not.
func TestOutputsAreNotRenderedAgain(t *testing.T) {
	l := NewLoader(nil)
	tree := folder("outputs.hcl", "output \"name\" {\n  template = \"$${site.name}\"\n}\n")
	render := func(facts string) map[string]model.Rendered {
		t.Helper()
		d := l.Load(t.Context(), tree, Input{Tree: "one"})
		require.Empty(t, d.Findings)
		texts, err := d.Render(t.Context(), map[string]any{"site": map[string]any{"name": facts}})
		require.NoError(t, err)
		require.Equal(t, map[string]model.Rendered{"name": {Text: facts}}, texts)
		return texts
	}
	same := func(a, b map[string]model.Rendered) bool {
		return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
	}
	first := render("home")
	require.True(t, same(first, render("home")))
	require.False(t, same(first, render("away")))
}
