package integration_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// The whole life of a VM, each phase by one push: planned, created and in operation, removed after a final backup. The agent
// is killed at each write (the even ones unless HOMESTAK_FAULTS=all is set), and goes on where it was. In the end the
// receipts prove what was done.
func TestLifeOfAVM(t *testing.T) {
	created, removed := lifeOfAVM(t, "", 0)
	for phase, writes := range map[plan.Phase]int{plan.Operating: created, plan.Decommissioned: removed} {
		require.Greater(t, writes, 2, "there is too little to kill")
		for n := everySecond(); n <= writes; n += everySecond() {
			t.Run(fmt.Sprintf("%s-%d", phase, n), func(t *testing.T) { lifeOfAVM(t, phase, n) })
		}
	}
}

// lifeOfAVM is one life. On the way to a phase ("" for none) the agent is killed at its write number n. It returns how many
// writes the creation and the removal took.
func lifeOfAVM(t *testing.T, killed plan.Phase, n int) (created, removed int) {
	t.Helper()
	f := follow(t, pve.Config{TaskTime: 5 * time.Millisecond}, byFile())
	f.write("lives.tmpl", "%{ for n in nodes ~}\n%{ if n.name == \"web\" ~}\n${n.name} ${n.vmid} ${n.phase} ${join(\" \", n.services)}\n%{ endif ~}\n%{ endfor ~}\n")
	f.write("outputs.hcl", "output \"lives\" {\n  template = file(\"lives.tmpl\")\n  to       = \"lives\"\n}\n")
	about := []string{`owner = "ops"`, `purpose = "The shop"`, `services = ["http"]`, decommission("requires_final_backup")}
	// stage pushes what was edited, and runs the agent until the node is in a phase and the output shows it.
	stage := func(message string, phase plan.Phase) (writes, vmid int) {
		before := f.writes()
		commit := f.push(message)
		if killed == phase {
			f.killedAt(n)
		}
		f.begins()
		f.converged(commit)
		f.until("the node is "+string(phase), func(s agent.Status) bool {
			i := slices.IndexFunc(s.Nodes, func(n engine.NodeStatus) bool { return n.Node == "web" })
			if i >= 0 {
				vmid = s.Nodes[i].VMID
			}
			return i < 0 && phase == plan.Decommissioned || i >= 0 && s.Nodes[i].Life == phase
		})
		want := ""
		if phase != plan.Decommissioned {
			want = fmt.Sprintf("web %d %s http", vmid, phase)
		}
		f.until("the output is "+want, func(agent.Status) bool {
			text, err := os.ReadFile(filepath.Join(f.data, "outputs", "lives"))
			return err == nil && strings.TrimSpace(string(text)) == want
		})
		f.ends()
		return f.writes() - before, vmid
	}

	f.deploy("base", vm("stays"))
	f.push("A site")
	f.says(0, "agent", "--once", "--config", f.config)

	f.deploy("web", vm("web", append(about, "planned = true")...))
	none, reserved := stage("Plan it", plan.Planned)
	require.Zero(t, none, "a planned node makes nothing")
	require.NotZero(t, reserved)
	require.Equal(t, []string{"stays"}, f.names())

	f.deploy("web", vm("web", about...))
	created, vmid := stage("Create it", plan.Operating)
	require.Equal(t, reserved, vmid, "the VMID that was reserved")
	require.Equal(t, []string{"stays", "web"}, f.names())

	f.remove("manifests/web.hcl")
	removed, _ = stage("Remove it\n\nThe shop has closed.", plan.Decommissioned)
	require.Equal(t, []string{"stays"}, f.names())
	require.Len(t, f.backups(), 1)
	require.Equal(t, vmid, f.backups()[0].VMID, "its final backup")

	f.says(0, "history", "verify", "--config", f.config)
	text := f.says(0, "history", "export", "--format", "csv", "--config", f.config).out
	for _, want := range []string{"Create it", "Remove it", "vm.web"} {
		require.Contains(t, text, want)
	}
	return created, removed
}
