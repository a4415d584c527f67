package real_test

import (
	"net/http"
	"net/url"
	"path/filepath"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
)

// create: what is declared comes to be, is in sync at once, and goes again.
func create(s *story) {
	s.says(0, "validate")
	s.deploy(s.vm("vm", `tags = ["web"]`, "onboot = false", "disk \"data\" {\n  size = 1\n}"), ct("ct"), s.vm("off", `power = "stopped"`))
	s.says(0, "doctor")
	require.Len(s.t, s.plan(2).Steps, 4, "an image and three guests")
	s.apply()
	require.ElementsMatch(s.t, []string{"vm", "ct", "off"}, s.names())
	require.Equal(s.t, "running", s.guest("vm").Status)
	require.Equal(s.t, "running", s.guest("ct").Status)
	require.Equal(s.t, "stopped", s.guest("off").Status)
	require.Equal(s.t, "homestak;web", s.config("vm")["tags"])

	s.says(0, "apply", "--yes")
	require.Len(s.t, s.names(), 3, "a second run makes nothing twice")
	s.close()
	s.says(0, "apply", "--yes")
}

// drift: what somebody changes by hand is found, named and reverted; what is not ours is
// left alone.
func drift(s *story) {
	s.deploy(s.vm("vm", `tags = ["web"]`, `description = "A web server."`), ct("ct"), s.vm("goes"))
	s.apply()

	for _, hand := range []struct {
		what    string
		do      func()
		address string
	}{
		{"the cores of a container", func() { s.set("ct", url.Values{"cores": {"2"}}) }, "ct.ct"},
		{"the tags of a VM", func() { s.set("vm", url.Values{"tags": {"db"}}) }, "vm.vm"},
		{"a VM that was stopped", func() { s.byHand(http.MethodPost, "vm", "/status/stop", nil) }, "vm.vm"},
		{"a container that was stopped", func() { s.byHand(http.MethodPost, "ct", "/status/stop", nil) }, "ct.ct"},
		{"onboot", func() { s.set("vm", url.Values{"onboot": {"1"}}) }, "vm.vm"},
		{"a further nic", func() { s.set("vm", url.Values{"net3": {"virtio,bridge=" + s.bridge}}) }, "vm.vm"},
		{"a guest that was destroyed", func() {
			s.byHand(http.MethodPost, "goes", "/status/stop", nil)
			s.byHand(http.MethodDelete, "goes", "", nil)
		}, "vm.goes"},
	} {
		hand.do()
		s.t.Log(hand.what)
		p := s.plan(2)
		require.Len(s.t, p.Steps, 1, hand.what)
		kind, name := hand.address[:2], prefix+hand.address[3:]
		require.Equal(s.t, kind+"."+name, p.Steps[0].Address, hand.what)
		s.apply()
	}
	require.Equal(s.t, "homestak;web", s.config("vm")["tags"])

	// Somebody else's guest in our range, without the tag, and with the name of nothing.
	unmanaged := s.from + 20
	path := "/nodes/" + s.node + "/qemu"
	require.NoError(s.t, s.task(s.t.Context(), s.node, http.MethodPost, path, url.Values{"vmid": {itoa(unmanaged)}, "name": {prefix + "unmanaged"}, "memory": {"32"}}))
	s.plan(0)
	s.deploy(s.vm("vm"), ct("ct"))
	s.apply("--allow-deletes", "5")
	require.ElementsMatch(s.t, []string{"vm", "ct", "unmanaged"}, s.names())
	s.byHand(http.MethodDelete, "unmanaged", "", nil)
	s.close()
}

// templates: a template is made of an image and cloned in full; it cannot go while clones
// stand on it.
func templates(s *story) {
	s.write("template.hcl", "template \""+prefix+"base\" {\n  vmid  = "+itoa(s.from+10)+"\n  image = image.boot\n}\n")
	clone := func(name string, lines ...string) string {
		return node(name, "vm", append([]string{"template = template." + prefix + "base", "memory = 64", "agent = false", s.kvm()}, lines...))
	}
	s.deploy(clone("full"), clone("linked", `clone = "linked"`), clone("grown", "disk = 2"))
	s.apply()
	require.Len(s.t, s.names(), 4, "a template and three clones")
	require.Contains(s.t, s.config("grown")["scsi0"], "size=2G")

	s.deploy(clone("full"), clone("linked", `clone = "linked"`))
	s.apply("--allow-deletes", "5")
	require.Len(s.t, s.names(), 3)

	s.says(0, "destroy", "-M", "real", "--yes")
	s.remove("nodes.hcl", "template.hcl", "image.hcl")
	s.apply("--allow-deletes", "20")
	require.Empty(s.t, s.names())
}

