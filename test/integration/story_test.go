// Package integration_test tells the acceptance stories of the project:
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
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/sim/pve/simtest"
	"github.com/homestak/homestak-gitops/test/released"
)

// width is how many steps run at once in the passes of a story.
const width = 8

// story is one site, one host, and the people and agents that work with them. It belongs to one test.
type story struct {
	root string // of the PVE node that agents run on; "": the machine itself
	t    *testing.T
	host *pve.Host
	api  string // where the host answers
	dir  string // of the site
	name string // of the site
	onto string // the host of the site that passes are about

	remembered []string // sweep hints for its passes; nil: they remember nothing
	keyless    bool     // the site has no ownership key

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
	s.api, _ = simtest.Listen(t, s.host)
	s.strangers = s.host.Snapshot().Guests
	t.Cleanup(s.end)

	s.write("site.hcl", released.Site)
	s.write("host.hcl", fmt.Sprintf("host \"father\" {\n  api         = %q\n  fingerprint = %q\n  node        = %q\n}\n", s.api, s.host.Fingerprint(), s.host.Node()))
	s.write("secrets.yaml", released.Auth+fmt.Sprintf("api_tokens:\n  father: %q\nssh_keys:\n  ops: %q\n", s.host.Token(), opsKey))
	return s
}

// ownershipKeys are those of a site here, for its driver.
func ownershipKeys(site string) func(owner string) [][]byte {
	s := &model.Secrets{Values: map[string]map[string]string{"auth": {model.OwnershipKey: released.OwnershipKey}}}
	return func(owner string) [][]byte { return s.OwnershipKeys(site, owner) }
}

const opsKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHN0b3J5c3RvcnlzdG9yeXN0b3J5c3RvcnlzdG9yeXN0 ops@home"

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

// end holds what must be true of every story: no unmanaged guest was touched, no
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

// edit replaces a text that must be in a file of the site.
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

// deploy writes a manifest of the host, with the lines of its block.
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
	s.edit("secrets.yaml", released.Auth, "")
}

// load reads the site from its folder.
func (s *story) load(context.Context) engine.Desired { return s.readSite(proxmox.Kinds()) }

// readSite reads the site from its folder, with these kinds.
func (s *story) readSite(kinds model.Kinds) engine.Desired {
	data, err := os.ReadFile(filepath.Join(s.dir, "secrets.yaml"))
	require.NoError(s.t, err)
	secrets, found := hcl.ParseSecrets("secrets.yaml", data, nil)
	site, more := hcl.Load(os.DirFS(s.dir), hcl.Options{Kinds: kinds, Secrets: secrets})
	return engine.Desired{Site: site, Findings: append(found, more...)}
}

// enter lets a pass enter guests by push, with a driver of its own, as a new process does.
func (s *story) enter(pass *engine.Pass, cfg push.Config) {
	pass.Load = func(context.Context) engine.Desired { return s.readSite(append(proxmox.Kinds(), cfg.Kinds()...)) }
	pass.Open = s.over(cfg)
}

