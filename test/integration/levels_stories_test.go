package integration_test

import (
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
