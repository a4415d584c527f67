package bench_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing/fstest"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/source"
	sitehcl "github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/test/bench/fleet"
	"github.com/homestak/homestak-gitops/test/nspawn"
	"github.com/homestak/homestak-gitops/test/released"
)

// hosting is what a simulated host is like.
type hosting struct {
	Fleet    fleet.Fleet // that it holds already, all in sync
	Latency  time.Duration
	TaskTime time.Duration
	Clones   time.Duration // how long a clone takes, if not as long as other tasks
	Template bool          // it has a VM template, of VMID 9000
	Writes   bool          // it notes when it is written to
	ByHand   bool          // its guests, but the first, were made by hand
	Ends     bool          // it notes how soon the ends of its tasks are seen
	Files    string        // folder for the files by which its node shows that guests changed
	Network  string        // network namespace that it listens in; that of this process unless set
}

type access = fleet.Access

// traffic is what a host has counted since it began.
type traffic struct {
	Requests, Connections, PeakRequests, PeakTasks, Guests int

	// FirstWrite is when the first request came that would change something, since
	// the last time that the traffic was asked for; zero if none did.
	FirstWrite time.Time

	Calls map[string]int // requests by "METHOD /path/{template}"

	// Lags are how long the end of each task went unseen that began since the last
	// time that the traffic was asked for.
	Lags []time.Duration
}

// server is a simulated host in a process of its own, so that what it costs is not
// counted as ours.
type server struct {
	access access

	cmd     *exec.Cmd
	asks    io.WriteCloser
	decoder *json.Decoder
}

// startServer starts a host and waits until it answers.
func startServer(ctx context.Context, h hosting) (*server, error) {
	setup, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("describe a host: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	s := &server{cmd: exec.CommandContext(ctx, self)}
	if h.Network != "" {
		s.cmd = exec.CommandContext(ctx, "nsenter", "--net="+h.Network, "--", self)
	}
	s.cmd.Env = append(os.Environ(), roleVar+"=host", setupVar+"="+string(setup))
	s.cmd.Stderr = os.Stderr
	if s.asks, err = s.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start a host: %w", err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start a host: %w", err)
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a host: %w", err)
	}
	s.decoder = json.NewDecoder(out)
	if err := s.decoder.Decode(&s.access); err != nil {
		return nil, errors.Join(fmt.Errorf("start a host: it did not say where it is: %w", err), s.stop())
	}
	return s, nil
}

// stop ends the host and waits for its end.
func (s *server) stop() error {
	return errors.Join(s.asks.Close(), s.cmd.Wait())
}

// traffic asks the host what it has counted.
func (s *server) traffic() (traffic, error) {
	var t traffic
	_, err := io.WriteString(s.asks, "traffic\n")
	if err == nil {
		err = s.decoder.Decode(&t)
	}
	if err != nil {
		return t, fmt.Errorf("ask the host for its traffic: %w", err)
	}
	return t, nil
}

// minus is the traffic since an earlier count; peaks are those of all time.
func (t traffic) minus(earlier traffic) traffic {
	t.Requests -= earlier.Requests
	t.Connections -= earlier.Connections
	t.Calls = maps.Clone(t.Calls)
	for call, n := range earlier.Calls {
		t.Calls[call] -= n
	}
	return t
}

