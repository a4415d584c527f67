package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// tier is an agent with its simulated host, in this process.
type tier struct {
	*service.Service
	t       *testing.T
	config  *service.Config
	options func(*service.Options)
	client  *control.Client
	socket  string
	stop    func()
}

const tierSite = `
site "home" {}
host "father" {
  api = "https://192.0.2.10:8006"
}
image "debian-12" {
  url      = "https://images.example/debian-12.qcow2"
  checksum = "sha256:00000000000000000000000000000000000000000000000000000000000000aa"
}
spec "plain" {}
`

// below declares the inner machine, and its nodes.
func below(names ...string) string {
	text := "manifest \"tree\" {\n  pattern = \"tiered\"\n  host = host.father\n  node \"inner\" {\n    type = \"pve\"\n    cores = 2\n    memory = 2048\n    image = image.debian-12\n    spec = spec.plain\n  }\n"
	for _, name := range names {
		text += fmt.Sprintf("  node %q {\n    type = \"vm\"\n    parent = node.inner\n    cores = 1\n    memory = 512\n    image = image.debian-12\n  }\n", name)
	}
	return text + "}\n"
}

// startTier starts an agent; change completes its configuration.
func startTier(t *testing.T, identity, secrets string, change func(*service.Config)) *tier {
	t.Helper()
	return startTierWith(t, identity, secrets, change, func(*service.Options) {})
}

// startTierWith is startTier for one that has other hosts.
func startTierWith(t *testing.T, identity, secrets string, change func(*service.Config), options func(*service.Options)) *tier {
	t.Helper()
	dir := controltest.ShortDir(t)
	env := map[string]string{"HOMESTAK_DATA_DIR": filepath.Join(dir, "data"), "HOMESTAK_IDENTITY": identity, "HOMESTAK_LISTEN": "127.0.0.1:0", "HOMESTAK_REPOSITORY_POLL": "1h"}
	config, found := service.ReadConfig(service.Flags{}, func(key string) string { return env[key] })
	require.Empty(t, found)
	if secrets != "" {
		config.SecretsFile = filepath.Join(dir, "secrets.yaml")
		require.NoError(t, os.WriteFile(config.SecretsFile, []byte(secrets), 0o600))
	}
	x := &tier{t: t, config: config, options: options, socket: filepath.Join(dir, "agent.sock")}
	change(config)
	x.start()
	t.Cleanup(func() { x.stop() })
	return x
}

func (x *tier) start() {
	x.t.Helper()
	release, err := x.config.Claim("agent", x.socket)
	require.NoError(x.t, err)
	hosts := sim.Hosts{}
	access := drivers.Access{Transport: hosts.Transport}
	o := service.Options{
		Config: x.config, Program: "1.2.3", Kinds: access.Kinds(), Log: slog.New(slog.NewTextHandler(x.t.Output(), nil)),
		Simulated: func(netip.Addr) error { return nil },
		Open: func(files fs.FS, d engine.Desired, h *model.Host, sent func(string, int)) (engine.Driver, error) {
			return drivers.Access{Files: files, Transport: hosts.Transport, Sent: sent}.Open(d, h)
		},
	}
	x.options(&o)
	x.Service, err = service.New(o)
	require.NoError(x.t, err)
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- x.Run(context.WithoutCancel(x.t.Context()), x.socket, stop, nil) }()
	x.stop = func() {
		close(stop)
		require.NoError(x.t, <-ended)
		require.NoError(x.t, release())
		x.stop = func() {}
	}
	require.Eventually(x.t, func() bool {
		x.client, err = control.Dial(x.t.Context(), x.socket)
		return err == nil
	}, 5*time.Minute, 10*time.Millisecond)
}

// until waits until the status is as wanted.
func (x *tier) until(what string, is func(agent.Status) bool) agent.Status {
	x.t.Helper()
	var s agent.Status
	require.Eventually(x.t, func() bool {
		s = x.Status()
		return is(s)
	}, 5*time.Minute, 10*time.Millisecond, what)
	return s
}

func (*tier) converged(commit string) func(agent.Status) bool {
	return func(s agent.Status) bool { return s.Converged != nil && s.Converged.ID == commit }
}

// metrics is the answer of its server to a scrape.
func (x *tier) metrics(server string, pins []string) string {
	x.t.Helper()
	key, err := os.ReadFile(filepath.Join(x.config.DataDir, "server", "read.key"))
	require.NoError(x.t, err)
	parsed, err := wire.ParsePins(pins)
	require.NoError(x.t, err)
	q, err := http.NewRequestWithContext(x.t.Context(), http.MethodGet, server+"/metrics", http.NoBody)
	require.NoError(x.t, err)
	q.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(key)))
	got, err := (&http.Transport{TLSClientConfig: wire.PinnedTLS(parsed), DisableKeepAlives: true}).RoundTrip(q)
	require.NoError(x.t, err)
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(got.Body)
	require.NoError(x.t, err)
	require.Equal(x.t, http.StatusOK, got.StatusCode, string(text))
	return string(text)
}

