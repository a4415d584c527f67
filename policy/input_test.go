package policy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadInput: one document, from a file or from stdin.
func TestReadInput(t *testing.T) {
	doc, err := ReadInput("-", strings.NewReader(`{"n": 12345678901234567890}`))
	require.NoError(t, err)
	require.Equal(t, map[string]any{"n": json.Number("12345678901234567890")}, doc)

	file := filepath.Join(t.TempDir(), "input.json")
	require.NoError(t, os.WriteFile(file, []byte(`["a"] ["b"]`), 0o600))
	_, err = ReadInput(file, nil)
	require.EqualError(t, err, "read the input from "+file+": something follows the document")
	_, err = ReadInput(file+".gone", nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = ReadInput("-", strings.NewReader("{"))
	require.ErrorContains(t, err, "read the input from -")
}
