package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func TestDifferencesAreThoseOfTheTags(t *testing.T) {
	type disk struct {
		Name string `hcl:"name,label"`
		Size int    `hcl:"size" cost:"hot"`
	}
	type spec struct {
		Name   string   `hcl:"name" cost:"restart"`
		Hidden string   `hcl:"hidden" plan:"-"`
		Key    string   `hcl:"key" secret:"true"`
		Tags   []string `hcl:"tags,optional"`
		Disks  []disk   `hcl:"disk,block"`
	}
	want := &spec{Name: "a", Hidden: "x", Key: "new", Disks: []disk{{"root", 8}, {"data", 1}}}
	have := &spec{Name: "b", Key: "old", Disks: []disk{{"data", 1}, {"swap", 2}}}
	require.Equal(t, []plan.Change{
		{Path: "name", Before: "b", After: "a", Class: model.ClassRestart},
		{Path: "key", Before: "old", After: "new", Sensitive: true, Class: model.ClassNone},
		{Path: "disk.root.size", After: int64(8), Class: model.ClassHot},
		{Path: "disk.swap.size", Before: int64(2), Class: model.ClassHot},
	}, plan.Differences(want, have))
	require.Empty(t, plan.Differences(want, want))
}