// serve is the other side of it: it runs until its input ends, and answers every
// line with the traffic so far.
func serve(ctx context.Context, setup string, in io.Reader, out io.Writer) error {
	var h hosting
	if err := json.Unmarshal([]byte(setup), &h); err != nil {
		return fmt.Errorf("read the setup of the host: %w", err)
	}
	var first firstWrite
	cfg := pve.Config{Latency: h.Latency, TaskTime: h.TaskTime, Files: h.Files}
	if h.Clones > 0 {
		cfg.TaskTimes = map[string]time.Duration{"qmclone": h.Clones}
	}
	looks := lookout{latency: h.Latency}
	switch {
	case h.Writes:
		cfg.Fault = first.see
	case h.Ends:
		cfg.Fault = looks.see
	}
	if len(h.Fleet.Nodes) > 0 {
		cfg.Node, cfg.Nodes = h.Fleet.Nodes[0], h.Fleet.Nodes[1:]
	}
	host := pve.New(cfg)
	if h.Template {
		if err := fleet.Template(ctx, host, host.Token(), host.Node()); err != nil {
			return err
		}
	}
	if err := populate(ctx, host, h.Fleet, h.ByHand); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- host.Serve(ctx, listener) }()
	encoder := json.NewEncoder(out)
	err = encoder.Encode(access{API: "https://" + listener.Addr().String(), Token: host.Token(), Fingerprint: host.Fingerprint()})
	for lines := bufio.NewScanner(in); err == nil && lines.Scan(); {
		t := trafficOf(host.Snapshot())
		t.FirstWrite = first.take()
		if h.Ends {
			t.Lags = looks.take(host.Snapshot().Tasks)
		}
		err = encoder.Encode(t)
	}
	stop()
	return errors.Join(err, <-served)
}

// firstWrite remembers when the first write came. Every request has a goroutine of
// its own, hence the lock.
type firstWrite struct {
	mu sync.Mutex
	at time.Time
}

// see is asked about every request when it arrives; it refuses none.
func (f *firstWrite) see(r *http.Request) (status int, apply bool) {
	if r.Method != http.MethodGet {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.at.IsZero() {
			f.at = time.Now()
		}
	}
	return 0, false
}

// take returns the time, and starts again at zero.
func (f *firstWrite) take() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := f.at
	f.at = time.Time{}
	return at
}

// lookout notes when tasks were asked about. The content of an answer is fixed when the request arrives; the client has it when
// the request ends.
type lookout struct {
	latency time.Duration

	mu    sync.Mutex
	since time.Time
	looks []look
}

// look is a request about tasks: about one of them, or about all of a node.
type look struct {
	at   time.Time
	path string
}

func (l *lookout) see(r *http.Request) (status int, apply bool) {
	if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/tasks") {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.looks = append(l.looks, look{time.Now(), r.URL.Path})
	}
	return 0, false
}

// take returns how long the end of each task went unseen, and starts again at zero. An end that was not asked for by now is left out.
func (l *lookout) take(tasks []pve.Task) []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lags []time.Duration
	for _, task := range tasks {
		if task.End.IsZero() || task.Start.Before(l.since) {
			continue
		}
		i := slices.IndexFunc(l.looks, func(seen look) bool {
			return !seen.at.Before(task.End) &&
				(strings.HasSuffix(seen.path, "/nodes/"+task.Node+"/tasks") || strings.Contains(seen.path, task.UPID))
		})
		if i >= 0 {
			lags = append(lags, l.looks[i].at.Sub(task.End)+l.latency)
		}
	}
	l.since, l.looks = time.Now(), nil
	return lags
}

func trafficOf(s pve.Snapshot) traffic {
	t := traffic{Connections: s.Connections, PeakRequests: s.PeakRequests, PeakTasks: s.PeakTasks, Guests: len(s.Guests), Calls: s.Requests}
	for _, n := range s.Requests {
		t.Requests += n
	}
	return t
}

