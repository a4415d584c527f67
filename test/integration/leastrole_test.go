package integration_test

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/doctor"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// day is a kind of site, and what is lived through with it.
type day struct {
	name    string
	without string              // a privilege of the page that it is granted without, since that one says more than it needs
	site    string              // the manifest that doctor looks at
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
				return !in("HomestakSeeds", "HomestakBackups", "VM.Backup", "VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted")(r)
			},
			soft: []string{"Sys.Audit"},
		},
		{
			name: "containers", site: ct("web", brief) + ctClone("copy"), live: (*story).liveCT, begin: beginGoldenCT,
			tries: func(r role) bool {
				return !in("HomestakSeeds", "HomestakBackups", "VM.Backup", "VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted")(r)
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
	seeded    = vm("told", "agent = true", `user_data = "#cloud-config\nruncmd: [[\"true\"]]\n"`, brief)
	checked   = vm("up", "agent = true", "check \"up\" {\n      agent    = true\n      interval = \"1s\"\n      timeout  = \"20s\"\n    }", brief)
	commanded = vm("up", "agent = true", "check \"up\" {\n      command  = \"exit 0\"\n      interval = \"1s\"\n      timeout  = \"20s\"\n    }", brief)
)

// shelves are the storages of these stories: those of a fresh host, one for backups
// and one for ISO images, so that the rights on each count by themselves.
func shelves() []pve.Storage {
	return append(pve.DefaultStorages(),
		pve.Storage{Name: "backups", Type: "dir", Content: []string{"backup"}},
		pve.Storage{Name: "isos", Type: "dir", Content: []string{"iso"}},
	)
}

// beginGolden sets the scene with a template of somebody else.
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

// examine lets the doctor look at the host.
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

// The short way of the front page is enough for a site like the one it begins with,
// and says nothing but what the page says of a site that has the whole host.
func TestTheCommandsOfTheFrontPageAreEnough(t *testing.T) {
	s := beginGolden(t, pve.Config{})
	var least []string
	for _, c := range commandsOf(t, permissionsPage, "9.2") {
		least = append(least, strings.Replace(strings.Join(c, " "), "/pool/homestak --users homestak@pve --roles HomestakGuests", "/vms --users homestak@pve --roles HomestakGuests", 1))
	}
	for _, c := range commandsOf(t, "../../README.md", "9.2") {
		require.Contains(t, least, strings.Join(c, " "), "the pages do not agree")
		if secret := s.pveum(c); secret != "" {
			s.edit("secrets.yaml", s.host.Token(), secret)
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

// The commands that the doctor prints mend what it found, be the token separated
// from its user or not.
func TestTheDoctorsCommandsMendWhatItFinds(t *testing.T) {
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
