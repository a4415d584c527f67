package integration_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/doctor"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/test/bench/fleet"
)

// day is a kind of site, and what is lived through with it.
type day struct {
	name    string
	without string              // a privilege of the page that it is granted without, since that one says more than it needs
	site    string              // the manifest that doctor checks
	live    func(*story) string // says where it stopped; "" if all of it came true
	tries   func(role) bool     // which privileges are tried one by one with it
	soft    []string            // of these, those it does without
	begin   func(*testing.T, pve.Config) *story
}

func days() []day {
	in := func(names ...string) func(role) bool {
		return func(r role) bool { return slices.Contains(names, r.name) || slices.Contains(names, r.priv) }
	}
	return []day{
		{
			name: "machines", site: vm("web", brief) + clone("copy"), live: (*story).live, begin: beginGolden,
			tries: func(r role) bool {
				return !in("HomestakSeeds", "HomestakBackups", "HomestakBackupJobs", "VM.Backup", "VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted")(r)
			},
			soft: []string{"Sys.Audit"},
		},
		{
			name: "containers", site: ct("web", brief) + ctClone("copy"), live: (*story).liveCT, begin: beginGoldenCT,
			tries: func(r role) bool {
				return !in("HomestakSeeds", "HomestakBackups", "HomestakBackupJobs", "VM.Backup", "VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted")(r)
			},
			soft: []string{"Sys.Audit", "Sys.Modify", "VM.Config.HWType", "VM.Config.Cloudinit", "VM.Config.CDROM"},
		},
		{
			name: "sets", site: vm("web"), live: (*story).liveSets, begin: beginSets, tries: in("HomestakCluster", "HomestakStartup"),
		},
		{
			name: "backups", site: precious, live: (*story).leave, begin: begin, tries: in("HomestakBackups", "VM.Backup"),
		},
		{
			name: "jobs", site: kept, live: (*story).liveJobs, begin: begin, tries: in("HomestakBackupJobs"),
		},
		{
			name: "user_data", site: seeded, live: (*story).boot, begin: begin, tries: in("HomestakSeeds", "VM.GuestAgent.Audit"),
			without: "VM.GuestAgent.Unrestricted", soft: []string{"Datastore.Allocate", "VM.GuestAgent.Audit"},
		},
		{
			name: "checks", site: checked, live: func(s *story) string { return s.well(checked) }, begin: begin, tries: in("VM.GuestAgent.Audit"),
			without: "VM.GuestAgent.Unrestricted",
		},
		{
			name: "commands", site: commanded, live: func(s *story) string { return s.well(commanded) }, begin: begin, tries: in("VM.GuestAgent.Unrestricted"),
			without: "VM.GuestAgent.Audit",
		},
	}
}

var (
	precious  = vm("precious", decommission("requires_final_backup"), brief)
	kept      = vm("kept", "backup {\n      schedule = \"02:30\"\n      storage  = \"nightly\"\n      max_age  = \"26h\"\n    }", brief)
	seeded    = vm("told", "agent = true", `user_data = "#cloud-config\nruncmd: [[\"true\"]]\n"`, brief)
	checked   = vm("up", "agent = true", "check \"up\" {\n      agent    = true\n      interval = \"1s\"\n      timeout  = \"20s\"\n    }", brief)
	commanded = vm("up", "agent = true", "check \"up\" {\n      command  = \"exit 0\"\n      interval = \"1s\"\n      timeout  = \"20s\"\n    }", brief)
)

// shelves are the storages of these stories: those of a fresh host, one for backups
// and one for ISO images, so that the rights on each count by themselves.
func shelves() []pve.Storage {
	return append(pve.DefaultStorages(),
		pve.Storage{Name: "backups", Type: "dir", Content: []string{"backup"}},
		pve.Storage{Name: "nightly", Type: "dir", Content: []string{"backup"}},
		pve.Storage{Name: "isos", Type: "dir", Content: []string{"iso"}},
	)
}

// beginGolden sets the scene with an unmanaged template.
func beginGolden(t *testing.T, c pve.Config) *story {
	t.Helper()
	s := begin(t, c)
	s.template()
	s.strangers = s.host.Snapshot().Guests
	return s
}