// populate lets a host hold a fleet: guest 1 is converged by a pass, the others are
// put there as its twins, each with a signature of its own; without any, if byHand.
func populate(ctx context.Context, host *pve.Host, f fleet.Fleet, byHand bool) error {
	if f.Guests == 0 {
		return nil
	}
	tree := fstest.MapFS{}
	first := f
	first.Guests = 1
	for name, text := range first.Site(access{API: "https://pve.example:8006", Token: host.Token()}) {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	secrets, _ := sitehcl.ParseSecrets("secrets.yaml", tree["secrets.yaml"].Data, nil)
	id := owner.Identity{Site: "fleet", Owner: "father", Host: "father", Keys: func(name string) [][]byte { return secrets.OwnershipKeys("fleet", name) }}
	pass := engine.Pass{
		Verb: "apply", Host: "father",
		Load: func(context.Context) engine.Desired {
			site, found := sitehcl.Load(tree, sitehcl.Options{Kinds: proxmox.Kinds(), Secrets: secrets})
			return engine.Desired{Site: site, Findings: found}
		},
		Open: func(_ engine.Desired, h *model.Host) (engine.Driver, error) {
			return proxmox.Open(proxmox.Config{Host: h, Site: id.Site, Owner: h.Name, Transport: host, Keys: id.Keys})
		},
		Verdict: func(context.Context, *plan.Plan) (bool, error) { return true, nil },
	}
	if r := pass.Run(ctx); r.Outcome != engine.Done {
		return fmt.Errorf("create the first guest of the fleet: %s: %w", r.Outcome, r.Err)
	}
	one := host.Snapshot().Guests[0]
	for n := 2; n <= f.Guests; n++ {
		twin, err := f.Twin(one.Config, n)
		if err != nil {
			return err
		}
		notes, tag, _ := owner.ParseDescription(twin["description"])
		twin["description"] = id.Describe(notes, tag, api.GuestRef{Node: f.Node(n), VMID: f.VMID(n)}, api.GuestConfig{Now: twin, Next: twin})
		if byHand {
			twin["description"], twin["tags"] = notes, ""
		}
		host.Edit(func(e *pve.Edit) {
			e.Add(pve.Guest{VMID: f.VMID(n), Node: f.Node(n), Config: twin, Running: true})
		})
	}
	return nil
}

// validate is P13: a site of 1,000 nodes is read and held against its policies, by
// the program and, for the second time, by its parts in this process. The floor is a
// program that parses the files and makes nothing of them.
func (m *meter) validate() {
	for _, files := range []int{1, 1000} {
		f := fleet.Fleet{Guests: 1000, Nodes: names(4), Files: files}
		text := f.Site(access{API: "https://pve.example:8006", Token: "root@pam!t=s", Fingerprint: "sha256:" + strings.Repeat("0", 64)})
		dir := m.site(text)
		var ours, bare []run
		for range 5 {
			ours = append(ours, m.runProgram(true, "validate", "--site", dir))
			bare = append(bare, m.role("parse", dir, true))
		}
		what, peer := "validate 1,000 nodes in 1 file", "5.2 s"
		if files > 1 {
			what, peer = "the same in 1,000 files", "–"
		}
		m.add(row{"P13", what, "0.35 s", sec(wall(ours)), sec(wall(bare)), seconds, met(wall(ours) <= 350*time.Millisecond), peer})
		m.notef("P13, %d file(s): CPU %s, peak memory %s; the floor, which only parses: CPU %s, %s.", files,
			seconds(sec(cpu(ours))), mebibytes(float64(rss(ours))), seconds(sec(cpu(bare))), mebibytes(float64(rss(bare))))
		m.repeatedCommit(f, files)
	}
}

// repeatedCommit is the second half of P13: what an agent does with a commit that it has read
// before, by the same parts in the same order. These are the local copy of the
// repository, the loader, and the policies.
func (m *meter) repeatedCommit(f fleet.Fleet, files int) {
	const repeat = 21
	if !m.hasGit("P13, second cycle") {
		return
	}
	p := m.publish(f, access{API: "https://pve.example:8006", Token: "root@pam!t=s", Fingerprint: "sha256:" + strings.Repeat("0", 64)})
	local, err := source.OpenRepository(source.Options{Dir: filepath.Join(m.b.TempDir(), "clone"), URL: p.repo.URL()})
	require.NoError(m.b, err)
	r := &rereader{m: m, local: local, kinds: proxmox.Kinds()}
	commit := func() model.Commit {
		c, err := local.Head(m.ctx)
		require.NoError(m.b, err)
		return c
	}
	c := commit()
	first := took(func() { r.read(c) })
	var same, changed []time.Duration
	for range repeat {
		same = append(same, took(func() { r.read(c) }))
	}
	for i := range 5 {
		p.retag(f.Name(1+i*37), fmt.Sprint("again", i))
		p.push("Another tag")
		c := commit()
		changed = append(changed, took(func() { r.read(c) }))
	}
	m.add(row{"", fmt.Sprintf("second cycle, nothing changed, %d file(s)", files), "5 ms", sec(median(same)), 0, seconds, met(median(same) <= 5*time.Millisecond), "–"})
	m.notef("P13, %d file(s): in one process the first read of the commit takes %s, the second %s, and %s after a commit that changes one node.",
		files, seconds(sec(first)), seconds(sec(median(same))), seconds(sec(median(changed))))
}

// rereader reads commits as an agent does, and keeps what it keeps.
type rereader struct {
	m     *meter
	local *source.Repository
	kinds model.Kinds

	done  string // the commit that was read last: a tree is known by its name
	files sitehcl.Loader
	set   *policy.Set
	asked *model.Site // that the policies were asked about last
}

func (r *rereader) read(c model.Commit) {
	require := require.New(r.m.b)
	tree, err := r.local.Files(c.ID)
	require.NoError(err)
	if c.ID == r.done {
		return
	}
	r.done = c.ID
	require.Empty(r.local.Notes(c.ID))
	before := r.set
	compiled := make(chan diag.List, 1)
	go func() {
		var found diag.List
		r.set, found = policy.Compile(r.m.ctx, policy.Options{Site: tree, Kinds: r.kinds, Last: before})
		compiled <- found
	}()
	site, found := r.files.Load(tree, sitehcl.Options{Kinds: r.kinds})
	require.Empty(<-compiled)
	require.Empty(found)
	if site != r.asked || r.set != before || !r.set.Constant() {
		verdict, _ := r.set.Site(r.m.ctx, site, policy.Request{Now: time.Now(), Unattended: true})
		require.Empty(verdict)
	}
	r.asked = site
}

// parse is the floor of reading a site.
func parse(dir string) error {
	return filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(name) != ".hcl" {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if _, problems := hclsyntax.ParseConfig(text, name, hcl.InitialPos); problems.HasErrors() {
			return errors.New(problems.Error())
		}
		return nil
	})
}

