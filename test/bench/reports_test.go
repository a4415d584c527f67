package bench_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// children is how many nodes report to one server.
const children = 10_000

// reporting measures a server with 10,000 children. First all fetch their spec and all report, as
// fast as eight connections allow: that fills the server, and gives the CPU of each. Then they come at
// the pace that 60 seconds between two reports make. Each child is a process that begins anew, so it
// makes a connection, asks whether its spec is another one, and reports. The floor is the same pace
// before a bare server.
func (m *meter) reporting() {
	s := m.specServer(children)
	defer s.end()
	pid := s.cmd.Process.Pid
	loaded := memoryOf(pid, "VmRSS")
	fetch, post, tags := make([]string, children+1), make([]string, children+1), make([]string, children+1)
	for n := 1; n <= children; n++ {
		token := s.token(n)
		fetch[n] = "GET " + wire.SpecPath(s.node(n)) + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\r\n"
		post[n] = "POST " + wire.ReportPath(s.node(n)) + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\r\nContent-Type: application/json\r\n"
	}
	reportOf := func(n int) string {
		body, err := json.Marshal(wire.Report{
			Version: wire.ReportVersion, Identity: s.node(n), Agent: "1.2.3", At: time.Now().UTC(), Phase: wire.PhaseRun, Ready: true, Findings: diag.List{}, Nodes: []wire.ReportNode{},
		})
		require.NoError(m.b, err)
		return post[n] + "Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + string(body)
	}
	all := func(do func(c *conn, n int) error) (cpu, wall time.Duration) {
		before, err := cpuOf(pid)
		require.NoError(m.b, err)
		began := time.Now()
		errs := make([]error, clients)
		var wait sync.WaitGroup
		for i, c := range m.dialAll(s.process, clients) {
			wait.Go(func() {
				for n := 1 + i; n <= children && errs[i] == nil; n += clients {
					errs[i] = do(c, n)
				}
				_ = c.Close()
			})
		}
		wait.Wait()
		require.NoError(m.b, errors.Join(errs...))
		after, err := cpuOf(pid)
		require.NoError(m.b, err)
		return after - before, time.Since(began)
	}
	fetchCPU, fetchWall := all(func(c *conn, n int) error {
		err := c.ask(fetch[n] + "\r\n")
		tags[n] = c.tag
		return err
	})
	reportCPU, reportWall := all(func(c *conn, n int) error { return c.ask(reportOf(n)) })
	filled := memoryOf(pid, "VmRSS")
	visit := func(addr string) func(n int) error {
		return func(n int) error {
			c, err := dial(m.ctx, addr)
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			if err := c.ask(fetch[n] + "If-None-Match: " + tags[n] + "\r\n\r\n"); err != nil {
				return err
			}
			if c.status != 304 {
				return fmt.Errorf("asking again for the spec of %s: %d", s.node(n), c.status)
			}
			return c.ask(reportOf(n))
		}
	}
	took, share := m.paced(s.process, visit(s.addr))
	bare := m.stand(standing{PEM: m.selfSigned(m.ecKey()), Body: m.file("spec.json", nil)}, m.self)
	bareTook, bareShare := m.paced(bare, visit(bare.addr))
	bare.end()
	m.add(
		row{"", "10,000 children, each 60 s: share of a CPU", "–", share, bareShare, percent, open, "–"},
		row{"", "connect, ask, report: p99", "–", at99(took), at99(bareTook), micros, open, "–"},
		row{"", "memory of the server", "–", float64(memoryOf(pid, "VmRSS")), 0, mebibytes, open, "–"},
	)
	m.notef("P15, 10,000 children: a spec costs %s CPU, a report %s (over 8 connections in %s and %s for all); p50 of a visit at their pace %s.",
		micros(fetchCPU.Seconds()/children), micros(reportCPU.Seconds()/children), seconds(sec(fetchWall)), seconds(sec(reportWall)), micros(median(took).Seconds()))
	m.notef("P15, 10,000 children: memory %s once the site is loaded, %s with all reports, peak %s.",
		mebibytes(float64(loaded)), mebibytes(float64(filled)), mebibytes(float64(memoryOf(pid, "VmHWM"))))
}

// paced lets children come at the pace of all 10,000 in a minute, for half a minute, and gives how
// long each visit took, and how much of one CPU the server needed.
func (m *meter) paced(s *process, visit func(n int) error) (took []time.Duration, share float64) {
	const period, length = time.Minute, 30 * time.Second
	visits := int(length / (period / children))
	took, errs := make([]time.Duration, visits), make([]error, visits)
	before, err := cpuOf(s.cmd.Process.Pid)
	require.NoError(m.b, err)
	began := time.Now()
	tick := time.NewTicker(period / children)
	defer tick.Stop()
	var wait sync.WaitGroup
	for i := range visits {
		<-tick.C
		wait.Go(func() {
			at := time.Now()
			errs[i] = visit(1 + i)
			took[i] = time.Since(at)
		})
	}
	wait.Wait()
	wall := time.Since(began)
	after, err := cpuOf(s.cmd.Process.Pid)
	require.NoError(m.b, err)
	require.NoError(m.b, errors.Join(errs...))
	return took, (after - before).Seconds() / wall.Seconds()
}

func percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }
