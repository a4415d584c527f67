package session_test

import (
	"errors"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

func noEnv(string) string { return "" }

// The zero network is the real one: hosts by TLS, guests as whoever runs the program may enter them.
func TestRealNetwork(t *testing.T) {
	own := session.OwnWays("/data", noEnv)
	require.Equal(t, filepath.Join("/data", "known_hosts"), own.HostKeys.(*push.KnownHosts).Path)
	require.Empty(t, session.OwnWays("", noEnv).HostKeys.(*push.KnownHosts).Path, "without a folder they are kept in memory")

	var n session.Network
	require.Equal(t, own.HostKeys, n.Ways(own).HostKeys)
	access := n.Access(n.Ways(own))
	require.Nil(t, access.Transport)
	require.NoError(t, n.Serve(&access, engine.Desired{}, nil))
	require.Nil(t, access.Parent)
	n.End()
}

// Guests of a simulated network are entered by its own ways only: what the user may enter is real.
func TestSimulatedNetwork(t *testing.T) {
	theirs := push.Config{PrivateKeys: []string{"of the simulation"}}
	ended := 0
	n := session.Network{
		Transport: func(*model.Site, *model.Host) (http.RoundTripper, string) { return nil, "" },
		Guests:    &theirs, Close: func() { ended++ },
	}
	own := push.Config{PrivateKeys: []string{"of the user"}, HostKeys: &push.KnownHosts{}}
	require.Equal(t, theirs, n.Ways(own))
	require.NotNil(t, n.Access(own).Transport)
	n.End()
	require.Equal(t, 1, ended)
}

// specs is a parent that may have nothing to serve.
type specs struct {
	parent drivers.Parent
	err    error
}

func (s specs) Serve(engine.Desired, *policy.Set, push.Config) (drivers.Parent, error) {
	return s.parent, s.err
}
func (specs) Reported(string) (saw string, err error) { return "", nil }

type aParent struct{}

func (aParent) Parent(string, string) (wire.Parent, error) { return wire.Parent{}, nil }
func (aParent) HasReported(string) bool                    { return false }
func (aParent) Reported(string) (saw string, err error)    { return "", nil }

// A site without nodes in mode pull has no parent, and one that cannot be served is an error.
func TestSpecs(t *testing.T) {
	var access drivers.Access
	require.NoError(t, session.Network{Specs: specs{}}.Serve(&access, engine.Desired{}, nil))
	require.Nil(t, access.Parent)
	require.NoError(t, session.Network{Specs: specs{parent: aParent{}}}.Serve(&access, engine.Desired{}, nil))
	require.Equal(t, aParent{}, access.Parent)
	down := errors.New("no port")
	require.ErrorIs(t, session.Network{Specs: specs{err: down}}.Serve(&access, engine.Desired{}, nil), down)
}