// rules is P14. The benchmark of package policy measures it, beside a prepared query
// that OPA alone answers: the rules are asked about the same 1,000 nodes and a plan.
func (m *meter) rules() {
	r, err := measure(m.ctx, command{name: "go", args: []string{
		"test", "github.com/homestak/homestak-gitops/policy", "-run", "^$", "-bench", "^BenchmarkRules$/^(site|plan)$/^1000$", "-benchtime", "20x", "-count", "5",
	}})
	require.NoError(m.b, err)
	require.Zero(m.b, r.code, "%s\n%s", r.stdout, r.stderr)
	m.notef("P14: both begin with the site and the plan as values; the bare query is given all of them as a document, ours no more than rules may ask for.")
	figures := map[string][]float64{}
	for _, hit := range regexp.MustCompile(`BenchmarkRules/(\w+/1000/\w+)\S*\s+\d+\s+([\d.]+) ns/op`).FindAllStringSubmatch(r.stdout, -1) {
		ns, err := strconv.ParseFloat(hit[2], 64)
		require.NoError(m.b, err)
		figures[hit[1]] = append(figures[hit[1]], ns/1e9)
	}
	for _, about := range []string{"site", "plan"} {
		ours, bare := figures[about+"/1000/ours"], figures[about+"/1000/bare"]
		require.Len(m.b, ours, 5, r.stdout)
		require.Len(m.b, bare, 5, r.stdout)
		m.add(row{"P14", fmt.Sprintf("policies over the %s, 1,000 nodes", about), "1.5 × bare query", median(ours), median(bare), seconds, met(median(ours) <= 1.5*median(bare)), "–"})
	}
}

// insideGuests is how many guests P17 enters. All are addresses of one real Debian: on a machine
// with few cores, twenty of them would do the same work on the same cores.
const insideGuests = 20

// insideRuns is how often P18 measures each side.
const insideRuns = 3

// insidePackages is what the spec base of the example installs, with the posture dev that it names.
var insidePackages = []string{"curl", "htop", "net-tools", "strace", "tcpdump"}

// debian is what guests have when they are created: as images for the cloud, with what Ansible needs
// on the machines that it manages.
var debian = nspawn.Rootfs{
	Packages: nspawn.Systemd + ",openssh-server,sudo,iproute2,libpam-systemd,ifupdown,python3,python3-apt,tzdata,ca-certificates",
	Ready:    "HOMESTAK_BENCH_ROOTFS",
}

