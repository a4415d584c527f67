package bench_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing/fstest"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/test/bench/fleet"
)

// hosting is what a simulated host is like.
type hosting struct {
	Fleet    fleet.Fleet // that it holds already, all in sync
	Latency  time.Duration
	TaskTime time.Duration
	Clones   time.Duration // how long a clone takes, if not as long as other tasks
	Template bool          // it has a VM template, of VMID 9000
	Writes   bool          // it notes when it is written to
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

	cmd   *exec.Cmd
	asks  io.WriteCloser
	tells *json.Decoder
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
	s.tells = json.NewDecoder(out)
	if err := s.tells.Decode(&s.access); err != nil {
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
		err = s.tells.Decode(&t)
	}
	if err != nil {
		return t, fmt.Errorf("ask the host for its traffic: %w", err)
	}
	return t, nil
}

// minus is what came since an earlier count; peaks are those of all time.
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
	if err := populate(ctx, host, h.Fleet); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- host.Serve(ctx, listener) }()
	tell := json.NewEncoder(out)
	err = tell.Encode(access{API: "https://" + listener.Addr().String(), Token: host.Token(), Fingerprint: host.Fingerprint()})
	for lines := bufio.NewScanner(in); err == nil && lines.Scan(); {
		t := trafficOf(host.Snapshot())
		t.FirstWrite = first.take()
		if h.Ends {
			t.Lags = looks.take(host.Snapshot().Tasks)
		}
		err = tell.Encode(t)
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

// take gives the time, and begins anew.
func (f *firstWrite) take() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := f.at
	f.at = time.Time{}
	return at
}

// lookout notes when somebody looked at tasks. What a request is told is known when
// it arrives, and to whom asked when it is answered.
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

// take tells how long the end of each task went unseen, and begins anew. An end that
// nobody looked for by now is left out.
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
// put there as its twins, each with a signature of its own.
func populate(ctx context.Context, host *pve.Host, f fleet.Fleet) error {
	if f.Guests == 0 {
		return nil
	}
	tree := fstest.MapFS{}
	first := f
	first.Guests = 1
	for name, text := range first.Site(access{API: "https://pve.example:8006", Token: host.Token()}) {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	secrets, _ := hcl.ParseSecrets("secrets.yaml", tree["secrets.yaml"].Data, nil)
	id := owner.Identity{Site: "fleet", Owner: "father", Host: "father", Keys: func(name string) [][]byte { return secrets.OwnershipKeys("fleet", name) }}
	pass := engine.Pass{
		Verb: "apply", Host: "father",
		Load: func(context.Context) engine.Desired {
			site, found := hcl.Load(tree, hcl.Options{Kinds: proxmox.Kinds(), Secrets: secrets})
			return engine.Desired{Site: site, Findings: found}
		},
		Open: func(h *model.Host) (engine.Driver, error) {
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
		host.Edit(func(e *pve.Edit) {
			e.Add(pve.Guest{VMID: f.VMID(n), Node: f.Node(n), Config: twin, Running: true})
		})
	}
	return nil
}
