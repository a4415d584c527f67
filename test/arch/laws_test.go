package arch_test

import (
	"fmt"
	"go/ast"
	"maps"
	"path"
	"slices"
	"strings"
)

const module = "github.com/homestak/homestak-gitops"

// layer is a package and what it may know of ours.
type layer struct {
	pkg   string
	may   []string
	tests []string // beside may, in its test files
}

// layers is the whole table, bottom first. A package that is missing here is a
// violation: a new one gets its place before it gets its second file.
//
// pveapi, the API of Proxmox VE as a table, lies below the driver and the simulator so that both follow the same one. The
// simulator, whose packages are in simulatorLayers, is for tests and for the verbs that run a simulator, never for the driver
// itself.
var layers = append(simulatorLayers(), []layer{
	{pkg: "engine/diag"},
	{pkg: "engine/model", may: []string{"engine/diag"}},
	{pkg: "engine/source/sourcetest"}, // repositories and real git servers, for tests of packages that read from them
	{pkg: "engine/source/objects", may: []string{"engine/diag", "engine/model"}, tests: []string{"engine/source/sourcetest"}},
	{pkg: "engine/source", may: []string{"engine/diag", "engine/model", "engine/source/objects", "engine/source/serve"}, tests: []string{"engine/source/sourcetest"}}, // for the demo: it needs pushes, and nothing else of ours
	{pkg: "engine/source/serve", may: []string{"engine/source/objects"}, tests: []string{"engine/model", "engine/source", "engine/source/sourcetest"}},                // git over http; who may ask is decided above it
	{pkg: "engine/durable"},
	{pkg: "engine/images"}, // contents by their checksum: the driver uploads them, a server serves them
	{pkg: "engine/ledger", may: []string{"engine/diag", "engine/durable"}},
	{pkg: "engine/guest/spec", may: []string{"engine/diag", "engine/model"}},
	{pkg: "engine/guest", may: []string{"engine/diag"}},                                                                               // the way into a guest; drivers give it
	{pkg: "engine/guest/aspect/aspecttest", may: []string{"engine/guest", "engine/guest/aspect", "engine/guest/spec", "engine/plan"}}, // cases of aspects, for tests
	{pkg: "engine/guest/aspect", may: []string{"engine/guest", "engine/guest/spec", "engine/model"}, tests: []string{"engine/guest/aspect/aspecttest"}},
	{pkg: "engine/guest/aspect/network", may: []string{"engine/guest", "engine/guest/aspect", "engine/guest/spec", "engine/model"}, tests: []string{"engine/guest/aspect/aspecttest"}},
	{pkg: "engine/guest/converge", may: []string{"engine/diag", "engine/guest", "engine/guest/aspect", "engine/guest/aspect/network", "engine/guest/spec", "engine/model", "engine/plan"}},
	{pkg: "engine/guest/asroot", may: []string{"engine/diag", "engine/durable", "engine/guest", "engine/guest/aspect", "engine/guest/converge", "engine/guest/spec", "engine/model", "engine/plan"}, tests: []string{"engine/source", "engine/source/sourcetest", "sim/debian"}}, // what root does for the agent of a host
	{pkg: "systemd"},
	{pkg: "specserve/wire", may: []string{"engine/diag", "engine/durable", "engine/guest/spec"}},                                                                                   // between parent and child: what server and client share
	{pkg: "specserve/client", may: []string{"engine/durable", "engine/model", "specserve/wire"}, tests: []string{"drivers/proxmox/lifecycle", "engine/guest/spec", "sim/machine"}}, // nocloud: that it fits on a seed
	{pkg: "drivers/drivertest", may: []string{"engine/guest"}},                                                                                                                     // conformance suites, for tests
	{pkg: "drivers/local", may: []string{"engine/guest"}, tests: []string{"drivers/drivertest"}},
	{pkg: "drivers/ssh", may: []string{"engine/guest"}, tests: []string{"drivers/drivertest", "engine/diag", "engine/source/sourcetest"}}, // sourcetest: a real sshd
	{pkg: "sim/machine"}, // a simulated machine, bottom first
	{pkg: "sim/machine/userland", may: []string{"sim/machine"}},
	{pkg: "sim/debian", may: []string{"sim/machine", "sim/machine/userland"}, tests: []string{"drivers/drivertest", "drivers/ssh", "engine/guest", "engine/guest/aspect", "engine/guest/converge", "engine/guest/spec"}},
	{pkg: "engine/health", may: []string{"engine/diag", "engine/guest", "engine/model"}}, // what a check says of a guest
	{pkg: "engine/plan", may: []string{"engine/diag", "engine/model"}},
	{pkg: "engine/apply", may: []string{"engine/model", "engine/plan"}},
	{pkg: "hcl/sops", may: []string{"engine/diag"}, tests: []string{"hcl/sops/sopstest"}}, // files of SOPS
	{pkg: "hcl/sops/sopstest"}, // the encryption, for tests
	{pkg: "hcl/lang", may: []string{"engine/diag", "engine/model"}},
	{pkg: "hcl", may: []string{"engine/diag", "engine/model", "hcl/lang", "hcl/sops"}, tests: []string{"drivers/proxmox", "engine/source/sourcetest", "hcl/sops/sopstest"}}, // the kinds that a real site declares
	{pkg: "drivers/proxmox/pveapi", tests: []string{"drivers/proxmox/proxmoxtest"}},
	{pkg: "drivers/proxmox/pveapi/gen"},
	{pkg: "drivers/proxmox/observation", may: []string{"engine/durable"}}, // a document: the driver writes it, the simulator reads it
	{pkg: "sim/pve/simtest", may: []string{"sim/machine", "sim/pve"}},     // serves a simulated host in a test
	{pkg: "drivers/proxmox/owner", may: []string{"drivers/proxmox/api", "engine/diag", "engine/model"}},
	{pkg: "drivers/proxmox/kind", may: []string{"drivers/proxmox/api", "drivers/proxmox/owner", "engine/diag", "engine/images", "engine/model", "engine/plan"}}, // what a kind is made of
	{pkg: "drivers/proxmox/objects", may: []string{"drivers/proxmox/api", "drivers/proxmox/kind", "drivers/proxmox/owner", "drivers/proxmox/pveapi", "engine/diag", "engine/images", "engine/model", "engine/plan"}, tests: []string{"drivers/proxmox", "drivers/proxmox/guest", "drivers/proxmox/proxmoxtest", "sim/pve"}},
	{pkg: "drivers/proxmox/lifecycle", may: []string{"drivers/proxmox/api", "drivers/proxmox/kind", "drivers/proxmox/owner", "engine/model", "engine/plan"}, tests: []string{"drivers/proxmox/objects"}},
	{pkg: "drivers/proxmox/api", may: []string{"engine/model"}}, // requests, tasks and errors; what they are for is the driver's; what a host holds
	{pkg: "drivers/proxmox/guest", may: []string{"drivers/proxmox/api", "drivers/proxmox/kind", "drivers/proxmox/lifecycle", "drivers/proxmox/objects", "drivers/proxmox/owner", "drivers/proxmox/pveapi", "engine/diag", "engine/images", "engine/model"}}, // an attribute of a guest is declared once
	{pkg: "drivers/proxmox/provision", may: []string{"drivers/proxmox/api", "drivers/proxmox/guest", "drivers/proxmox/kind", "drivers/proxmox/lifecycle", "drivers/proxmox/objects", "drivers/proxmox/owner", "engine/model", "engine/plan"}, tests: []string{"drivers/proxmox", "drivers/proxmox/proxmoxtest", "drivers/proxmox/pveapi", "sim/pve"}},
	{pkg: "drivers/proxmox/inventory", may: []string{"drivers/proxmox/api", "drivers/proxmox/guest", "drivers/proxmox/kind", "drivers/proxmox/lifecycle", "drivers/proxmox/objects", "drivers/proxmox/owner", "engine/diag", "engine/model"}},
	{pkg: "drivers/proxmox", may: []string{"drivers/proxmox/api", "drivers/proxmox/guest", "drivers/proxmox/inventory", "drivers/proxmox/kind", "drivers/proxmox/lifecycle", "drivers/proxmox/objects", "drivers/proxmox/observation", "drivers/proxmox/owner", "drivers/proxmox/provision", "drivers/proxmox/pveapi", "engine/diag", "engine/guest", "engine/health", "engine/images", "engine/model", "engine/plan"}, tests: []string{"drivers/drivertest", "drivers/proxmox/doctor", "drivers/proxmox/proxmoxtest", "engine/apply", "sim/pve"}}, // stories: a plan is made and carried out on a simulator
	{pkg: "drivers/proxmox/doctor", may: []string{"drivers/proxmox", "drivers/proxmox/api", "drivers/proxmox/guest", "drivers/proxmox/kind", "drivers/proxmox/objects", "engine/diag", "engine/images", "engine/model"}, tests: []string{"drivers/proxmox/proxmoxtest", "sim/pve", "sim/pve/simtest"}},                                                                                                                                                                                                                                             // a user of the driver, as the command is
	{pkg: "drivers/proxmox/proxmoxtest", may: []string{"drivers/proxmox", "drivers/proxmox/doctor", "drivers/proxmox/guest", "drivers/proxmox/objects", "drivers/proxmox/pveapi", "engine/model", "engine/plan", "sim/pve"}},                                                                                                                                                                                                                                                                                                                       // for tests of clients; a site on a simulated host, for tests
	{pkg: "drivers/proxmox/importer", may: []string{"drivers/proxmox/api", "drivers/proxmox/guest", "drivers/proxmox/inventory", "drivers/proxmox/kind", "drivers/proxmox/objects", "drivers/proxmox/owner", "engine/diag", "engine/model", "hcl", "hcl/lang"}, tests: []string{"drivers/proxmox", "drivers/proxmox/pveapi", "engine/plan", "sim/pve"}},                                                                                                                                                                                            // files of a site for what is on a host
	{pkg: "policy", may: []string{"engine/diag", "engine/model", "engine/plan"}},
	{pkg: "engine", may: []string{"engine/apply", "engine/diag", "engine/guest", "engine/health", "engine/model", "engine/plan"}, tests: []string{"engine/enginetest"}},
	{pkg: "engine/enginetest", may: []string{"engine", "engine/diag", "engine/guest", "engine/model", "engine/plan"}}, // a host in memory, for the tests of passes and of agents
	{pkg: "engine/agent", may: []string{"engine", "engine/apply", "engine/diag", "engine/health", "engine/ledger", "engine/model", "engine/plan"}, tests: []string{"engine/enginetest"}},
	{pkg: "engine/control", may: []string{"engine", "engine/agent", "engine/diag", "engine/durable", "engine/ledger", "engine/model", "specserve/wire"}, tests: []string{"drivers/proxmox", "engine/control/controltest", "engine/enginetest", "engine/plan", "hcl", "sim/machine"}}, // what happened to an agent, as a stream
	{pkg: "engine/control/controltest", may: []string{"engine", "engine/agent", "engine/control", "engine/ledger", "engine/model", "specserve/wire"}},
	{pkg: "engine/view", may: []string{"engine", "engine/agent", "engine/apply", "engine/control", "engine/diag", "engine/health", "engine/ledger", "engine/model", "engine/plan", "specserve/wire"}},
	{pkg: "engine/web", may: []string{"engine/agent", "engine/control", "engine/diag", "engine/ledger", "engine/plan", "engine/view", "specserve/wire"}, tests: []string{"engine", "engine/control/controltest", "engine/model"}},
	{pkg: "examples"}, // files only
	{pkg: "engine/site", may: []string{"engine", "engine/diag", "engine/guest/spec", "engine/model", "engine/plan", "engine/source", "hcl", "hcl/sops", "policy"}, tests: []string{"drivers/proxmox", "engine/source/sourcetest", "hcl/sops/sopstest"}},
	{pkg: "drivers/push", may: []string{"drivers/local", "drivers/proxmox/kind", "drivers/ssh", "engine", "engine/apply", "engine/diag", "engine/durable", "engine/guest", "engine/guest/aspect", "engine/guest/converge", "engine/guest/asroot", "engine/guest/spec", "engine/model", "engine/plan", "specserve/client", "specserve/wire", "systemd"}, tests: []string{"drivers/drivertest", "engine/enginetest", "sim/debian", "sim/machine"}}, // push: what specs say inside guests
	{pkg: "specserve/keys", may: []string{"engine/durable", "specserve/wire"}},                                 // notifications of a push, and who signed them
	{pkg: "specserve/tasks", may: []string{"engine/diag", "engine/durable", "engine/guest", "specserve/wire"}}, // what a parent asks of children, and what they have begun: both sides have a file, and neither server nor client
	{pkg: "specserve", may: []string{"engine/diag", "engine/guest/spec", "engine/images", "engine/model", "engine/source/serve", "policy", "specserve/keys", "specserve/tasks", "specserve/wire"}, tests: []string{"engine/source", "engine/source/sourcetest", "sim/machine"}}, // figures that Prometheus reads; what new nodes get: this program
	{pkg: "specserve/daemon", may: []string{"engine/diag", "engine/durable", "engine/model", "engine/site", "engine/source", "engine/source/objects", "engine/source/serve", "policy", "specserve", "specserve/keys", "specserve/tasks", "specserve/wire"}, tests: []string{"drivers/proxmox", "engine/source/sourcetest", "hcl/sops/sopstest"}},
	{pkg: "engine/notify", may: []string{"engine", "engine/agent", "engine/diag", "engine/durable", "engine/model", "specserve/wire"}, tests: []string{"engine/ledger", "engine/plan", "specserve/keys"}},
	{pkg: "engine/service", may: []string{"engine", "engine/agent", "engine/control", "engine/diag", "engine/durable", "engine/guest", "engine/guest/asroot", "engine/guest/converge", "engine/guest/spec", "engine/images", "engine/ledger", "engine/model", "engine/notify", "engine/plan", "engine/site", "engine/source", "engine/source/serve", "engine/view", "engine/web", "hcl", "specserve", "specserve/client", "specserve/daemon", "specserve/keys", "specserve/tasks", "specserve/wire"}, tests: []string{"engine/control/controltest"}},
	{pkg: "drivers", may: []string{"drivers/proxmox", "drivers/proxmox/observation", "drivers/push", "engine", "engine/guest", "engine/images", "engine/model", "engine/plan", "specserve/client", "specserve/wire"}},
	{pkg: "sim", may: []string{"drivers/proxmox/observation", "engine/model", "sim/debian", "sim/machine", "sim/machine/userland", "sim/pve"}, tests: []string{"drivers/proxmox", "hcl"}},
	{pkg: "cmd/homestak-gitops/trial", may: []string{"cmd/homestak-gitops/ui", "engine", "engine/agent", "engine/apply", "engine/control", "engine/diag", "engine/model", "engine/plan", "engine/service", "engine/source", "engine/view", "hcl", "specserve/wire"}, tests: []string{"cmd/homestak-gitops/sim", "drivers", "engine/enginetest", "engine/site", "sim", "sim/pve"}},
	{pkg: "cmd/homestak-gitops/ui", may: []string{"drivers/proxmox", "engine", "engine/control", "engine/diag", "engine/model", "engine/plan", "engine/site", "engine/view", "specserve/wire"}, tests: []string{"engine/apply"}},
	{pkg: "cmd/homestak-gitops/session", may: []string{"cmd/homestak-gitops/ui", "drivers", "drivers/local", "drivers/push", "drivers/ssh", "engine", "engine/agent", "engine/control", "engine/diag", "engine/guest/asroot", "engine/images", "engine/ledger", "engine/model", "engine/plan", "engine/service", "engine/site", "engine/view", "policy", "specserve/daemon", "specserve/wire"}, tests: []string{"engine/control/controltest", "engine/enginetest", "engine/source/sourcetest", "hcl", "sim"}},
	{pkg: "cmd/homestak-gitops/sim", may: []string{"cmd/homestak-gitops/session", "drivers", "drivers/proxmox/observation", "drivers/push", "engine", "engine/agent", "engine/control", "engine/diag", "engine/durable", "engine/guest", "engine/ledger", "engine/model", "engine/plan", "engine/service", "engine/source", "engine/view", "examples", "policy", "sim", "sim/debian", "sim/machine", "sim/pve", "specserve", "specserve/client", "specserve/daemon", "specserve/keys", "specserve/node", "specserve/wire"}, tests: []string{"engine/enginetest", "hcl"}}, // agents and nodes of simulated hosts
	{pkg: "specserve/node", may: []string{"drivers/local", "engine/diag", "engine/durable", "engine/guest", "engine/guest/aspect", "engine/guest/converge", "engine/guest/spec", "engine/model", "engine/plan", "specserve/client", "specserve/tasks", "specserve/wire"}, tests: []string{"sim/machine"}},
	{pkg: "cmd/homestak-gitops/setup", may: []string{"drivers/proxmox/kind", "engine/diag", "engine/durable", "engine/source", "hcl", "hcl/lang", "systemd"}, tests: []string{"engine/source/sourcetest", "sim", "sim/pve"}},
	{pkg: "cmd/homestak-gitops", may: []string{"cmd/homestak-gitops/session", "cmd/homestak-gitops/setup", "cmd/homestak-gitops/sim", "cmd/homestak-gitops/trial", "cmd/homestak-gitops/ui", "drivers", "drivers/local", "drivers/proxmox", "drivers/proxmox/api", "drivers/proxmox/doctor", "drivers/proxmox/importer", "drivers/proxmox/observation", "drivers/push", "engine", "engine/agent", "engine/apply", "engine/control", "engine/diag", "engine/guest/converge", "engine/guest/spec", "engine/ledger", "engine/model", "engine/plan", "engine/service", "engine/site", "engine/view", "engine/web", "hcl", "policy", "specserve/daemon", "specserve/keys", "specserve/node", "specserve/wire"}, tests: []string{"drivers/proxmox/proxmoxtest", "engine/control/controltest", "engine/enginetest", "engine/source/sourcetest", "hcl/sops/sopstest", "sim", "sim/pve", "sim/pve/simtest"}}, // the table that every request of a script is held against; a repository to push to
}...)