// inside is a real Debian with many addresses, and a simulated host that has its guests there.
type inside struct {
	*meter
	debian *nspawn.Machine
	host   *server
	dir    string // of the site
	home   string // of the user who runs ours and Ansible: .ssh has the key
	plays  string // folder of the playbook
}

// enter boots a guest for the programs under measurement. archive is a folder that apt installs from.
func (m *meter) enter(archive, key string, guests int) *inside {
	g := &inside{meter: m, home: m.b.TempDir(), dir: m.b.TempDir(), plays: m.b.TempDir()}
	g.debian = debian.Boot(m.b, nspawn.Bind{From: archive, To: "/srv/apt"})
	require.NoError(m.b, os.Mkdir(filepath.Join(g.home, ".ssh"), 0o700))
	for name, from := range map[string]string{"id_ed25519": key, "id_ed25519.pub": key + ".pub"} {
		text, err := os.ReadFile(from)
		require.NoError(m.b, err)
		require.NoError(m.b, os.WriteFile(filepath.Join(g.home, ".ssh", name), text, 0o600))
	}
	public, err := os.ReadFile(key + ".pub")
	require.NoError(m.b, err)
	g.debian.Write("/run/key.pub", 0o644, string(public))
	// As cloud-init leaves it. One server stands for twenty, which would each take so many logins at once.
	lines := []string{
		"useradd -m -s /bin/bash homestak", "install -d -m 700 -o homestak -g homestak /home/homestak/.ssh",
		"install -m 600 -o homestak -g homestak /run/key.pub /home/homestak/.ssh/authorized_keys",
		"echo 'homestak ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/90-cloud-init-users", "chmod 440 /etc/sudoers.d/90-cloud-init-users",
		"printf 'MaxStartups 200\\nMaxSessions 50\\n' >/etc/ssh/sshd_config.d/90-many.conf", "systemctl restart ssh",
		"rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/*", "echo 'deb [trusted=yes] file:/srv/apt ./' >/etc/apt/sources.list",
		"printf '127.0.0.1 localhost\\n' >/etc/hosts", "touch -d '1 day ago' /var/lib/apt/lists", // as an image has them
	}
	for n := 1; n <= guests; n++ {
		lines = append(lines, fmt.Sprintf("ip address add %s/32 dev lo", guestAddress(n)))
	}
	g.debian.Run("sh", "-ec", strings.Join(lines, "\n"))
	g.debian.Until("sshd listens", func() bool { return strings.Contains(g.debian.Run("ss", "-tln"), ":22 ") })
	g.host, err = startServer(context.WithoutCancel(m.ctx), hosting{Network: g.debian.Network()})
	require.NoError(m.b, err)
	m.b.Cleanup(func() { require.NoError(m.b, g.host.stop()) })
	g.playbook(guests, strings.TrimSpace(string(public)))
	return g
}

func guestAddress(n int) string { return fmt.Sprintf("10.77.0.%d", n) }

// declare writes the site: its guests, each with the spec.
func (g *inside) declare(guests int) {
	public, err := os.ReadFile(filepath.Join(g.home, ".ssh/id_ed25519.pub"))
	require.NoError(g.b, err)
	var nodes strings.Builder
	for n := 1; n <= guests; n++ {
		fmt.Fprintf(&nodes, "  node \"edge-%d\" {\n    type = \"vm\"\n    vmid = %d\n    cores = 1\n    memory = 512\n    image = image.debian\n    spec = spec.base\n    nic \"lan\" {\n      bridge = \"vmbr0\"\n      ip = \"%s/24\"\n    }\n  }\n",
			n, 10000+n, guestAddress(n))
	}
	for name, text := range map[string]string{
		"site.hcl": insideSite, "manifest.hcl": "manifest \"edge\" {\n  pattern = \"flat\"\n  host = host.father\n" + nodes.String() + "}\n",
		"host.hcl":     fmt.Sprintf("host \"father\" {\n  api = %q\n  fingerprint = %q\n  node = \"father\"\n}\n", g.host.access.API, g.host.access.Fingerprint),
		"secrets.yaml": released.Auth + fmt.Sprintf("api_tokens:\n  father: %q\nssh_keys:\n  ops: %q\n", g.host.access.Token, strings.TrimSpace(string(public))),
	} {
		require.NoError(g.b, os.WriteFile(filepath.Join(g.dir, name), []byte(text), 0o600))
	}
}

