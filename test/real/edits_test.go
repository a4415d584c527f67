package real_test

import (
	"github.com/stretchr/testify/require"
)

// edit is a change of one attribute of a running guest in the files.
type edit struct {
	what, line string
	path       string // as the plan names it
	key, value string // what the host then has in force; "" for not yet
}

// editVM changes a running VM key by key. The plan shows each change and nothing else, the
// next plan is empty, and the process stays the one that it was. Without the line all is
// as before.
func editVM(s *story) {
	s.edits("vm", s.vm, []edit{
		{"description", `description = "Grüße, 100 %"`, "description", "", ""},
		{"tags", `tags = ["web", "edge"]`, "tags", "tags", "edge;homestak;web"},
		{"onboot", "onboot = true", "onboot", "onboot", "1"},
		{"protection", "protection = true", "protection", "protection", "1"},
		{"cores", "cores = 2", "cores", "", ""},
		{"memory", "memory = 96", "memory", "", ""},
		{"shares", `options = { scsihw = "virtio-scsi-single", cpuunits = "200" KVM }`, "options.cpuunits", "cpuunits", "200"},
		{"limit", `options = { scsihw = "virtio-scsi-single", cpulimit = "1" KVM }`, "options.cpulimit", "cpulimit", "1"},
		{"hot-plug", `options = { scsihw = "virtio-scsi-single", hotplug = "network,disk" KVM }`, "options.hotplug", "", ""},
	})
	for _, one := range []struct{ line, path string }{
		{"disk \"data\" {\n  size = 1\n}", "disk.data"},
		{"disk \"data\" {\n  size = 2\n}", "disk.data.size"},
		{"disk \"data\" {\n  size   = 2\n  remove = true\n}", "disk.data.remove"},
		{"", "disk.data"},
		{"nic \"lan\" {\n}\nnic \"back\" {\n  mac = \"BC:24:11:00:51:01\"\n}", "nic.back"},
		{"", "nic.back"},
	} {
		s.changes("vm", s.vm("vm", one.line), one.path)
	}
	s.deploy(s.vm("vm", `restart = "allowed"`, "cores = 2"))
	before := s.pid("vm")
	s.apply()
	require.NotEqual(s.t, before, s.pid("vm"), "a restart was allowed, and more cores need one")
	require.Equal(s.t, "2", s.config("vm")["cores"])
	s.close()
}

// editContainer is editVM for a container.
func editContainer(s *story) {
	s.edits("ct", ct, []edit{
		{"description", `description = "Grüße, 100 %"`, "description", "", ""},
		{"tags", `tags = ["web", "edge"]`, "tags", "tags", "edge;homestak;web"},
		{"onboot", "onboot = true", "onboot", "onboot", "1"},
		{"protection", "protection = true", "protection", "protection", "1"},
		{"cores", "cores = 2", "cores", "cores", "2"},
		{"memory", "memory = 96", "memory", "memory", "96"},
		{"swap", "swap = 32", "swap", "swap", "32"},
		{"host name", `hostname = "` + prefix + `ct"`, "", "", ""},
		{"nesting", `features = ["nesting"]`, "features", "", ""},
		{"limit", `options = { ostype = "unmanaged", cpulimit = "1" }`, "options.cpulimit", "cpulimit", "1"},
		{"terminals", `options = { ostype = "unmanaged", tty = "3" }`, "options.tty", "", ""},
	})
	for _, one := range []struct{ line, path string }{
		{"disk \"root\" {\n  size = 2\n}", "disk.root.size"},
		{"disk \"root\" {\n  size = 2\n}\ndisk \"data\" {\n  size   = 1\n  path   = \"/mnt\"\n  remove = true\n}", "disk.data"},
	} {
		s.changes("ct", ct("ct", one.line), one.path)
	}
	s.close()
}

// edits deploys a guest, changes it by one line after another, and takes each line out
// again.
func (s *story) edits(name string, text func(name string, lines ...string) string, edits []edit) {
	s.t.Helper()
	s.deploy(text(name))
	s.apply()
	for _, e := range edits {
		line := s.withKVM(e.line)
		if e.path == "" {
			s.deploy(text(name, line))
			s.plan(0) // It says what is so already.
			continue
		}
		s.changes(name, text(name, line), e.path)
		if e.key != "" {
			require.Equal(s.t, e.value, s.config(name)[e.key], e.what)
		}
		s.changes(name, text(name), e.path)
		if e.key != "" {
			require.NotEqual(s.t, e.value, s.config(name)[e.key], "%s, taken out again", e.what)
		}
	}
}

// changes deploys a node as text says: its plan changes that path and no other, and the
// running process stays.
func (s *story) changes(name, text, path string) {
	s.t.Helper()
	before := s.pid(name)
	s.deploy(text)
	p := s.plan(2)
	require.Len(s.t, p.Steps, 1, path)
	require.Equal(s.t, "update", p.Steps[0].Action, path)
	for _, c := range p.Steps[0].Changes {
		require.True(s.t, c.Path == path || len(c.Path) > len(path) && c.Path[:len(path)+1] == path+".", "the plan changes %s, and not %s", c.Path, path)
	}
	s.apply()
	require.Equal(s.t, before, s.pid(name), "%s: it was restarted", path)
}
