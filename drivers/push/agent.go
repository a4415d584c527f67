package push

// A parent installs the agent of a child on the machine: the program, its units, the file that leads it to its
// parent, and the token for the API of its own host. The code here runs commands by a guest.Machine only, and
// asks Children for what the server of the parent accepts.
//
// Read in this order: child.go (the wanted state, and the names of differences), observe.go (the observed state, by one
// command), apply.go (the commands that change it).
//
// No key is copied to the machine. Its own token for the API and its own key for guests are made there and stay there.

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
	"github.com/homestak/homestak-gitops/systemd"
)

// kindName is the first half of the address of the agent of a child: agent.inner.
const kindName = "agent"

// Agent is the agent of a child in words, so that what is compared and shown is the same whatever the parent's keys,
// address and program are at the moment.
type Agent struct {
	Program  string `plan:"program" doc:"The program: that of the parent."`
	Units    string `plan:"units" doc:"The systemd units of the program."`
	Identity string `plan:"identity" doc:"The host that the agent converges."`
	Parent   string `plan:"parent" doc:"The agent that it reports to and fetches the repository from."`
	Pins     string `plan:"pins" doc:"The pins of its parent's keys."`
	Token    string `plan:"token" doc:"The token that it sends to its parent."`
	Settings string `plan:"settings" doc:"The rest of agent.hcl."`
	APIToken string `plan:"api_token" doc:"The token for the API of its own host, created there."`
	Rights   string `plan:"api_rights" doc:"The roles of that token."`
	Key      string `plan:"ssh_key" doc:"The SSH key for its guests, created on the machine."`
	Service  string `plan:"service" doc:"Its unit."`
	Upgrade  string `plan:"upgrade" doc:"An upgrade of the program that was interrupted."`
}

// Words for what is as it should be.
const (
	ours      = "this agent's"
	asShipped = "as shipped"
	valid     = "valid"
	there     = "there"
	enough    = "as needed"
	running   = "enabled, running"
	missing   = "missing"
	done      = "none"
)

// WantedAgent is the agent of a child in words.
func WantedAgent(identity string) *Agent {
	return &Agent{
		Program: ours, Units: asShipped, Identity: identity, Parent: ours, Pins: valid, Token: valid, Settings: asShipped,
		APIToken: there, Rights: enough, Key: there, Service: running, Upgrade: done,
	}
}

// reconnected returns the desired state of the agent of a child that left the site, and its state as found: that it runs, finds its parent, and can
// remove what it manages. It keeps its program, since it goes with it.
func reconnected(found *Agent, identity string) *Agent {
	w := WantedAgent(identity)
	w.Program, w.Units, w.Upgrade = found.Program, found.Units, found.Upgrade
	return w
}

// reaches reports whether an agent as found runs, and is known by its parent.
func reaches(found *Agent, identity string) bool {
	w := WantedAgent(identity)
	return found.Identity == w.Identity && found.Parent == w.Parent && found.Pins == w.Pins && found.Token == w.Token && found.Service == w.Service
}

// agentKind is the kind of the agents of children. Its Inside is nil: the driver that installs them sets it.
func agentKind() *model.Kind {
	return &model.Kind{
		Name: kindName, Doc: "The agent of a child, which its parent installs.", Unspecified: true,
		New:   func() any { return &Agent{} },
		Brief: func(*model.Resource) string { return "the program, its units and its tokens" },
	}
}

// Program is the program of the parent.
type Program struct {
	Sum     string // SHA-256 in hex
	System  string // operating system and architecture, as Go names them: linux-amd64
	Version string // as reports have it
}

// AgentWant is the desired state of a child's agent.
type AgentWant struct {
	Identity string
	Node     string // PVE node that it is
	Server   string // URL of its parent
	Pins     []wire.Pin
	Program  Program
	Keeps    bool                     // the program that it has, if it has one
	Accepts  func(token string) error // why the parent does not accept a token; the error does not show it
	Roles    []kind.ChildRole
	Bare     bool // the machine need not have Proxmox VE: without it, there is no API to have a token for
}

// bare reports whether the machine has no Proxmox VE, and may have none.
func (f *FoundAgent) bare() bool { return f.want.Bare && !f.pve }

// FoundAgent is the observed state of a machine.
type FoundAgent struct {
	want AgentWant
	now  time.Time

	machine string            // of uname(1)
	program string            // SHA-256; "" for none
	files   map[string]string // content by path, of what root owns and others may read
	shut    map[string]bool   // files with a secret that belong to the agent alone
	key     bool              // the key for guests is there, with its public half
	token   string            // in parent.token
	kept    wire.Parent       // that the agent keeps; zero for none
	given   string            // what that was renewed from
	api     bool              // api.token has a token that Proxmox VE knows
	access  []string          // lines of user.cfg of roles and grants, and of the user of the agent; nil if that is not there
	pve     bool              // it is Proxmox VE
	unit    string            // how the unit is, in words
	record  bool              // a spec put things on it
	runs    bool              // it is enabled, and runs or begins to
	upgrade string            // sum of the program that is being installed; "" for none
	refused string            // sum of a program that did not report
	since   time.Time         // when that was
}