// insideSite is the spec base of the example with its posture, for guests that share one machine and
// so its name.
const insideSite = `site "bench" {
  domain   = "home.example"
  timezone = "Europe/Berlin"
  gateway  = "10.77.0.254"
  packages = []
  vmid_range "guests" {
    from = 10000
    to   = 10999
  }
}
image "debian" {
  url      = "https://images.example/debian-12.qcow2"
  checksum = "sha256:00000000000000000000000000000000000000000000000000000000000000aa"
}
posture "dev" {
  auth {
    method = "network"
  }
  ssh {
    port                    = 22
    permit_root_login       = "yes"
    password_authentication = "yes"
  }
  sudo {
    nopasswd = true
  }
  fail2ban {
    enabled = false
  }
  packages = ["net-tools", "strace", "tcpdump"]
}
spec "base" {
  identity {
    hostname = "edge"
  }
  access {
    posture = posture.dev
    via     = "ssh"
    user "homestak" {
      sudo = true
    }
  }
  platform {
    packages = ["htop", "curl"]
  }
  config {
    timezone = site.timezone
  }
}
`

// within runs a program of this machine in the network of the guest.
func (g *inside) within(env []string, name string, args ...string) run {
	env = append([]string{"HOME=" + g.home, "HOMESTAK_DATA_DIR=" + filepath.Join(g.home, "data"), "SSH_AUTH_SOCK=", "ANSIBLE_LOCALHOST_WARNING=False"}, env...)
	r, err := measure(g.ctx, command{name: "nsenter", args: append([]string{"--net=" + g.debian.Network(), "--", name}, args...), env: env})
	require.NoError(g.b, err)
	require.Zero(g.b, r.code, "%s %v\n%s\n%s", name, args, r.stdout, r.stderr)
	return r
}

func (g *inside) runProgram(verb string, args ...string) run {
	return g.within(nil, g.bin, append([]string{verb, "--site", g.dir, "--json"}, args...)...)
}

// playbook writes what the spec says for Ansible, as its documentation has it.
func (g *inside) playbook(guests int, public string) {
	var hosts strings.Builder
	hosts.WriteString("[edge]\n")
	for n := 1; n <= guests; n++ {
		fmt.Fprintf(&hosts, "edge-%d ansible_host=%s\n", n, guestAddress(n))
	}
	hosts.WriteString("[edge:vars]\nansible_user=homestak\nansible_ssh_private_key_file=" + filepath.Join(g.home, ".ssh/id_ed25519") +
		"\nansible_ssh_extra_args=-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR\nansible_python_interpreter=/usr/bin/python3\n")
	for name, text := range map[string]string{
		"hosts": hosts.String(), "site.yml": fmt.Sprintf(insidePlay, public, strings.Join(insidePackages, ", ")), "usual.cfg": "[defaults]\nhost_key_checking = False\ntimeout = 120\n",
		"tuned.cfg": "[defaults]\nhost_key_checking = False\ntimeout = 120\nforks = 20\ngathering = explicit\n[ssh_connection]\npipelining = True\n",
	} {
		require.NoError(g.b, os.WriteFile(filepath.Join(g.plays, name), []byte(text), 0o600))
	}
}