// beginGoldenCT does the same with a container template to clone, and one to unpack.
func beginGoldenCT(t *testing.T, c pve.Config) *story {
	t.Helper()
	s := containers(t, c)
	node := "/nodes/" + s.host.Node()
	becomes := func(what func() bool) {
		t.Helper()
		require.Eventually(t, what, 5*time.Minute, 5*time.Millisecond)
	}
	s.call(http.MethodPost, node+"/storage/local/download-url", map[string]string{"content": "vztmpl", "filename": "golden.tar.zst", "url": "https://images.example/golden.tar.zst"})
	becomes(func() bool { return strings.Contains(volumes(s), "golden.tar.zst") })
	s.call(http.MethodPost, node+"/lxc", map[string]string{
		"vmid": "9000", "hostname": "golden", "ostemplate": "local:vztmpl/golden.tar.zst", "rootfs": "local-lvm:2", "unprivileged": "1", "net0": "name=eth0,bridge=vmbr0",
	})
	golden := func() pve.Guest { return *guestIn(s.host.Snapshot(), 9000) }
	becomes(func() bool { return golden().Config["rootfs"] != "" && golden().Lock == "" })
	s.call(http.MethodPost, node+"/lxc/9000/template", nil)
	becomes(func() bool { return golden().Config["template"] == "1" })
	s.write("golden.hcl", "template \"golden\" {\n  vmid = 9000\n}\n")
	s.strangers = s.host.Snapshot().Guests
	return s
}

// sets are the sets of addresses of a site.
const sets = "ipset \"admins\" {\n  host    = host.father\n  entries = [\"192.0.2.7\"]\n}\n"

func beginSets(t *testing.T, c pve.Config) *story {
	t.Helper()
	s := begin(t, c)
	s.write("sets.hcl", sets)
	return s
}

// liveSets makes a set of addresses, changes it and removes it.
func (s *story) liveSets() string {
	s.t.Helper()
	for _, step := range []struct{ what, text string }{
		{"create", sets}, {"change", strings.Replace(sets, "192.0.2.7", "192.0.2.0/24", 1)}, {"remove", ""},
	} {
		s.write("sets.hcl", step.text)
		if r := s.try(); !right(r) {
			return step.what + ": " + describe(r)
		}
		if p := s.plan(); len(steps(p))+len(p.Unknown) > 0 {
			return fmt.Sprintf("not in sync: %v %v", steps(p), p.Unknown)
		}
	}
	return ""
}

// liveJobs makes a backup job, changes it and removes it.
func (s *story) liveJobs() string {
	s.t.Helper()
	for _, step := range []struct{ what, text string }{
		{"create", kept}, {"change", strings.Replace(kept, "02:30", "03:30", 1)}, {"remove", vm("kept", brief)},
	} {
		s.deploy("web", step.text)
		if r := s.try(); !right(r) {
			return step.what + ": " + describe(r)
		}
		p := s.plan()
		if len(steps(p))+len(p.Unknown) > 0 {
			return fmt.Sprintf("not in sync: %v %v", steps(p), p.Unknown)
		}
		for _, f := range p.Findings {
			if strings.Contains(f.Summary, "stale") {
				return f.Summary
			}
		}
	}
	return ""
}

// ctClone is the text of a container that is a copy of the template golden.
func ctClone(name string, lines ...string) string {
	return strings.Replace(ct(name, lines...), "template.debian-ct", "template.golden", 1)
}

// brief lets a guest be gone a second after it is asked to shut down, and asks for
// the privilege of the startup block.
const brief = "startup {\n      down = 1\n    }"

const checksum2 = "sha256:bb00000000000000000000000000000000000000000000000000000000000000"