// The folders of test/ contain tests of the whole program: these laws, the stories, the
// measurements. They may use everything, and nothing else may use them.

// library is a module of others, or a part of one, and who may use it.
type library struct {
	path   string
	owners []string // in files of the product, with /... the packages below as well; none: tests only
	tests  bool     // any test may use it
	why    string
}

// libraries is the whole table: a dependency that is missing here is a violation.
// A library that is used in one place can be understood, and replaced, there.
var libraries = []library{
	{path: "github.com/luthermonson/go-proxmox", owners: []string{"drivers/proxmox/api"}, tests: true, why: "its answers are made trustworthy in one transport; tests hold the simulator against it"},
	{path: "github.com/hashicorp/hcl/v2", owners: []string{"hcl/...", "test/bench"}, why: "the language is read in one place"}, // test/bench: parsing alone is the floor that its speed is held against,
	{path: "github.com/open-policy-agent/opa/v1/rego", tests: true, why: "it links a compiler to WebAssembly and readers of bundles, 4 MB; policy/query.go has what is needed"},
	{path: "github.com/open-policy-agent/opa/v1/tester", tests: true, why: "it links rego"},
	{path: "github.com/open-policy-agent/opa/v1/cover", tests: true, why: "it links rego"},
	{path: "github.com/open-policy-agent/opa", owners: []string{"policy"}, why: "rules are judged in one place, with what has effects taken out"},
	{path: "github.com/zclconf/go-cty", owners: []string{"hcl/..."}, why: "its values carry the marks of secrets, which only hcl knows to keep"},
	{path: "filippo.io/age", owners: []string{"hcl/sops", "hcl/sops/sopstest"}, why: "one package decrypts the secrets of a site"},
	{path: "go.yaml.in/yaml/v3", owners: []string{"sim/debian", "hcl", "hcl/sops", "hcl/sops/sopstest", "drivers/proxmox/importer", "specserve"}, tests: true, why: "files of the site, secrets among them, are read in one place, those of the predecessor in another, and specs written as YAML in a third; the simulated cloud-init reads it, and tests read what cloud-init is told"},
	{path: "github.com/diskfs/go-diskfs", tests: true, why: "for tests: another reader of ISO images"},
	{path: "github.com/go-git/go-git/v5", owners: []string{"engine/source", "engine/source/objects", "engine/source/serve"}, tests: true, why: "one package says what a commit is; tests build repositories"},
	{path: "github.com/hiddeco/sshsig", owners: []string{"engine/source/objects"}, tests: true, why: "one package says who signed a commit"},
	{path: "github.com/go-git/go-billy/v5", owners: []string{"engine/source"}, why: "gives go-git the folder to read"},
	{path: "golang.org/x/crypto", owners: []string{"drivers/ssh", "sim", "sim/debian", "engine/source", "engine/source/objects", "engine/health"}, why: "git, checks, the way into machines and simulated machines speak ssh"},
	{path: "mvdan.cc/sh/v3", owners: []string{"sim/machine/userland"}, why: "simulated machines run the scripts that are sent to real ones"},
	{path: "github.com/robfig/cron/v3", owners: []string{"engine/model"}, why: "one place says when a job is due"},
	{path: "github.com/fsnotify/fsnotify", owners: []string{"engine/durable"}, why: "one package notices changes of files"},
	{path: "github.com/spf13/cobra", owners: []string{"cmd/homestak-gitops/..."}, why: "flags and verbs are the command's"},
	{path: "github.com/spf13/pflag", owners: []string{"cmd/homestak-gitops/..."}, why: "flags and verbs are the command's"},
	{path: "golang.org/x/sys", owners: []string{"drivers/proxmox"}, why: "the files of a node are read every second, with no call more than needed"},
	{path: "golang.org/x/mod/semver", owners: []string{"drivers/push"}, why: "an upgrade compares versions as the go command stamps them"},
	{path: "golang.org/x/term", owners: []string{"cmd/homestak-gitops/ui"}, why: "only the command has a terminal"},
	{path: "github.com/a-h/templ", owners: []string{"engine/web"}, why: "markup is written in one place, and compiled to Go that escapes by context"},
	{path: "golang.org/x/net/html", tests: true, why: "for tests: reads pages as a browser does"},
	{path: "github.com/coreos/go-systemd/v22", owners: []string{"engine/service", "specserve/daemon"}, why: "only the agent and the server are services"},
	{path: "github.com/agext/levenshtein", owners: []string{"engine/diag"}, why: "one place says what a nearly right name is"},
	{path: "github.com/google/uuid", owners: []string{"drivers/proxmox/lifecycle", "drivers/proxmox/provision"}, why: "identities are given to guests, and nowhere else"},
	{path: "github.com/go-json-experiment/json", owners: []string{"drivers/proxmox/api"}, why: "the long lists of a host are read token by token; what is short goes through encoding/json"},
	{path: "golang.org/x/sync", owners: []string{"drivers/proxmox", "drivers/proxmox/inventory", "drivers/proxmox/kind", "drivers/proxmox/api", "hcl/lang"}, tests: true, why: "groups of requests, or of files to parse; steps are run by engine/apply, which has an owner goroutine instead"},
	{path: "golang.org/x/text/unicode/norm", owners: []string{"drivers/proxmox/guest"}, why: "notes that were typed on a host are compared with files, whose strings the loader normalises"},
	{path: "github.com/stretchr/testify/require", owners: []string{"drivers/drivertest", "engine/guest/aspect/aspecttest", "drivers/proxmox/proxmoxtest"}, tests: true, why: "for tests, and of testify nothing else: a test stops at its first surprise"},
	{path: "pgregory.net/rapid", tests: true, why: "for tests"},
	{path: "github.com/rogpeppe/go-internal", owners: []string{"engine/guest/aspect/aspecttest"}, tests: true, why: "for tests"},
}

