package integration_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
	"github.com/homestak/homestak-gitops/engine"
)

// permissionsPage is where the roles stand that these stories use. They are read
// from there and written down nowhere else, so that page and program cannot part.
const permissionsPage = "../../docs/permissions.md"

// commandsOf are the commands of a page: its indented lines.
func commandsOf(t *testing.T, page string) [][]string {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	words := regexp.MustCompile(`"[^"]*"|\S+`)
	var out [][]string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "    ") && strings.HasPrefix(strings.TrimSpace(line), "pveum ") {
			out = append(out, words.FindAllString(strings.ReplaceAll(line, `'`, `"`), -1))
		}
	}
	return out
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

// least gives the site the token that the page describes, all of its features, but
// without one privilege of one role, if that is named.
func (s *story) least(without role) {
	s.t.Helper()
	for _, c := range commandsOf(s.t, permissionsPage) {
		if strings.Join(c[1:3], " ") == "pool add" {
			continue // the site has a pool block
		}
		if without.priv == "Sys.AccessNetwork" && slices.Contains(c, "HomestakCluster") {
			continue // Sys.Audit and Sys.Modify on / together would do as well
		}
		if len(c) > 5 && c[1] == "role" && c[3] == without.name {
			privs := slices.DeleteFunc(strings.Split(strings.Trim(c[5], `"`), ","), func(p string) bool { return p == without.priv })
			c[5] = strings.Join(privs, ",")
		}
		if secret := s.pveum(c); secret != "" {
			s.edit("secrets.yaml", s.host.Token(), secret)
		}
	}
	s.edit("host.hcl", "node        =", "pool        = \"homestak\"\n  node        =")
	s.write("pool.hcl", "pool \"homestak\" {\n  host = host.father\n}\n")
}

// role is one privilege of a role of the page.
type role struct{ name, path, priv string }

// rolesOf are all privileges that the page grants, each with its path.
func rolesOf(t *testing.T, page string) []role {
	t.Helper()
	paths := map[string]string{}
	var out []role
	for _, c := range commandsOf(t, page) {
		if c[1] == "acl" {
			paths[c[7]] = c[3]
		}
	}
	for _, c := range commandsOf(t, page) {
		if c[1] != "role" {
			continue
		}
		require.NotEmpty(t, paths[c[3]], "the page makes role %s and gives it to nobody", c[3])
		for p := range strings.SplitSeq(strings.Trim(c[5], `"`), ",") {
			out = append(out, role{c[3], paths[c[3]], p})
		}
	}
	return out
}

// beginGolden sets the scene with a template of somebody else.
func beginGolden(t *testing.T, c pvesim.Config) *story {
	t.Helper()
	s := begin(t, c)
	s.template()
	s.strangers = s.host.Snapshot().Guests
	return s
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
		return "create: " + told(r)
	}
	first := s.vmidOf("web-1")
	s.byHand(func(e *pvesim.Edit) { e.Set(first, "cores", "1") })
	s.deploy("web", vm("web", "count = 2", "restart = \"allowed\"", "memory = 4096", "onboot = true", "power = \"stopped\"", "disk = 20", "tags = [\"more\"]",
		"disk \"data\" {", "  size = 5", "}", "nic \"lan\" {", "}", "nic \"more\" {", "}", brief)+clone("copy", "restart = \"allowed\"", brief))
	if r := s.try(); !right(r) {
		return "change: " + told(r)
	}
	s.edit("site.hcl", "sha256:00000000000000000000000000000000000000000000000000000000000000aa", checksum2)
	if r := s.try(); !right(r) {
		return "another image: " + told(r)
	}
	if p := s.plan(); len(steps(p))+len(p.Unknown) > 0 {
		return fmt.Sprintf("not in sync: %v %v", steps(p), p.Unknown)
	}
	r := s.pass("destroy", func(p *engine.Pass) { p.Manifest, p.Destroy = "web", true })
	if !right(r) || len(s.names()) > 0 {
		return "destroy: " + told(r)
	}
	return ""
}

// right reports whether a pass did all that it was to do, and saw all.
func right(r engine.Report) bool {
	return r.Outcome == engine.Done && r.Plan != nil && len(r.Plan.Unknown) == 0
}

