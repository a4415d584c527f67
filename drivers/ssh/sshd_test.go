package ssh_test

import (
	"bytes"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	driver "github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

// realSSHD is a real sshd on this machine, for tests that run as root.
func realSSHD(t *testing.T) (*sourcetest.SSHServer, driver.Config) {
	t.Helper()
	s := sourcetest.NewSSHServer(t)
	if s.User != "root" {
		t.Skip("commands run as root, and the test does not")
	}
	// bash reads no ~/.bashrc of whoever runs the test, which may take long, below another shell
	// (run_startup_files in shell.c of bash).
	s.Configure("SetEnv SHLVL=1")
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

// A server may allow fewer sessions than we do, and notices late that one has ended.
func TestRealSSHDThatAllowsFewSessions(t *testing.T) {
	s, cfg := realSSHD(t)
	s.Configure("MaxSessions 2")
	m := open(t, cfg)
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			out, err := m.Run(t.Context(), guest.Command{Args: []string{"cat"}, Stdin: []byte("x")})
			require.NoError(t, err)
			require.Equal(t, "x", out.Out)
		})
	}
	all.Wait()

	s, cfg = realSSHD(t)
	s.Configure("MaxSessions 0")
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.ErrorContains(t, err, "it refuses every session (MaxSessions in its sshd_config, or out of processes)")
}

func TestRealSSHDThatForwardsNothing(t *testing.T) {
	s, above := realSSHD(t)
	s.Configure("AllowTcpForwarding no")
	_, cfg := realSSHD(t)
	cfg.Via = open(t, above)
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.ErrorContains(t, err, " forwards no connections (AllowTcpForwarding in its sshd_config)")
	drivertest.Hopeless(t, err, true)
}

// A server whose login shell runs nothing: what it says is shown.
func TestRealSSHDThatRunsNothing(t *testing.T) {
	s, cfg := realSSHD(t)
	s.Configure("ForceCommand echo no commands here")
	_, err := open(t, cfg).Run(t.Context(), yes)
	require.ErrorContains(t, err, "ended with exit code 0 before it ran the command: ")
	require.ErrorContains(t, err, "no commands here")
}