// live is a day of a site, as far as it goes: guests are made from an image and from
// a template, drift is taken back, they change and grow, an image is replaced, they
// are stopped and destroyed. It says where it stopped; "" if all of it came true.
func (s *story) live() string {
	s.t.Helper()
	s.deploy("web", vm("web", "count = 2", "restart = \"allowed\"", brief)+clone("copy", "restart = \"allowed\"", brief))
	if r := s.try(); !right(r) {
		return "create: " + describe(r)
	}
	first := s.vmidOf("web-1")
	s.byHand(func(e *pve.Edit) { e.Set(first, "cores", "1") })
	s.deploy("web", vm("web", "count = 2", "restart = \"allowed\"", "memory = 4096", "onboot = true", "power = \"stopped\"", "disk = 20", "tags = [\"more\"]",
		"disk \"data\" {", "  size = 5", "}", "nic \"lan\" {", "}", "nic \"more\" {", "}", brief)+clone("copy", "restart = \"allowed\"", brief))
	if r := s.try(); !right(r) {
		return "change: " + describe(r)
	}
	s.edit("site.hcl", "sha256:00000000000000000000000000000000000000000000000000000000000000aa", checksum2)
	if r := s.try(); !right(r) {
		return "another image: " + describe(r)
	}
	if p := s.plan(); len(steps(p))+len(p.Unknown) > 0 {
		return fmt.Sprintf("not in sync: %v %v", steps(p), p.Unknown)
	}
	return s.goes()
}

// liveCT is the like of live with containers.
func (s *story) liveCT() string {
	s.t.Helper()
	s.deploy("web", ct("web", "count = 2", "restart = \"allowed\"", brief)+ctClone("copy", "restart = \"allowed\"", brief))
	if r := s.try(); !right(r) {
		return "create: " + describe(r)
	}
	first := s.vmidOf("web-1")
	s.byHand(func(e *pve.Edit) { e.Set(first, "cores", "1") })
	s.deploy("web", ct("web", "count = 2", "restart = \"allowed\"", "memory = 4096", "swap = 0", "onboot = true", "disk = 20", "tags = [\"more\"]", "nameserver = [\"9.9.9.9\"]",
		"features = [\"nesting\"]", "disk \"data\" {\n  size = 5\n  path = \"/srv\"\n}", "nic \"lan\" {\n}", "nic \"more\" {\n}",
		"options = {\n  cpulimit = \"1.5\"\n}", brief)+ctClone("copy", "restart = \"allowed\"", "power = \"stopped\"", brief))
	if r := s.try(); !right(r) {
		return "change: " + describe(r)
	}
	s.edit("template.hcl", strings.Repeat("c7", 32), strings.Repeat("d8", 32))
	if r := s.try(); !right(r) {
		return "another template: " + describe(r)
	}
	if p := s.plan(); len(steps(p))+len(p.Unknown) > 0 {
		return fmt.Sprintf("not in sync: %v %v", steps(p), p.Unknown)
	}
	return s.goes()
}

// goes destroys all of the manifest.
func (s *story) goes() string {
	s.t.Helper()
	r := s.pass("destroy", func(p *engine.Pass) { p.Manifest, p.Destroy = "web", true })
	if !right(r) || len(s.names()) > 0 {
		return "destroy: " + describe(r)
	}
	return ""
}

// leave makes a machine that must not go without a backup, and removes it.
func (s *story) leave() string {
	s.t.Helper()
	s.deploy("web", precious)
	if r := s.try(); !right(r) {
		return "create: " + describe(r)
	}
	if why := s.goes(); why != "" {
		return why
	}
	kept := s.host.Snapshot().Volumes["backups"]
	require.Len(s.t, kept, 1)
	return ""
}

// boot makes a machine with user_data, and removes it. Nothing of what it was told
// may stay: the image is gone, or an empty one is in its place.
func (s *story) boot() string {
	s.t.Helper()
	s.deploy("web", seeded)
	if r := s.try(); !right(r) {
		return "create: " + describe(r)
	}
	if why := s.goes(); why != "" {
		return why
	}
	for _, v := range s.host.Snapshot().Volumes["isos"] {
		require.Equal(s.t, int64(len(lifecycle.EmptyImage())), v.Size, v.ID)
	}
	return ""
}

// well makes a machine that must prove to be well, and removes it.
func (s *story) well(site string) string {
	s.t.Helper()
	s.deploy("web", site)
	if r := s.try(); !right(r) {
		return "create: " + describe(r)
	}
	return s.goes()
}

// right reports whether a pass did all that it was to do, and saw all.
func right(r engine.Report) bool {
	return r.Outcome == engine.Done && r.Plan != nil && len(r.Plan.Unknown) == 0
}