// law is a rule that the tree keeps: it lists what breaks it, as "file: what".
type law struct {
	name  string
	check func([]source) []string
}

var laws = []law{
	{"packages import only what lies below them", importLaw},
	{"the table of packages is up to date", tableLaw},
	{"only the simulation of the command, and tests, import the simulator", simulatorLaw},
	{"libraries are used by their owners only", libraryLaw},
	{"packages and types are small enough to know", sizeLaw},
	{"a struct has few functions", funcsLaw},
	{"what is exported has a user", exportLaw},
	{"a rule has one home", homeLaw},
	{"the tree keeps its budget of lines", budgetLaw},
	{"messages are sentences that an engineer would write", phraseLaw},
	{"nothing happens before main", initLaw},
	{"packages are named by what they hold", nameLaw},
	{"every kind is in the table of kinds, one a file, each with its test", kindLaw},
	{"only tests with simulated clocks sleep", sleepLaw},
}

// simulatorLaw finds imports of the simulator (sim/…) outside of sim itself, of
// cmd/homestak-gitops/sim, of tests and of what supports tests; and imports of
// cmd/homestak-gitops/sim outside of the verbs that simulate. The agent, the driver and the
// engine get a transport, and do not know what is behind it.
func simulatorLaw(tree []source) []string {
	const command = "cmd/homestak-gitops/sim"
	verbs := []string{"cmd/homestak-gitops/sim.go", "cmd/homestak-gitops/simulated.go", "cmd/homestak-gitops/demo.go"}
	in := func(name, folder string) bool { return name == folder || strings.HasPrefix(name, folder+"/") }
	var out []string
	for _, f := range tree {
		if f.test || f.forTests() || strings.HasSuffix(f.pkg(), "test") || in(f.pkg(), "sim") || in(f.pkg(), command) {
			continue
		}
		for _, name := range f.imports() {
			ours, _ := strings.CutPrefix(name, module+"/")
			if in(ours, "sim") || in(ours, command) && !slices.Contains(verbs, f.path) {
				out = append(out, fmt.Sprintf("%s: imports the simulator by %s: let it get a transport", f.path, ours))
			}
		}
	}
	return out
}