// open reaches a host of the site the way the program does.
func (s *story) open(_ engine.Desired, h *model.Host) (engine.Driver, error) {
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

// over opens the host with what specs say inside its guests.
func (s *story) over(cfg push.Config) func(engine.Desired, *model.Host) (engine.Driver, error) {
	return func(d engine.Desired, h *model.Host) (engine.Driver, error) {
		host, err := s.open(d, h)
		if err != nil {
			return nil, err
		}
		return cfg.Over(host, d.Site, h), nil
	}
}

// pass makes one pass of a verb. The edit, if any, narrows it.
func (s *story) pass(verb string, edit func(*engine.Pass)) engine.Report {
	s.t.Helper()
	return s.passIn(s.t.Context(), verb, edit)
}

// passIn is pass of a process that ends with a context.
func (s *story) passIn(ctx context.Context, verb string, edit func(*engine.Pass)) engine.Report {
	p := &engine.Pass{Verb: verb, Host: s.onto, Load: s.load, Open: s.open}
	p.Width, p.SweepHints = width, s.remembered
	if verb != "plan" {
		p.Verdict = func(context.Context, *plan.Plan) (bool, error) { return true, nil }
	}
	if edit != nil {
		edit(p)
	}
	return p.Run(ctx)
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

// byHand edits the host as a person would.
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

// built is where the binary under test stands. Unless there is one it is built by the
// first test that runs it, and removed by TestMain.
var built struct {
	once sync.Once
	dir  string // removed at the end
	path string
	err  error
}

func TestMain(m *testing.M) {
	flag.Parse()
	if !flagGiven("test.parallel") {
		_ = flag.Set("test.parallel", "12") // they wait more than they work
	}
	m.Run()
	_ = os.RemoveAll(built.dir)
}

func flagGiven(name string) bool {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}

// program builds the binary as it is released, and gives its path.
func program(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "homestak-"); built.err == nil {
			built.path, built.err = released.Path(t.Context(), built.dir)
		}
	})
	require.NoError(t, built.err)
	return built.path
}

// ran is a run of the binary.
type ran struct {
	code     int
	out, err string
}

// run starts the binary in a folder, without a terminal, and waits for its end.
func run(t *testing.T, dir string, args ...string) ran {
	t.Helper()
	var out, text bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program(t), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &text
	cmd.Env = append(os.Environ(), "GOGC=100", "HOMESTAK_LISTEN=none", "HOMESTAK_DATA_DIR="+filepath.Join(filepath.Dir(dir), "data"))
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return ran{cmd.ProcessState.ExitCode(), out.String(), text.String()}
}

// says runs a verb in the folder of the site, and requires its exit code.
func (s *story) says(code int, args ...string) ran {
	s.t.Helper()
	r := run(s.t, s.dir, args...)
	require.Equal(s.t, code, r.code, "homestak-gitops %v\n%s\n%s", args, r.out, r.err)
	require.NotContains(s.t, r.out+r.err, "goroutine ", "it panicked")
	return r
}

// document reads what a run printed as one JSON document, and nothing else.
func document[T any](t *testing.T, r ran) T {
	t.Helper()
	var doc T
	d := json.NewDecoder(bytes.NewReader([]byte(r.out)))
	require.NoError(t, d.Decode(&doc), "%s\n%s", r.out, r.err)
	require.False(t, d.More(), "more than one document:\n%s", r.out)
	return doc
}

// simulator is the verb sim, running as a process.
type simulator struct {
	API, Node, Token, Fingerprint string
}

// simulate starts the verb sim, and stops it as a user does when the test is over.
func simulate(t *testing.T, args ...string) simulator {
	t.Helper()
	cmd := exec.Command(program(t), append([]string{"sim", "--listen", "127.0.0.1:0", "--json"}, args...)...)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var text bytes.Buffer
	cmd.Stderr = &text
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		_ = cmd.Process.Kill()
		require.NoError(t, cmd.Wait(), "sim said nothing: %s", &text)
	}
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		for lines.Scan() {
			t.Errorf("sim printed more than its one line: %s", lines.Text())
		}
		require.NoError(t, cmd.Wait(), "%s", &text)
	})
	var s simulator
	require.NoError(t, json.Unmarshal(lines.Bytes(), &s), lines.Text())
	require.NotEmpty(t, s.API)
	require.NotEmpty(t, s.Node)
	require.NotEmpty(t, s.Token)
	require.Regexp(t, `^sha256:[0-9a-f]{64}$`, s.Fingerprint)
	return s
}

// The questions that several stories ask.

// requireFinding requires a finding about an address ("" for none) that has all
// these words in it.
func requireFinding(t *testing.T, l diag.List, address string, words ...string) {
	t.Helper()
	for _, f := range l {
		text := f.Summary + "\n" + f.Detail
		if f.Address == address && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) }) {
			return
		}
	}
	require.Fail(t, "no such finding", "about %q with %q in:\n%v", address, words, l)
}

