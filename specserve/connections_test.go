package specserve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestClient(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.7:443": "192.0.2.7/32", "192.0.2.7": "192.0.2.7/32", "[::ffff:192.0.2.7]:1": "192.0.2.7/32",
		"[2001:db8:1:2:3::4]:443": "2001:db8:1:2::/64", "[fe80::1%eth0]:443": "fe80::/64",
		"@": "invalid Prefix", "": "invalid Prefix", "pipe": "invalid Prefix",
	} {
		require.Equal(t, want, networkOf(remote).String(), remote)
	}
}

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func key(n int) rateKey {
	return rateKey{Client: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 32)}
}

func TestRates(t *testing.T) {
	r := newRates(Rate{Every: 100 * time.Millisecond, Burst: 3}, 100)
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
	require.True(t, ok, "each node has a count of its own")
}

// Whether a request counts may be known only when it has ended.
func TestWaitAndCount(t *testing.T) {
	r := newRates(Rate{Every: time.Second, Burst: 2}, 100)
	require.Zero(t, r.Wait(key(1), start))
	r.Count(key(1), start)
	require.Zero(t, r.Wait(key(1), start))
	for range 10 { // they were under way together
		r.Count(key(1), start)
	}
	require.Equal(t, time.Second, r.Wait(key(1), start), "no wait is longer than the burst")
	require.Zero(t, r.Wait(key(1), start.Add(time.Second)))
	require.Zero(t, r.Wait(key(2), start))
}

// However many addresses come, the memory is bounded, and none is locked out.
func TestManyKeys(t *testing.T) {
	r := newRates(Rate{Every: time.Hour, Burst: 1}, 100)
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
	r = newRates(Rate{Every: time.Second, Burst: 1}, 100)
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

// from is a connection from an address, which remembers that it was closed.
type from struct {
	net.Conn
	addr   string
	closed atomic.Bool
}

func (f *from) RemoteAddr() net.Addr { return &net.UnixAddr{Name: f.addr} }

func (f *from) Close() error {
	f.closed.Store(true)
	return nil
}

// table is a boundedListener whose connections come from addresses that a test gives.
type table struct {
	net.Listener
	t     *testing.T
	under *boundedListener
	next  []*from
	noted []string // the clients of those that had to be closed, and how many they had
}

func newTable(t *testing.T, b connectionBounds) *table {
	t.Helper()
	l := &table{t: t}
	l.under = newBoundedListener(l, b, func(client netip.Prefix, open int) { l.noted = append(l.noted, fmt.Sprint(client, " ", open)) })
	return l
}

func (l *table) Accept() (net.Conn, error) {
	if len(l.next) == 0 {
		return nil, errors.New("no more")
	}
	c := l.next[0]
	l.next = l.next[1:]
	return c, nil
}

// peer is a connection of the table.
type peer struct {
	*from
	l *table
	c net.Conn
}

// open opens a connection from an address.
func (l *table) open(addr string) *peer {
	l.t.Helper()
	p := &peer{from: &from{addr: addr}, l: l}
	l.next = append(l.next, p.from)
	p.c, _ = l.under.Accept()
	return p
}

func (p *peer) ask() *peer      { p.l.under.Track(p.c, http.StateActive); return p }
func (p *peer) answered() *peer { p.l.under.Track(p.c, http.StateIdle); return p }

func (p *peer) verify() *peer {
	verifiedConnection((&http.Request{}).WithContext(p.l.under.Context(context.Background(), p.c)))
	return p
}

func wide() connectionBounds {
	return connectionBounds{Total: 100, PerClient: 100, Unverified: 100, Idle: 5 * time.Second}
}

// The client with the most unverified connections loses one: its oldest idle one, else its oldest.
func TestS4TheBusiestClientGivesWay(t *testing.T) {
	b := wide()
	b.Unverified = 5
	l := newTable(t, b)
	slow := l.open("10.0.0.1:1").ask()
	oldest, second := l.open("10.0.0.1:2"), l.open("10.0.0.1:3").ask()
	other, node := l.open("10.0.0.2:1"), l.open("10.0.0.3:1").ask()

	l.open("10.0.0.3:2").ask()
	require.True(t, oldest.closed.Load())
	require.Equal(t, []string{"10.0.0.1/32 3"}, l.noted)
	second.answered()
	l.open("10.0.0.4:1")
	require.True(t, second.closed.Load(), "of 10.0.0.1 and 10.0.0.3, which have two, the one that has an idle one")
	node.verify()
	l.open("10.0.0.5:1")
	require.Len(t, l.noted, 2, "a verified connection leaves its slot to others")
	l.open("10.0.0.6:1")
	require.True(t, other.closed.Load(), "each has one: the oldest that is idle")
	for i := range 50 {
		l.open(fmt.Sprint("10.0.1.", i, ":1")).ask()
	}
	require.True(t, slow.closed.Load(), "where none is idle the oldest")
	require.False(t, node.closed.Load())
	require.NoError(t, node.c.Close())
	require.NoError(t, node.c.Close(), "closing twice makes room once")
	require.NoError(t, slow.c.Close(), "also after it had to be closed")
}

// verifiedConnection connections have slots of their own. They are not closed during a request.
func TestS4ReservedSlots(t *testing.T) {
	b := wide()
	b.Total, b.Unverified, b.PerClient = 5, 3, 4
	l := newTable(t, b)
	var verified []*peer
	for i := range 5 {
		verified = append(verified, l.open(fmt.Sprint("10.0.0.", i, ":1")).ask().verify())
		for j := range 10 {
			l.open(fmt.Sprint("10.9.0.", j, ":1"))
		}
	}
	for _, p := range verified {
		require.False(t, p.closed.Load())
	}
	noted := len(l.noted)
	require.True(t, l.open("10.0.1.1:1").closed.Load(), "all are in use")
	require.Equal(t, "10.0.1.1/32 0", l.noted[noted])
	verified[3].answered()
	verified[1].answered()
	require.False(t, l.open("10.0.1.1:1").closed.Load())
	require.True(t, verified[3].closed.Load(), "it was idle for longer")
	require.False(t, verified[1].closed.Load())

	// The same within the bound of one client.
	l = newTable(t, b)
	first := l.open("10.0.0.1:1").ask().verify().answered()
	for range 2 {
		l.open("10.0.0.1:2").ask().verify()
	}
	last := l.open("10.0.0.1:3").ask()
	require.False(t, l.open("10.0.0.1:4").ask().verify().closed.Load())
	require.True(t, last.closed.Load())
	require.False(t, first.closed.Load())
	require.False(t, l.open("10.0.0.1:5").ask().verify().closed.Load())
	require.True(t, first.closed.Load())
	require.True(t, l.open("10.0.0.1:6").closed.Load())
	require.False(t, l.open("10.0.0.2:1").closed.Load(), "another client is not concerned")
}

// An unverified connection is closed some seconds after its last answer, a verified one is not.
func TestS4IdleLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTable(t, wide())
		idle, again := l.open("10.0.0.1:1").ask().answered(), l.open("10.0.0.1:2").ask().answered()
		node, slow := l.open("10.0.0.2:1").ask().verify().answered(), l.open("10.0.0.3:1").ask().answered().ask()
		later := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		later(4 * time.Second)
		again.ask().answered()
		later(time.Second)
		require.True(t, idle.closed.Load())
		require.False(t, again.closed.Load())
		later(4 * time.Second)
		require.True(t, again.closed.Load())
		later(time.Hour)
		require.False(t, node.closed.Load())
		require.False(t, slow.closed.Load(), "requests have deadlines of their own")
		require.Empty(t, l.noted, "no client had too many")
	})
}
