package session_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/enginetest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// scene is a verb about to work on a site of two nodes and a recipe, whose host is simulated.
type scene struct {
	*session.Opener
	flags    *session.Flags
	hosts    sim.Hosts
	ended    int // networks
	out, err bytes.Buffer
}

func prepare(t *testing.T, args ...string) *scene {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "site.hcl"), []byte(enginetest.TwoNodes), 0o600))
	s := &scene{flags: &session.Flags{}, hosts: sim.Hosts{}}
	p := ui.Process{Stdin: strings.NewReader(""), Stdout: &s.out, Stderr: &s.err, Env: func(key string) string {
		return map[string]string{"HOMESTAK_DATA_DIR": filepath.Join(dir, ".data")}[key]
	}}
	_, stopping := p.Watch(t.Context())
	t.Cleanup(stopping.Close)
	s.Opener = &session.Opener{UI: ui.New(p), Stopping: stopping, Simulated: func() (session.Network, error) {
		return session.Network{Transport: s.hosts.Transport, Reaches: s.hosts.Reaches, Close: func() { s.ended++ }}, nil
	}}
	c := &cobra.Command{}
	s.flags.Change(s.UI, c)
	s.flags.Grant(c)
	require.NoError(t, c.ParseFlags(append([]string{"--site", dir, "--sim"}, args...)))
	return s
}

// apply opens the site and carries out a pass over all of it.
func (s *scene) apply(t *testing.T, c session.Change) error {
	t.Helper()
	opened, h, err := s.ReachDeployed(t.Context(), s.flags, "apply")
	require.NoError(t, err)
	defer opened.Close()
	p, err := opened.PassOver(h, s.flags.Scope(nil))
	require.NoError(t, err)
	p.Verb = "apply"
	return opened.CarryOut(t.Context(), h, p, c)
}

// planned is the plan of the scene as it is now.
func (s *scene) planned(t *testing.T, sc plan.Scope) *plan.Plan {
	t.Helper()
	opened, h, err := s.ReachDeployed(t.Context(), s.flags, "plan")
	require.NoError(t, err)
	defer opened.Close()
	p, err := opened.PassOver(h, sc)
	require.NoError(t, err)
	r := opened.Observe(t.Context(), p)
	require.Equal(t, engine.Planned, r.Outcome, r.Err)
	return r.Plan
}

func (s *scene) guests() int { return len(s.hosts["father"].Snapshot().Guests) }

// A plan is shown, agreed to, carried out and reported; once more there is nothing to do, and nothing to ask.
func TestCarryOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := prepare(t, "--yes")
		agreed := 0
		require.NoError(t, s.apply(t, session.Change{Agreed: func(context.Context) error { agreed++; return nil }}))
		require.Equal(t, 1, agreed)
		require.Equal(t, 2, s.guests())
		require.Contains(t, s.out.String(), "plan: 3 add, 0 change, 0 destroy")
		require.Contains(t, s.out.String(), "3 steps: 3 done")
		require.Equal(t, 1, s.ended)

		s.flags.Yes = false
		require.NoError(t, s.apply(t, session.Change{}))
		require.Equal(t, 2, s.guests())
	})
}

// Without a yes, or if the change is refused after it, nothing is done.
func TestNotAgreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := prepare(t)
		err := s.apply(t, session.Change{})
		require.Equal(t, ui.ExitFailed, ui.ExitCode(err))
		require.ErrorContains(t, err, "cannot ask for confirmation without a terminal, so nothing was done")
		require.Zero(t, s.guests())

		s.flags.Yes = true
		refusal := errors.New("the agent deploys it")
		require.ErrorIs(t, s.apply(t, session.Change{Agreed: func(context.Context) error { return refusal }}), refusal)
		require.Zero(t, s.guests())
	})
}

// A plan that was kept is done without a question, unless the host moved since.
func TestKeptPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := prepare(t)
		kept := s.planned(t, plan.Scope{})
		require.Len(t, kept.Steps, 3)
		require.Zero(t, s.guests())
		require.NoError(t, s.apply(t, session.Change{Kept: kept}))
		require.Equal(t, 2, s.guests())

		err := s.apply(t, session.Change{Kept: kept})
		require.Equal(t, ui.ExitRefused, ui.ExitCode(err))
		require.ErrorContains(t, err, "the plan is out of date, so nothing was done:\n")
	})
}