// examine has the doctor check the host.
func (s *story) examine() []doctor.Check {
	s.t.Helper()
	site := s.load(s.t.Context()).Site
	require.NotNil(s.t, site)
	want, found := site.Want("father")
	require.False(s.t, found.HasErrors())
	d := doctor.Doctor{
		Config: proxmox.Config{Host: site.Hosts["father"], Site: s.name, Owner: "father", Files: os.DirFS(s.dir), Keys: ownershipKeys(s.name)},
		Want:   want, Of: site,
	}
	return d.Examine(s.t.Context())
}

// ill are the checks that are not fine, as text.
func ill(checks []doctor.Check) []string {
	var out []string
	for _, c := range checks {
		if c.Result == doctor.Failed || c.Result == doctor.Warning {
			out = append(out, fmt.Sprintf("%s %s: %s", c.Result, c.Name, c.Seen))
		}
	}
	return out
}

// The roles of the page are enough for all that the page says, on both versions.
func TestTheLeastRoleIsEnough(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"8.4", "9.2"} {
		for _, d := range days() {
			t.Run(version+"/"+d.name, func(t *testing.T) {
				s := d.begin(t, pve.Config{Version: version, Storages: shelves()})
				s.least(d, version, role{})
				s.deploy("web", d.site)
				require.Empty(t, ill(s.examine()))
				require.Empty(t, d.live(s))
				for _, r := range s.requests() {
					require.NotContains(t, r.String(), "(401)")
				}
			})
		}
	}
}

// The commands of the page up to the token are enough for a site that has the whole host, like the one that init makes: without
// the pool, and with the first role on all guests. It is what setup does.
func TestTheCommandsOfInstallingAreEnough(t *testing.T) {
	s := beginGolden(t, pve.Config{})
	for _, c := range commandsOf(t, permissionsPage, "9.2") {
		if c[1] == "pool" {
			continue
		}
		if at := slices.Index(c, "/pool/homestak"); at >= 0 {
			c[at] = "/vms"
		}
		if secret := s.pveum(c); secret != "" {
			s.edit("secrets.yaml", s.host.Token(), secret)
			break
		}
	}
	s.deploy("web", vm("web", "count = 2"))
	require.Empty(t, ill(s.examine()))
	s.apply()
	s.inSync()
	s.destroy("web")
}

// Nothing of the roles is too much: without any one privilege something fails, and
// the doctor has said before which privilege is missing on which path. Of what a
// site does without it says nothing or warns, and then nothing fails.
func TestThePrivilegesOfTheLeastRoleAreAllNeeded(t *testing.T) {
	t.Parallel()
	const version = "9.2"
	tried := map[role]bool{}
	for _, d := range days() {
		for _, without := range rolesOf(t, permissionsPage, version) {
			if !d.tries(without) || without.priv == d.without {
				continue
			}
			soft := slices.Contains(d.soft, without.priv)
			tried[without] = tried[without] || !soft
			t.Run(d.name+"/"+without.name+"/"+without.priv, func(t *testing.T) {
				s := d.begin(t, pve.Config{Version: version, Storages: shelves()})
				s.least(d, version, without)
				s.deploy("web", d.site)
				said := ill(s.examine())
				if soft {
					for _, line := range said {
						require.Equal(t, fmt.Sprintf("warning privileges: %s missing on %s", without.priv, without.path), line)
					}
					require.Empty(t, d.live(s))
					return
				}
				require.Contains(t, said, fmt.Sprintf("fail privileges: %s missing on %s", without.priv, without.path))
				require.NotEmpty(t, d.live(s), "without %v nothing fails", without)
			})
		}
	}
	good := []role{{"HomestakNode", "/nodes/father", "Sys.Audit"}, {"HomestakSeeds", "/storage/isos", "Datastore.Allocate"}}
	for _, r := range rolesOf(t, permissionsPage, version) {
		require.True(t, tried[r] || slices.Contains(good, r), "no site needs %v, and the page does not say that it is only good to have", r)
	}
}