// why is the reason for which a plan holds a guest for foreign.
func why(p *plan.Plan, vmid int) string {
	for _, f := range p.Unmanaged {
		if f.VMID == vmid {
			return f.Why
		}
	}
	return ""
}

// notes is what people wrote into a description: all but the ownership tag.
func notes(g pve.Guest) string {
	text := strings.TrimRight(g.Config["description"], "\n") // PVE ends those of containers with one
	return strings.TrimRight(text[:strings.LastIndexByte(text, '\n')+1], "\n")
}

// vmidsOf are those of all guests of a name, in order.
func (s *story) vmidsOf(name string) []int {
	var ids []int
	for _, g := range s.host.Snapshot().Guests {
		if g.Name() == name {
			ids = append(ids, g.VMID)
		}
	}
	return ids
}

// vmidOf is that of the only guest of a name.
func (s *story) vmidOf(name string) int {
	s.t.Helper()
	ids := s.vmidsOf(name)
	require.Len(s.t, ids, 1, name)
	return ids[0]
}

// everyName lists the names of all guests.
func (s *story) everyName() []string {
	var names []string
	for _, g := range s.host.Snapshot().Guests {
		names = append(names, g.Name())
	}
	return names
}

// unchanged requires that these guests are as they were.
func (s *story) unchanged(before []pve.Guest) {
	s.t.Helper()
	snap := s.host.Snapshot()
	for _, was := range before {
		is := guestIn(snap, was.VMID)
		require.NotNil(s.t, is, "guest %d is gone", was.VMID)
		require.Equal(s.t, was, *is)
	}
}

// nodeOf is what a report says about a node.
func nodeOf(r engine.Report, name string) engine.Node {
	for _, n := range r.Nodes {
		if n.Name == name {
			return n
		}
	}
	return engine.Node{}
}

// status is what a report says became of a node.
func status(r engine.Report, name string) engine.Status { return nodeOf(r, name).Status }

// withoutEntry takes the entries of a list out of an answer that hold a text.
func withoutEntry(t *testing.T, answer, text string) string {
	t.Helper()
	var doc struct {
		Data []json.RawMessage `json:"data"`
	}
	require.NoError(t, json.Unmarshal([]byte(answer), &doc))
	before := len(doc.Data)
	doc.Data = slices.DeleteFunc(doc.Data, func(e json.RawMessage) bool { return strings.Contains(string(e), text) })
	require.Less(t, len(doc.Data), before, "no entry has %s", text)
	short, err := json.Marshal(doc)
	require.NoError(t, err)
	return string(short)
}

// requests are all that the host has seen so far.
func (s *story) requests() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent)
}

// forgetPeaks begins to count anew how many requests were in service at once.
func (s *story) forgetPeaks() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.most)
}

// peaks are the most requests that were in service at once, by the node they were for.
func (s *story) peaks() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.most)
}

// writes counts those that are no reads.
func (s *story) writes() int {
	n := 0
	for _, r := range s.requests() {
		if r.writes() {
			n++
		}
	}
	return n
}

// managed are the guests that were not there when the story began, by name. Two of one
// name are a failure of any story but those that make them by hand.
func (s *story) managed() map[string]pve.Guest {
	s.t.Helper()
	out := map[string]pve.Guest{}
	for _, g := range s.host.Snapshot().Guests {
		if slices.ContainsFunc(s.strangers, func(f pve.Guest) bool { return f.VMID == g.VMID }) {
			continue
		}
		require.NotContains(s.t, out, g.Name(), "two guests of one name")
		out[g.Name()] = g
	}
	return out
}

// names are those of our guests, sorted.
func (s *story) names() []string {
	s.t.Helper()
	return slices.Sorted(maps.Keys(s.managed()))
}

// guest is one of ours.
func (s *story) guest(name string) pve.Guest {
	s.t.Helper()
	g, ok := s.managed()[name]
	require.True(s.t, ok, "no guest %s on the host", name)
	return g
}

