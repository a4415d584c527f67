package real_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
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

// drift: a change by hand is found, named and reverted; unmanaged guests are left alone.
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

	// An unmanaged guest in our range, without the tag, and with a name that no file has.
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
// due. Started again, it converges, and nothing is listed twice.
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

// story is one site in a folder, and the host that it is about.
type story struct {
	*lab
	t    *testing.T
	dir  string // of the site
	data string // of the program
}

// begin writes a site that declares the host, a disk image, and no guest yet.
func begin(t *testing.T, l *lab) *story {
	t.Helper()
	top := t.TempDir()
	s := &story{lab: l, t: t, dir: filepath.Join(top, "site"), data: filepath.Join(top, "data")}
	disk := bootDisk()
	s.write("files/boot.raw", string(disk))
	s.write("site.hcl", siteText(l))
	s.write("image.hcl", fmt.Sprintf("image \"boot\" {\n  file     = \"files/boot.raw\"\n  checksum = \"sha256:%x\"\n}\n", sha256.Sum256(disk)))
	s.write("secrets.yaml", fmt.Sprintf("auth:\n  ownership_key: %q\napi_tokens:\n  real: %q\n", strings.Repeat("0e", 32), l.token))
	require.NoError(t, os.Chmod(filepath.Join(s.dir, "secrets.yaml"), 0o600))
	return s
}

func siteText(l *lab) string {
	return fmt.Sprintf(`site %q {
  domain = "real.test"

  vmid_range "real" {
    from = %d
    to   = %d
  }
}

host "real" {
  api         = %q
  node        = %q
  fingerprint = %q
  bridge      = %q

  storage {
    disks   = %q
    images  = %q
    iso     = %q
    backups = %q
  }
}

template "container" {
  volume = %q
}
`, siteName, l.from, l.to, l.url, l.node, l.fingerprint, l.bridge, l.storage, l.files, l.files, l.files, l.template)
}

// write puts a file into the site.
func (s *story) write(name, text string) {
	s.t.Helper()
	file := filepath.Join(s.dir, filepath.FromSlash(name))
	require.NoError(s.t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(s.t, os.WriteFile(file, []byte(text), 0o600))
}

// vm is the text of a small VM, with further lines of its block.
func (s *story) vm(name string, lines ...string) string {
	options := `options = { scsihw = "virtio-scsi-single" }`
	if s.noKVM {
		options = `options = { scsihw = "virtio-scsi-single", kvm = "0" }`
	}
	for _, l := range lines {
		if strings.HasPrefix(l, "options") {
			options = ""
		}
	}
	return node(name, "vm", append([]string{"image = image.boot", "memory = 64", "disk = 1", "agent = false", options}, lines...))
}

// ct is the text of a small container, with further lines of its block. PVE leaves the files of a system that it does not
// know alone.
func ct(name string, lines ...string) string {
	options := `options = { ostype = "unmanaged" }`
	for _, l := range lines {
		if strings.HasPrefix(l, "options") {
			options = ""
		}
	}
	return node(name, "ct", append([]string{"template = template.container", "memory = 64", "swap = 0", "disk = 1", options}, lines...))
}

// node writes a block of a node. A line of the same attribute as an earlier one takes its
// place.
func node(name, kind string, lines []string) string {
	var kept []string
	for _, line := range append([]string{fmt.Sprintf("type = %q", kind), "cores = 1"}, lines...) {
		attribute, _, isAttribute := strings.Cut(line, " = ")
		for i, earlier := range kept {
			if isAttribute && !strings.Contains(attribute, "{") && strings.HasPrefix(earlier, attribute+" = ") {
				kept[i] = ""
			}
		}
		kept = append(kept, line)
	}
	return fmt.Sprintf("  node %q {\n    %s\n  }\n", prefix+name, strings.ReplaceAll(strings.Join(kept, "\n"), "\n", "\n    "))
}

// deploy declares these nodes and no others.
func (s *story) deploy(nodes ...string) {
	s.t.Helper()
	s.write("nodes.hcl", "manifest \"real\" {\n  pattern = \"flat\"\n  host    = host.real\n\n"+strings.Join(nodes, "\n")+"}\n")
	s.says(0, "fmt", ".")
}

// ran is a run of the program.
type ran struct {
	code     int
	out, err string
}

func (s *story) command(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, s.program, args...)
	command.Dir = s.dir
	command.Env = append(os.Environ(), "HOMESTAK_DATA_DIR="+s.data, "NO_COLOR=1")
	return command
}

// run runs a verb in the folder of the site.
func (s *story) run(args ...string) ran {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), s.patience)
	defer cancel()
	var out, text bytes.Buffer
	command := s.command(ctx, args...)
	command.Stdout, command.Stderr = &out, &text
	err := command.Run()
	require.NoError(s.t, ctx.Err(), "homestak-gitops %v took more than %s\n%s\n%s", args, s.patience, &out, &text)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(s.t, err)
	}
	return ran{command.ProcessState.ExitCode(), out.String(), text.String()}
}

