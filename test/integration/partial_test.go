package integration_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// ST-13: a step fails in the middle of a manifest of four. What becomes of the
// others is what the manifest says; another manifest does not care; and the next
// pass does what is left, and no more.
func TestAStepFails(t *testing.T) {
	t.Parallel()
	const done, skipped, destroyed = engine.NodeCompleted, engine.NodeSkipped, engine.NodeDestroyed
	unanswered := func(nth int) string { return fmt.Sprintf("POST /nodes/father/qemu nth=%d status=596", nth) }
	for _, trouble := range []struct {
		name   string
		faults []string
	}{
		{"the create is refused", []string{"POST /nodes/father/qemu nth=2 status=500"}},
		{"the create is never answered, and was not done", []string{unanswered(2), unanswered(3), unanswered(4), unanswered(5)}},
		{"the disk cannot grow", []string{"PUT /nodes/father/qemu/10001/resize status=500"}},
		{"it cannot be started", []string{"POST /nodes/father/qemu/10001/status/start status=500"}},
	} {
		for _, policy := range []struct {
			onError string
			there   []string // without the one that failed
			told    map[string]engine.Status
			resumes []string // what the next pass creates at most
		}{
			{"stop", []string{"a", "other"}, map[string]engine.Status{"a": done, "c": skipped, "d": skipped}, []string{"b", "c", "d"}},
			{"rollback", []string{"other"}, map[string]engine.Status{"a": destroyed, "c": skipped, "d": skipped}, []string{"a", "b", "c", "d"}},
			{"continue", []string{"a", "c", "d", "other"}, map[string]engine.Status{"a": done, "c": done, "d": done}, []string{"b"}},
		} {
			t.Run(policy.onError+", "+trouble.name, func(t *testing.T) {
				s := begin(t, pve.Config{})
				s.deploy("four", "  on_error = \""+policy.onError+"\"\n"+vm("a")+vm("b")+vm("c")+vm("d"))
				s.deploy("other", vm("other", "vmid = 10500"))

				s.breaks(trouble.faults...)
				r := s.pass("apply", oneAtATime)
				require.Equal(t, engine.Partly, r.Outcome, describe(r))
				s.heals()

				// What failed may be there in part, unless all was to be taken back.
				there := slices.DeleteFunc(s.names(), func(name string) bool { return name == "b" })
				if policy.onError == "rollback" {
					there = s.names()
				}
				require.Equal(t, policy.there, there)
				require.Equal(t, engine.NodeFailed, status(r, "b"), describe(r))
				require.NotEmpty(t, nodeOf(r, "b").Error)
				require.Equal(t, engine.NodeCompleted, status(r, "other"))
				for name, want := range policy.told {
					require.Equal(t, want, status(r, name), name)
				}

				kept := s.ours()
				p := s.apply()
				for _, step := range p.Steps {
					require.Contains(t, policy.resumes, step.Address.Name)
				}
				require.Equal(t, []string{"a", "b", "c", "d", "other"}, s.names())
				for _, name := range policy.there {
					require.Equal(t, kept[name], s.guest(name), "%s was done already", name)
				}
				require.True(t, s.guest("b").Running)
				require.Contains(t, s.guest("b").Config["scsi0"], "size=10G")
				s.inSync()
			})
		}
	}
}

// ST-13: the image that two manifests need cannot be had. Both wait, a third one
// does not, and nothing half-made is left.
func TestWhatManyNeedFails(t *testing.T) {
	s := begin(t, pve.Config{})
	s.template()
	s.deploy("one", vm("one"))
	s.deploy("two", "  on_error = \"continue\"\n"+vm("two"))
	s.deploy("three", clone("three"))

	s.breaks("POST /nodes/father/storage/*/download-url status=500")
	r := s.try()
	require.Equal(t, engine.Partly, r.Outcome, describe(r))
	require.Equal(t, []string{"golden", "three"}, s.names())
	require.Equal(t, engine.NodeSkipped, status(r, "one"))
	require.Equal(t, engine.NodeSkipped, status(r, "two"))
	requireFinding(t, r.Findings, "image.debian-12", "500")

	s.heals()
	s.apply()
	require.Equal(t, []string{"golden", "one", "three", "two"}, s.names())
	s.inSync()
}

// ST-13: a destroy fails half-way. What is left is still ours, and the next destroy
// takes it.
func TestADestroyFails(t *testing.T) {
	s := begin(t, pve.Config{})
	s.deploy("four", vm("a")+vm("b")+vm("c")+vm("d"))
	s.apply()

	s.breaks("DELETE /nodes/father/qemu/10001 status=500")
	r := s.pass("destroy", func(p *engine.Pass) {
		p.Manifest, p.Destroy = "four", true
		oneAtATime(p)
	})
	require.Equal(t, engine.Partly, r.Outcome, describe(r))
	require.Contains(t, s.names(), "b")
	require.Equal(t, engine.NodeFailed, status(r, "b"), describe(r))
	s.heals()

	s.destroy("four")
	require.Empty(t, s.names())
}

// oneAtATime makes the order of steps that of their names.
func oneAtATime(p *engine.Pass) { p.Width = 1 }