// decommission: a guest leaves by the policy that it was deployed with.
func decommission(s *story) {
	policy := func(name string) string { return "decommission {\n  policy = \"" + name + "\"\n}" }
	s.deploy(s.vm("plain"), ct("precious", policy("requires_final_backup")), s.vm("busy", policy("requires_migration_first")))
	s.apply()
	s.deploy(s.vm("plain"), s.vm("busy", policy("requires_migration_first")))
	precious := s.guest("precious").VMID
	s.apply("--allow-deletes", "5")
	require.ElementsMatch(s.t, []string{"plain", "busy"}, s.names())

	var backups []struct {
		VolID string
		VMID  int
	}
	require.NoError(s.t, s.call(s.t.Context(), http.MethodGet, "/nodes/"+s.node+"/storage/"+s.files+"/content", url.Values{"content": {"backup"}, "vmid": {itoa(precious)}}, &backups))
	require.Len(s.t, backups, 1, "its final backup")
	require.NoError(s.t, s.free(s.t.Context(), backups[0].VolID))

	s.deploy(s.vm("plain"))
	r := s.says(4, "apply", "--yes", "--allow-deletes", "5")
	require.Contains(s.t, r.out+r.err, "requires_migration_first")
	require.Contains(s.t, s.names(), "busy", "it runs, so it may be in use")
	s.deploy(s.vm("plain"), s.vm("busy", policy("requires_migration_first"), `power = "stopped"`))
	s.apply()
	s.deploy(s.vm("plain"))
	s.apply("--allow-deletes", "5")
	require.Equal(s.t, []string{"plain"}, s.names())
	s.close()
}

// kill: the program is killed (-9) at moments of a pass in which every kind of step is
// due. Started again, it converges, and nothing is there twice.
func kill(s *story) {
	for i, after := range s.kills {
		s.deploy(s.vm("changes"), s.vm("goes"), ct("ct-changes"))
		s.apply("--allow-deletes", "9")
		s.deploy(s.vm("changes", `tags = ["new"]`, "disk \"data\" {\n  size = 1\n}"), s.vm("comes"), ct("ct-changes", "cores = 2"), ct("ct-comes"))
		run := s.command(s.t.Context(), "apply", "--yes", "--allow-deletes", "9")
		require.NoError(s.t, run.Start())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = run.Wait() // It ends by the signal, or before it.
		}()
		timer := time.NewTimer(after)
		select {
		case <-timer.C:
			_ = run.Process.Signal(syscall.SIGKILL)
		case <-ended:
			timer.Stop()
		}
		<-ended
		s.convergeAfterKill(i)
		require.ElementsMatch(s.t, []string{"changes", "comes", "ct-changes", "ct-comes"}, s.names(), "killed after %s", after)
	}
	s.close()
}

// convergeAfterKill runs the program again, and once more as long as it finds tasks of the
// killed run at work, which take some time on a real host, and asks for another plan.
func (s *story) convergeAfterKill(i int) {
	s.t.Helper()
	limit, tick := time.NewTimer(s.patience), time.NewTicker(s.again)
	defer limit.Stop()
	defer tick.Stop()
	for {
		r := s.run("apply", "--yes", "--allow-deletes", "9")
		if r.code == 0 {
			break
		}
		require.Contains(s.t, []int{1, 5}, r.code, "%s\n%s", r.out, r.err)
		select {
		case <-tick.C:
		case <-limit.C:
			require.Fail(s.t, "waited in vain", "after kill %d: %s\n%s", i, r.out, r.err)
		}
	}
	s.plan(0)
}

// remove takes files out of the site.
func (s *story) remove(names ...string) {
	s.t.Helper()
	for _, name := range names {
		require.NoError(s.t, removeFile(filepath.Join(s.dir, name)))
	}
}