// The commands that the doctor prints fix what it found, be the token separated
// from its user or not.
func TestTheDoctorsCommandsFixWhatItFinds(t *testing.T) {
	t.Parallel()
	for i, d := range days() {
		separated := strconv.Itoa(i % 2)
		t.Run(d.name+", privsep "+separated, func(t *testing.T) {
			s := d.begin(t, pve.Config{Storages: shelves()})
			s.least(d, "9.2", role{})
			s.call(http.MethodPost, "/access/users", map[string]string{"userid": "bare@pve"})
			secret := s.pveum([]string{"pveum", "user", "token", "add", "bare@pve", "agent", "--privsep", separated})
			data, err := os.ReadFile(s.dir + "/secrets.yaml")
			require.NoError(t, err)
			s.write("secrets.yaml", regexp.MustCompile(`homestak@pve![^"]*`).ReplaceAllString(string(data), secret))
			s.deploy("web", d.site)

			var fixes int
			for _, c := range s.examine() {
				if c.Name != "privileges" {
					continue
				}
				for _, line := range c.Fix {
					s.pveum(regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(strings.ReplaceAll(line, `'`, `"`), -1))
					fixes++
				}
			}
			require.Positive(t, fixes)
			require.Empty(t, ill(s.examine()))
			require.Empty(t, d.live(s))
		})
	}
}

// permissionsPage is where the roles stand that these stories use. They are read
// from there and written down nowhere else, so that page and program cannot part.
const permissionsPage = "../../docs/permissions.md"

// commandsOf are the commands of a page for one major version of PVE: its indented
// lines, but those whose paragraph says that they are for another version.
func commandsOf(t *testing.T, page, version string) [][]string {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	words := regexp.MustCompile(`"[^"]*"|\S+`)
	heading := regexp.MustCompile(`On Proxmox VE (\d+):$|on Proxmox VE (\d+):$`)
	only := "" // the version that the last paragraph is about
	var out [][]string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		command := strings.HasPrefix(line, "    ") && strings.HasPrefix(strings.TrimSpace(line), "pveum ")
		switch m := heading.FindStringSubmatch(line); {
		case m != nil:
			only = m[1] + m[2]
		case command && (only == "" || strings.HasPrefix(version, only+".")):
			out = append(out, words.FindAllString(strings.ReplaceAll(line, `'`, `"`), -1))
		case line != "" && !command && !strings.HasPrefix(line, "and "): // "and …:" goes on about the same version
			only = ""
		}
	}
	return out
}

// privsOf are the privileges that a command puts into a role, and where in the
// command they stand; -1 for one that does not.
func privsOf(command []string) (privs []string, at int) {
	at = slices.Index(command, "--privs") + 1
	if at == 0 || command[1] != "role" {
		return nil, -1
	}
	return strings.Split(strings.Trim(command[at], `"`), ","), at
}

// pveum does what a command of an administrator does on the console, and gives the
// secret that it prints, if any.
func (s *story) pveum(command []string) (secret string) {
	s.t.Helper()
	var plain []string
	flags := map[string]string{}
	for i := 1; i < len(command); i++ {
		if name, ok := strings.CutPrefix(command[i], "--"); ok {
			flags[name] = strings.Trim(command[i+1], `"`)
			i++
			continue
		}
		plain = append(plain, command[i])
	}
	switch verb := strings.Join(plain[:2], " "); verb {
	case "pool add":
		s.call(http.MethodPost, "/pools", map[string]string{"poolid": plain[2]})
	case "user add":
		s.call(http.MethodPost, "/access/users", map[string]string{"userid": plain[2]})
	case "role add":
		s.call(http.MethodPost, "/access/roles", map[string]string{"roleid": plain[2], "privs": flags["privs"]})
	case "role modify":
		s.call(http.MethodPut, "/access/roles/"+plain[2], flags)
	case "acl modify":
		flags["path"] = plain[2]
		s.call(http.MethodPut, "/access/acl", flags)
	case "user token":
		var token struct{ Value string }
		require.NoError(s.t, json.Unmarshal(s.call(http.MethodPost, "/access/users/"+plain[3]+"/token/"+plain[4], flags), &token))
		return plain[3] + "!" + plain[4] + "=" + token.Value
	default:
		s.t.Fatalf("the page has a command that this test does not know: %v", command)
	}
	return ""
}

