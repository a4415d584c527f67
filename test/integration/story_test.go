// Package integration_test tells the acceptance stories of the project, one a file:
// a site written as HCL files, a simulated Proxmox VE behind real TLS, and between
// them the program as it is, either as passes in process or as the built binary.
//
// A story says what people do and what must then hold. What holds is read from the
// simulated host, not from what the program says about itself; what the program says
// is compared with that. Every request that reaches the host is checked against the
// API table, and the guests that were there before a story began are as they were
// when it ends: see begin.
//
// Nothing here waits for time to pass, and no test depends on how fast it runs.
package integration_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// width is how many steps run at once in the passes of a story.
const width = 8

// story is one site, one host, and whoever works with them. It belongs to one test.
type story struct {
	root string // of the PVE node that agents run on; "": the machine itself
	t    *testing.T
	host *pve.Host
	api  string // where the host answers
	dir  string // of the site
	name string // of the site
	onto string // the host of the site that passes are about

	keyless bool // the site has no ownership key

	version string // of PVE, "" for the newest

	strangers []pve.Guest // there before the story began

	// fault is asked before every request, on the goroutines of the server; stories
	// change it while they go on.
	fault atomic.Pointer[func(*http.Request) (status int, apply bool)]
	// mu guards what the host's goroutines tell: requests are served side by side.
	mu         sync.Mutex
	sent       []request
	busy, most map[string]int // requests in service by the node they go to: now, and at most so far
}

// request is one that the host has seen.
type request struct {
	method, path string
	status       int
}

func (r request) String() string { return fmt.Sprintf("%s %s (%d)", r.method, r.path, r.status) }

func (r request) writes() bool { return r.method != http.MethodGet }

// begin sets the scene: a host with a few guests of other people, and a site in a
// folder that declares it and no node yet.
func begin(t *testing.T, c pve.Config) *story {
	t.Helper()
	t.Parallel() // stories mostly wait for tasks
	s := &story{t: t, dir: t.TempDir(), name: "home", onto: "father", version: c.Version, busy: map[string]int{}, most: map[string]int{}}
	if c.Guests == 0 {
		c.Guests = 4
	}
	c.Fault = func(r *http.Request) (int, bool) {
		s.arrived(r)
		if f := s.fault.Load(); f != nil {
			return (*f)(r)
		}
		return 0, false
	}
	c.Record = s.record
	c.Promise = func(deviation string) { s.t.Error("the simulator answers otherwise than the API promises:", deviation) }
	s.host = pve.New(c)
	s.api = s.listen()
	s.strangers = s.host.Snapshot().Guests
	t.Cleanup(s.end)

	s.write("site.hcl", frame)
	s.write("host.hcl", fmt.Sprintf("host \"father\" {\n  api         = %q\n  fingerprint = %q\n  node        = %q\n}\n", s.api, s.host.Fingerprint(), s.host.Node()))
	s.write("secrets.yaml", secretsWith(fmt.Sprintf("api_tokens:\n  father: %q\nssh_keys:\n  ops: %q\n", s.host.Token(), opsKey)))
	return s
}

// ownershipKey proves the guests of every site here.
const ownershipKey = "0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e"

// secretsWith are the secrets of a site with a key of ownership. What a test adds to them comes last.
func secretsWith(text string) string {
	return "auth:\n  ownership_key: " + strconv.Quote(ownershipKey) + "\n" + text
}

// ownershipKeys are those of a site here, for its driver.
func ownershipKeys(site string) func(owner string) [][]byte {
	s := &model.Secrets{Values: map[string]map[string]string{"auth": {model.OwnershipKey: ownershipKey}}}
	return func(owner string) [][]byte { return s.OwnershipKeys(site, owner) }
}

const opsKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHN0b3J5c3RvcnlzdG9yeXN0b3J5c3RvcnlzdG9yeXN0 ops@home"

// frame is what every site of a story has beside its host and its manifests.
const frame = `site "home" {
  domain  = "home.example"
  dns     = ["192.0.2.1"]
  gateway = "192.0.2.1"

  vmid_range "guests" {
    from = 10000
    to   = 10999
  }
}

preset "vm-small" {
  cores  = 2
  memory = 2048
  disk   = 10
}

image "debian-12" {
  url      = "https://images.example/debian-12.qcow2"
  checksum = "sha256:00000000000000000000000000000000000000000000000000000000000000aa"
}
`