// says runs a verb, and requires its exit code.
func (s *story) says(code int, args ...string) ran {
	s.t.Helper()
	r := s.run(args...)
	require.Equal(s.t, code, r.code, "homestak-gitops %v\n%s\n%s", args, r.out, r.err)
	require.NotContains(s.t, r.out+r.err, "goroutine ", "it panicked")
	require.NotContains(s.t, r.out+r.err, s.secret(), "it printed the secret of the token")
	return r
}

func (s *story) secret() string {
	_, secret, _ := strings.Cut(s.token, "=")
	return secret
}

// planned is what the stories read of a plan.
type planned struct {
	Steps []struct {
		Address, Node, Action, Class, Reason string
		Changes                              []struct{ Path string }
	}
	Pending []struct{ Address, Path string }
	Unknown []struct{ Scope, Why string }
}

// plan requires the exit code of a plan, 0 for nothing to do and 2 for something, and
// reads it.
func (s *story) plan(code int) planned {
	s.t.Helper()
	r := s.says(code, "plan", "--json", "--detailed-exitcode")
	var p planned
	require.NoError(s.t, json.Unmarshal([]byte(r.out), &p), r.out)
	require.Empty(s.t, p.Unknown, "the host is seen in part")
	return p
}

// apply applies the site, and requires that there is nothing to do afterwards.
func (s *story) apply(flags ...string) {
	s.t.Helper()
	s.says(0, append([]string{"apply", "--yes"}, flags...)...)
	s.plan(0)
}

// close removes the guests and the images by the program itself.
func (s *story) close() {
	s.t.Helper()
	s.says(0, "destroy", "-M", "real", "--yes")
	require.Empty(s.t, s.guests(s.t.Context(), s.t), "destroy left guests")
	require.NoError(s.t, os.Remove(filepath.Join(s.dir, "nodes.hcl")))
	require.NoError(s.t, os.Remove(filepath.Join(s.dir, "image.hcl")))
	s.apply("--allow-deletes", "20")
}

// names lists the guests in the range, without the prefix of their names.
func (s *story) names() []string {
	s.t.Helper()
	var out []string
	for _, g := range s.guests(s.t.Context(), s.t) {
		out = append(out, strings.TrimPrefix(g.Name, prefix))
	}
	return out
}

// guest finds a guest by name.
func (s *story) guest(name string) guest {
	s.t.Helper()
	var found []guest
	for _, g := range s.guests(s.t.Context(), s.t) {
		if g.Name == prefix+name {
			found = append(found, g)
		}
	}
	require.Len(s.t, found, 1, "guests with the name %s%s", prefix, name)
	return found[0]
}

// config is the configuration of a guest as it is in force.
func (s *story) config(name string) map[string]string {
	s.t.Helper()
	var raw map[string]json.RawMessage
	require.NoError(s.t, s.call(s.t.Context(), http.MethodGet, s.guest(name).path(s.lab)+"/config", url.Values{"current": {"1"}}, &raw))
	out := map[string]string{}
	for key, value := range raw {
		out[key] = strings.Trim(string(value), `"`)
	}
	return out
}

// pid is the process of a running guest: another one shows that it was restarted.
func (s *story) pid(name string) int {
	s.t.Helper()
	var now struct {
		Status string
		PID    int
	}
	require.NoError(s.t, s.call(s.t.Context(), http.MethodGet, s.guest(name).path(s.lab)+"/status/current", nil, &now))
	require.Equal(s.t, "running", now.Status, name)
	require.NotZero(s.t, now.PID, name)
	return now.PID
}

// set changes the configuration of a guest as a person does.
func (s *story) set(name string, form url.Values) {
	s.t.Helper()
	require.NoError(s.t, s.call(s.t.Context(), http.MethodPut, s.guest(name).path(s.lab)+"/config", form, nil))
}

// byHand runs a task on a guest, such as POST /status/stop.
func (s *story) byHand(method, name, path string, form url.Values) {
	s.t.Helper()
	require.NoError(s.t, s.task(s.t.Context(), s.node, method, s.guest(name).path(s.lab)+path, form))
}

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

func itoa(n int) string { return strconv.Itoa(n) }

func removeFile(name string) error { return os.Remove(name) }

// kvm is the line of a node on a host that cannot virtualise by hardware.
func (s *story) kvm() string {
	if s.noKVM {
		return `options = { kvm = "0" }`
	}
	return ""
}

