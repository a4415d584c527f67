package specserve_test

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/limit"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// document is a report that is good.
func (s *served) document(node string, change func(*wire.Report)) string {
	s.t.Helper()
	r := wire.Report{Version: 1, Identity: node, Agent: "1.2.3", At: time.Unix(s.now.Load(), 0).UTC(), Phase: wire.PhaseRun, Ready: true}
	if change != nil {
		change(&r)
	}
	b, err := json.Marshal(r)
	require.NoError(s.t, err)
	return string(b)
}

// status is what the holder of the read key sees.
func (s *served) status() (out specserve.Status) {
	s.t.Helper()
	got := s.ask("GET", "/status", bearer(string(s.access.Read))...)
	require.Equal(s.t, 200, got.status)
	require.NoError(s.t, json.Unmarshal([]byte(got.body), &out))
	return out
}

func TestReportAuth(t *testing.T) {
	s := start(t)
	s.publish("3f2c1a9", site())
	for name, c := range map[string]struct {
		path, token, code string
		status            int
	}{
		"its token":              {"/report/own", s.mint(s.keys[0], "own"), "", 202},
		"its token, older key":   {"/report/own", s.mint(s.keys[1], "own"), "", 202},
		"its token of the site":  {"/report/own", ownToken, "", 202},
		"none":                   {"/report/own", "", "E300", 401},
		"none, though it may":    {"/report/net", "", "E300", 401},
		"of another node":        {"/report/own", s.mint(s.keys[0], "net"), "E302", 403},
		"of another, site's":     {"/report/own", netToken, "E302", 403},
		"of all nodes":           {"/report/site", siteToken, "E302", 403},
		"not valid":              {"/report/own", "canary", "E301", 401},
		"the read key":           {"/report/own", string(s.access.Read), "E301", 401},
		"a node that is unknown": {"/report/other", s.mint(s.keys[0], "other"), "E200", 404},
		"a suspended node":       {"/report/cold", s.mint(s.keys[0], "cold"), "E200", 404},
		"no name":                {"/report/", "", "E101", 400},
	} {
		t.Run(name, func(t *testing.T) {
			var headers []string
			if c.token != "" {
				headers = bearer(c.token)
			}
			node := strings.TrimPrefix(c.path, "/report/")
			got := s.send("POST", c.path, strings.NewReader(s.document(node, nil)), headers...)
			require.Equal(t, c.status, got.status, got.body)
			require.Equal(t, c.code, got.code())
			if c.status == 401 {
				require.Contains(t, got.header.Get("WWW-Authenticate"), "Bearer")
			}
		})
	}
	old := s.mint(s.keys[0], "own")
	s.now.Add(4000)
	got := s.send("POST", "/report/own", strings.NewReader(s.document("own", nil)), bearer(old)...)
	require.Equal(t, 401, got.status)
	require.Equal(t, "E303", got.code())
	got = s.ask("GET", "/report/own")
	require.Equal(t, 405, got.status)
	require.Equal(t, "POST", got.header.Get("Allow"))
}

func TestReportContent(t *testing.T) {
	l := unlimited()
	l.Reports = fast
	s := serve(t, l)
	s.publish("3f2c1a9", site())
	good := s.document("own", nil)
	for name, c := range map[string]struct {
		body   io.Reader
		code   string
		status int
	}{
		"empty":             {strings.NewReader(""), "E400", 422},
		"not JSON":          {strings.NewReader(`{"version":`), "E400", 422},
		"two documents":     {strings.NewReader(good + good), "E400", 422},
		"not UTF-8":         {strings.NewReader("{\"version\":1,\"agent\":\"\xff\"}"), "E400", 422},
		"of another node":   {strings.NewReader(s.document("net", nil)), "E400", 422},
		"a newer version":   {strings.NewReader(s.document("own", func(r *wire.Report) { r.Version = 2 })), "E400", 422},
		"an unknown phase":  {strings.NewReader(s.document("own", func(r *wire.Report) { r.Phase = "canary" })), "E400", 422},
		"from the future":   {strings.NewReader(s.document("own", func(r *wire.Report) { r.At = r.At.Add(time.Hour) })), "E400", 422},
		"too many findings": {strings.NewReader(s.document("own", tooMany)), "E101", 413},
		"too long":          {strings.NewReader(strings.Repeat(" ", wire.MaxReport+1)), "E101", 413},
		"too long, a leaf":  {strings.NewReader(good + strings.Repeat(" ", wire.MaxLeafReport+1-len(good))), "E101", 413},
		"too long, unknown": {io.MultiReader(strings.NewReader(good+strings.Repeat(" ", wire.MaxLeafReport-len(good))), strings.NewReader(" ")), "E101", 413},
		"as long as may be": {strings.NewReader(good + strings.Repeat(" ", wire.MaxLeafReport-len(good))), "", 202},
		"nodes of a leaf": {strings.NewReader(s.document("own", func(r *wire.Report) {
			r.Nodes = []wire.ReportNode{{Name: "net", Type: "vm", Parent: "own", Phase: wire.PhaseRun}}
		})), "E400", 422},
		"an empty leaf":       {strings.NewReader(s.document("own", func(r *wire.Report) { r.Empty = true })), "E400", 422},
		"good after all that": {strings.NewReader(good), "", 202},
	} {
		t.Run(name, func(t *testing.T) {
			got := s.send("POST", "/report/own", c.body, bearer(ownToken)...)
			require.Equal(t, c.status, got.status, got.body)
			require.Equal(t, c.code, got.code())
		})
	}
	require.Len(t, s.status().Nodes, 1)
}