func guestIn(snap pve.Snapshot, vmid int) *pve.Guest {
	i := slices.IndexFunc(snap.Guests, func(g pve.Guest) bool { return g.VMID == vmid })
	if i < 0 {
		return nil
	}
	return &snap.Guests[i]
}

// followed is a story whose site reaches its host by pushes alone: real git sends
// them to a repository, and the built binary, running as an agent, follows that.
type followed struct {
	*story
	repo   *sourcetest.Repo
	config string   // agent.hcl
	data   string   // the agent's folder
	env    []string // of git
	agent  *process // the one that runs now
	conn   *http.Client
}

// transport is how agent and author reach the repository.
type transport struct {
	name  string
	reach func(*followed) (url string, auth []string)
}

func byFile() transport {
	return transport{"file", func(f *followed) (string, []string) { return f.repo.URL(), nil }}
}

// transports are all of them: a folder, git's own http-backend behind TLS and a token,
// and a real sshd.
func transports() []transport {
	return []transport{
		byFile(),
		{"https", func(f *followed) (string, []string) {
			s := f.repo.HTTPS()
			s.SetLogin("git", "t0ken-of-the-agent")
			token := filepath.Join(f.t.TempDir(), "token")
			require.NoError(f.t, os.WriteFile(token, []byte("t0ken-of-the-agent\n"), 0o600))
			f.env = append(f.env, "GIT_SSL_CAINFO="+s.CAFile, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=credential.helper",
				"GIT_CONFIG_VALUE_0=!f() { echo username=git; echo password=t0ken-of-the-agent; }; f")
			return s.URL, []string{"token_file = " + quote(token), "ca_file = " + quote(s.CAFile)}
		}},
		{"ssh", func(f *followed) (string, []string) {
			s := f.repo.SSH()
			f.env = append(f.env, fmt.Sprintf("GIT_SSH_COMMAND=ssh -F none -o IdentitiesOnly=yes -i %s -o UserKnownHostsFile=%s", s.KeyFile, s.KnownHostsFile))
			return s.URL, []string{"key_file = " + quote(s.KeyFile), "known_hosts_file = " + quote(s.KnownHostsFile)}
		}},
	}
}

func quote(s string) string { return fmt.Sprintf("%q", s) }

// follow sets the scene: an empty repository, a checkout of it with the frame of a
// site, and an agent that does not run yet.
func follow(t *testing.T, c pve.Config, by transport) *followed {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed, and these pushes are real ones:", err)
	}
	f := &followed{story: begin(t, c), repo: sourcetest.New(t)}
	f.data = filepath.Join(filepath.Dir(f.dir), "data") // as starts and says have it
	url, auth := by.reach(f)
	f.config = filepath.Join(t.TempDir(), "agent.hcl")
	secrets := filepath.Join(t.TempDir(), "secrets.yaml")
	require.NoError(t, os.Rename(filepath.Join(f.dir, "secrets.yaml"), secrets))
	text := fmt.Sprintf("identity = %q\ndata_dir = %q\nsecrets_file = %q\ndrift_every = \"1s\"\nrepository {\n  url = %q\n  poll = \"1s\"\n  auth {\n    %s\n  }\n}\n",
		f.onto, f.data, secrets, url, strings.Join(auth, "\n    "))
	require.NoError(t, os.WriteFile(f.config, []byte(text), 0o600))
	f.conn = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", f.socket())
	}}}
	t.Cleanup(f.conn.CloseIdleConnections)
	f.git("init", "-q", "-b", "main")
	f.git("remote", "add", "origin", url)
	return f
}

func (f *followed) socket() string { return filepath.Join(f.data, "agent.sock") }

// git runs git in the checkout, as its author.
func (f *followed) git(args ...string) string {
	f.t.Helper()
	cmd := sourcetest.Git(f.t.Context(), f.dir, args...)
	cmd.Env = append(cmd.Env, f.env...)
	out, err := cmd.CombinedOutput()
	require.NoError(f.t, err, "git %v: %s", args, out)
	return strings.TrimSpace(string(out))
}