func names(r wire.Report) string {
	var out []string
	for _, n := range r.Nodes {
		out = append(out, n.Name+" below "+n.Parent)
	}
	return strings.Join(out, ", ")
}

// A push reaches a child through its parent, which sees the nodes of the child. While the parent is away the
// child goes on with what it has; when the parent is back, everything is as before.
func TestTreeOfAgents(t *testing.T) {
	t.Parallel()
	repo := sourcetest.New(t)
	first := repo.Commit(map[string]string{"site.hcl": tierSite, "below.hcl": below("app")}, "begin")
	father := startTier(t, "father", secretsWith("api_tokens:\n  father: \"a@pve!b=canary-of-father\"\n  inner: \"a@pve!b=canary-of-inner\"\nssh_keys:\n  driver: |\n    -----BEGIN OPENSSH PRIVATE KEY-----\n    canary\n    -----END OPENSSH PRIVATE KEY-----\n"), func(c *service.Config) { c.Repository.URL = repo.URL() })
	s := father.until("the parent serves", func(s agent.Status) bool {
		return father.converged(first)(s) && s.Server.Commit == first && len(s.Server.Pins) > 0
	})
	require.Empty(t, s.Server.Error)
	known, err := father.Parent("inner", "plain")
	require.NoError(t, err)

	// The parent's port must be the same when it comes back.
	father.config.Listen = s.Server.Address
	inner := startTier(t, "inner", "", func(c *service.Config) {
		token := filepath.Join(filepath.Dir(c.DataDir), "token")
		require.NoError(t, os.WriteFile(token, []byte(known.Token), 0o600))
		c.Parent.URL, c.Parent.TokenFile, c.Parent.Pins = known.Server, token, s.Server.Pins
		c.Parent.ReportEvery = 5 * time.Minute
		c.Repository.URL = known.Server + "/site.git"
	})
	inner.until("the child has the commit", inner.converged(first))
	all := func(want string) func(agent.Status) bool {
		return func(agent.Status) bool { return names(father.Tree()) == want && father.Tree().Ready }
	}
	father.until("the parent sees the tree", all("inner below father, app below inner"))
	require.Equal(t, "pve", father.Tree().Nodes[0].Type)
	require.Equal(t, first, father.Tree().Nodes[0].Commit)
	kept, err := os.ReadFile(filepath.Join(inner.config.DataDir, "parent.json"))
	require.NoError(t, err)
	require.Contains(t, string(kept), `"father":null`, "the child knows the names of all secrets")
	require.NotContains(t, string(kept), "canary", "and no value that it does not need")

	// A push: the parent asks its repository, the child is waked by the parent and asks that one.
	second := repo.Commit(map[string]string{"below.hcl": below("app", "db")}, "one more")
	require.NoError(t, father.client.CheckNow(t.Context()))
	inner.until("the push reaches the child", inner.converged(second))
	father.until("the parent sees it", all("inner below father, app below inner, db below inner"))

	// The same over HTTPS, with the read key, from any machine.
	remote, err := service.Elsewhere{Server: known.Server, Pins: s.Server.Pins, KeyFile: filepath.Join(father.config.DataDir, "server", "read.key")}.Client()
	require.NoError(t, err)
	tree, err := remote.Tree(t.Context())
	require.NoError(t, err)
	require.Equal(t, "inner below father, app below inner, db below inner", names(tree))
	status, err := remote.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, second, status.InForce.ID)
	text, err := json.Marshal(status)
	require.NoError(t, err)
	require.NotContains(t, string(text), "canary")

	reports := father.Server().Reports()
	require.Len(t, reports, 1)
	require.Equal(t, 5*time.Minute, reports[0].Period(time.Minute), "the child says how often it reports")

	// And in numbers: a scrape has the figures of the agent, what it asked its host, and its child.
	scraped := father.metrics(known.Server, s.Server.Pins)
	for _, line := range []string{
		`homestak_agent_info{identity="father",version="1.2.3"} 1`,
		`homestak_agent_commit_info{as="in_force",commit="` + second + `"} 1`,
		`homestak_agent_healthy 1`, `homestak_agent_nodes 1`, `homestak_agent_nodes_not_ready 0`, `homestak_agent_drift_attributes 0`,
		`homestak_agent_failing{what="server"} 0`, `homestak_agent_last_pass_errors 0`,
		`homestak_agent_passes_total{outcome="done"} [1-9]\d*`, `homestak_agent_pass_seconds_count [1-9]\d*`, `homestak_agent_last_pass_seconds [0-9.e-]+`,
		`homestak_agent_pve_requests_total{class="2xx",method="GET"} [1-9]\d*`, `homestak_agent_pve_requests_total{class="2xx",method="POST"} [1-9]\d*`,
		`homestak_node_report_age_seconds{node="inner"} [0-9.e-]+`, `homestak_serve_request_seconds_count{endpoint="/report/{identity}"} [1-9]\d*`,
	} {
		require.Regexp(t, "(?m)^"+strings.NewReplacer("{", `\{`, "}", `\}`).Replace(line)+"$", scraped)
	}
	require.NotContains(t, scraped, "canary")

	// A commit that is refused stays with the parent: the child keeps the last good one.
	bad := repo.Commit(map[string]string{"bad.hcl": "nonsense {}\n"}, "bad")
	require.NoError(t, father.client.CheckNow(t.Context()))
	father.until("the bad commit is refused", func(s agent.Status) bool { return s.Refused != nil && s.Refused.Commit == bad })
	require.NoError(t, inner.client.CheckNow(t.Context()))
	pass, err := inner.client.Reconcile(t.Context())
	require.NoError(t, err)
	require.Equal(t, second, pass.Commit)

	// The parent goes away: the child converges to what it has, and says in its status what is wrong.
	father.stop()
	pass, err = inner.client.Reconcile(t.Context())
	require.NoError(t, err)
	require.Equal(t, engine.Done, pass.Outcome)
	inner.until("the child knows that its parent is away", func(s agent.Status) bool { return s.Parent.Error != "" && s.Repository.Error != "" })

	// It comes back, and the tree with it: first the child is not known to be well, then it reports.
	third := repo.Commit(map[string]string{"bad.hcl": "", "below.hcl": below("app")}, "good again")
	father.start()
	require.False(t, father.Tree().Ready)
	father.until("the parent is at the new commit", father.converged(third))
	require.NoError(t, inner.client.CheckNow(t.Context()))
	inner.until("the child is, too", inner.converged(third))
	father.until("and the parent sees it", all("inner below father, app below inner"))
	inner.until("the child is well again", func(s agent.Status) bool { return s.Parent.Error == "" && s.Repository.Error == "" })
}

