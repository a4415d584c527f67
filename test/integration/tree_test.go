package integration_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/control/controltest"
	"github.com/homestak/homestak-gitops/engine/images"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	simhosts "github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/debian"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/wire"
	"github.com/homestak/homestak-gitops/test/released"
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
	config, found := service.Flags{}.ReadConfig(func(key string) string { return env[key] })
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
	hosts := simhosts.Hosts{}
	access := drivers.Access{Transport: hosts.Transport}
	o := service.Options{
		Config: x.config, Program: "1.2.3", Kinds: access.Kinds(), Log: slog.New(slog.NewTextHandler(x.t.Output(), nil)),
		Simulated: func(netip.Addr) error { return nil },
		Open: func(files fs.FS, sent func(string, int), _ *daemon.Server, _ *images.Near) func(engine.Desired, *model.Host) (engine.Driver, error) {
			return drivers.Access{Files: files, Transport: hosts.Transport, Sent: sent}.Open
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
	father := startTier(t, "father", released.Auth+"api_tokens:\n  father: \"a@pve!b=canary-of-father\"\n  inner: \"a@pve!b=canary-of-inner\"\nssh_keys:\n  driver: |\n    -----BEGIN OPENSSH PRIVATE KEY-----\n    canary\n    -----END OPENSSH PRIVATE KEY-----\n", func(c *service.Config) { c.Repository.URL = repo.URL() })
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
		`homestak_host_ready{host="inner",parent="father"} 1`, `homestak_host_report_age_seconds{host="inner",parent="father"} [0-9.e-]+`,
		`homestak_tree_nodes 3`, `homestak_tree_nodes_not_ready 0`, `homestak_node_report_age_seconds{node="inner"} [0-9.e-]+`, `homestak_serve_request_seconds_count{endpoint="/report/{identity}"} [1-9]\d*`,
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

// ST-11, ST-3: a node that leaves the site goes child first. The child empties itself, since its parent says that it left; the
// parent removes it after its report, as only the child can see into it.
func TestST11AChildLeavesTheSite(t *testing.T) {
	t.Parallel()
	repo := sourcetest.New(t)
	beside := "manifest \"beside\" {\n  pattern = \"flat\"\n  host = host.father\n  node \"beside\" {\n    type = \"vm\"\n    cores = 1\n    memory = 512\n    image = image.debian-12\n  }\n}\n"
	first := repo.Commit(map[string]string{"site.hcl": tierSite, "below.hcl": below("app", "db"), "beside.hcl": beside}, "begin")
	father := startTier(t, "father", released.Auth+"api_tokens:\n  father: \"a@pve!b=1\"\n  inner: \"a@pve!b=1\"\n", func(c *service.Config) { c.Repository.URL = repo.URL() })
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

// levels is a tree of agents: that of a host, and those that the tree makes on its own machines.
type levels struct {
	t      *testing.T
	world  *sim.World
	repo   *sourcetest.Repo
	father *service.Service
	stop   func() // ends it

	data, secrets string // of the agent of the host
	drift         string // its drift_every; "": the default
	history       sim.History
}

const levelsSite = `
site "home" {
  domain = "home.example"
}
host "father" {
  api = "https://192.0.2.10:8006"
}
image "debian-13" {
  url      = "https://images.example/debian-13.qcow2"
  checksum = "sha256:00000000000000000000000000000000000000000000000000000000000000aa"
}
image "pve-9" {
  url      = "https://images.example/pve-9.qcow2"
  checksum = "sha256:00000000000000000000000000000000000000000000000000000000000000bb"
}
spec "plain" {
  platform {
    packages = ["htop"]
  }
}
`

// machine is a node of a tree.
func machine(name, kind, parent string, more ...string) string {
	image := "debian-13"
	if kind == "pve" {
		image = "pve-9"
	}
	text := fmt.Sprintf("  node %q {\n    type = %q\n    cores = 1\n    memory = 1024\n    image = image.%s\n    spec = spec.plain\n", name, kind, image)
	if parent != "" {
		text += "    parent = node." + parent + "\n"
	}
	return text + strings.Join(append(more, ""), "\n") + "  }\n"
}

func tiered(nodes ...string) map[string]string {
	return map[string]string{"tree.hcl": "manifest \"tree\" {\n  pattern = \"tiered\"\n  host = host.father\n" + strings.Join(nodes, "") + "}\n"}
}

// grow starts the agent of the host, whose site has no nodes yet.
func grow(t *testing.T) *levels {
	t.Helper()
	l := &levels{t: t, repo: sourcetest.New(t), data: filepath.Join(t.TempDir(), "data"), secrets: filepath.Join(t.TempDir(), "secrets.yaml")}
	l.secret("first")
	var err error
	l.world, err = sim.NewWorld(sim.WorldOptions{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Version: "1.2.3", Record: l.history.Record})
	require.NoError(t, err)
	l.repo.Commit(map[string]string{"site.hcl": levelsSite}, "begin")
	l.start()
	t.Cleanup(func() {
		l.stop()
		require.NoError(t, l.world.Close())
	})
	return l
}

// start starts the agent of the host.
func (l *levels) start() {
	l.t.Helper()
	env := map[string]string{
		"HOMESTAK_DATA_DIR": l.data, "HOMESTAK_IDENTITY": "father", "HOMESTAK_LISTEN": "192.0.2.10:44443",
		"HOMESTAK_REPOSITORY_POLL": "1s", "HOMESTAK_REPOSITORY_URL": l.repo.URL(), "HOMESTAK_SECRETS_FILE": l.secrets, "HOMESTAK_DRIFT_EVERY": l.drift,
	}
	cfg, found := service.Flags{}.ReadConfig(func(key string) string { return env[key] })
	require.Empty(l.t, found)
	var err error
	l.father, err = l.world.Agent(cfg)
	require.NoError(l.t, err)
	stop, ended, agent := make(chan struct{}), make(chan error, 1), l.father
	go func() { ended <- agent.Run(context.WithoutCancel(l.t.Context()), control.NoSocket, stop, nil) }()
	l.stop = func() {
		close(stop)
		require.NoError(l.t, <-ended)
	}
}

// secret makes a text the secret of the site.
func (l *levels) secret(text string) {
	l.t.Helper()
	require.NoError(l.t, os.WriteFile(l.secrets, []byte(released.Auth+"passwords:\n  app: "+text+"\n"), 0o600))
}

func (l *levels) until(what string, is func() bool) {
	l.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !is(); <-tick.C {
		if time.Now().After(end) {
			require.Fail(l.t, what, "%+v", l.father.Tree())
		}
	}
}

// push makes a commit the one of the whole tree: every agent has converged to it, and every node is ready.
func (l *levels) push(files map[string]string, message, want string) {
	l.t.Helper()
	commit := l.repo.Commit(files, message)
	l.father.Agent.CheckNow()
	l.until("the tree is ready: "+want, func() bool {
		tree := l.father.Tree()
		for _, n := range tree.Nodes {
			if n.Type == "pve" && n.Commit != commit {
				return false
			}
		}
		return tree.LastGood == commit && tree.Ready && names(tree) == want
	})
}

// remove takes all nodes out of the site.
func (l *levels) remove() {
	l.t.Helper()
	l.push(map[string]string{"tree.hcl": ""}, "Farewell\n\nAllow-Deletes: 100", "")
	require.Empty(l.t, l.world.Hosts["father"].Snapshot().Guests)
}

// step is when a step of an agent was done, by its receipts.
func (l *levels) step(s *service.Service, address, action string) (began, ended time.Time) {
	l.t.Helper()
	all, err := s.Ledger.Last(100, nil)
	require.NoError(l.t, err)
	for _, r := range all {
		for _, s := range r.Steps {
			if s.Address == address && s.Action == action && s.Status == "done" {
				return s.Began, s.Began.Add(time.Duration(s.Seconds * float64(time.Second)))
			}
		}
	}
	require.Fail(l.t, "no receipt has the step", "%s %s", action, address)
	return began, ended
}

// ownWork checks that the host of a child has only what its own agent made, which it did when the machine was ready.
func (l *levels) ownWork(above *service.Service, child, node string) {
	l.t.Helper()
	host, agent := l.world.Hosts.Find(child), l.world.Running(child)
	require.NotNil(l.t, host, child)
	require.NotNil(l.t, agent, child)
	made := 0
	for _, task := range host.Snapshot().Tasks {
		require.Equal(l.t, "homestak@pve!agent", task.User, "%s %s on %s", task.Type, task.ID, child)
		if task.Type == "qmcreate" {
			made++
		}
	}
	require.Equal(l.t, len(host.Snapshot().Guests), made)
	_, ready := l.step(above, "guest."+child, "create")
	began, _ := l.step(agent, node, "create")
	require.True(l.t, ready.Before(began), "%s begins %s when %s is ready", child, node, child)
}

// ST-3: a VM on a PVE node. The node is ready before the VM exists, and the VM is gone before the node goes. Each
// level is the work of its own agent.
func TestST03TwoLevels(t *testing.T) {
	t.Parallel()
	l := grow(t)
	l.push(tiered(machine("inner", "pve", ""), machine("app", "vm", "inner")), "two levels", "inner below father, app below inner")
	require.Equal(t, []string{"+father", "+inner"}, l.history.List())
	l.ownWork(l.father, "inner", "vm.app")
	l.remove()
	require.Equal(t, []string{"+father", "+inner", "-inner", "-father"}, l.history.List())
	require.Nil(t, l.world.Running("inner"), "its agent ended with its machine")
}

// chain is a tree of PVE nodes, each on the one before, with a VM on the last; and what its agents report.
func chain(depth int) (files map[string]string, want string) {
	var nodes, reported []string
	parent := ""
	for n := 1; n < depth; n++ {
		name := fmt.Sprintf("level-%d", n)
		nodes = append(nodes, machine(name, "pve", parent))
		if parent == "" {
			reported = append(reported, name+" below father")
		} else {
			reported = append(reported, name+" below "+parent)
		}
		parent = name
	}
	return tiered(append(nodes, machine("app", "vm", parent))...), strings.Join(append(reported, "app below "+cmp.Or(parent, "father")), ", ")
}

// ST-4: one level to five: made from the top down, and removed from the bottom up, each by its own agent.
func TestST04ThreeLevels(t *testing.T) {
	t.Parallel()
	for depth := 1; depth <= 5; depth++ {
		t.Run(fmt.Sprint(depth), func(t *testing.T) {
			t.Parallel()
			l := grow(t)
			files, want := chain(depth)
			l.push(files, "levels", want)
			up, down := []string{"+father"}, []string{"-father"}
			above := l.father
			for n := 1; n < depth; n++ {
				name, below := fmt.Sprintf("level-%d", n), fmt.Sprintf("pve.level-%d", n+1)
				if n == depth-1 {
					below = "vm.app"
				}
				l.ownWork(above, name, below)
				above = l.world.Running(name)
				up, down = append(up, "+"+name), append([]string{"-" + name}, down...)
			}
			require.Equal(t, up, l.history.List())
			l.remove()
			require.Equal(t, append(up, down...), l.history.List())
		})
	}
}

// ST-4, in width: twenty children with a VM each.
func TestST04Wide(t *testing.T) {
	t.Parallel()
	l := grow(t)
	const width = 20
	var nodes, reported []string
	for n := 1; n <= width; n++ {
		name := fmt.Sprintf("pve-%d", n)
		nodes = append(nodes, machine(name, "pve", ""), machine(fmt.Sprintf("app-%d", n), "vm", name))
		reported = append(reported, name+" below father", fmt.Sprintf("app-%d below %s", n, name))
	}
	l.push(tiered(nodes...), "twenty children", strings.Join(reported, ", "))
	require.Len(t, l.history.List(), 2*width)
	for n := 1; n <= width; n++ {
		l.ownWork(l.father, fmt.Sprintf("pve-%d", n), fmt.Sprintf("vm.app-%d", n))
	}
	l.remove()
	done := l.history.List()[2*width:]
	require.Len(t, done, 2*width)
	gone := map[string]bool{}
	for _, what := range done {
		gone[what] = true
		if what == "-father" {
			continue
		}
		require.True(t, strings.HasPrefix(what, "-pve-"), what)
	}
	require.Len(t, gone, width+1)
}

// ST-5: pull by default, and a PVE node that is pushed, as it always is: its parent makes it ready, and the VM on it makes
// itself what its spec says, with a token that its own parent gave it.
func TestST05MixedModes(t *testing.T) {
	t.Parallel()
	l := grow(t)
	files := tiered("  execution {\n    default_mode = \"pull\"\n  }\n", machine("inner", "pve", "", "    execution {\n      mode = \"push\"\n    }"), machine("app", "vm", "inner"))
	l.push(files, "mixed modes", "inner below father, app below inner")
	l.ownWork(l.father, "inner", "vm.app")
	l.step(l.father, "guest.inner", "create")
	all, err := l.world.Running("inner").Ledger.Last(0, nil)
	require.NoError(t, err)
	for _, r := range all {
		for _, s := range r.Steps {
			require.NotEqual(t, "guest.app", s.Address, "it is not entered")
		}
	}
	copied := l.father.Ledger.At([]string{"inner"})
	l.until("the father has the receipts of inner", func() bool {
		there, err := copied.Head()
		require.NoError(t, err)
		here, err := l.world.Running("inner").Ledger.Head()
		require.NoError(t, err)
		return here.ID != "" && there == here
	})
	keys, err := l.world.Running("inner").Ledger.Keys()
	require.NoError(t, err)
	proof, err := copied.Verify(ledger.Expect{Keys: keys})
	require.NoError(t, err)
	require.Empty(t, proof.Broken)
	require.GreaterOrEqual(t, proof.Intact, len(all))
	app := l.inside("inner", "app")
	for line, want := range map[string]string{
		"cat /etc/hostname": "app\n", "command -v htop": "/usr/bin/htop\n", "ls /var/lib/homestak-gitops/config-complete.json": "/var/lib/homestak-gitops/config-complete.json\n",
	} {
		out, code := app.Shell(line)
		require.Zero(t, code, out)
		require.Equal(t, want, out)
	}
	own, code := app.Shell("cat /etc/homestak-gitops/node.json")
	require.Zero(t, code, own)
	require.Contains(t, own, l.world.Running("inner").Status().Server.Pins[0])
	require.NotContains(t, own, l.father.Status().Server.Pins[0])
	l.remove()
}

// inside is the system of a guest on a host.
func (l *levels) inside(host, guest string) *debian.Machine {
	l.t.Helper()
	h := l.world.Hosts.Find(host)
	require.NotNil(l.t, h, host)
	for _, g := range h.Snapshot().Guests {
		if g.Name() == guest {
			m := h.Systems().(*simhosts.Guests).Machine(fmt.Sprint(g.VMID))
			require.NotNil(l.t, m, guest)
			return m
		}
	}
	require.Fail(l.t, "no such guest", guest)
	return nil
}

// The agent of a simulated machine is a service of it: it ends when that is stopped or killed, and when the machine is
// switched off with all that is in it. What it knows is on the disk, and goes with that.
func TestTheAgentOfASimulatedMachineIsAService(t *testing.T) {
	t.Parallel()
	l := grow(t)
	l.push(tiered(machine("inner", "pve", ""), machine("app", "vm", "inner")), "two levels", "inner below father, app below inner")
	m := l.inside("father", "inner")
	shell := func(line string) string {
		t.Helper()
		out, code := m.Shell(line)
		require.Zero(t, code, "%s: %s", line, out)
		return strings.TrimSpace(out)
	}
	own := func() string { return l.world.Running("inner").Status().Server.Pins[0] }
	runs := func() bool {
		s := l.world.Running("inner")
		return s != nil && s.Status().Server != nil && len(s.Status().Server.Pins) > 0
	}
	const unit = "homestak-gitops.service"
	require.Equal(t, "active", shell("systemctl is-active "+unit))
	pin := own()

	shell("kill -9 $(systemctl show -p MainPID --value " + unit + ")")
	l.until("a killed agent is gone", func() bool { return l.world.Running("inner") == nil })
	shell("systemctl start " + unit)
	l.until("it begins again", runs)
	require.Equal(t, pin, own(), "with the keys that it had")

	shell("systemctl stop " + unit)
	require.Nil(t, l.world.Running("inner"), "who stops it waits for its end")
	shell("systemctl start " + unit)
	l.until("it begins again", runs)
	require.Equal(t, pin, own())

	inner := l.world.Hosts.Find("inner")
	vmid := l.vmid("father", "inner")
	l.world.Hosts["father"].Edit(func(e *pve.Edit) { e.Stop(vmid) })
	require.Nil(t, l.world.Running("inner"))
	require.Nil(t, l.world.Hosts.Find("inner"))
	require.False(t, inner.Snapshot().Guests[0].Running, "what is in it is off, too")
	l.father.Agent.CheckNow()
	l.until("it begins with its machine", runs)
	require.Equal(t, pin, own())
	l.until("and brings back what is in it", func() bool { return inner.Snapshot().Guests[0].Running && l.father.Tree().Ready })

	m = l.inside("father", "inner")
	shell("systemctl stop " + unit + " && rm -r /var/lib/homestak-gitops && systemctl start " + unit)
	l.until("it begins again", runs)
	require.NotEqual(t, pin, own(), "its keys were in the folder")
}

// vmid is that of a guest on a host.
func (l *levels) vmid(host, guest string) int {
	l.t.Helper()
	for _, g := range l.world.Hosts.Find(host).Snapshot().Guests {
		if g.Name() == guest {
			return g.VMID
		}
	}
	require.Fail(l.t, "no such guest", guest)
	return 0
}

// withSpec is a commit in which the spec of all nodes has these lines.
func withSpec(files map[string]string, lines string) map[string]string {
	out := maps.Clone(files)
	out["site.hcl"] = strings.Replace(levelsSite, "  platform {\n    packages = [\"htop\"]\n  }\n", lines, 1)
	return out
}

// deep are the guests of three levels.
func (l *levels) deep() []int {
	l.t.Helper()
	return []int{l.vmid("father", "outer"), l.vmid("outer", "inner"), l.vmid("inner", "app")}
}

// ST-18 and ST-11, three levels down: a secret that only the spec of the last node uses changes while all agents run, and what a
// commit takes out of that spec leaves the machine.
func TestST18ASecretOfAGrandchild(t *testing.T) {
	t.Parallel()
	l := grow(t)
	const want = "outer below father, inner below outer, app below inner"
	tree := tiered(machine("outer", "pve", ""), machine("inner", "pve", "outer"), strings.Replace(machine("app", "vm", "inner"), "spec.plain", "spec.app", 1))
	app := func(lines string) map[string]string {
		out := withSpec(tree, "  platform {\n    packages = [\"htop\"]\n  }\n")
		out["site.hcl"] += "spec \"app\" {\n" + lines + "}\n"
		return out
	}
	const file = "  config {\n    file \"/etc/app.conf\" {\n      content = secret.passwords.app\n      mode    = \"0600\"\n    }\n  }\n"
	l.push(app("  platform {\n    packages = [\"jq\"]\n  }\n"+file), "a secret", want)
	conf := func() string {
		out, _ := l.inside("inner", "app").Shell("cat /etc/app.conf")
		return out
	}
	require.Equal(t, "first", conf())
	outer, inner := l.world.Running("outer"), l.world.Running("inner")
	app1 := l.vmid("inner", "app")

	l.secret("second")
	l.father.Agent.CheckNow()
	l.until("the secret is where it is used", func() bool { return conf() == "second" })
	require.Same(t, outer, l.world.Running("outer"), "no agent was started again")
	require.Same(t, inner, l.world.Running("inner"))
	require.Equal(t, app1, l.vmid("inner", "app"))

	l.push(app("  platform {\n    packages = [\"git\"]\n  }\n"), "less", want)
	for line, want := range map[string]int{"test -e /etc/app.conf": 1, "command -v git": 0, "command -v jq": 127} {
		_, code := l.inside("inner", "app").Shell(line)
		if want == 0 {
			require.Zero(t, code, line)
		} else {
			require.NotZero(t, code, line)
		}
	}
	require.Equal(t, app1, l.vmid("inner", "app"))
}

// ST-21, at the root: its data folder is lost. It makes new keys, and enters its child to give it these; that goes on as it was,
// and so does all below it.
func TestST21ARootThatLostItsData(t *testing.T) {
	t.Parallel()
	l := grow(t)
	l.push(tiered(machine("outer", "pve", ""), machine("inner", "pve", "outer"), machine("app", "vm", "inner")), "three levels", "outer below father, inner below outer, app below inner")
	made, pins := l.history.List(), l.father.Status().Server.Pins
	ids := l.deep()
	l.stop()
	require.NoError(t, os.RemoveAll(l.data))
	l.start()
	l.until("the tree is as before", func() bool {
		s := l.father.Status()
		return s.Server != nil && len(s.Server.Pins) > 0 && s.Server.Pins[0] != pins[0] && s.Converged != nil && l.father.Tree().Ready && len(l.father.Tree().Nodes) == 3
	})
	settings, code := l.inside("father", "outer").Shell("cat /etc/homestak-gitops/agent.hcl")
	require.Zero(t, code)
	require.Contains(t, settings, l.father.Status().Server.Pins[0], "it was given the new pins")
	require.NotContains(t, settings, pins[0])
	require.Equal(t, made, l.history.List(), "nothing was made or removed")
	require.Equal(t, ids, l.deep())
	l.remove()
}

// ST-20, two levels down: the agent of the host is replaced by a newer program, while the last child makes a VM. Each parent hands it
// down; that pass is finished or resumed, and no VM is made twice.
func TestST20AnUpgradeIsHandedDown(t *testing.T) {
	t.Parallel()
	l := grow(t)
	nodes := []string{machine("outer", "pve", ""), machine("inner", "pve", "outer"), machine("app", "vm", "inner")}
	l.push(tiered(nodes...), "three levels", "outer below father, inner below outer, app below inner")
	runs := func(child string) string {
		if s := l.world.Running(child); s != nil {
			return s.Tree().Agent
		}
		return ""
	}
	require.Equal(t, "1.2.3", runs("inner"))
	ids := l.deep()

	commit := l.repo.Commit(tiered(append(nodes, machine("db", "vm", "inner"), machine("web", "vm", "inner"))...), "two more")
	l.father.Agent.CheckNow()
	inner := l.world.Running("inner")
	l.until("inner makes them", func() bool { s := inner.Status(); return s.Running != nil || s.Head != nil && s.Head.ID == commit })
	l.stop()
	require.NoError(t, l.world.Release("2.0.0"))
	l.start()
	l.until("all have the new program, and the new VMs", func() bool {
		tree := l.father.Tree()
		return runs("outer") == "2.0.0" && runs("inner") == "2.0.0" && tree.Ready && tree.LastGood == commit && len(tree.Nodes) == 5
	})
	require.Equal(t, "2.0.0", l.father.Tree().Agent)
	require.NotSame(t, inner, l.world.Running("inner"))
	require.Equal(t, ids, l.deep())
	require.Len(t, l.world.Hosts.Find("inner").Snapshot().Guests, 3, "each is there once")
	made := 0
	for _, task := range l.world.Hosts.Find("inner").Snapshot().Tasks {
		if task.Type == "qmcreate" {
			made++
		}
	}
	require.Equal(t, 3, made)
}
