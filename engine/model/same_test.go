package model_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/model"
)

func things() *rapid.Generator[*thing] {
	word := rapid.StringMatching(`[a-c]?`)
	return rapid.Custom(func(t *rapid.T) *thing {
		s := &thing{
			Ref: word.Draw(t, "ref"), Cores: rapid.IntRange(0, 1).Draw(t, "cores"), Rate: rapid.SampledFrom([]float64{0, 0.5}).Draw(t, "rate"),
			Wait: rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(t, "wait"), On: rapid.Ptr(rapid.Bool(), true).Draw(t, "on"),
			Tags: rapid.SliceOfN(word, 0, 2).Draw(t, "tags"), Opts: rapid.MapOfN(word, word, 0, 2).Draw(t, "options"), local: rapid.IntRange(0, 1).Draw(t, "local"),
		}
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"b1", "b2"}), 0, 2, rapid.ID[string]).Draw(t, "boxes") {
			s.Boxes = append(s.Boxes, box{name, rapid.IntRange(0, 1).Draw(t, "size")})
		}
		if rapid.Bool().Draw(t, "lid") {
			s.Lid = &lid{rapid.Ptr(word, true).Draw(t, "colour")}
		}
		return s
	})
}

// What is the same has the same attributes, and the other way round; but for a block
// without any, which Attrs does not show.
func TestSameIsWhatAttrsSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := things().Draw(t, "a"), things().Draw(t, "b")
		if rapid.Bool().Draw(t, "alike") {
			b = model.Clone(a).(*thing)
			b.Ref, b.local = "other", 7 // which nobody compares
			slices.Reverse(b.Boxes)     // nor the order of blocks
			if rapid.Bool().Draw(t, "edited") {
				b.Cores = rapid.IntRange(0, 1).Draw(t, "edit")
			}
		}
		equal := reflect.DeepEqual(model.Attrs(a), model.Attrs(b)) && (a.Lid == nil) == (b.Lid == nil)
		require.Equal(t, equal, model.Same(a, b))
	})
	require.False(t, model.Same(&thing{}, &box{}), "of two types")
}

func TestSameMakesNoList(t *testing.T) {
	a := &thing{Tags: []string{"x"}, Boxes: []box{{"b", 1}}, Lid: &lid{new(string)}, Opts: map[string]string{"k": "v"}}
	b := model.Clone(a).(*thing)
	require.Zero(t, testing.AllocsPerRun(10, func() { model.Same(a, b) }))
}