// examine lets the doctor look at the host.
func (s *story) examine() []proxmox.Check {
	s.t.Helper()
	site := s.load(s.t.Context()).Site
	require.NotNil(s.t, site)
	want, found := site.Want("father")
	require.False(s.t, found.HasErrors())
	d := proxmox.Doctor{
		Config: proxmox.Config{Host: site.Hosts["father"], Site: s.name, Owner: "father", Files: os.DirFS(s.dir)},
		Want:   want, Of: site,
	}
	return d.Examine(s.t.Context())
}

// ill are the checks that are not fine, as text.
func ill(checks []proxmox.Check) []string {
	var out []string
	for _, c := range checks {
		if c.Result == proxmox.Failed || c.Result == proxmox.Warning {
			out = append(out, fmt.Sprintf("%s %s: %s", c.Result, c.Name, c.Seen))
		}
	}
	return out
}

// The roles of the page are enough for all that the page says, on both versions.
func TestTheLeastRoleIsEnough(t *testing.T) {
	for _, version := range []string{"8.4", "9.1"} {
		t.Run(version, func(t *testing.T) {
			s := beginGolden(t, pvesim.Config{Version: version})
			s.least(role{})
			s.deploy("web", vm("web", brief)+clone("copy"))
			require.Empty(t, ill(s.examine()))
			require.Empty(t, s.live())
			for _, r := range s.requests() {
				require.NotContains(t, r.String(), "(401)")
			}
		})
	}
}

// The short way of the front page is enough for a site like the one it begins with.
func TestTheCommandsOfTheFrontPageAreEnough(t *testing.T) {
	s := beginGolden(t, pvesim.Config{})
	for _, c := range commandsOf(t, "../../README.md") {
		if secret := s.pveum(c); secret != "" {
			s.edit("secrets.yaml", s.host.Token(), secret)
		}
	}
	s.deploy("web", vm("web", "count = 2")+clone("copy"))
	require.Empty(t, ill(s.examine()))
	s.apply()
	s.inSync()
}

// Nothing of the roles is too much: without any one privilege something fails, and
// the doctor has said before which privilege is missing on which path. What only
// lets more be seen is a warning, and then nothing fails.
func TestThePrivilegesOfTheLeastRoleAreAllNeeded(t *testing.T) {
	soft := []role{{"HomestakNode", "/nodes/father", "Sys.Audit"}, {"HomestakCluster", "/", "Sys.Audit"}}
	for _, without := range rolesOf(t, permissionsPage) {
		t.Run(without.name+"/"+without.priv, func(t *testing.T) {
			s := beginGolden(t, pvesim.Config{})
			s.least(without)
			s.deploy("web", vm("web", brief)+clone("copy"))
			said := ill(s.examine())
			if slices.Contains(soft, without) {
				for _, line := range said {
					require.Equal(t, fmt.Sprintf("warning privileges: %s missing on %s", without.priv, without.path), line)
				}
				require.Empty(t, s.live())
				return
			}
			require.Contains(t, said, fmt.Sprintf("fail privileges: %s missing on %s", without.priv, without.path))
			require.NotEmpty(t, s.live(), "without %v nothing fails", without)
		})
	}
}

// The commands that the doctor prints mend what it found, be the token separated
// from its user or not.
func TestTheDoctorsCommandsMendWhatItFinds(t *testing.T) {
	for _, separated := range []string{"0", "1"} {
		t.Run("privsep "+separated, func(t *testing.T) {
			s := beginGolden(t, pvesim.Config{})
			s.least(role{})
			s.call(http.MethodPost, "/access/users", map[string]string{"userid": "bare@pve"})
			secret := s.pveum([]string{"pveum", "user", "token", "add", "bare@pve", "agent", "--privsep", separated})
			data, err := os.ReadFile(s.dir + "/secrets.yaml")
			require.NoError(t, err)
			s.write("secrets.yaml", regexp.MustCompile(`homestak@pve![^"]*`).ReplaceAllString(string(data), secret))
			s.deploy("web", vm("web", brief)+clone("copy"))

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
			require.Empty(t, s.live())
		})
	}
}
