package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
)

// A pass about a few guests sees no child, and takes none for gone.
func TestAPassAboutSomeGuestsForgetsNoChild(t *testing.T) {
	want := &model.Want{Host: &model.Host{}, State: model.State{}}
	before := []string{"inner"}
	require.Equal(t, before, removedChildren(want, model.Observed{Only: true}, before))
	require.Empty(t, removedChildren(want, model.Observed{}, before))
}
