package limit_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/limit"
)

func TestClient(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.7:443": "192.0.2.7/32", "192.0.2.7": "192.0.2.7/32", "[::ffff:192.0.2.7]:1": "192.0.2.7/32",
		"[2001:db8:1:2:3::4]:443": "2001:db8:1:2::/64", "[fe80::1%eth0]:443": "fe80::/64",
		"@": "invalid Prefix", "": "invalid Prefix", "pipe": "invalid Prefix",
	} {
		require.Equal(t, want, limit.Client(remote).String(), remote)
	}
}

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func key(n int) limit.Key {
	return limit.Key{Client: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 32)}
}

func TestRates(t *testing.T) {
	r := limit.NewRates(limit.Rate{Every: 100 * time.Millisecond, Burst: 3}, 100)
	now := start
	take := func(n int) time.Duration {
		t.Helper()
		wait, ok := r.Take(key(n), now)
		require.Equal(t, ok, wait == 0)
		return wait
	}
	for range 3 {
		require.Zero(t, take(1))
	}
	for range 1000 {
		require.Equal(t, 100*time.Millisecond, take(1), "who is refused does not wait longer for trying")
	}
	require.Zero(t, take(2), "others are not concerned")
	now = now.Add(99 * time.Millisecond)
	require.Equal(t, time.Millisecond, take(1))
	now = now.Add(time.Millisecond)
	require.Zero(t, take(1))
	require.Positive(t, take(1))
	now = now.Add(time.Hour)
	for range 3 {
		require.Zero(t, take(1), "after a rest, the burst and no more")
	}
	require.Positive(t, take(1))
	other := key(1)
	other.About = "web-1"
	_, ok := r.Take(other, now)
	require.True(t, ok, "what it asks about is counted by itself")
}

// What counts may be known only when it is over.
func TestWaitAndCount(t *testing.T) {
	r := limit.NewRates(limit.Rate{Every: time.Second, Burst: 2}, 100)
	require.Zero(t, r.Wait(key(1), start))
	r.Count(key(1), start)
	require.Zero(t, r.Wait(key(1), start))
	for range 10 { // they were under way together
		r.Count(key(1), start)
	}
	require.Equal(t, time.Second, r.Wait(key(1), start), "nobody waits for more than the burst")
	require.Zero(t, r.Wait(key(1), start.Add(time.Second)))
	require.Zero(t, r.Wait(key(2), start))
}

// However many addresses come, the memory is bounded, and none is locked out.
func TestManyKeys(t *testing.T) {
	r := limit.NewRates(limit.Rate{Every: time.Hour, Burst: 1}, 100)
	for n := range 10_000 {
		_, ok := r.Take(key(n), start.Add(time.Duration(n)*time.Millisecond))
		require.True(t, ok)
	}
	_, ok := r.Take(key(9_999), start.Add(11*time.Second))
	require.False(t, ok, "the newest is remembered")
	limited := 0
	for n := range 10_000 {
		if _, ok := r.Take(key(n), start.Add(11*time.Second)); !ok {
			limited++
		}
	}
	require.LessOrEqual(t, limited, 100)

	// Keys that are at rest are forgotten first.
	r = limit.NewRates(limit.Rate{Every: time.Second, Burst: 1}, 100)
	for n := range 99 {
		r.Take(key(n), start)
	}
	now := start.Add(2 * time.Second)
	r.Take(key(1000), now)
	r.Take(key(1001), now)
	for _, n := range []int{1000, 1001} {
		_, ok := r.Take(key(n), now)
		require.False(t, ok)
	}
}

// from is a connection from an address.
type from struct {
	net.Conn
	addr string
}

func (f from) RemoteAddr() net.Addr { return &net.UnixAddr{Name: f.addr} }

// queue is a listener whose connections come from a list.
type queue struct {
	net.Listener
	next []string
}

func (q *queue) Accept() (net.Conn, error) {
	if len(q.next) == 0 {
		return nil, errors.New("no more")
	}
	addr := q.next[0]
	q.next = q.next[1:]
	here, there := net.Pipe()
	_ = there.Close()
	return from{here, addr}, nil
}

func TestListener(t *testing.T) {
	q := &queue{}
	var refused []string
	l := limit.NewListener(q, 2, 3, func(client netip.Prefix, open int) { refused = append(refused, fmt.Sprint(client, " ", open)) })
	accept := func(from ...string) net.Conn {
		t.Helper()
		q.next = from
		c, err := l.Accept()
		if err != nil {
			return nil
		}
		return c
	}
	first := accept("10.0.0.1:1")
	require.NotNil(t, accept("10.0.0.1:2"))
	require.NotNil(t, accept("10.0.0.1:3", "10.0.0.2:1"), "the third of one client is refused, and the next one taken")
	require.Nil(t, accept("10.0.0.3:1"), "there are enough in all")
	require.NoError(t, first.Close())
	require.NoError(t, first.Close(), "closing twice makes room once")
	require.NotNil(t, accept("10.0.0.1:4"))
	require.Nil(t, accept("10.0.0.1:5"))
	require.Equal(t, []string{"10.0.0.1/32 2", "10.0.0.3/32 0", "10.0.0.1/32 2"}, refused)
}
