package specserve_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Twenty addresses with as many connections as one may have, each idle after an answer, do not keep a node out: neither
// over the connection that it has, nor over new ones, while they come and when all are there.
func TestS4IdleConnections(t *testing.T) {
	const addresses = 20
	l := unlimited()
	l.IdleUnverified = time.Hour // only by giving way to others
	var files syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files))
	if most := int(min(files.Cur, 1<<20)/(2*addresses)) - 20; most < l.ConnectionsPerClient { // two files for each connection
		l.Connections, l.Unverified = l.Connections*most/l.ConnectionsPerClient, l.Unverified*most/l.ConnectionsPerClient
		l.ConnectionsPerClient = most
	}
	s := serve(t, l)
	s.publish("a", site())
	right := s.mint(s.keys[0], "own")
	pins, err := wire.ParsePins(s.pins)
	require.NoError(t, err)
	node := func() *http.Client {
		return &http.Client{Transport: &http.Transport{TLSClientConfig: wire.PinnedTLS(pins), ForceAttemptHTTP2: true}}
	}
	ask := func(c *http.Client) error {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.addr+"/spec/own", http.NoBody)
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Bearer "+right)
		got, err := c.Do(r)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, got.Body)
		_ = got.Body.Close()
		if got.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d", got.StatusCode)
		}
		return err
	}
	stays := node()
	defer stays.CloseIdleConnections()
	require.NoError(t, ask(stays))
	var took []time.Duration
	served := func() error {
		began := time.Now()
		comes := node()
		defer comes.CloseIdleConnections()
		err := ask(comes)
		took = append(took, time.Since(began))
		if err == nil {
			err = ask(stays)
		}
		return err
	}

	var flood sync.WaitGroup
	for i := range addresses {
		flood.Go(func() {
			d := tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i+1))}}, Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}}
			for range l.ConnectionsPerClient {
				c, err := d.DialContext(t.Context(), "tcp", s.addr)
				if err != nil {
					continue // it had to give way at once
				}
				t.Cleanup(func() { _ = c.Close() })
				if _, err = io.WriteString(c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); err == nil {
					_, _ = c.Read(make([]byte, 1024))
				}
			}
		})
	}
	all := make(chan struct{})
	go func() { flood.Wait(); close(all) }()
	figures := func(when string) {
		slices.Sort(took)
		t.Logf("%s, %d addresses × %d: %d new connections of the node, p50 %v, the slowest %v", when, addresses, l.ConnectionsPerClient, len(took), took[len(took)/2], took[len(took)-1])
		took = nil
	}
	for during := true; during; {
		select {
		case <-all:
			during = false
		default:
		}
		require.NoError(t, served())
	}
	figures("while they come")
	for range 100 {
		require.NoError(t, served())
	}
	figures("when all are there")
}
