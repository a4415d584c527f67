package pve_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

func TestParseFault(t *testing.T) {
	for text, want := range map[string]pve.Fault{
		"GET /version status=500":                     {Method: "GET", Pattern: "/version", Status: 500},
		"post /nodes/*/qemu nth=2 status=596 apply":   {Method: "POST", Pattern: "/nodes/*/qemu", Nth: 2, Status: 596, Apply: true},
		"* /cluster/** status=-1":                     {Method: "*", Pattern: "/cluster/**", Status: -1},
		"DELETE /nodes/**  apply  status=503  nth=10": {Method: "DELETE", Pattern: "/nodes/**", Nth: 10, Status: 503, Apply: true},
		"POST /nodes/*/qemu nth=3 no-worker":          {Method: "POST", Pattern: "/nodes/*/qemu", Nth: 3, Status: pve.NoWorker, NoWorker: true},
	} {
		got, err := pve.ParseFault(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
	}
	for _, text := range []string{
		"", "GET /version", "GET version status=500", "GET /version status=x", "GET /version status=200", "GET /version nth=0 status=500",
		"GET /version apply", "GET /version status=500 often", "GET /version status=600",
		"POST /pools no-worker apply", "POST /pools no-worker status=500",
	} {
		_, err := pve.ParseFault(text)
		require.ErrorContains(t, err, text)
	}
}

// FuzzParseFault: no text makes it panic, and what it takes can be used.
func FuzzParseFault(f *testing.F) {
	f.Add("GET /nodes/*/qemu nth=1 status=595 apply")
	f.Fuzz(func(t *testing.T, text string) {
		rule, err := pve.ParseFault(text)
		if err != nil {
			return
		}
		r, err := http.NewRequest(http.MethodGet, "https://pve/api2/json/nodes/father/qemu", nil)
		require.NoError(t, err)
		status, _ := pve.Faults(rule)(r)
		require.Contains(t, []int{0, rule.Status}, status)
	})
}

// TestFaults: with and without effect, by count, and as a dropped connection.
func TestFaults(t *testing.T) {
	var rules []pve.Fault
	for _, text := range []string{
		"POST /pools nth=1 status=596 apply", "POST /pools nth=2 status=500", "POST /pools nth=3 status=-1 apply", "GET /nodes/*/qemu/** status=595",
	} {
		rule, err := pve.ParseFault(text)
		require.NoError(t, err)
		rules = append(rules, rule)
	}
	type seen struct {
		path, body string
		status     int
	}
	var record []seen
	c := newClient(t, pve.Config{Fault: pve.Faults(rules...), Record: func(r *http.Request, body []byte, status int) {
		again, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Equal(t, string(body), string(again))
		record = append(record, seen{r.URL.Path, string(body), status})
	}})
	a := c.ask("POST", "/pools", form{"poolid": "one"})
	require.Equal(t, 596, a.status)
	require.Equal(t, "Connection timed out", a.reason)
	require.Empty(t, a.raw)
	require.Equal(t, 500, c.ask("POST", "/pools", form{"poolid": "two"}).status)
	r, err := http.NewRequest(http.MethodPost, "https://pve/api2/json/pools?poolid=three", nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "PVEAPIToken="+c.token)
	response, err := c.h.RoundTrip(r)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	if response != nil {
		require.NoError(t, response.Body.Close())
		require.Fail(t, "an answer from a dropped connection")
	}
	require.Equal(t, 595, c.ask("GET", vmURL("100", "/config"), nil).status)
	require.Equal(t, 595, c.ask("GET", vmURL("100", "/status/current"), nil).status)
	require.Equal(t, 595, c.ask("GET", "/nodes/father/qemu", nil).status, "the rest may be nothing")
	c.ok("GET", "/nodes/father/version", nil)

	s := c.h.Snapshot()
	require.Equal(t, []string{"one", "three"}, []string{s.Pools[0].Name, s.Pools[1].Name})
	require.Len(t, s.Pools, 2)
	require.Equal(t, 3, s.Requests["POST /pools"])
	require.Equal(t, []seen{
		{"/api2/json/pools", "poolid=one", 596},
		{"/api2/json/pools", "poolid=two", 500},
		{"/api2/json/pools", "", -1},
		{"/api2/json/nodes/father/qemu/100/config", "", 595},
		{"/api2/json/nodes/father/qemu/100/status/current", "", 595},
		{"/api2/json/nodes/father/qemu", "", 595},
		{"/api2/json/nodes/father/version", "", 200},
	}, record)
}