const insidePlay = `- hosts: edge
  become: true
  tasks:
    - hostname:
        name: edge
        use: systemd
    - lineinfile:
        path: /etc/hosts
        regexp: '^127\.0\.1\.1 '
        line: 127.0.1.1 edge.home.example edge
    - copy:
        dest: /etc/timezone
        content: "Europe/Berlin\n"
    - file:
        src: /usr/share/zoneinfo/Europe/Berlin
        dest: /etc/localtime
        state: link
    - user:
        name: homestak
        shell: /bin/bash
    - authorized_key:
        user: homestak
        key: %q
    - copy:
        dest: /etc/sudoers.d/zz-homestak
        content: "homestak ALL=(ALL:ALL) NOPASSWD: ALL\n"
        mode: "0440"
        validate: visudo -cf %%s
    - apt:
        name: [%s, sudo]
        update_cache: true
        cache_valid_time: 3600
    - copy:
        dest: /etc/ssh/sshd_config.d/00-site.conf
        content: "Port 22\nPermitRootLogin yes\nPasswordAuthentication yes\n"
        mode: "0644"
        validate: sshd -t -f %%s
      notify: reload sshd
  handlers:
    - name: reload sshd
      service:
        name: ssh
        state: reloaded
`

// ansible runs the playbook with one of its two configurations, and no connection left of an earlier
// run. failed or unreachable hosts end the benchmark.
func (g *inside) ansible(config string, changed bool) run {
	env := []string{
		"ANSIBLE_CONFIG=" + filepath.Join(g.plays, config), "ANSIBLE_NOCOLOR=1", "ANSIBLE_SSH_CONTROL_PATH_DIR=" + g.b.TempDir(),
		"ANSIBLE_SSH_ARGS=-o ControlMaster=auto -o ControlPersist=1s",
	}
	r := g.within(env, "ansible-playbook", "-i", filepath.Join(g.plays, "hosts"), filepath.Join(g.plays, "site.yml"))
	if !changed {
		require.NotRegexp(g.b, `changed=[1-9]`, r.stdout)
	}
	return r
}

// canEnter says why P17 and P18 cannot be measured here; "" if they can.
func canEnter() string {
	if lacks := nspawn.Missing(); lacks != "" {
		return lacks
	}
	for _, tool := range []string{"ansible-playbook", "ssh-keygen", "apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return tool + " is missing (Debian: apt-get install ansible openssh-client)"
		}
	}
	return ""
}

// config is P17 and P18: what a spec says inside of guests, beside Ansible with the same content.
func (m *meter) config() {
	if lacks := canEnter(); lacks != "" {
		m.notef("P17 and P18 are not measured: %s.", lacks)
		return
	}
	key := filepath.Join(m.b.TempDir(), "key")
	said, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput()
	require.NoError(m.b, err, string(said))
	archive := m.archive()
	if wanted("P18") {
		m.first(archive, key)
	}
	if wanted("P17") {
		m.nothingInside(archive, key)
	}
}

// nothingInside is P17: guests that are as their spec says.
func (m *meter) nothingInside(archive, key string) {
	g := m.enter(archive, key, insideGuests)
	for _, guests := range []int{1, insideGuests} { // the first makes the machine what the spec says
		g.declare(guests)
		g.runProgram("apply", "--yes")
	}
	g.ansible("tuned.cfg", true)
	var ours, usual, tuned []run
	look := func() {
		r := g.runProgram("plan")
		g.nothingToDo(r)
		ours = append(ours, r)
	}
	look()
	usual = append(usual, g.ansible("usual.cfg", false)) // minutes
	look()
	tuned = append(tuned, g.ansible("tuned.cfg", false))
	look()
	m.add(
		row{"P17", "specs inside 20 guests over SSH, nothing to change", "1/20 of Ansible", sec(wall(ours)), sec(wall(usual)) / 20, seconds, met(wall(ours) <= wall(usual)/20), "Ansible " + seconds(sec(wall(usual)))},
		row{"", "CPU of that", "1/10 of Ansible", sec(cpu(ours)), sec(cpu(usual)) / 10, seconds, met(cpu(ours) <= cpu(usual)/10), "Ansible " + seconds(sec(cpu(usual)))},
		row{"", "the time beside Ansible with 20 forks and pipelining", "1/20 of that", sec(wall(ours)), sec(wall(tuned)) / 20, seconds, met(wall(ours) <= wall(tuned)/20), "Ansible " + seconds(sec(wall(tuned)))},
		row{"", "CPU beside that", "1/10 of that", sec(cpu(ours)), sec(cpu(tuned)) / 10, seconds, met(cpu(ours) <= cpu(tuned)/10), "Ansible " + seconds(sec(cpu(tuned)))},
	)
	m.notef("P17: the guests are %d addresses of one real Debian on this machine; its work is in the times, and not in the CPU. The floor is the goal: a part of what Ansible takes.", insideGuests)
}