func importLaw(tree []source) []string {
	var out []string
	for _, f := range tree {
		i := slices.IndexFunc(layers, func(l layer) bool { return l.pkg == f.pkg() })
		if f.forTests() {
			continue // it stands above everything, and below nothing
		}
		if i < 0 {
			out = append(out, fmt.Sprintf("%s: package %s is not in the table of test/arch: decide what it may import", f.path, f.pkg()))
			continue
		}
		for _, name := range f.imports() {
			ours, ok := strings.CutPrefix(name, module+"/")
			switch {
			case !ok, ours == f.pkg(), slices.Contains(layers[i].may, ours):
			case f.test && slices.Contains(layers[i].tests, ours):
			default:
				out = append(out, fmt.Sprintf("%s: %s must not import %s", f.path, f.pkg(), ours))
			}
		}
	}
	return out
}

// tableLaw finds packages in the table that do not exist, and grants that no file of the package uses. The
// packages of the simulator have an order, not grants of their own.
func tableLaw(tree []source) []string {
	there, product, tests := map[string]bool{}, map[string][]string{}, map[string][]string{}
	for _, f := range tree {
		there[f.pkg()] = true
		uses := product
		if f.test {
			uses = tests
		}
		uses[f.pkg()] = append(uses[f.pkg()], f.imports()...)
	}
	var out []string
	for _, l := range layers {
		if !there[l.pkg] {
			out = append(out, fmt.Sprintf("test/arch: the row of %s is of a package that does not exist", l.pkg))
			continue
		}
		if l.pkg == "sim/pve" || slices.Contains(simulator, l.pkg) {
			continue
		}
		for _, name := range l.may {
			if !slices.Contains(product[l.pkg], module+"/"+name) {
				out = append(out, fmt.Sprintf("test/arch: %s may import %s, and does not", l.pkg, name))
			}
		}
		for _, name := range l.tests {
			if !slices.Contains(tests[l.pkg], module+"/"+name) || slices.Contains(l.may, name) {
				out = append(out, fmt.Sprintf("test/arch: the row of %s has %s for tests, which do not need it", l.pkg, name))
			}
		}
	}
	return out
}