// listen serves the host on a port of its own until the test ends.
func (s *story) listen() string {
	s.t.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(s.t, err)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.host.Serve(ctx, l) }()
	s.t.Cleanup(func() {
		stop()
		require.NoError(s.t, <-served)
	})
	return "https://" + l.Addr().String()
}

// arrived counts a request in.
func (s *story) arrived(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	node := nodeIn(r)
	s.busy[node]++
	s.most[node] = max(s.most[node], s.busy[node])
}

// nodeIn is the node that a request is for, "" for the one that is asked.
func nodeIn(r *http.Request) string {
	if parts := strings.Split(r.URL.Path, "/"); len(parts) > 4 && parts[3] == "nodes" {
		return parts[4]
	}
	return ""
}

// record keeps every request that the host has served, and holds it against the API.
// Of uploads the host hands on no body.
func (s *story) record(r *http.Request, _ []byte, status int) {
	upload := strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/")
	if err := proxmoxtest.ValidateRequestFor(s.version, r); err != nil && !upload {
		s.t.Errorf("a request that Proxmox VE would not take: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy[nodeIn(r)]--
	s.sent = append(s.sent, request{r.Method, strings.TrimPrefix(r.URL.Path, "/api2/json"), status})
}

// end holds what must be true of every story: nobody else's guest was touched, no
// volume is left of a guest that is gone, and no request went to a part of the API
// that the host does not have.
func (s *story) end() {
	snap := s.host.Snapshot()
	for _, was := range s.strangers {
		is := guestIn(snap, was.VMID)
		if is == nil {
			s.t.Errorf("the foreign guest %d is gone", was.VMID)
			continue
		}
		if is.Digest != was.Digest || is.Running != was.Running || !maps.Equal(is.Config, was.Config) {
			s.t.Errorf("the foreign guest %d was changed: %v, running %v; before %v, running %v", was.VMID, is.Config, is.Running, was.Config, was.Running)
		}
	}
	for _, volumes := range snap.Volumes {
		for _, v := range volumes {
			if v.VMID != 0 && v.Content != "backup" && guestIn(snap, v.VMID) == nil {
				s.t.Errorf("volume %s is left of guest %d, which is gone", v.ID, v.VMID)
			}
		}
	}
	if len(snap.Unimplemented) > 0 {
		s.t.Errorf("the simulator lacks %v", snap.Unimplemented)
	}
}

// write makes or replaces a file of the site.
func (s *story) write(name, text string) {
	s.t.Helper()
	name = filepath.Join(s.dir, name)
	require.NoError(s.t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(s.t, os.WriteFile(name, []byte(text), 0o600))
}

// edit replaces a text that must stand in a file of the site.
func (s *story) edit(name, old, text string) {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	require.NoError(s.t, err)
	require.Contains(s.t, string(data), old, name)
	s.write(name, strings.Replace(string(data), old, text, 1))
}

// remove takes a file out of the site.
func (s *story) remove(name string) {
	s.t.Helper()
	require.NoError(s.t, os.Remove(filepath.Join(s.dir, name)))
}

// deploy writes a manifest of the host, with the lines that stand in its block.
func (s *story) deploy(name, lines string) {
	s.t.Helper()
	s.write("manifests/"+name+".hcl", fmt.Sprintf("manifest %q {\n  pattern = \"flat\"\n  host    = host.father\n%s}\n", name, lines))
}

// vm is the text of a node, with further lines of its block.
func vm(name string, lines ...string) string {
	text := fmt.Sprintf("  node %q {\n    type   = \"vm\"\n    preset = preset.vm-small\n    image  = image.debian-12\n", name)
	for _, l := range lines {
		text += "    " + l + "\n"
	}
	return text + "  }\n"
}

// withoutKey takes the ownership key out of the site: what is copied with its identity then counts as much as the original.
func (s *story) withoutKey() {
	s.keyless = true
	s.edit("secrets.yaml", secretsWith(""), "")
}

// load reads the site as it stands in its folder.
func (s *story) load(context.Context) engine.Desired {
	data, err := os.ReadFile(filepath.Join(s.dir, "secrets.yaml"))
	require.NoError(s.t, err)
	secrets, found := hcl.ParseSecrets("secrets.yaml", data, nil)
	site, more := hcl.Load(os.DirFS(s.dir), hcl.Options{Kinds: proxmox.Kinds(), Secrets: secrets})
	return engine.Desired{Site: site, Findings: append(found, more...)}
}

// open reaches a host of the site the way the program does.
func (s *story) open(h *model.Host) (engine.Driver, error) {
	cfg := proxmox.Config{Host: h, Site: s.name, Owner: h.Name, Files: os.DirFS(s.dir), Keys: ownershipKeys(s.name)}
	if s.keyless {
		cfg.Keys = nil
	}
	d, err := proxmox.Open(cfg)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// pass makes one pass of a verb. The edit, if any, narrows it.
func (s *story) pass(verb string, edit func(*engine.Pass)) engine.Report {
	s.t.Helper()
	p := &engine.Pass{Verb: verb, Host: s.onto, Load: s.load, Open: s.open}
	p.Width = width
	if verb != "plan" {
		p.Verdict = func(context.Context, *plan.Plan) (bool, error) { return true, nil }
	}
	if edit != nil {
		edit(p)
	}
	return p.Run(s.t.Context())
}

// plan compares the site with the host; that must be possible, and change nothing.
func (s *story) plan() *plan.Plan {
	s.t.Helper()
	before := s.writes()
	r := s.pass("plan", nil)
	require.Equal(s.t, engine.Planned, r.Outcome, describe(r))
	require.Equal(s.t, before, s.writes(), "a plan has written")
	return r.Plan
}

// try makes the host what the site says, as far as that goes.
func (s *story) try() engine.Report {
	s.t.Helper()
	return s.pass("apply", nil)
}

// apply makes the host what the site says. All of it must come true.
func (s *story) apply() *plan.Plan {
	s.t.Helper()
	r := s.try()
	require.Equal(s.t, engine.Done, r.Outcome, describe(r))
	return r.Plan
}

// destroy removes a manifest from the host. All of it must come true.
func (s *story) destroy(manifest string) *plan.Plan {
	s.t.Helper()
	r := s.pass("destroy", func(p *engine.Pass) { p.Manifest, p.Destroy = manifest, true })
	require.Equal(s.t, engine.Done, r.Outcome, describe(r))
	return r.Plan
}

// inSync requires that site and host agree, all of it seen.
func (s *story) inSync() {
	s.t.Helper()
	p := s.plan()
	require.Empty(s.t, steps(p))
	require.Empty(s.t, p.Unknown)
	require.False(s.t, p.Findings.HasErrors(), "%v", p.Findings)
}

// byHand is what somebody does on the host without us.
func (s *story) byHand(edit func(*pve.Edit)) {
	s.t.Helper()
	s.host.Edit(edit)
}

// quietly requires that something sends nothing but reads.
func (s *story) quietly(do func()) {
	s.t.Helper()
	before := len(s.requests())
	do()
	for _, r := range s.requests()[before:] {
		require.False(s.t, r.writes(), "%s", r)
	}
}

// breaks lets requests fail from now on, by rules in the grammar of `sim --fault`.
func (s *story) breaks(rules ...string) {
	s.t.Helper()
	var faults []pve.Fault
	for _, text := range rules {
		f, err := pve.ParseFault(text)
		require.NoError(s.t, err)
		faults = append(faults, f)
	}
	f := pve.Faults(faults...)
	s.fault.Store(&f)
}

// heals ends all faults.
func (s *story) heals() { s.fault.Store(nil) }

// steps says in one line each what a plan does: "update vm.web-1: memory, tags".
func steps(p *plan.Plan) []string {
	out := []string{}
	for _, step := range p.Steps {
		text := fmt.Sprintf("%s %s", step.Action, step.Address)
		if step.Action == plan.Update {
			var paths []string
			for _, c := range step.Changes {
				paths = append(paths, c.Path)
			}
			slices.Sort(paths)
			text += ": " + strings.Join(paths, ", ")
		}
		out = append(out, text)
	}
	return out
}

// describe is what a report says, for the message of a failed test.
func describe(r engine.Report) string {
	text := fmt.Sprintf("%s: %v\n%v\n", r.Outcome, r.Err, r.Findings)
	if r.Plan != nil {
		text += strings.Join(steps(r.Plan), "\n") + "\n"
		for _, u := range r.Plan.Unknown {
			text += fmt.Sprintf("unknown: %s: %s\n", u.Scope, u.Why)
		}
	}
	return text
}