func tooMany(r *wire.Report) {
	for range wire.MaxReportFindings + 1 {
		r.Findings = append(r.Findings, diag.Errorf(diag.Range{}, "x", "y"))
	}
}

// A child has nodes below it to report, and so more room.
func TestReportOfAChild(t *testing.T) {
	s := serve(t, unlimited())
	with := site()
	with.Manifests["web"].Nodes = append(with.Manifests["web"].Nodes, &model.Node{Name: "inner", Spec: "own", Type: "pve"})
	s.publish("a", with)
	document := s.document("inner", func(r *wire.Report) { r.Every = 600 })
	send := func(length int) int {
		return s.send("POST", "/report/inner", strings.NewReader(document+strings.Repeat(" ", length-len(document))), bearer(s.mint(s.keys[0], "inner"))...).status
	}
	require.Equal(t, 202, send(wire.MaxLeafReport+1))
	require.Equal(t, 202, send(wire.MaxReport))
	require.Equal(t, 413, send(wire.MaxReport+1))
	// It says itself how often it reports.
	s.now.Add(1800)
	require.Equal(t, 600, s.status().Nodes[0].Period)
	require.False(t, s.status().Nodes[0].Stale)
	require.Contains(t, s.metrics(), "\nhomestak_node_ready{node=\"inner\"} 1\n")
	s.now.Add(1)
	require.True(t, s.status().Nodes[0].Stale)
	require.Contains(t, s.metrics(), "\nhomestak_node_ready{node=\"inner\"} 0\n")
}

// A node that reports in a loop is stopped, and no other one.
func TestReportRate(t *testing.T) {
	l := unlimited()
	l.Reports = limit.Rate{Every: 10 * time.Second, Burst: 2}
	s := serve(t, l)
	s.publish("3f2c1a9", site())
	send := func(node, token string) answer {
		return s.send("POST", "/report/"+node, strings.NewReader(s.document(node, nil)), bearer(token)...)
	}
	require.Equal(t, 202, send("own", ownToken).status)
	require.Equal(t, 401, send("own", "x").status, "who is refused does not count")
	require.Equal(t, 202, send("own", ownToken).status)
	got := send("own", ownToken)
	require.Equal(t, 429, got.status)
	require.Equal(t, "E429", got.code())
	require.Equal(t, "10", got.header.Get("Retry-After"))
	require.Equal(t, 202, send("net", netToken).status)
	s.now.Add(10)
	require.Equal(t, 202, send("own", ownToken).status)
}