func libraryLaw(tree []source) []string {
	var out []string
	for _, f := range tree {
		for _, name := range f.imports() {
			first, _, _ := strings.Cut(name, "/")
			if !strings.Contains(first, ".") || name == module || strings.HasPrefix(name, module+"/") {
				continue // the standard library, and ours
			}
			i := slices.IndexFunc(libraries, func(l library) bool { return name == l.path || strings.HasPrefix(name, l.path+"/") })
			switch {
			case i < 0:
				out = append(out, fmt.Sprintf("%s: %s is not in the table of libraries of test/arch", f.path, name))
			case slices.ContainsFunc(libraries[i].owners, func(o string) bool { return owns(o, f.pkg()) }), (f.test || f.forTests()) && libraries[i].tests:
			default:
				out = append(out, fmt.Sprintf("%s: %s must not use %s (%s)", f.path, f.pkg(), name, libraries[i].why))
			}
		}
	}
	return out
}

// owns reports whether a package is an owner, or is below one that is written as "hcl/...".
func owns(owner, pkg string) bool {
	folder, whole := strings.CutSuffix(owner, "/...")
	return pkg == folder || whole && strings.HasPrefix(pkg, folder+"/")
}

func initLaw(tree []source) []string {
	var out []string
	for _, f := range tree {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				out = append(out, fmt.Sprintf("%s: func init: what is needed is made where it is used", f.path))
			}
		}
	}
	return out
}