func TestScope(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := prepare(t)
		for _, target := range []string{"vm.one", "one"} {
			require.Len(t, s.planned(t, plan.Scope{Targets: []string{target}}).Steps, 2, "the node, and the image that it needs")
		}
		require.Empty(t, s.planned(t, plan.Scope{RefreshOnly: true}).Steps)

		opened, h, err := s.ReachDeployed(t.Context(), s.flags, "plan")
		require.NoError(t, err)
		defer opened.Close()
		_, err = opened.PassOver(h, plan.Scope{Targets: []string{"none"}})
		require.ErrorContains(t, err, "--target: ")
	})
}

// What names no host is an error that says what to do, and ends the network that was begun for it.
func TestReach(t *testing.T) {
	for want, c := range map[string]struct {
		args  []string
		reach func(*scene) error
	}{
		`unknown manifest "wbe"`: {[]string{"-M", "wbe"}, func(s *scene) error {
			_, _, _, err := s.Reach(context.Background(), s.flags)
			return err
		}},
		"manifest recipe is a recipe": {[]string{"-M", "recipe"}, func(s *scene) error {
			_, _, err := s.ReachDeployed(context.Background(), s.flags, "apply")
			return err
		}},
		"destroy: name a manifest with -M": {nil, func(s *scene) error {
			_, _, _, err := s.ReachManifest(context.Background(), s.flags, "destroy")
			s.ended++ // it began none
			return err
		}},
		`no node "three" in a deployed manifest`: {nil, func(s *scene) error {
			_, _, err := s.ReachNode(context.Background(), s.flags, "three")
			return err
		}},
	} {
		s := prepare(t, c.args...)
		require.ErrorContains(t, c.reach(s), want)
		require.Equal(t, 1, s.ended, want)
	}
	s := prepare(t, "-M", "recipe")
	opened, node, err := s.ReachNode(t.Context(), s.flags, "three")
	require.NoError(t, err)
	defer opened.Close()
	require.Equal(t, "three", node.Name)
}

// A site that is not valid does not converge; its findings are the error.
func TestSiteThatIsNotValid(t *testing.T) {
	s := prepare(t)
	require.NoError(t, os.WriteFile(filepath.Join(s.flags.Dir, "bad.hcl"), []byte("host {\n"), 0o600))
	_, _, _, err := s.Reach(t.Context(), s.flags)
	require.Equal(t, ui.ExitInvalid, ui.ExitCode(err))
	require.NotEmpty(t, ui.ErrorFindings(err))
}

// Documents of verbs that fail name the site as far as it is known.
func TestDocumentsOfFailures(t *testing.T) {
	s := prepare(t)
	failed := ui.ErrorFindings(errors.New("no route"))
	p := s.Unplanned("father", failed)
	require.Empty(t, p.Site)
	require.Equal(t, failed, p.Findings)
	opened, err := s.Open(t.Context(), s.flags)
	require.NoError(t, err)
	defer opened.Close()
	require.Equal(t, "home", s.Unplanned("father", failed).Site)
	r := s.FailedReport("apply")(errors.New("no route")).(engine.Report)
	require.Equal(t, "apply", r.Verb)
	require.False(t, r.Success)
}

// Rules get the site, and a plan only if they ask for one.
func TestPolicyDocument(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := prepare(t)
		opened, err := s.Open(t.Context(), s.flags)
		require.NoError(t, err)
		defer opened.Close()
		document, err := opened.PolicyDocument(t.Context(), false)
		require.NoError(t, err)
		require.Nil(t, document["plan"])
		require.NotNil(t, document["site"])
		document, err = opened.PolicyDocument(t.Context(), true)
		require.NoError(t, err)
		require.NotNil(t, document["plan"])
	})
}