// nothingToDo voids a measurement of something else than guests that are as they should be. Files of
// sudo that Ansible and the image wrote are findings.
func (g *inside) nothingToDo(r run) {
	var doc struct{ Steps, Unknown []json.RawMessage }
	require.NoError(g.b, json.Unmarshal([]byte(r.stdout), &doc), r.stdout)
	require.Empty(g.b, doc.Steps, r.stdout)
	require.Empty(g.b, doc.Unknown, r.stdout)
}

// first is P18: a guest that was just created gets its spec.
func (m *meter) first(archive, key string) {
	var ours, again, usual, tuned []run
	for range insideRuns {
		g := m.enter(archive, key, 1)
		g.declare(1)
		ours, again = append(ours, g.runProgram("apply", "--yes")), append(again, g.runProgram("apply", "--yes"))
		usual = append(usual, m.enter(archive, key, 1).ansible("usual.cfg", true))
		tuned = append(tuned, m.enter(archive, key, 1).ansible("tuned.cfg", true))
	}
	m.add(
		row{"P18", "first apply of spec base on a fresh guest", "0.7 × Ansible", sec(wall(ours)), 0.7 * sec(wall(usual)), seconds, met(sec(wall(ours)) <= 0.7*sec(wall(usual))), "Ansible " + seconds(sec(wall(usual)))},
		row{"", "the time beside Ansible with pipelining", "0.7 × that", sec(wall(ours)), 0.7 * sec(wall(tuned)), seconds, met(sec(wall(ours)) <= 0.7*sec(wall(tuned))), "Ansible " + seconds(sec(wall(tuned)))},
		row{"", "second apply, nothing to change", "2 s", sec(wall(again)), 0, seconds, met(wall(again) <= 2*time.Second), "–"},
	)
	m.notef("P18: both install the real packages %s from the same folder on the guest; nothing is downloaded. CPU here: ours %s, Ansible %s.",
		strings.Join(insidePackages, ", "), seconds(sec(cpu(ours))), seconds(sec(cpu(usual))))
}

// archive makes a repository of the real packages that the spec installs, with all that a fresh guest
// lacks of what they need. apt of this machine downloads them.
func (m *meter) archive() string {
	root, dir := debian.Folder(m.b), m.b.TempDir()
	require.NoError(m.b, os.MkdirAll(filepath.Join(dir, "cache/partial"), 0o755))
	args := []string{"-y", "--no-install-recommends", "--download-only", "-o", "Dir::State::status=" + filepath.Join(root, "var/lib/dpkg/status"), "-o", "Dir::Cache::archives=" + filepath.Join(dir, "cache"), "-o", "Debug::NoLocking=1", "install"}
	said, err := exec.Command("apt-get", append(args, insidePackages...)...).CombinedOutput()
	require.NoError(m.b, err, "apt-get update may help:\n%s", said)
	debs, err := filepath.Glob(filepath.Join(dir, "cache/*.deb"))
	require.NoError(m.b, err)
	var index bytes.Buffer
	for _, deb := range debs {
		control, err := exec.Command("dpkg-deb", "--field", deb).Output()
		require.NoError(m.b, err)
		b, err := os.ReadFile(deb)
		require.NoError(m.b, err)
		fmt.Fprintf(&index, "%sFilename: ./%s\nSize: %d\nSHA256: %x\n\n", control, filepath.Base(deb), len(b), sha256.Sum256(b))
		require.NoError(m.b, os.Rename(deb, filepath.Join(dir, filepath.Base(deb))))
	}
	require.NoError(m.b, os.WriteFile(filepath.Join(dir, "Packages"), index.Bytes(), 0o644)) //nolint:gosec // apt reads it as a user of its own
	require.NoError(m.b, os.Chmod(dir, 0o755))                                               //nolint:gosec // the same
	return dir
}