func nameLaw(tree []source) []string {
	var out []string
	for _, f := range tree {
		for word := range strings.SplitSeq(f.pkg(), "/") {
			if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "misc", "types", "shared", "base"}, word) {
				out = append(out, fmt.Sprintf("%s: %q says nothing of what the package holds", f.path, word))
			}
		}
	}
	return out
}

// kindLaw searches the packages of the driver for values of type kind.Of[…] and compares
// them with what the function table returns.
func kindLaw(tree []source) []string {
	const driver = "drivers/proxmox"
	var out []string
	type value struct{ name, path string }
	kinds, listed, files := map[string]value{}, map[string]bool{}, map[string]bool{}
	for _, f := range tree {
		if f.pkg() != driver && !strings.HasPrefix(f.pkg(), driver+"/") {
			continue
		}
		files[f.path] = true
		if f.test {
			continue
		}
		var here []string
		for _, d := range f.ast.Decls {
			here = append(here, kindsOf(d)...)
			if f.pkg() == driver {
				maps.Copy(listed, tableOf(d))
			}
		}
		for _, name := range here {
			qualified := name
			if f.pkg() != driver {
				qualified = path.Base(f.pkg()) + "." + name
			}
			kinds[qualified] = value{name, f.path}
		}
		if len(here) > 1 {
			out = append(out, fmt.Sprintf("%s: holds the kinds %s: a kind is one file", f.path, strings.Join(here, ", ")))
		}
	}
	for _, qualified := range slices.Sorted(maps.Keys(kinds)) {
		k := kinds[qualified]
		if !listed[qualified] {
			out = append(out, fmt.Sprintf("%s: %s is not in the table of kinds.go", k.path, k.name))
		}
		if test := strings.TrimSuffix(k.path, ".go") + "_test.go"; !files[test] {
			out = append(out, fmt.Sprintf("%s: %s has no test of its own: %s is missing", k.path, k.name, path.Base(test)))
		}
	}
	return out
}

