package bench_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/test/bench/fleet"
)

// watching is P20: what an agent costs on a node with 1,000 guests as long as nothing changes, and how soon it notices
// a change by hand, and takes it back. The watcher reads its files every second, and the repository is asked every
// minute; a full check is measured apart, since how often it is made is a setting.
func (m *meter) watching() {
	if !m.hasGit("P20") {
		return
	}
	const guests, silence, checks, changes = 1000, time.Minute, 5, 20
	f := fleet.Fleet{Guests: guests, Files: 10}
	root := m.b.TempDir()
	host := m.host(hosting{Fleet: f, Files: root})
	a := m.follow(m.publish(f, host.access), host, "1m", "HOMESTAK_PVE_ROOT="+root)
	a.looks()
	m.pause(5 * time.Second) // the connections of the check are closed, and its garbage is collected
	began := a.used()
	m.pause(silence)
	quiet := (a.used() - began) * (time.Hour / silence)
	began = a.used()
	for range checks {
		a.looks()
	}
	check := (a.used() - began) / checks

	var noticed, reverted []time.Duration
	before, err := host.traffic()
	require.NoError(m.b, err)
	for n := range changes {
		seen, back := m.changeByHand(a, host, f, 1+n*37)
		noticed, reverted = append(noticed, seen), append(reverted, back)
	}
	after, err := host.traffic()
	require.NoError(m.b, err)
	a.end()
	require.NoError(m.b, host.stop())

	m.add(
		row{"P20", "CPU of an idle hour on the node, 1,000 guests", "1 s", sec(quiet), 0, seconds, met(quiet <= time.Second), "–"},
		row{"", "the same with a full check every 5 min", "–", sec(quiet + 12*check), 0, seconds, open, "–"},
		row{"P20", "a change by hand until it is noticed, p95", "2 s", sec(at95(noticed)), 0, seconds, met(at95(noticed) <= 2*time.Second), "–"},
		row{"", "until it is taken back, p95", "3 s", sec(at95(reverted)), 0, seconds, met(at95(reverted) <= 3*time.Second), "–"},
	)
	m.notef("P20: a full check costs %s CPU; %d requests for each change by hand and its end, that of the hand and those of this measurement included.",
		seconds(sec(check)), after.minus(before).Requests/changes)
}

// changeByHand changes a guest as an administrator would, and says how long it took until the agent noticed, and
// until it was as before.
func (m *meter) changeByHand(a *agentProcess, host *server, f fleet.Fleet, n int) (noticed, reverted time.Duration) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // the simulator of this benchmark
	defer client.CloseIdleConnections()
	ask := func(method string, form url.Values) *http.Response {
		r, err := http.NewRequestWithContext(m.ctx, method, fmt.Sprintf("%s/api2/json/nodes/%s/qemu/%d/config", host.access.API, f.Node(n), f.VMID(n)), strings.NewReader(form.Encode()))
		require.NoError(m.b, err)
		r.Header.Set("Authorization", "PVEAPIToken="+host.access.Token)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		got, err := client.Do(r)
		require.NoError(m.b, err)
		require.Equal(m.b, http.StatusOK, got.StatusCode)
		return got
	}
	has := strings.Count(a.said(), "guests changed")
	require.NoError(m.b, ask(http.MethodPut, url.Values{"tags": {"homestak;mine"}}).Body.Close())
	began := time.Now()
	ctx, end := context.WithTimeout(m.ctx, time.Minute)
	defer end()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for reverted == 0 {
		if noticed == 0 && strings.Count(a.said(), "guests changed") > has {
			noticed = time.Since(began)
		}
		got := ask(http.MethodGet, nil)
		text, err := io.ReadAll(got.Body)
		require.NoError(m.b, err)
		require.NoError(m.b, got.Body.Close())
		if !strings.Contains(string(text), "homestak;mine") {
			reverted = time.Since(began)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			require.Fail(m.b, "the change is not taken back", "%s\n%s", text, a.said())
		}
	}
	m.pause(3 * time.Second) // what follows is not the agent's own change
	return noticed, reverted
}
