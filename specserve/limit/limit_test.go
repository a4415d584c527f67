package limit_test

import (
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
