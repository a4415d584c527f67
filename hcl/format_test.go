package hcl_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/hcl"
)

func TestFormat(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"indentation":  {"site \"home\" {\ndomain=\"x\"\n      timezone =   \"UTC\"\n}", "site \"home\" {\n  domain   = \"x\"\n  timezone = \"UTC\"\n}\n"},
		"comments":     {"# top\nlocals{\n  a=1 # one\n  bc=2 // two\n}\n\n\n", "# top\nlocals {\n  a  = 1 # one\n  bc = 2 // two\n}\n"},
		"empty":        {"", ""},
		"ends kept":    {"locals {\r\n  a=1\r\n}", "locals {\r\n  a = 1\r\n}\r\n"},
		"heredoc kept": {"locals {\n  a = <<E\n   x\n E\n}\n", "locals {\n  a = <<E\n   x\n E\n}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, found := hcl.Format([]byte(c.in), "a.hcl")
			require.Empty(t, found)
			require.Equal(t, c.want, string(got))
			again, _ := hcl.Format(got, "a.hcl")
			require.Equal(t, c.want, string(again), "formatting twice changes nothing")
		})
	}
}

func TestFormatLeavesAloneWhatItCannotRead(t *testing.T) {
	for _, in := range []string{"locals {\n  a=\n}\n", "\xff", "locals {\n  a = " + strings.Repeat("[", 1000)} {
		got, found := hcl.Format([]byte(in), "a.hcl")
		require.Equal(t, in, string(got))
		require.NotZero(t, found.Errors())
		require.False(t, found[0].At.IsZero())
	}
}

func TestReference(t *testing.T) {
	var b strings.Builder
	require.NoError(t, hcl.Reference(&b, testKinds()))
	const name = "testdata/reference.md"
	if *update {
		require.NoError(t, os.WriteFile(name, []byte(b.String()), 0o600))
	}
	want, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String())
}