// kindsOf gives the names of the variables that a declaration makes of type kind.Of[…].
func kindsOf(d ast.Decl) []string {
	g, ok := d.(*ast.GenDecl)
	if !ok {
		return nil
	}
	var out []string
	for _, s := range g.Specs {
		v, ok := s.(*ast.ValueSpec)
		if !ok {
			continue
		}
		for i, value := range v.Values {
			lit, ok := value.(*ast.CompositeLit)
			if !ok {
				continue
			}
			generic, ok := lit.Type.(*ast.IndexExpr)
			if !ok {
				continue
			}
			if of, ok := generic.X.(*ast.SelectorExpr); ok && of.Sel.Name == "Of" && i < len(v.Names) {
				if id, ok := of.X.(*ast.Ident); ok && id.Name == "kind" {
					out = append(out, v.Names[i].Name)
				}
			}
		}
	}
	return out
}

// tableOf gives the variables whose addresses the function table mentions.
func tableOf(d ast.Decl) map[string]bool {
	out := map[string]bool{}
	fn, ok := d.(*ast.FuncDecl)
	if !ok || fn.Name.Name != "table" || fn.Recv != nil {
		return out
	}
	ast.Inspect(fn, func(n ast.Node) bool {
		if u, ok := n.(*ast.UnaryExpr); ok {
			switch x := u.X.(type) {
			case *ast.Ident:
				out[x.Name] = true
			case *ast.SelectorExpr:
				if pkg, ok := x.X.(*ast.Ident); ok {
					out[pkg.Name+"."+x.Sel.Name] = true
				}
			}
		}
		return true
	})
	return out
}