func TestFlagsThatMakeNoSense(t *testing.T) {
	for want, args := range map[string][]string{
		"--mode sideways: want push or pull":                        {"--mode", "sideways"},
		"--allow-deletes -1: a number of guests cannot be negative": {"--allow-deletes", "-1"},
		"--timeout -1s: a time span cannot be negative":             {"--timeout", "-1s"},
		"--var cores: want NAME=VALUE":                              {"--var", "cores"},
		"--var =4: want NAME=VALUE":                                 {"--var", "=4"},
	} {
		s := prepare(t, args...)
		_, err := s.Open(t.Context(), s.flags)
		require.EqualError(t, err, want)
		require.Equal(t, 1, s.ended, "the network that was begun for it")
	}
	s := prepare(t, "--var", "a=1", "--var", "b=c=d")
	vars, err := s.flags.Variables()
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "1", "b": "c=d"}, vars)
	require.Equal(t, "home", s.flags.Peek().Name)
}

// A verb ends when its time is over, and says that this is why.
func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &session.Flags{Timeout: time.Minute}
		c := &cobra.Command{}
		c.SetContext(t.Context())
		err := f.Within(func(ctx context.Context, args []string) error {
			require.Equal(t, []string{"plan.json"}, args)
			<-ctx.Done()
			return ctx.Err()
		})(c, []string{"plan.json"})
		require.ErrorIs(t, err, ui.ErrTimeout)
	})
}

func noEnv(string) string { return "" }

// The zero network is the real one: hosts by TLS, guests as the user who runs the program can enter them.
func TestRealNetwork(t *testing.T) {
	own := session.OwnWays("/data", noEnv)
	require.Equal(t, filepath.Join("/data", "known_hosts"), own.HostKeys.(*push.KnownHosts).Path)
	require.Empty(t, session.OwnWays("", noEnv).HostKeys.(*push.KnownHosts).Path, "without a folder they are kept in memory")

	var n session.Network
	require.Equal(t, own.HostKeys, n.Ways(own).HostKeys)
	access := n.Access(n.Ways(own))
	require.Nil(t, access.Transport)
	require.NoError(t, n.Serve(&access, engine.Desired{}, nil))
	require.Nil(t, access.Parent)
	n.End()
}

// Guests of a simulated network are entered by its own ways only: what the user may enter is real.
func TestSimulatedNetwork(t *testing.T) {
	theirs := push.Config{PrivateKeys: []string{"of the simulation"}}
	ended := 0
	n := session.Network{
		Transport: func(*model.Site, *model.Host) (http.RoundTripper, string) { return nil, "" },
		Guests:    &theirs, Close: func() { ended++ },
	}
	own := push.Config{PrivateKeys: []string{"of the user"}, HostKeys: &push.KnownHosts{}}
	require.Equal(t, theirs, n.Ways(own))
	require.NotNil(t, n.Access(own).Transport)
	n.End()
	require.Equal(t, 1, ended)
}

// specs is a parent that may have nothing to serve.
type specs struct {
	parent drivers.Parent
	err    error
}

func (s specs) Serve(engine.Desired, *policy.Set, push.Config) (drivers.Parent, error) {
	return s.parent, s.err
}
func (specs) Reported(string) (saw string, err error) { return "", nil }

type aParent struct{}

func (aParent) Parent(string, string) (wire.Parent, error) { return wire.Parent{}, nil }
func (aParent) HasReported(string) bool                    { return false }
func (aParent) Revoke(string) error                        { return nil }
func (aParent) Revoked(string) bool                        { return false }
func (aParent) Accepts(string, string) error               { return nil }
func (aParent) Reported(string) (saw string, err error)    { return "", nil }

// A site without nodes in mode pull has no parent, and one that cannot be served is an error.
func TestSpecs(t *testing.T) {
	var access drivers.Access
	require.NoError(t, session.Network{Specs: specs{}}.Serve(&access, engine.Desired{}, nil))
	require.Nil(t, access.Parent)
	require.NoError(t, session.Network{Specs: specs{parent: aParent{}}}.Serve(&access, engine.Desired{}, nil))
	require.Equal(t, aParent{}, access.Parent)
	down := errors.New("no port")
	require.ErrorIs(t, session.Network{Specs: specs{err: down}}.Serve(&access, engine.Desired{}, nil), down)
}