func TestStatus(t *testing.T) {
	s := start(t)
	key := bearer(string(s.access.Read))
	require.JSONEq(t, `{"commit":"3f2c1a9","at":"2027-01-15T08:00:00Z","nodes":[]}`, s.ask("GET", "/status", key...).body)

	put := func(body string) string {
		t.Helper()
		got := s.send("POST", "/report/own", strings.NewReader(body), bearer(ownToken)...)
		require.Equal(t, 202, got.status, got.body)
		return got.body
	}
	require.JSONEq(t, `{"status":"kept"}`, put(s.document("own", func(r *wire.Report) {
		r.Ready, r.Phase, r.Findings = false, wire.PhaseConfig, diag.List{diag.Errorf(diag.Range{}, "apt is <locked>", "")}
	})))
	require.JSONEq(t, `{"commit":"3f2c1a9","at":"2027-01-15T08:00:00Z","nodes":[{"identity":"own","ready":false,"phase":"config","received":"2027-01-15T08:00:00Z","period_seconds":60,"stale":false,"error":"apt is \u003clocked\u003e","commit":"","agent":"1.2.3"}]}`, s.ask("GET", "/status", key...).body)

	// Requests may overtake each other.
	require.JSONEq(t, `{"status":"there is a newer report"}`, put(s.document("own", func(r *wire.Report) { r.At = r.At.Add(-time.Second) })))
	require.False(t, s.status().Nodes[0].Ready)

	s.now.Add(10)
	put(s.document("own", nil))
	s.now.Add(180)
	require.True(t, s.status().Nodes[0].Ready)
	require.False(t, s.status().Nodes[0].Stale)
	s.now.Add(1)
	require.True(t, s.status().Nodes[0].Stale)
	require.False(t, s.status().Nodes[0].Ready)

	// A node that leaves the site leaves the status.
	without := site()
	without.Manifests["web"].Nodes = without.Manifests["web"].Nodes[:0]
	s.publish("4a3d2b1", without)
	require.Empty(t, s.status().Nodes)
}

// A node reports after each of its runs, so its own interval says when a report is stale.
func TestStaleByInterval(t *testing.T) {
	for name, c := range map[string]struct {
		trigger  string
		interval time.Duration
		after    int64
		period   int
		stale    bool
	}{
		"before":       {"schedule", 10 * time.Minute, 1800, 600, false},
		"after":        {"schedule", 10 * time.Minute, 1801, 600, true},
		"only at boot": {"manual", 0, 1 << 20, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, unlimited())
			with := site()
			for _, n := range with.Manifests["web"].Nodes {
				n.Mode = model.ModePull
				with.Specs[n.Spec].Run = &model.Run{Trigger: c.trigger, Interval: c.interval}
			}
			s.publish("3f2c1a9", with)
			require.Equal(t, 202, s.send("POST", "/report/own", strings.NewReader(s.document("own", nil)), bearer(ownToken)...).status)
			s.now.Add(c.after)
			got := s.status().Nodes[0]
			require.Equal(t, c.stale, got.Stale)
			require.Equal(t, c.period, got.Period)
		})
	}
}

// The first report of a new node is waited for, since the node was created or the server was asked first, until it is late.
func TestAFirstReportIsWaitedFor(t *testing.T) {
	s := start(t)
	for _, created := range []bool{false, true} {
		if created {
			s.now.Add(60)
			s.Forget("own")
		}
		began := time.Unix(s.now.Load(), 0).UTC()
		for _, passed := range []int64{0, 899} {
			s.now.Store(began.Unix() + passed)
			_, err := s.Reported("own")
			var waits *specserve.WaitingError
			require.ErrorAs(t, err, &waits)
			require.True(t, waits.Waiting())
			require.EqualError(t, err, "waits for its first report since "+began.Format(time.TimeOnly+" UTC"))
		}
		s.now.Store(began.Unix() + 900)
		_, err := s.Reported("own")
		require.EqualError(t, err, "it has not reported since "+began.Format(time.TimeOnly+" UTC")+", for more than 15m0s: its console shows what it does")
		require.NotErrorAs(t, err, new(*specserve.WaitingError))
		require.Equal(t, 202, s.send("POST", "/report/own", strings.NewReader(s.document("own", nil)), bearer(ownToken)...).status)
		saw, err := s.Reported("own")
		require.NoError(t, err)
		require.Contains(t, saw, "it reported that it is ready")
	}
}

