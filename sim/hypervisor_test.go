package sim

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

func boot(t *testing.T, g *Guests, key, name, image string) {
	t.Helper()
	g.Boot(pve.Machine{Key: key, Kind: "qemu", Image: image, Hostname: name, User: "homestak", Cloud: "x"})
	require.NotNil(t, g.Machine(key))
}

func shell(t *testing.T, g *Guests, key, line string) string {
	t.Helper()
	out, code := g.Machine(key).Shell(line)
	require.Zero(t, code, "%s: %s", line, out)
	return out
}

// ask sends a request to the API of a machine as a program of the machine does, and checks its certificate by the
// authority that is on the machine.
func ask(t *testing.T, g *Guests, key, token, path string) (status int, data json.RawMessage) {
	t.Helper()
	m := g.Machine(key)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM([]byte(shell(t, g, key, "cat /etc/pve/pve-root-ca.pem"))))
	way := &http.Transport{DialContext: m.Dial, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1:8006/api2/json"+path, http.NoBody)
	require.NoError(t, err)
	r.Header.Set("Authorization", "PVEAPIToken="+token)
	res, err := way.RoundTrip(r)
	require.NoError(t, err)
	defer func() { require.NoError(t, res.Body.Close()) }()
	var doc struct{ Data json.RawMessage }
	_ = json.NewDecoder(res.Body).Decode(&doc) // a refusal has no body
	return res.StatusCode, doc.Data
}

// A guest that was made from an image of Proxmox VE is a host: with its API, its users, and guests of its own.
func TestAHostInsideOfAGuest(t *testing.T) {
	g := &Guests{}
	defer g.Close()
	boot(t, g, "100", "inner", "https://images.example/pve-9.qcow2")
	for _, line := range []string{
		`pveum role add Agent --privs "VM.Audit VM.Allocate"`, `pveum role modify Agent --privs "VM.Audit,Sys.Audit"`,
		"pveum user add agent@pve --comment 'an agent'", "pveum acl modify / --users agent@pve --roles Agent",
	} {
		require.Empty(t, shell(t, g, "100", line))
	}
	var made struct {
		ID    string `json:"full-tokenid"`
		Value string
	}
	require.NoError(t, json.Unmarshal([]byte(shell(t, g, "100", "pveum user token add agent@pve site --privsep 0 --output-format json")), &made))
	require.Equal(t, "agent@pve!site", made.ID)
	require.Contains(t, shell(t, g, "100", "pveum user token list agent@pve --output-format json"), `"tokenid":"site"`)
	status, data := ask(t, g, "100", made.ID+"="+made.Value, "/nodes")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, string(data), `"node":"inner"`)

	out, code := g.Machine("100").Shell("pveum role add Agent")
	require.Equal(t, 255, code)
	require.Contains(t, out, "role 'Agent' already exists")
	out, code = g.Machine("100").Shell("pveum passwd agent@pve")
	require.Equal(t, 255, code)
	require.Contains(t, out, "unknown command")

	shell(t, g, "100", "pveum user token remove agent@pve site")
	require.Equal(t, "[]\n", shell(t, g, "100", "pveum user token list agent@pve --output-format json"))
	for _, unit := range []string{"pveproxy", "pvedaemon", "pvestatd"} {
		require.Equal(t, "active\n", shell(t, g, "100", "systemctl is-active "+unit))
	}
}

// What is in a host lives as long as the disk of its guest, runs only while that does, and is not copied.
func TestAHostGoesWithItsGuest(t *testing.T) {
	g := &Guests{}
	defer g.Close()
	boot(t, g, "100", "inner", "pve-9")
	inner := g.Hosts()[0]
	inner.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: 200, Running: true, Config: map[string]string{"name": "app"}})
		e.Add(pve.Guest{VMID: 201, Running: true, Config: map[string]string{"name": "db", "onboot": "1"}})
	})
	deep, there := inner.Systems().(*Guests)
	require.True(t, there)
	boot(t, deep, "300", "deep", "debian-13")
	down := g.Machine("100").Down()
	g.Halt("100")
	<-down
	require.Empty(t, g.Hosts())
	for _, guest := range inner.Snapshot().Guests {
		require.False(t, guest.Running, guest.Name())
	}
	require.Empty(t, inner.Snapshot().Requests)

	boot(t, g, "100", "inner", "pve-9")
	require.Same(t, inner, g.Hosts()[0])
	for _, guest := range inner.Snapshot().Guests {
		require.Equal(t, guest.Name() == "db", guest.Running, "only what starts with the host")
	}
	g.Copy("100", "101")
	boot(t, g, "101", "other", "pve-9")
	g.Remove("100")
	require.Len(t, g.Hosts(), 1)
	require.Empty(t, g.Hosts()[0].Snapshot().Guests)
}

// Programs of machines reach one another only at ports with a listener.
func TestPorts(t *testing.T) {
	g := &Guests{}
	defer g.Close()
	boot(t, g, "100", "a", "debian-13")
	to := netip.MustParseAddrPort("10.0.0.7:4000")
	_, err := g.Dial(t.Context(), "100", to, nil)
	require.ErrorContains(t, err, "connection refused")
	ln, err := g.Machine("100").Listen(4000)
	require.NoError(t, err)
	_, err = g.Machine("100").Listen(4000)
	require.ErrorContains(t, err, "address already in use")
	go func() {
		conn, err := ln.Accept()
		if err == nil {
			_, _ = conn.Write([]byte("hello from " + conn.LocalAddr().String() + "\n"))
		}
	}()
	conn, err := g.Dial(t.Context(), "100", to, nil)
	require.NoError(t, err)
	line, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "hello from 10.0.0.7:4000\n", line)
	g.Halt("100")
	_, err = ln.Accept()
	require.Error(t, err, "its machine is off")

	alone := &Guests{}
	defer alone.Close()
	boot(t, alone, "100", "a", "debian-13")
	_, err = alone.Machine("100").Dial(t.Context(), "tcp", "10.0.0.1:1")
	require.ErrorContains(t, err, "network is unreachable")
}

// A network that does not answer delays a caller no longer than the caller waits: a host that halts a machine waits for its
// programs, which may wait for that host.
func TestANetworkThatDoesNotAnswer(t *testing.T) {
	asked, free := make(chan struct{}), make(chan struct{})
	g := &Guests{Network: &Network{Dial: func(context.Context, string, string) (net.Conn, error) {
		close(asked)
		<-free
		return nil, net.ErrClosed
	}}}
	defer g.Close()
	defer close(free)
	boot(t, g, "100", "a", "debian-13")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-asked
		cancel(errors.New("enough"))
	}()
	_, err := g.Machine("100").Dial(ctx, "tcp", "10.0.0.1:1")
	require.EqualError(t, err, "enough")
}
