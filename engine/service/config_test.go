package service

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLockDir(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"HOMESTAK_DATA_DIR": "/x", "XDG_STATE_HOME": "/y", "HOME": "/z"}, "/x"},
		{map[string]string{"XDG_STATE_HOME": "/y", "HOME": "/z"}, "/y/homestak-gitops"},
		{map[string]string{"XDG_STATE_HOME": "relative", "HOME": "/z"}, "/z/.local/state/homestak-gitops"},
		{map[string]string{"HOME": "/z"}, "/z/.local/state/homestak-gitops"},
		{nil, ""},
	} {
		got, err := LockDir(func(k string) string { return c.env[k] })
		switch {
		case os.Geteuid() == 0 && c.env["HOMESTAK_DATA_DIR"] == "":
			require.Equal(t, "/var/lib/homestak-gitops", got)
		case c.want == "":
			require.ErrorContains(t, err, "HOMESTAK_DATA_DIR")
		default:
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		}
	}
}
