package integration_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
)

// loses deletes the agent's data folder with all that is in it: its copy of the
// repository, its receipts, what it remembers of suspensions and grants.
func (f *followed) loses() {
	f.t.Helper()
	require.Nil(f.t, f.agent, "an agent still works in it")
	require.DirExists(f.t, f.data)
	require.NoError(f.t, os.RemoveAll(f.data))
}

// ST-21: the data folder of an agent is lost. What is ours is written on the guests,
// so the agent finds the same ones again, writes nothing, and goes on from there.
func TestALostDataFolder(t *testing.T) {
	f := follow(t, pve.Config{TaskTime: 5 * time.Millisecond}, byFile())
	f.deploy("web", vm("web-1")+vm("web-2", "tags = [\"front\"]")+vm("web-3"))
	f.write("template.hcl", ctTemplate)
	f.deploy("golden", ct("copy"))
	f.push("Four")
	f.says(0, "agent", "--once", "--config", f.config)
	before := f.ours()
	require.Len(t, before, 4)

	f.loses()
	f.quietly(func() { f.says(0, "agent", "--once", "--config", f.config) })
	require.Equal(t, before, f.ours(), "the same guests, and none doubled")
	require.NotContains(t, f.says(0, "history", "verify", "--config", f.config).err, "broken", "a new chain of receipts has begun")

	// What left the files meanwhile is still known for ours, and goes; what is new comes.
	f.loses()
	f.edit("manifests/web.hcl", "node \"web-3\"", "node \"web-4\"")
	f.push("Another one in its place")
	f.says(0, "agent", "--once", "--config", f.config)
	require.Equal(t, []string{"copy", "web-1", "web-2", "web-4"}, f.names())
	for _, name := range []string{"copy", "web-1", "web-2"} {
		require.Equal(t, before[name], f.ours()[name], name)
	}

	// A cap is not forgotten with the folder: it counts what is on the host.
	f.loses()
	f.remove("manifests/web.hcl")
	f.edit("site.hcl", "site \"home\" {", "site \"home\" {\n  max_deletes = 2")
	f.push("All of them away")
	r := f.says(4, "agent", "--once", "--config", f.config)
	require.Contains(t, r.out+r.err, "3", "how many it would have removed")
	require.Equal(t, []string{"copy", "web-1", "web-2", "web-4"}, f.names(), "nothing went")
}

// ST-21 with ST-14: the agent is killed in the middle of a pass, and its folder is
// lost beside. What was half done is finished, once.
func TestALostDataFolderInTheMiddle(t *testing.T) {
	whole := upheaval(t)
	before := whole.writes()
	whole.says(0, "agent", "--once", "--config", whole.config)
	steps := whole.writes() - before
	require.Greater(t, steps, 10)
	for n := 1; n <= steps; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			f := upheaval(t)
			kept := f.ours()["changes"]
			f.killedAt(n)
			f.loses()
			f.begins()
			f.converged(f.git("rev-parse", "HEAD"))
			f.ends()
			f.settled()
			require.Equal(t, kept.VMID, f.ours()["changes"].VMID)
			require.Len(t, slices.Compact(slices.Sorted(slices.Values(f.everyName()))), len(f.everyName()), "one of each name")
		})
	}
}
