package service

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// A child whose receipts take too much room makes no more folders here, whatever it names them.
func TestReceiptsOfAChildHaveLimitedRoom(t *testing.T) {
	dir := t.TempDir()
	l, err := ledger.Open(dir)
	require.NoError(t, err)
	s := &Service{Ledger: l, o: Options{Config: &Config{}, Log: slog.New(slog.DiscardHandler)}}
	sent := func(name string) wire.Receipts {
		return wire.Receipts{Version: 1, Chains: []wire.ReceiptChain{{Path: []string{name}}}}
	}
	heads, err := s.keepReceipts("inner", sent("a"))
	require.NoError(t, err)
	require.Len(t, heads.Heads, 1)
	large := filepath.Join(dir, "below", "inner", "below", "a", "receipts", "x.json")
	require.NoError(t, os.WriteFile(large, nil, 0o600))
	require.NoError(t, os.Truncate(large, 2<<30)) // sparse
	_, err = s.keepReceipts("inner", sent("b"))
	require.ErrorContains(t, err, "the parent keeps no more of its receipts")
	require.NoDirExists(t, filepath.Join(dir, "below", "inner", "below", "b"))
	_, err = s.keepReceipts("other", sent("b"))
	require.NoError(t, err)
}
