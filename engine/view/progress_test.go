package view

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// A step that waits for a check says for which, and what that saw.
func TestTheLiveLineTellsOfChecks(t *testing.T) {
	p := &Progress{term: Terminal{Live: true}, running: []running{
		{step: plan.Step{Address: model.Address{Kind: "vm", Name: "web-1"}, Action: plan.Create}, since: time.Now()},
	}}
	p.wait(health.Progress{
		Address: model.Address{Kind: "vm", Name: "web-1"}, Check: "web", Saw: "192.0.2.7:80: connection refused",
		Waited: 12 * time.Second, Timeout: 5 * time.Minute,
	})
	require.Equal(t, "1 running, 0 waiting · waiting for check web of vm.web-1: 192.0.2.7:80: connection refused (12 s of 5m)", p.live(time.Now()))
}

// The live line says how long steps usually take as soon as one of the kind is done.
func TestTheLiveLineLearns(t *testing.T) {
	now := time.Unix(1000, 0)
	step := func(kind, name string, a plan.Action) plan.Step {
		return plan.Step{Address: model.Address{Kind: kind, Name: name}, Action: a}
	}
	p := &Progress{took: map[work]workTime{}, left: 4, running: []running{
		{step: step("vm", "a", plan.Create), since: now.Add(-3 * time.Second)},
		{step: step("vm", "b", plan.Delete), since: now.Add(-time.Second)},
	}}
	require.Equal(t, "2 running, 4 waiting · vm.a creating 3 s · vm.b destroying 1 s", p.live(now))
	for _, took := range []time.Duration{4 * time.Second, 8 * time.Second} {
		p.learn(apply.Event{Step: step("vm", "c", plan.Create), Result: apply.Result{Duration: took}})
	}
	p.learn(apply.Event{Step: step("image", "d", plan.Delete), Result: apply.Result{Duration: time.Hour}})
	require.Equal(t, "2 running, 4 waiting · vm.a creating 3 s (usually 6 s) · vm.b destroying 1 s", p.live(now))
}

// Before the steps it says what is waited for, once that takes long.
func TestTheLiveLineTellsOfALongLook(t *testing.T) {
	now := time.Unix(1000, 0)
	p := &Progress{phase: Observing("father"), since: now.Add(-900 * time.Millisecond)}
	require.Empty(t, p.live(now))
	require.Equal(t, "checking host father, 2 s", p.live(now.Add(1500*time.Millisecond)))
	p.term.Verbose = true
	require.Empty(t, p.live(now.Add(1500*time.Millisecond)), "other lines tell it")
}