// Whose key it is, and whose it is not: the table of all endpoints that have one.
func TestKeys(t *testing.T) {
	s := start(t)
	read, operator := string(s.access.Read), string(s.access.Operator)
	for i, c := range []struct {
		method, path, good string
		status             int
	}{
		{"GET", "/status", read, 200},
		{"HEAD", "/status", read, 200},
		{"GET", "/metrics", read, 200},
		{"POST", "/reconcile", operator, 202},
		{"POST", "/reconcile/own", operator, 202},
	} {
		t.Run(fmt.Sprint(i, c.path), func(t *testing.T) {
			require.Equal(t, c.status, s.ask(c.method, c.path, bearer(c.good)...).status)
			for name, x := range map[string]struct {
				headers []string
				code    string
			}{
				"none":           {nil, "E300"},
				"no bearer":      {[]string{"Authorization", "Basic " + c.good}, "E300"},
				"empty":          {[]string{"Authorization", "Bearer "}, "E300"},
				"twice":          {append(bearer(c.good), bearer(c.good)...), "E300"},
				"wrong":          {bearer("canary"), "E301"},
				"longer":         {bearer(c.good + "0"), "E301"},
				"shorter":        {bearer(c.good[:63]), "E301"},
				"the other key":  {bearer(strings.ReplaceAll(read+operator, c.good, "")), "E301"},
				"the hook's":     {bearer(string(s.access.Hook("generic"))), "E301"},
				"of a node":      {bearer(s.mint(s.keys[0], "own")), "E301"},
				"of the site":    {bearer(siteToken), "E301"},
				"in other cases": {bearer(strings.ToUpper(c.good)), "E301"},
			} {
				got := s.ask(c.method, c.path, x.headers...)
				require.Equal(t, 401, got.status, name)
				require.NotEmpty(t, got.header.Get("WWW-Authenticate"))
				if c.method != "HEAD" {
					require.Equal(t, x.code, got.code(), name)
				}
			}
		})
	}
	require.Len(t, s.asked, 2, "no refused request does anything")
}

func TestMetrics(t *testing.T) {
	s := start(t)
	require.Equal(t, 202, s.send("POST", "/report/own", strings.NewReader(s.document("own", nil)), bearer(ownToken)...).status)
	require.Equal(t, 202, s.send("POST", "/report/net", strings.NewReader(s.document("net", func(r *wire.Report) { r.Ready = false })), bearer(netToken)...).status)
	require.Equal(t, 401, s.ask("GET", "/spec/own", bearer("canary")...).status)
	require.Equal(t, 404, s.ask("GET", "/canary").status)
	s.now.Add(61)
	got := s.ask("GET", "/metrics", bearer(string(s.access.Read))...)
	require.Equal(t, 200, got.status)
	require.Equal(t, "text/plain; version=0.0.4; charset=utf-8", got.header.Get("Content-Type"))
	for _, line := range []string{
		`homestak_serve_requests_total{endpoint="/report/{identity}",status="202"} 2`,
		`homestak_serve_requests_total{endpoint="/spec/{identity}",status="401"} 1`,
		`homestak_serve_requests_total{endpoint="unknown",status="404"} 1`,
		`homestak_serve_refusals_total{code="E100"} 1`,
		`homestak_serve_refusals_total{code="E301"} 1`,
		`homestak_serve_request_seconds_count{endpoint="/report/{identity}"} 2`,
		`homestak_serve_info{commit="3f2c1a9",version="1.2.3"} 1`,
		`homestak_serve_start_time_seconds 1.8e+09`,
		`homestak_nodes 3`,
		`homestak_node_report_age_seconds{node="net"} 61`,
		`homestak_node_ready{node="net"} 0`,
		`homestak_node_ready{node="own"} 1`,
		`homestak_nodes_ready 1`,
	} {
		require.Contains(t, got.body, "\n"+line+"\n")
	}
	require.NotContains(t, got.body, "canary")
	s.now.Add(120)
	require.Contains(t, s.ask("GET", "/metrics", bearer(string(s.access.Read))...).body, "\nhomestak_nodes_ready 0\n")
}

// A node may wait for longer than any other request may take; shutdown ends that.
func TestWaitOnTheWire(t *testing.T) {
	t.Parallel()
	l := unlimited()
	// A handshake takes a second on a machine that is busy enough.
	l.Read, l.Write, l.Wait = 3*time.Second, 3*time.Second, 4*time.Second
	s := serve(t, l)
	s.publish("3f2c1a9", site())
	for range 2 {
		began := time.Now()
		require.Equal(t, 204, s.ask("GET", "/wait/own", bearer(ownToken)...).status)
		require.GreaterOrEqual(t, time.Since(began), l.Wait)
	}

	l.Wait = time.Hour
	s = serve(t, l)
	s.publish("3f2c1a9", site())
	done := make(chan answer, 1)
	go func() { done <- s.ask("GET", "/wait/own", bearer(ownToken)...) }()
	require.Eventually(t, func() bool { return strings.Contains(s.metrics(), "homestak_nodes_waiting 1\n") }, 5*time.Minute, 10*time.Millisecond)
	require.NoError(t, s.stop())
	require.Equal(t, 204, (<-done).status)
}

func (s *served) metrics() string {
	s.t.Helper()
	got := s.ask("GET", "/metrics", bearer(string(s.access.Read))...)
	require.Equal(s.t, 200, got.status)
	return got.body
}