// None reports whether nothing of an agent is there.
func (f *FoundAgent) None() bool { return f.program == "" && f.files[settingsFile] == "" }

// Recorded reports whether a spec put something on the machine that is still there.
func (f *FoundAgent) Recorded() bool { return f.record }

var (
	identityLine = regexp.MustCompile(`(?m)^identity = "([^"\n]*)"$`)
	urlLine      = regexp.MustCompile(`(?m)^  url += "([^"\n]*)"$`)
	pinsLine     = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^  pins += \[("sha256:[0-9a-f]{64}"(, )?)*\]$`) })
	pinText      = regexp.MustCompile(`"(sha256:[0-9a-f]{64})"`)
)

// connection is the parent as the machine knows it: what was written there, or what the agent renewed since.
func (f *FoundAgent) connection() wire.Parent {
	text := f.files[settingsFile]
	p := wire.Parent{Identity: first(identityLine, text), Server: first(urlLine, text), Token: f.token}
	for _, m := range pinText.FindAllStringSubmatch(text, -1) {
		if one, err := wire.ParsePin(m[1]); err == nil && !slices.Contains(p.Pins, one) {
			p.Pins = append(p.Pins, one)
		}
	}
	if f.given != "" && f.given == client.ParentSum(p) {
		p.Pins, p.Token = f.kept.Pins, f.kept.Token
	}
	return p
}

// Agent returns a description of the installed agent.
func (f *FoundAgent) Agent() *Agent {
	a, w, p := WantedAgent(f.want.Identity), f.want, f.connection()
	switch {
	case f.program == "":
		a.Program = missing
	case f.Outdated():
		a.Program = fmt.Sprintf("another (%.12s)", f.program)
	}
	if name := f.changed(); name != "" {
		a.Units = path.Base(name) + " differs"
	}
	if text := f.files[settingsFile]; text == "" {
		a.Identity, a.Parent, a.Pins, a.Settings = missing, missing, missing, missing
	} else {
		a.Identity = p.Identity
		if p.Server != w.Server {
			a.Parent = p.Server
		}
		if !slices.ContainsFunc(p.Pins, func(one wire.Pin) bool { return slices.Contains(w.Pins, one) }) {
			a.Pins = "of another server"
		}
		if pinsAside(text) != pinsAside(f.settings(p)) {
			a.Settings = "changed"
		}
	}
	switch err := w.Accepts(p.Token); {
	case p.Token == "":
		a.Token = missing
	case isExpired(err):
		a.Token = "expired"
	case errors.Is(err, wire.ErrReplaced):
		a.Token = "revoked, or replaced by a newer one"
	case err != nil:
		a.Token = "of another server"
	case !f.shut[tokenFile]:
		a.Token = "not for the agent alone"
	}
	switch {
	case f.bare():
	case !f.api:
		a.APIToken = missing
	case !f.shut[apiFile]:
		a.APIToken = "not for the agent alone"
	}
	if lacks := f.lacks(); len(lacks) > 0 {
		a.Rights = strings.Join(lacks, "; ")
	}
	switch {
	case !f.key:
		a.Key = missing
	case !f.shut[keyFile]:
		a.Key = "not for the agent alone"
	}
	if !f.runs {
		a.Service = f.unit
	}
	if f.upgrade != "" {
		a.Upgrade = "interrupted"
	}
	return a
}

// pinsAside is agent.hcl without its pins, which may be others.
func pinsAside(text string) string { return pinsLine().ReplaceAllString(text, "") }

// shipped are the files that the program comes with, that of its user first.
func shipped() []systemd.File {
	return append(systemd.Files(), systemd.File{Path: dropIn, Content: dropInText})
}

// changed is the first of them that is not as it should be; "" for none. Those of a program that is kept stay with it.
func (f *FoundAgent) changed() string {
	if f.keeps() && f.files[unitFile] != "" {
		return ""
	}
	for _, file := range shipped() {
		if f.files[file.Path] != file.Content {
			return file.Path
		}
	}
	return ""
}

// Connects reports whether the agent finds its parent, and is known there. If not, it needs another token.
func (f *FoundAgent) Connects() bool {
	a, want := f.Agent(), WantedAgent(f.want.Identity)
	return a.Identity == want.Identity && a.Parent == want.Parent && a.Pins == want.Pins && a.Token == want.Token && a.Settings == want.Settings
}

// lacks lists what the roles of the agent lack in Proxmox VE, by the lines of user.cfg (PVE/AccessControl.pm, write_user_config):
// user:ID:…, role:NAME:PRIVILEGES:, acl:PROPAGATE:PATH:WHO:ROLES:, each list with commas. Without that file there is
// nothing to compare.
func (f *FoundAgent) lacks() []string {
	if f.access == nil {
		return nil
	}
	known, privs, granted := false, map[string][]string{}, map[[2]string]bool{}
	for _, line := range f.access {
		switch field := strings.Split(line, ":"); {
		case field[0] == "user" && len(field) > 1:
			known = known || field[1] == pveUser
		case field[0] == "role" && len(field) > 2:
			privs[field[1]] = strings.Split(field[2], ",")
		case field[0] == "acl" && len(field) > 4 && field[1] == "1" && slices.Contains(strings.Split(field[3], ","), pveUser):
			for role := range strings.SplitSeq(field[4], ",") {
				granted[[2]string{field[2], role}] = true
			}
		}
	}
	if !known {
		return []string{"user " + pveUser + " is missing"}
	}
	var out []string
	for _, r := range f.want.Roles {
		name := string(r.Name)
		has := func(set []string) bool {
			return !slices.ContainsFunc(set, func(priv string) bool { return !slices.Contains(privs[name], priv) })
		}
		var less []string
		for _, priv := range r.Privs {
			if !has([]string{priv}) {
				less = append(less, priv)
			}
		}
		if len(r.Or) > 0 && !slices.ContainsFunc(r.Or, has) {
			less = append(less, strings.Join(slices.Concat(r.Or...), " or "))
		}
		if len(less) > 0 {
			out = append(out, fmt.Sprintf("role %s lacks %s", name, strings.Join(less, ", ")))
		}
		if !granted[[2]string{r.Path, name}] {
			out = append(out, fmt.Sprintf("role %s is not granted on %s", name, r.Path))
		}
	}
	return out
}

// Outdated reports whether the program is not that of the parent, and is to be. An upgrade that was begun goes on.
func (f *FoundAgent) Outdated() bool {
	return f.program != f.want.Program.Sum && (!f.want.Keeps || f.program == "" || f.upgrade != "")
}

// keeps reports whether the machine has another program than the parent, and is to have it.
func (f *FoundAgent) keeps() bool { return f.program != f.want.Program.Sum && !f.Outdated() }

// Upgrades reports whether the program that is there works, so that it is kept until the new one has reported.
func (f *FoundAgent) Upgrades() bool {
	return f.Outdated() && f.program != "" && (f.runs || f.upgrade != "") || f.upgrade == f.want.Program.Sum && !f.Outdated()
}

// Interrupted reports whether an upgrade was begun before, and has not ended.
func (f *FoundAgent) Interrupted() bool { return f.upgrade != "" }

// refusedFor is the time for which a program that did not report is not retried.
const refusedFor = time.Hour

// Refused says that the program did not report when it was installed, and the one before runs; nil if it may be tried. A time
// to come is from a clock that was ahead, and would otherwise count until then.
func (f *FoundAgent) Refused() error {
	if !f.Outdated() || f.refused != f.want.Program.Sum || f.now.Sub(f.since).Abs() >= refusedFor {
		return nil
	}
	return fmt.Errorf("version %s of the program did not report after its installation at %s, so the previous version runs: journalctl -u %s on the machine shows why\nthis is retried after an hour, or at once if you remove %s there",
		f.want.Program.Version, f.since.UTC().Format("15:04 UTC"), systemd.Service, refusedFile)
}

// Check says why the agent cannot be installed on the machine; nil if it can.
func (f *FoundAgent) Check() error {
	if system, known := systems[f.machine]; f.want.Program.System != system {
		if !known {
			system = "another one"
		}
		return hopelessError(fmt.Sprintf("the machine is %s (%s), and the program of this agent is for %s: run an agent for that system on the parent, or make the child from an image for it", f.machine, system, f.want.Program.System))
	}
	if !f.pve && !f.want.Bare {
		return hopelessError("Proxmox VE is not installed on the machine (it has no pveum): make it from an image with Proxmox VE, or give the node a spec with a pve block")
	}
	return nil
}

// systems are the names of Go for what uname -s -m prints.
var systems = map[string]string{ //nolint:gochecknoglobals // a table
	"Linux x86_64": "linux-amd64", "Linux aarch64": "linux-arm64", "Linux armv7l": "linux-arm", "Linux riscv64": "linux-riscv64",
}

// hopelessError is an error that waiting does not fix.
type hopelessError string

func (e hopelessError) Error() string { return string(e) }

// Hopeless is true; see guest.Machine.
func (hopelessError) Hopeless() bool { return true }

func isExpired(err error) bool {
	known, is := errors.AsType[*wire.Error](err)
	return is && known.Code == wire.CodeExpired
}

func first(re *regexp.Regexp, text string) string {
	if m := re.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

// ended says how a command ended that failed; nil if it did not.
func ended(out guest.Output) error {
	text := guest.Excerpt(out.Err)
	switch {
	case out.Signal != 0:
		return fmt.Errorf("the script ended with signal %d: %s", out.Signal, text)
	case out.Code == 1 && text != "":
		return fmt.Errorf("%s", text)
	case out.Code != 0:
		return fmt.Errorf("the script ended with exit code %d: %s", out.Code, text)
	}
	return nil
}
