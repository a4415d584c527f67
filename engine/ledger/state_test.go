package ledger_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/ledger"
)

// What somebody suspended may stand there, or what a newer program knows.
func TestAStateThatCannotBeReadIsSetAside(t *testing.T) {
	for name, text := range map[string]string{"garbage": "{", "newer": `{"version": 2, "suspended": [{"manifest": ""}]}`} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "state.json"), []byte(text), 0o600))
			l, err := ledger.Open(dir)
			require.NoError(t, err)
			_, err = l.State()
			require.Error(t, err)
			require.NoError(t, l.SetState(ledger.State{Identity: "father"}))
			require.NoError(t, l.SetState(ledger.State{Identity: "father", Consumed: 1}))
			b, err := os.ReadFile(filepath.Join(dir, "state.unreadable.json"))
			require.NoError(t, err)
			require.Equal(t, text, string(b))
			s, err := l.State()
			require.NoError(t, err)
			require.Equal(t, 1, s.Consumed)
		})
	}
}