// least gives the site the token that the page describes, all of its features but
// those that a day leaves out, and without one privilege of one role, if that is named.
func (s *story) least(d day, version string, without role) {
	s.t.Helper()
	for _, c := range commandsOf(s.t, permissionsPage, version) {
		if strings.Join(c[1:3], " ") == "pool add" {
			continue // the site has a pool block
		}
		if without.priv == "Sys.AccessNetwork" && slices.Contains(c, "HomestakCluster") {
			continue // Sys.Audit and Sys.Modify on / together would do as well
		}
		if privs, at := privsOf(c); at > 0 {
			privs = slices.DeleteFunc(privs, func(p string) bool {
				return p == d.without || c[3] == without.name && p == without.priv
			})
			if len(privs) == 0 && c[2] == "modify" {
				continue
			}
			c[at] = strings.Join(privs, ",")
		}
		if secret := s.pveum(c); secret != "" {
			s.edit("secrets.yaml", s.host.Token(), secret)
		}
	}
	s.edit("host.hcl", "node        =", "pool        = \"homestak\"\n  storage {\n    backups = \"backups\"\n    iso     = \"isos\"\n  }\n  node        =")
	s.write("pool.hcl", "pool \"homestak\" {\n  host = host.father\n}\n")
}

// role is one privilege of a role of the page.
type role struct{ name, path, priv string }

// rolesOf are all privileges that the page grants, each with its path.
func rolesOf(t *testing.T, page, version string) []role {
	t.Helper()
	paths := map[string]string{}
	var out []role
	for _, c := range commandsOf(t, page, version) {
		if c[1] == "acl" {
			paths[c[7]] = c[3]
		}
	}
	for _, c := range commandsOf(t, page, version) {
		privs, at := privsOf(c)
		if at < 0 {
			continue
		}
		require.NotEmpty(t, paths[c[3]], "the page makes role %s and grants it to no user", c[3])
		for _, p := range privs {
			out = append(out, role{c[3], paths[c[3]], p})
		}
	}
	return out
}

// The least rights that do, as an administrator grants them: a role on one pool, on
// the storages and the bridge, and what only shows how the host is.
func (s *story) leastRights(pool string) {
	s.t.Helper()
	s.call(http.MethodPost, "/pools", map[string]string{"poolid": pool})
	s.call(http.MethodPost, "/access/users", map[string]string{"userid": "gitops@pve"})
	var token struct{ Value string }
	require.NoError(s.t, json.Unmarshal(s.call(http.MethodPost, "/access/users/gitops@pve/token/agent", map[string]string{"privsep": "0"}), &token))
	for path, privs := range map[string]string{
		"/pool/" + pool: "VM.Allocate,VM.Audit,VM.Clone,VM.Config.CPU,VM.Config.Memory,VM.Config.Disk,VM.Config.Network,VM.Config.HWType," +
			"VM.Config.Options,VM.Config.Cloudinit,VM.Config.CDROM,VM.PowerMgmt,Pool.Audit",
		"/storage/local-lvm":            "Datastore.AllocateSpace,Datastore.Audit",
		"/storage/local":                "Datastore.AllocateTemplate,Datastore.AllocateSpace,Datastore.Audit",
		"/sdn/zones/localnetwork/vmbr0": "SDN.Use",
		"/nodes/" + s.host.Node():       "Sys.Audit,Sys.AccessNetwork",
	} {
		role := "R" + strconv.Itoa(len(path)) // each path has a length of its own
		s.call(http.MethodPost, "/access/roles", map[string]string{"roleid": role, "privs": privs})
		s.call(http.MethodPut, "/access/acl", map[string]string{"path": path, "roles": role, "users": "gitops@pve"})
	}
	s.edit("secrets.yaml", s.host.Token(), "gitops@pve!agent="+token.Value)
	s.edit("host.hcl", "node        =", "pool        = \""+pool+"\"\n  node        =")
}

