package debian_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	driver "github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/sim/debian"
	"github.com/homestak/homestak-gitops/sim/machine"
)

func newKey(t *testing.T) (line, private string) {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(key, "")
	require.NoError(t, err)
	of, err := ssh.NewPublicKey(public)
	require.NoError(t, err)
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(of))), string(pem.EncodeToMemory(block))
}

// boot boots a machine that lets a user in, and gives the way in.
func boot(t *testing.T, user string) (*debian.Machine, *driver.Machine) {
	t.Helper()
	line, private := newKey(t)
	m := debian.NewDisk(debian.Options{}).Begin(debian.Birth{Instance: "1", Hostname: "edge", User: user, Keys: []string{line}})
	t.Cleanup(m.Halt)
	key, err := m.K.FS.ReadFile("/etc/ssh/ssh_host_ed25519_key.pub")
	require.NoError(t, err)
	way, err := driver.New(driver.Config{
		Address: "192.0.2.7", User: user, Keys: []string{private}, HostKeys: []string{key},
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			near, far := machine.Pipe(netip.MustParseAddrPort("192.0.2.1:50000"), netip.MustParseAddrPort("192.0.2.7:22"))
			go debian.Server{Machine: m}.Serve(context.WithoutCancel(ctx), far)
			return near, nil
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, way.Close()) })
	return m, way
}

func TestMachine(t *testing.T) {
	for _, user := range []string{"root", "homestak"} {
		t.Run(user, func(t *testing.T) {
			drivertest.Machine(t, func(t *testing.T) guest.Machine {
				t.Helper()
				_, way := boot(t, user)
				if user == "root" {
					return way
				}
				return bySudo{way}
			})
		})
	}
}

// bySudo is a machine where root is who sudo makes: sudo(8) gives 1 for a program that is not there.
type bySudo struct{ *driver.Machine }

func (m bySudo) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	out, err := m.Machine.Run(ctx, c)
	if out.Code == 1 && strings.HasSuffix(out.Err, ": command not found\n") {
		out.Code = 127
	}
	return out, err
}