// agent: pushes to a repository are the only thing that is typed.
func agent(s *story) {
	if _, err := exec.LookPath("git"); err != nil {
		s.t.Skip("git is not installed, and these pushes are real ones:", err)
	}
	top := filepath.Dir(s.dir)
	repository := filepath.Join(top, "site.git")
	s.git("init", "-q", "--bare", "-b", "main", repository)
	s.git("init", "-q", "-b", "main")
	s.git("remote", "add", "origin", repository)
	secrets := filepath.Join(top, "secrets.yaml")
	require.NoError(s.t, os.Rename(filepath.Join(s.dir, "secrets.yaml"), secrets))
	config := filepath.Join(top, "agent.hcl")
	require.NoError(s.t, os.WriteFile(config, []byte(strings.NewReplacer("DATA", s.data, "SECRETS", secrets, "REPOSITORY", repository).Replace(`identity     = "real"
data_dir     = "DATA"
secrets_file = "SECRETS"
drift_every  = "2s"
listen       = ""

repository {
  url  = "REPOSITORY"
  poll = "1s"
}
`)), 0o600))

	var said bytes.Buffer
	daemon := s.command(s.t.Context(), "agent", "--config", config)
	daemon.Stderr = &said
	s.deploy(s.vm("vm"))
	first := s.push("One machine")
	require.NoError(s.t, daemon.Start())
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	follow := follower{s, config, &said}

	follow.until("the first push is converged", func(st agentStatus) bool { return st.rests(first) })
	require.Equal(s.t, []string{"vm"}, s.names())

	s.deploy(s.vm("vm", "memori = 128"))
	typo := s.push("A typing error")
	st := follow.until("the typing error is refused", func(st agentStatus) bool { return st.Refused != nil && st.Refused.Commit == typo })
	require.Contains(s.t, string(st.Refused.Findings), "memori")
	require.Equal(s.t, first, st.converged())

	s.deploy(s.vm("vm", `tags = ["web"]`), ct("ct"))
	second := s.push("A container")
	follow.until("the next push is converged", func(st agentStatus) bool { return st.rests(second) })
	require.Equal(s.t, "homestak;web", s.config("vm")["tags"])

	s.byHand(http.MethodPost, "ct", "/status/stop", nil)
	follow.until("the container runs again", func(agentStatus) bool { return s.guest("ct").Status == "running" })

	s.remove("nodes.hcl", "image.hcl")
	last := s.push("All of it goes\n\nAllow-Deletes: 9")
	follow.until("everything is removed", func(st agentStatus) bool { return st.rests(last) })
	require.Empty(s.t, s.names())
	require.NoError(s.t, daemon.Process.Signal(syscall.SIGTERM))
	require.NoError(s.t, <-ended, &said)
}

// push commits the site as it is and pushes it.
func (s *story) push(message string) (commit string) {
	s.t.Helper()
	s.git("add", "--all")
	s.git("commit", "-q", "-m", message)
	s.git("push", "-q", "origin", "main")
	return s.git("rev-parse", "HEAD")
}

func (s *story) git(args ...string) string {
	s.t.Helper()
	out, err := sourcetest.Git(s.t.Context(), s.dir, args...).CombinedOutput()
	require.NoError(s.t, err, "git %v: %s", args, out)
	return strings.TrimSpace(string(out))
}

// agentStatus is what the story reads of status --json.
type agentStatus struct {
	State     string
	Converged *struct{ ID string }
	Refused   *struct {
		Commit   string
		Findings json.RawMessage
	}
}

// converged is the last commit that the host came to be as it says.
func (st agentStatus) converged() string {
	if st.Converged == nil {
		return ""
	}
	return st.Converged.ID
}

// rests reports whether that commit is converged and no pass is under way.
func (st agentStatus) rests(commit string) bool {
	return st.State == "idle" && st.converged() == commit
}

// follower asks an agent how it is.
type follower struct {
	*story
	config string
	said   *bytes.Buffer
}

// until waits until the agent's status is as wanted. The agent is a process of its own, so
// there is nothing to wait on but the clock.
func (f follower) until(what string, wanted func(agentStatus) bool) agentStatus {
	f.t.Helper()
	limit, tick := time.NewTimer(f.patience), time.NewTicker(f.again/2)
	defer limit.Stop()
	defer tick.Stop()
	for {
		var st agentStatus
		r := f.run("status", "--json", "--config", f.config)
		if json.Unmarshal([]byte(r.out), &st) == nil && wanted(st) {
			return st
		}
		select {
		case <-tick.C:
		case <-limit.C:
			require.Fail(f.t, "waited in vain", "until %s\n%s\n%s", what, r.out+r.err, f.said)
		}
	}
}

// withKVM completes a line of options.
func (s *story) withKVM(line string) string {
	if s.noKVM {
		return strings.Replace(line, " KVM }", `, kvm = "0" }`, 1)
	}
	return strings.Replace(line, " KVM }", " }", 1)
}