// With the documented role on its pool alone the program does all of its work, and
// sees no guest but its own.
func TestTheDocumentedRightsAreEnough(t *testing.T) {
	s := begin(t, pve.Config{})
	s.leastRights("ours")
	s.deploy("web", vm("web", "count = 2", "restart = \"allowed\""))
	require.Empty(t, s.apply().Unmanaged)
	s.inSync()
	for _, g := range s.managed() {
		require.Equal(t, "ours", g.Pool)
	}

	first := s.vmidOf("web-1")
	s.byHand(func(e *pve.Edit) { e.Set(first, "cores", "1") })
	s.deploy("web", vm("web", "count = 2", "restart = \"allowed\"", "memory = 4096", "onboot = true", "disk \"data\" {", "  size = 5", "}"))
	s.apply()
	s.inSync()
	s.destroy("web")
	require.Empty(t, s.names())
}

// A guest of ours was taken out of the pool by hand, so our token does not see it
// any more. No second one is made in its place, wherever a VMID is free.
func TestAGuestThatOurTokenMayNotSee(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		free bool // a VMID below that of the hidden guest is free
	}{{"its VMID is the next", false}, {"another VMID is the next", true}} {
		t.Run(c.name, func(t *testing.T) {
			s := begin(t, pve.Config{})
			s.leastRights("ours")
			s.deploy("early", vm("early"))
			s.deploy("web", vm("web", "count = 3"))
			s.apply()
			if c.free {
				s.remove("manifests/early.hcl")
				s.apply()
			}
			before := s.names()
			hidden := s.guest("web-2")
			s.call(http.MethodPut, "/pools/ours", map[string]string{"vms": strconv.Itoa(hidden.VMID), "delete": "1"})

			r := s.try()
			require.False(t, r.Success, describe(r))
			require.Equal(t, before, s.names())

			s.call(http.MethodPut, "/pools/ours", map[string]string{"vms": strconv.Itoa(hidden.VMID)})
			s.apply()
			require.Equal(t, hidden, s.guest("web-2"))
			s.inSync()
		})
	}
}

// Before a VM with a guest agent is entered by SSH, the agent confirms its host key. Doctor reports the privilege for that, and
// a plan without it says so once, in a sentence that can be acted on.
func TestR1R2ThePrivilegeForHostKeys(t *testing.T) {
	s := beginSimulated(t, "spec \"base\" {\n  access {\n    via = \"ssh\"\n  }\n  config {\n    timezone = \"Europe/Berlin\"\n  }\n}\n", "agent = true")
	s.leastRights("ours")
	require.Contains(t, ill(s.examine()), "fail privileges: VM.GuestAgent.Unrestricted missing on /pool/ours")
	r := s.pass("apply")
	require.NotEqual(t, engine.Done, r.Outcome)
	r = s.pass("plan")
	const why = "observing web-1: its guest agent may not be asked for the host key: POST /nodes/father/qemu/10000/agent/exec: 403 Permission check failed (/vms/10000, VM.GuestAgent.Unrestricted)" +
		" (`homestak-gitops doctor` prints the commands that grant the missing privilege to gitops@pve!agent)"
	require.Len(t, r.Have.Unknown, 1)
	require.Equal(t, why, r.Have.Unknown[0].Why)
	require.True(t, r.Have.Unknown[0].Denied)
	require.False(t, r.Have.Unknown[0].Starting, "no waiting helps")
	var text strings.Builder
	r.Plan.Text(&text, plan.TextOptions{})
	require.Equal(t, 1, strings.Count(text.String(), "agent/exec"), text.String())
	require.Contains(t, text.String(), why+"; holds back guest.web-1")
}

// Requests of the host's administrator, beside ours.

