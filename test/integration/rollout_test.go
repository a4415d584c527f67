package integration_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// A new image reaches the nodes of one block one by one, as docs/operations.md says.
func TestN14RollOut(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 10 * time.Millisecond})
	nodes := func(recreate string) {
		s.deploy("web", vm("web", "count = 4", recreate))
	}
	nodes("")
	s.apply()
	made := func() []string {
		var out []string
		for i := range 4 {
			out = append(out, s.guest(fmt.Sprint("web-", i+1)).Config["smbios1"])
		}
		return out
	}
	first := made()
	s.edit("site.hcl", "sha256:00", "sha256:11")
	s.apply()
	require.Equal(t, first, made(), "another image replaces nothing")
	p := s.plan()
	require.True(t, p.InSync())
	require.Len(t, p.Findings, 4)

	nodes(`recreate = count.index < 1 ? "2026-11" : ""`)
	p = s.plan()
	var text bytes.Buffer
	p.Text(&text, plan.TextOptions{})
	require.Contains(t, text.String(), `± vm web-1 (10000)      recreate "" → 2026-11    data-loss`)
	s.apply()
	second := made()
	require.Equal(t, first[1:], second[1:])
	require.NotEqual(t, first[0], second[0])
	require.Len(t, s.plan().Findings, 3)

	nodes(`recreate = count.index < 3 ? "2026-11" : null`)
	s.apply()
	nodes(`recreate = "2026-11"`)
	s.apply()
	p = s.plan()
	require.True(t, p.InSync())
	require.Empty(t, p.Findings)
	nodes("")
	s.inSync()
}