// push commits the checkout as it is, and pushes it. Nothing else is typed.
func (f *followed) push(message string) (commit string) {
	f.t.Helper()
	f.git("add", "--all")
	f.git("commit", "-q", "--allow-empty", "-m", message)
	f.git("push", "-q", "--force", "origin", "main")
	return f.git("rev-parse", "HEAD")
}

// begins runs the agent.
func (f *followed) begins() {
	f.t.Helper()
	f.agent = f.starts("agent", "--config", f.config)
	f.t.Cleanup(func() {
		if !f.t.Failed() {
			f.ends()
		}
	})
}

// ends stops the agent as systemd does; what runs is finished.
func (f *followed) ends() {
	if f.agent == nil {
		return
	}
	_ = f.agent.Process.Signal(syscall.SIGTERM)
	require.NoError(f.t, f.agent.Wait(), f.agent.said())
	require.NotContains(f.t, f.agent.said(), "goroutine ", "it panicked")
	f.agent = nil
}

// status asks the agent how it is; false while it does not answer.
func (f *followed) status() (st agent.Status, answered bool) {
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, "http://agent/status", http.NoBody)
	require.NoError(f.t, err)
	resp, err := f.conn.Do(req)
	if err != nil {
		return st, false
	}
	defer func() { _ = resp.Body.Close() }()
	return st, resp.StatusCode == http.StatusOK && json.NewDecoder(resp.Body).Decode(&st) == nil
}

// patience bounds waits for processes and for trees of agents, on a machine that is busy.
const patience = 10 * time.Minute

// until waits until the agent's status is as wanted. A process of its own does the
// work, so there is nothing to wait on but the clock.
func (f *followed) until(what string, wanted func(agent.Status) bool) agent.Status {
	f.t.Helper()
	limit, tick := time.NewTimer(patience), time.NewTicker(20*time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for {
		st, ok := f.status()
		if ok && wanted(st) {
			return st
		}
		select {
		case <-tick.C:
		case <-f.agent.ended:
			require.Fail(f.t, "the agent ended", "%v while waiting until %s\n%s", f.agent.err, what, f.agent.said())
		case <-limit.C:
			text, _ := json.MarshalIndent(st, "", "  ")
			require.Fail(f.t, "waited in vain", "until %s\n%s\n%s", what, text, f.agent.said())
		}
	}
}

// converged waits until the host came to be as a commit says, and the agent rests.
func (f *followed) converged(commit string) agent.Status {
	f.t.Helper()
	return f.until(commit[:8]+" is converged", func(s agent.Status) bool {
		return s.State == agent.Idle && s.Converged != nil && s.Converged.ID == commit
	})
}

// refused waits until a commit is refused.
func (f *followed) refused(commit string) agent.Status {
	f.t.Helper()
	return f.until(commit[:8]+" is refused", func(s agent.Status) bool {
		return s.State == agent.Idle && s.Refused != nil && s.Refused.Commit == commit
	})
}

// nextPass waits for a whole pass that begins after the call.
func (f *followed) nextPass() agent.Status {
	f.t.Helper()
	before, ok := f.status()
	require.True(f.t, ok)
	return f.until("it has looked again", func(s agent.Status) bool {
		// The first pass that ends after now may have begun before; the second did not.
		return s.State == agent.Idle && s.Last != nil && s.Last.Ended.Sub(before.At).Seconds() > s.Last.Seconds
	})
}

// nextFetch waits until the agent has asked the repository after now.
func (f *followed) nextFetch() {
	f.t.Helper()
	before, ok := f.status()
	require.True(f.t, ok)
	f.until("it has asked the repository again", func(s agent.Status) bool {
		return s.State == agent.Idle && s.Repository.Checked != nil && s.Repository.Checked.Sub(before.At) > time.Second
	})
}

// refusalText are the findings of a refusal, as text.
func refusalText(s agent.Status) string {
	var b strings.Builder
	for _, x := range s.Refused.Findings {
		fmt.Fprintf(&b, "%s: %s: %s %s\n", x.At, x.Source, x.Summary, x.Detail)
	}
	return b.String()
}