// call sends a request as root, which must succeed, waits for its task, and gives
// the data of the answer.
func (s *story) call(method, path string, form map[string]string) json.RawMessage {
	s.t.Helper()
	values := url.Values{}
	for key, value := range form {
		values.Set(key, value)
	}
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.api+"/api2/json"+path, strings.NewReader(values.Encode()))
	require.NoError(s.t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Authorization", "PVEAPIToken="+s.host.Token())
	if method == http.MethodGet {
		req.Body, req.ContentLength = http.NoBody, 0
	}
	res, err := s.host.RoundTrip(req)
	require.NoError(s.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	require.Equal(s.t, http.StatusOK, res.StatusCode, "%s %s: %s %s", method, path, res.Status, text)
	var doc struct{ Data json.RawMessage }
	require.NoError(s.t, json.Unmarshal(text, &doc))
	return doc.Data
}

// template makes the VM template golden, and gives its name.
func (s *story) template() string {
	s.t.Helper()
	require.NoError(s.t, fleet.Template(s.t.Context(), s.host, s.host.Token(), s.host.Node()))
	require.Equal(s.t, "1", s.guest("golden").Config["template"])
	s.write("golden.hcl", fmt.Sprintf("template \"golden\" {\n  vmid = %d\n}\n", fleet.TemplateVMID))
	return "golden"
}

// clone is the text of a node made from the template golden.
func clone(name string, lines ...string) string {
	return strings.Replace(vm(name, lines...), "image  = image.debian-12", "template = template.golden", 1)
}

// front is between the program and the host, as a proxy or a broken API is,
// and says what it likes instead of what the host answered.
type front struct {
	api, fingerprint string
	// lie is asked with the path and the host's answer; it may change while requests
	// come in. nil is the truth.
	lie atomic.Pointer[func(path, answer string) string]
}

// lies lets the front change answers from now on.
func (f *front) lies(lie func(path, answer string) string) { f.lie.Store(&lie) }

// tellsTheTruth lets it pass on what the host says.
func (f *front) tellsTheTruth() { f.lie.Store(nil) }

// behindAFront puts a front before the host, and its address into the site.
func (s *story) behindAFront() *front {
	s.t.Helper()
	f := &front{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		truth := httptest.NewRecorder()
		s.host.ServeHTTP(truth, r)
		maps.Copy(w.Header(), truth.Header())
		w.Header().Del("Content-Length")
		answer := truth.Body.String()
		if lie := f.lie.Load(); lie != nil {
			answer = (*lie)(strings.TrimPrefix(r.URL.Path, "/api2/json"), answer)
		}
		w.WriteHeader(truth.Code)
		_, _ = w.Write([]byte(answer))
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // of clients that hang up
	server.StartTLS()
	s.t.Cleanup(server.Close)
	sum := sha256.Sum256(server.Certificate().Raw)
	f.api, f.fingerprint = server.URL, "sha256:"+hex.EncodeToString(sum[:])
	s.edit("host.hcl", fmt.Sprintf("%q", s.api), fmt.Sprintf("%q", f.api))
	s.edit("host.hcl", s.host.Fingerprint(), f.fingerprint)
	return f
}

// The roles of the agent of a child are those of the page about permissions, and Proxmox VE of both versions takes them.
func TestTheRolesOfAChild(t *testing.T) {
	for _, version := range []string{"8.4", "9.2"} {
		t.Run(version, func(t *testing.T) {
			s := begin(t, pve.Config{Version: version})
			page := map[string][]string{}
			for _, c := range commandsOf(t, permissionsPage, version) {
				if privs, at := privsOf(c); at > 0 {
					page[c[3]] = append(page[c[3]], privs...)
				}
			}
			s.pveum([]string{"pveum", "user", "add", "homestak@pve"})
			for _, r := range kind.ChildRoles() {
				name := string(r.Name)
				all := slices.Clone(r.Privs)
				if len(r.Or) > 0 {
					all = append(all, r.Or[map[string]int{"9.2": 0, "8.4": 1}[version]]...)
				}
				for _, p := range page[name] {
					if p != "VM.GuestAgent.Audit" { // the other one includes it
						require.Contains(t, all, p, name)
					}
				}
				for _, p := range all {
					require.True(t, slices.Contains(page[name], p) || p == "VM.Clone", "%s of %s is not on the page", p, name)
				}
				s.pveum([]string{"pveum", "role", "add", name, "--privs", strings.Join(all, ",")})
				s.pveum([]string{"pveum", "acl", "modify", r.Path, "--users", "homestak@pve", "--roles", name})
			}
			require.Contains(t, s.pveum([]string{"pveum", "user", "token", "add", "homestak@pve", "agent", "--privsep", "0"}), "homestak@pve!agent=")
		})
	}
}