// ST-11, ST-3: what leaves the site goes child first. The child empties itself, since its parent says that it left; the
// parent removes it when it has reported that, although nobody but the child can see into it.
func TestST11AChildLeavesTheSite(t *testing.T) {
	t.Parallel()
	repo := sourcetest.New(t)
	beside := "manifest \"beside\" {\n  pattern = \"flat\"\n  host = host.father\n  node \"beside\" {\n    type = \"vm\"\n    cores = 1\n    memory = 512\n    image = image.debian-12\n  }\n}\n"
	first := repo.Commit(map[string]string{"site.hcl": tierSite, "below.hcl": below("app", "db"), "beside.hcl": beside}, "begin")
	father := startTier(t, "father", secretsWith("api_tokens:\n  father: \"a@pve!b=1\"\n  inner: \"a@pve!b=1\"\n"), func(c *service.Config) { c.Repository.URL = repo.URL() })
	s := father.until("the parent serves", func(s agent.Status) bool {
		return father.converged(first)(s) && s.Server.Commit == first && len(s.Server.Pins) > 0
	})
	known, err := father.Parent("inner", "plain")
	require.NoError(t, err)
	inner := startTier(t, "inner", "", func(c *service.Config) {
		token := filepath.Join(filepath.Dir(c.DataDir), "token")
		require.NoError(t, os.WriteFile(token, []byte(known.Token), 0o600))
		c.Parent.URL, c.Parent.TokenFile, c.Parent.Pins = known.Server, token, s.Server.Pins
		c.Repository.URL = known.Server + "/site.git"
	})
	inner.until("the child has the commit", inner.converged(first))
	require.Len(t, inner.Status().Nodes, 2)

	// Without the child's agent nothing goes.
	inner.stop()
	second := repo.Commit(map[string]string{"below.hcl": ""}, "the tree goes\n\nAllow-Deletes: 3")
	require.NoError(t, father.client.CheckNow(t.Context()))
	father.until("the commit is in force", func(s agent.Status) bool {
		return s.InForce != nil && s.InForce.ID == second && s.Last.Commit == second
	})
	require.Equal(t, first, father.Status().Converged.ID)
	require.Len(t, father.Status().Nodes, 2)

	inner.start()
	inner.until("the child is empty", func(s agent.Status) bool { return s.Converged != nil && s.Converged.ID == second && len(s.Nodes) == 0 })
	father.until("and then it goes", father.converged(second))
	require.Equal(t, "beside below father", names(father.Tree()))
	require.NoError(t, inner.client.CheckNow(t.Context()))
	inner.until("and its agent is not known any more", func(s agent.Status) bool { return s.Repository.Error != "" })
}
