package main

import (
	"slices"
	"testing"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

func TestEditsOf(t *testing.T) {
	edits, secret := editsOf(plan.Step{Want: &model.Resource{}, Changes: []plan.Change{
		{Path: "options.args", Before: "hidden", After: "secret", Sensitive: true},
		{Path: "tags", Before: []string{"blue", "homestak"}, After: []string{"homestak"}},
		{Path: "cores", Before: int64(4), After: int64(2)},
	}})
	if len(secret) != 1 || secret[0].Path != "options.args" {
		t.Errorf("secrets: %v", secret)
	}
	if len(edits) != 2 || edits[1].Value != int64(4) || edits[1].Said != int64(2) {
		t.Fatalf("edits: %v", edits)
	}
	if tags := edits[0].Value.([]string); !slices.Equal(tags, []string{"blue"}) {
		t.Errorf("tags: %q", tags)
	}
}
