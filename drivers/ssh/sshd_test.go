package ssh_test

import (
	"bytes"
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	driver "github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

// realSSHD is a real sshd on this machine. The user who runs the test may have no sudo: for it,
// the server is taken to be that of root.
func realSSHD(t *testing.T) (*sourcetest.SSHServer, driver.Config) {
	t.Helper()
	s := sourcetest.NewSSHServer(t)
	if s.User != "root" {
		t.Skip("commands run as root, and the test does not")
	}
	read := func(file string) string {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		return string(text)
	}
	host, port, err := net.SplitHostPort(s.Addr)
	require.NoError(t, err)
	n, err := strconv.Atoi(port)
	require.NoError(t, err)
	return s, driver.Config{Address: host, Port: n, User: s.User, Keys: []string{read(s.KeyFile)}, HostKeys: []string{read(s.HostKeyFile + ".pub")}}
}

func TestMachineByRealSSHD(t *testing.T) {
	drivertest.Machine(t, func(t *testing.T) guest.Machine {
		t.Helper()
		_, cfg := realSSHD(t)
		return open(t, cfg)
	})
}

func TestMachineBehindRealSSHD(t *testing.T) {
	_, above := realSSHD(t)
	_, cfg := realSSHD(t)
	cfg.Via = open(t, above)
	in := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	out, err := open(t, cfg).Run(t.Context(), guest.Command{Args: []string{"cat"}, Stdin: in})
	require.NoError(t, err)
	require.Equal(t, string(in), out.Out)
}

func TestRealHostKeyThatChanged(t *testing.T) {
	s, cfg := realSSHD(t)
	require.NoError(t, open(t, cfg).Ping(t.Context()))
	s.SetHostKey(s.Key("other"))
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.ErrorContains(t, err, "its host key has changed: pinned is SHA256:")
	drivertest.Hopeless(t, err, true)
}

func TestRealLoginThatIsRefused(t *testing.T) {
	_, cfg := realSSHD(t)
	_, cfg.Keys[0] = newKey(t)
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.ErrorContains(t, err, "it accepts none of these keys: SHA256:")
}