// sleepLaw finds files that sleep in packages whose tests have no bubble of testing/synctest:
// there it is the clock of the wall. It does not find a test outside a bubble where others
// are in one, since what sleeps is often a helper.
func sleepLaw(tree []source) []string {
	simulated := map[string]bool{}
	for _, f := range tree {
		if f.test && slices.Contains(f.imports(), "testing/synctest") {
			simulated[f.pkg()] = true
		}
	}
	var found []string
	for _, f := range tree {
		if f.test && simulated[f.pkg()] {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok || s.Sel.Name != "Sleep" {
				return true
			}
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" {
				found = append(found, f.path+": time.Sleep waits by the wall clock: wait for a condition, or test in a bubble of testing/synctest")
			}
			return true
		})
	}
	return found
}

// simulator is the packages below sim/pve, bottom first: each may use those
// before it and the API table, and sim/pve itself puts all of them together. They know
// nothing else of ours, so that what the simulator does cannot lean on what the driver
// believes.
var simulator = []string{
	"sim/pve/perl", "sim/pve/content", "sim/pve/core", "sim/pve/guests", "sim/pve/host", "sim/pve/qemu",
	"sim/pve/lxc", "sim/pve/transfer", "sim/pve/cluster",
}

// simulatorLayers are their rows in the table.
func simulatorLayers() []layer {
	var rows []layer
	below := []string{"drivers/proxmox/pveapi"}
	for _, pkg := range simulator {
		rows = append(rows, layer{pkg: pkg, may: slices.Clip(below), tests: []string{"sim/pve"}})
		below = append(below, pkg)
	}
	return append(rows, layer{pkg: "sim/pve", may: append(below, "drivers/proxmox/observation"), tests: []string{"sim/pve/simtest"}})
}
