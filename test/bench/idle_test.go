package bench_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/test/bench/fleet"
)

// following is an agent with all that it needs.
type following struct {
	guests int
	host   *server
	site   *published
	agent  *agentProcess
}

// idle is P11 and P12: what an agent costs that finds nothing to do. P11 comes from
// cycles of six seconds, after which the host has closed every connection as it has
// after sixty: the CPU of one, times 60, and that of an hour in which nothing is
// looked at. For P12 the same agent makes as many cycles as fit into some minutes.
func (m *meter) idle() {
	if !m.hasGit("P11 and P12") {
		return
	}
	small, large := m.following(100), m.following(1000)
	m.hour(small, large)
	small.end()
	m.between(large)
	large.end()
}

func (m *meter) following(guests int) *following {
	f := fleet.Fleet{Guests: guests, Nodes: names(4), Files: 10}
	x := &following{guests: guests, host: m.host(hosting{Fleet: f})}
	x.site = m.publish(f, x.host.access)
	x.agent = m.follow(x.site, x.host, never)
	return x
}

func (x *following) end() {
	x.agent.end()
	require.NoError(x.agent.m.b, x.host.stop())
}

// hour is P11.
func (m *meter) hour(all ...*following) {
	const warm, cycles, period, silence = 3, 20, 6 * time.Second, 30 * time.Second
	began := make([]time.Duration, len(all))
	tick := time.NewTicker(period)
	defer tick.Stop()
	for n := range warm + cycles {
		for i, x := range all {
			if n == warm {
				began[i] = x.agent.used()
			}
			x.agent.looks()
		}
		<-tick.C
	}
	busy := make([]time.Duration, len(all))
	for i, x := range all {
		busy[i] = (x.agent.used() - began[i]) / cycles
		began[i] = x.agent.used()
	}
	m.pause(silence)
	for i, x := range all {
		asleep := (x.agent.used() - began[i]) * (time.Hour / silence)
		perHour := 60*busy[i] + asleep
		what, most, peer := "CPU of an idle hour, 60 s cycle, 100 guests", 3*time.Second, "228 s in a loop"
		if x.guests > 100 {
			what, most, peer = "the same, 1,000 guests", 12*time.Second, "–"
		}
		m.add(row{
			"P11", what, fmt.Sprintf("%.0f s", sec(most)),
			sec(perHour), sec(60 * m.readCPU(x.host)), seconds, met(perHour <= most), peer,
		})
		m.notef("P11, %d guests: %s CPU a cycle (of %d, one each %s), %s in an hour without any.", x.guests, seconds(sec(busy[i])), cycles, period, seconds(sec(asleep)))
	}
}

// readCPU is the CPU of the floor without that of starting a program.
func (m *meter) readCPU(host *server) time.Duration {
	var bare, nothing []run
	for range 5 {
		bare = append(bare, m.role("floor", host.access, false))
		nothing = append(nothing, m.role("nothing", nil, false))
	}
	return max(cpu(bare)-cpu(nothing), 0)
}

// between is P12. Its floor is a program that links the same libraries and does
// nothing.
func (m *meter) between(x *following) {
	const most, patience, early = 1000, 150 * time.Second, 10
	before := x.agent.clone()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	var first, last, own int64
	var course []int64
	cycles := 0
	for over := false; !over && cycles < most; {
		x.agent.looks()
		cycles++
		if cycles == early {
			first, _ = x.agent.rests()
		}
		if cycles%100 == 0 {
			rss, _ := x.agent.rests()
			course = append(course, rss)
		}
		select {
		case <-limit.C:
			over = true
		default:
		}
	}
	last, own = x.agent.rests()
	course = append(course, first, last)
	var nothing []run
	for range 5 {
		nothing = append(nothing, m.role("nothing", nil, true))
	}
	m.add(
		row{"P12", "memory between cycles, 1,000 guests, after 10", "40 MiB", float64(first), float64(rss(nothing)), mebibytes, met(first <= 40<<20), "comin 23 MiB (fetches only)"},
		row{"", fmt.Sprintf("the same after %d cycles", cycles), "40 MiB", float64(last), float64(rss(nothing)), mebibytes, met(last <= 40<<20), "–"},
		row{"", "its growth from then to then", "2 MiB", float64(last - first), 0, mebibytes, met(last-first <= 2<<20), "–"},
	)
	m.notef("P12: on the way between %s and %s; at the end %s of it are the agent's own, the rest pages of its binary; peak %s.",
		mebibytes(float64(slices.Min(course))), mebibytes(float64(slices.Max(course))), mebibytes(float64(own)), mebibytes(float64(memoryOf(x.agent.cmd.Process.Pid, "VmHWM"))))
	m.notef("P12: the clone had %.0f kB before these cycles and %.0f kB after; lines logged meanwhile: %d.",
		float64(before)/1e3, float64(x.agent.clone())/1e3, strings.Count(x.agent.said(), "\n"))
}
