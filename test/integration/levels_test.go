package integration_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	simhosts "github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/debian"
	"github.com/homestak/homestak-gitops/sim/pve"
)

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
	cfg, found := service.ReadConfig(service.Flags{}, func(key string) string { return env[key] })
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
	require.NoError(l.t, os.WriteFile(l.secrets, []byte(secretsWith("passwords:\n  app: "+text+"\n")), 0o600))
}

func (l *levels) until(what string, is func() bool) {
	l.t.Helper()
	if !assertEventually(is) {
		require.Fail(l.t, what, "%+v", l.father.Tree())
	}
}

func assertEventually(is func() bool) bool {
	limit := time.After(2 * time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if is() {
			return true
		}
		select {
		case <-tick.C:
		case <-limit:
			return false
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
			require.NotEqual(t, "guest.app", s.Address, "nobody enters it")
		}
	}
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
