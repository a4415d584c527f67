package bench_test

import (
	"bufio"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
	"github.com/homestak/homestak-gitops/test/bench/fleet"
)

// clients is how many connections P15 asks over.
const clients = 8

// serving is P15: a spec for a node with its token. The floor is a bare server of net/http
// that sends the same bytes and checks nothing. The predecessor's server is one of
// Python's http.server, as it makes one: HTTP/1.0, one thread, TLS on the listener. It sends
// the same bytes, too, and is spared the checks and the resolving that the predecessor does.
func (m *meter) serving() {
	ours := m.specServer(100)
	defer ours.end()
	ask := ours.ask(1)
	body := m.answer(ours.addr, ask)
	setup := standing{PEM: m.selfSigned(m.ecKey()), Body: m.file("spec.json", body)}
	bare := m.stand(setup, m.self)
	defer bare.end()

	loads := []*loaded{{name: "ours", at: ours.process}, {name: "bare", at: bare}}
	var python, large *loaded
	if name, err := exec.LookPath("python3"); err == nil {
		script := m.file("predecessor.py", []byte(predecessor))
		rsaKey, err := rsa.GenerateKey(rand.Reader, 4096)
		require.NoError(m.b, err)
		python = &loaded{name: "python", at: m.stand(setup, name, script)}
		large = &loaded{name: "python, RSA", at: m.stand(standing{PEM: m.selfSigned(rsaKey), Body: setup.Body}, name, script)}
		defer python.at.end()
		defer large.at.end()
		loads = append(loads, python, large)
	} else {
		m.notef("P15: there is no python3, so nothing stands for the predecessor. Recorded: 762 requests a second, 195 with its own key.")
	}
	const rounds, length = 5, 1200 * time.Millisecond
	for range rounds {
		for _, x := range loads {
			x.kept = append(x.kept, m.load(x.at, ask, false, length))
			x.fresh = append(x.fresh, m.load(x.at, ask, true, length))
		}
	}
	kept := func(x *loaded) float64 { return median(each(x.kept, asked.each)) }
	fresh := func(x *loaded) float64 { return median(each(x.fresh, asked.each)) }
	late := func(x *loaded) float64 { return median(each(x.kept, asked.late)) }
	for _, x := range []struct {
		id, what string
		figure   func(*loaded) float64
		part     float64 // of the predecessor's figure, as one over this
		theirs   *loaded // nil: it is not here
	}{
		{"P15", "a spec over 8 connections that are kept", kept, 20, python},
		{"", "the same, a connection each, keys as each makes them", fresh, 6, large},
		{"", "the same with equal keys", fresh, 1.7, python},
		{"", "p99 over 8 connections that are kept", late, 5, python},
	} {
		our, is, peer := x.figure(loads[0]), open, "–"
		if x.theirs != nil {
			theirs := x.figure(x.theirs)
			is, peer = met(x.part*our <= theirs), "http.server "+micros(theirs)+", in this run"
		}
		m.add(row{x.id, x.what, fmt.Sprintf("1/%g × predecessor", x.part), our, x.figure(loads[1]), micros, is, peer})
	}
	for _, x := range loads[:2] {
		m.notef("P15, %s: %.0f requests a second of %d bytes, %s CPU each; with a connection each %.0f and %s.", x.name,
			1/kept(x), len(body), micros(median(each(x.kept, asked.cpu))), 1/fresh(x), micros(median(each(x.fresh, asked.cpu))))
	}
}

// loaded is a server, and the answers to a load.
type loaded struct {
	name        string
	at          *process
	kept, fresh []asked
}

// company measures how 100 bad clients move the p99 of good ones. Two servers are asked in turns, over
// connections that stay: one has the bad clients, one has not, and each is both, so that neither
// the servers nor the drift of the machine count. Clients that are cut off come back, so the cost of that is
// included. The median of the ratios of many pairs of windows says what one p99 cannot on a machine that
// does other work, too; the ratio without bad clients shows how far that goes.
func (m *meter) company() {
	const pairs, window = 120, 150 * time.Millisecond
	var servers [2]*specServer
	var conns [2][]*conn
	var ask [2]string
	idle := 1.0 // the ratio without bad clients
	for i := range servers {
		servers[i] = m.specServer(100)
		defer servers[i].end()
		conns[i] = m.dialAll(servers[i].process, clients)
		defer hangUp(conns[i])
		ask[i] = servers[i].ask(1)
	}
	for _, c := range []struct {
		what  string
		begin func(net.Conn) (io.Writer, error) // what such a client does first, and what it trickles into; nil: no such client
	}{
		{"no client", nil},
		{"p99 of others beside 100 silent clients", func(net.Conn) (io.Writer, error) { return nil, nil }},
		{"p99 of others beside 100 trickling clients", func(c net.Conn) (io.Writer, error) {
			conn := tls.Client(c, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a bad client trusts everybody
			_, err := io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: x\r\nX: ")
			return conn, err
		}},
	} {
		var without, ratios []float64
		for visited := range servers {
			leave := func() {}
			if c.begin != nil {
				leave = m.others(servers[visited].process, 100, c.begin)
			}
			for pair := range pairs / 2 {
				var p99 [2]float64
				for i := range 2 {
					which := (i + pair) % 2
					m.ask(servers[which].process, conns[which], ask[which], window/5)
					p99[which] = at99(m.ask(servers[which].process, conns[which], ask[which], window))
				}
				without, ratios = append(without, p99[1-visited]), append(ratios, p99[visited]/p99[1-visited])
			}
			leave()
		}
		slices.Sort(ratios)
		spread := fmt.Sprintf("%d pairs of windows of %v: median of the ratios %.3f, the middle half from %.2f to %.2f", pairs, window, median(ratios), ratios[pairs/4], ratios[pairs*3/4])
		if c.begin == nil {
			m.notef("P15, p99 of two servers without anybody: %s.", spread)
			idle = median(ratios)
			continue
		}
		is := met(median(ratios) <= 1.1)
		if math.Abs(idle-1) > 0.05 {
			is = open // the machine moves it as much
		}
		m.add(row{"", c.what, "1.10 × without", median(ratios) * median(without), median(without), micros, is, "–"})
		m.notef("P15, %s: %s.", c.what, spread)
	}
}

// restarting is how long a server that was killed does not serve, from its start to the spec of a node
// that has its token from before. The floor is a bare server, until it answers.
func (m *meter) restarting() {
	s := m.specServer(100)
	ask := s.ask(1)
	body := m.answer(s.addr, ask)
	setup := standing{PEM: m.selfSigned(m.ecKey()), Body: m.file("again.json", body)}
	var took, floor []float64
	for range 7 {
		require.NoError(m.b, s.cmd.Process.Kill())
		require.Error(m.b, s.cmd.Wait())
		began := time.Now()
		s.begin(m)
		require.Equal(m.b, body, m.answer(s.addr, ask))
		took = append(took, time.Since(began).Seconds())

		began = time.Now()
		bare := m.stand(setup, m.self)
		m.answer(bare.addr, ask)
		floor = append(floor, time.Since(began).Seconds())
		bare.end()
	}
	s.end()
	worst := slices.Max(took)
	m.add(row{"", "killed and started again, until it serves, 100 nodes", "1 s", worst, median(floor), seconds, met(worst <= 1), "–"})
	m.notef("P15: a server that was killed served again after %s in the middle of %d times, after %s at most.", seconds(median(took)), len(took), seconds(worst))
	m.agentRestarting()
}

// agentRestarting is the same for an agent: it serves the last good commit before its repository answers.
func (m *meter) agentRestarting() {
	if !m.hasGit("P15,restart") {
		return
	}
	f := fleet.Fleet{Guests: 100, Nodes: names(1), Files: 1}
	host := m.host(hosting{Fleet: f})
	a := m.follow(m.publish(f, host.access), host, never)
	ring, err := keys.Folder(filepath.Join(a.data, daemon.Folder)).Read()
	require.NoError(m.b, err)
	text, err := ring[0].MintToken(keys.Claims{Node: f.Name(1), Spec: "base", Issued: time.Now().Unix(), Expires: time.Now().Add(time.Hour).Unix()})
	require.NoError(m.b, err)
	ask := "GET " + wire.SpecPath.Of(f.Name(1)) + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + text + "\r\n\r\n"
	a.serves(ask)
	var took []float64
	for range 7 {
		a.kill()
		began := time.Now()
		a.begin()
		a.serves(ask)
		took = append(took, time.Since(began).Seconds())
	}
	a.end()
	require.NoError(m.b, host.stop())
	worst := slices.Max(took)
	m.add(row{"", "the same of an agent with 100 nodes", "1 s", worst, 0, seconds, met(worst <= 1), "–"})
	m.notef("P15: an agent that was killed served again after %s in the middle of %d times, after %s at most.", seconds(median(took)), len(took), seconds(worst))
}

// others lets clients come, and come again when they are cut off; the function that it returns lets
// them go. Those that trickle send ten bytes in a second.
func (m *meter) others(s *process, n int, begin func(net.Conn) (io.Writer, error)) (leave func()) {
	ctx, cancel := context.WithCancel(m.ctx)
	var all, there sync.WaitGroup
	there.Add(n)
	for range n {
		all.Go(func() {
			arrived := sync.OnceFunc(there.Done)
			defer arrived()
			for ctx.Err() == nil {
				c, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.addr)
				if err != nil {
					return
				}
				to, err := begin(c)
				arrived()
				stop := context.AfterFunc(ctx, func() { _ = c.Close() })
				if err == nil {
					stay(c, to)
				}
				stop()
				_ = c.Close()
			}
		})
	}
	there.Wait()
	return func() { cancel(); all.Wait() }
}

// stay lets a client be as bad as it is until it is cut off.
func stay(c net.Conn, to io.Writer) {
	if to == nil {
		_, _ = io.ReadAll(c)
		return
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if _, err := to.Write([]byte{'1'}); err != nil {
			return
		}
	}
}

// asked is the result of a load.
type asked struct {
	wall time.Duration
	took []time.Duration // of each request
	used time.Duration   // CPU of the server
}

func (a asked) each() float64 { return a.wall.Seconds() / float64(len(a.took)) }
func (a asked) cpu() float64  { return a.used.Seconds() / float64(len(a.took)) }
func (a asked) late() float64 { return at99(a.took) }

// at99 is what 99 % of the requests do not exceed, in seconds.
func at99(took []time.Duration) float64 {
	sorted := slices.Sorted(slices.Values(took))
	return sorted[(len(sorted)*99+99)/100-1].Seconds()
}

// load asks a server over eight connections, which are kept, or made for each request.
func (m *meter) load(s *process, ask string, fresh bool, d time.Duration) asked {
	before, err := cpuOf(s.cmd.Process.Pid)
	require.NoError(m.b, err)
	began := time.Now()
	a := asked{}
	if fresh {
		a.took = m.workers(clients, d, func(int) error {
			c, err := dial(m.ctx, s.addr)
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			return c.ask(strings.Replace(ask, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
		})
	} else {
		conns := m.dialAll(s, clients)
		began = time.Now()
		a.took = m.ask(s, conns, ask, d)
		hangUp(conns)
	}
	a.wall = time.Since(began)
	after, err := cpuOf(s.cmd.Process.Pid)
	require.NoError(m.b, err)
	a.used = after - before
	return a
}

// ask asks over existing connections. One that the server closes is opened again when it is needed:
// a server with one thread waits for the request of the client that is connected.
func (m *meter) ask(s *process, conns []*conn, ask string, d time.Duration) []time.Duration {
	return m.workers(len(conns), d, func(i int) (err error) {
		if conns[i] == nil {
			if conns[i], err = dial(m.ctx, s.addr); err != nil {
				return err
			}
		}
		if err = conns[i].ask(ask); conns[i].closed {
			_ = conns[i].Close()
			conns[i] = nil
		}
		return err
	})
}

// workers lets several do a thing at once, over and over, and gives how long each took.
func (m *meter) workers(n int, d time.Duration, do func(i int) error) []time.Duration {
	took, errs := make([][]time.Duration, n), make([]error, n)
	end := time.Now().Add(d)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			for now := time.Now(); now.Before(end) && errs[i] == nil; {
				errs[i] = do(i)
				then := time.Now()
				took[i] = append(took[i], then.Sub(now))
				now = then
			}
		})
	}
	all.Wait()
	require.NoError(m.b, errors.Join(errs...))
	return slices.Concat(took...)
}

// conn is a connection of a client that does no more than it must.
type conn struct {
	net.Conn

	in     *bufio.Reader
	status int
	tag    string // ETag of the last answer
	closed bool   // by the server, after the last answer
}

func dial(ctx context.Context, addr string) (*conn, error) {
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // as the clients of the predecessor
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, in: bufio.NewReader(c)}, nil
}

// dialAll connects to a server; not to one with one thread.
func (m *meter) dialAll(s *process, n int) []*conn {
	out := make([]*conn, n)
	for i := range out {
		if s.single {
			break
		}
		var err error
		out[i], err = dial(m.ctx, s.addr)
		require.NoError(m.b, err)
	}
	return out
}

func hangUp(conns []*conn) {
	for _, c := range conns {
		if c != nil {
			_ = c.Close()
		}
	}
}

// ask sends a request and reads the answer, which must be a good one.
func (c *conn) ask(request string) error {
	if _, err := io.WriteString(c, request); err != nil {
		return err
	}
	r, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	c.status, c.tag, c.closed = r.StatusCode, r.Header.Get("ETag"), r.Close
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return err
	}
	if r.StatusCode >= http.StatusBadRequest {
		return errors.New(r.Status)
	}
	return nil
}

// answer is the body of an answer.
func (m *meter) answer(addr, request string) []byte {
	c, err := dial(m.ctx, addr)
	require.NoError(m.b, err)
	defer func() { _ = c.Close() }()
	_, err = io.WriteString(c, request)
	require.NoError(m.b, err)
	r, err := http.ReadResponse(c.in, nil)
	require.NoError(m.b, err)
	defer func() { _ = r.Body.Close() }()
	require.Equal(m.b, http.StatusOK, r.StatusCode)
	body, err := io.ReadAll(r.Body)
	require.NoError(m.b, err)
	return body
}

// process is a server in a process of its own.
type process struct {
	m      *meter
	cmd    *exec.Cmd
	addr   string
	single bool // it has one thread, and so one connection
}

// start starts a server; into is filled with the one line that it prints.
func (m *meter) start(cmd *exec.Cmd, into any) *process {
	p := &process{m: m, cmd: cmd}
	out, err := cmd.StdoutPipe()
	require.NoError(m.b, err)
	log, err := os.CreateTemp(m.dir, "log-")
	require.NoError(m.b, err)
	defer func() { _ = log.Close() }()
	cmd.Stderr = log
	require.NoError(m.b, cmd.Start())
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, into)
	}
	if err != nil {
		p.end()
		text, _ := os.ReadFile(log.Name())
		require.NoError(m.b, err, "%s: %s", cmd, text)
	}
	return p
}

// end stops the server and waits for that.
func (p *process) end() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Wait()
}

// standing is what a server needs to know that sends one file to everybody.
type standing struct{ PEM, Body string }

// stand starts one: this binary in the role bare, or Python.
func (m *meter) stand(s standing, name string, args ...string) *process {
	text, err := json.Marshal(s)
	require.NoError(m.b, err)
	cmd := exec.CommandContext(m.ctx, name, args...)
	cmd.Env = append(os.Environ(), roleVar+"=bare", setupVar+"="+string(text))
	var at struct{ Addr string }
	p := m.start(cmd, &at)
	p.addr, p.single = at.Addr, len(args) > 0
	return p
}

// bare is the floor: net/http over TLS. To who has the document already it does not send it, and it
// takes what is posted.
func bare(setup string) error {
	var s standing
	if err := json.Unmarshal([]byte(setup), &s); err != nil {
		return err
	}
	body, err := os.ReadFile(s.Body)
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(s.PEM, s.PEM)
	if err != nil {
		return err
	}
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}})
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]string{"Addr": ln.Addr().String()}); err != nil {
		return err
	}
	return http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:gosec // only this benchmark connects
		switch {
		case r.Method == http.MethodPost:
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusAccepted)
		case r.Header.Get("If-None-Match") != "":
			w.WriteHeader(http.StatusNotModified)
		default:
			_, _ = w.Write(body)
		}
	}))
}

// predecessor is the server of the predecessor without what it does for an answer: its class, its
// protocol, its one thread, and TLS as it wraps the listener.
const predecessor = `import http.server, json, os, ssl
setup = json.loads(os.environ["` + setupVar + `"])
with open(setup["Body"], "rb") as f:
    body = f.read()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(setup["PEM"])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(json.dumps({"Addr": "127.0.0.1:%d" % server.server_port}), flush=True)
server.serve_forever()
`

// file writes a file of this run.
func (m *meter) file(name string, data []byte) string {
	name = filepath.Join(m.dir, name)
	require.NoError(m.b, os.WriteFile(name, data, 0o600))
	return name
}

func (m *meter) ecKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(m.b, err)
	return key
}

// selfSigned writes a certificate and its key into a file.
func (m *meter) selfSigned(key crypto.Signer) string {
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(m.b, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(m.b, err)
	f, err := os.CreateTemp(m.dir, "pem-")
	require.NoError(m.b, err)
	defer func() { _ = f.Close() }()
	require.NoError(m.b, pem.Encode(f, &pem.Block{Type: "CERTIFICATE", Bytes: der}))
	require.NoError(m.b, pem.Encode(f, &pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	return f.Name()
}

// specServer is the verb serve.
type specServer struct {
	*process

	args []string
	key  keys.Key
}

// specServer serves the specs of so many nodes.
func (m *meter) specServer(nodes int) *specServer {
	files := map[string]string{"site.hcl": servedSite}
	const perFile = 100
	for from := 1; from <= nodes; from += perFile {
		var b strings.Builder
		fmt.Fprintf(&b, "manifest \"m%d\" {\n  pattern = \"flat\"\n  host = host.father\n", from)
		for n := from; n < from+perFile && n <= nodes; n++ {
			fmt.Fprintf(&b, "  node %q {\n    type = \"vm\"\n    cores = 1\n    memory = 512\n    image = image.debian\n    spec = spec.base\n    execution {\n      mode = \"pull\"\n    }\n  }\n", (&specServer{}).node(n))
		}
		b.WriteString("}\n")
		files[fmt.Sprintf("manifests/m%d.hcl", from)] = b.String()
	}
	data, err := os.MkdirTemp(m.dir, "served-")
	require.NoError(m.b, err)
	s := &specServer{args: []string{"serve", "--site", m.site(files), "--data-dir", data, "--listen", "127.0.0.1:0", "--json"}}
	s.begin(m)
	ring, err := keys.Folder(filepath.Join(data, daemon.Folder)).Read()
	require.NoError(m.b, err)
	s.key = ring[0].Key
	return s
}

// begin starts the server, once more if it was killed.
func (s *specServer) begin(m *meter) {
	var at struct{ URL string }
	s.process = m.start(exec.CommandContext(m.ctx, m.bin, s.args...), &at)
	s.addr = strings.TrimPrefix(at.URL, "https://")
}

// node is the name of a node.
func (*specServer) node(n int) string { return fmt.Sprintf("app-%05d", n) }

// token is the one of a node.
func (s *specServer) token(n int) string {
	text, err := s.key.MintToken(keys.Claims{Node: s.node(n), Spec: "base", Issued: time.Now().Unix(), Expires: time.Now().Add(time.Hour).Unix()})
	require.NoError(s.m.b, err)
	return text
}

// ask is the request of a node for its spec.
func (s *specServer) ask(n int) string {
	return "GET " + wire.SpecPath.Of(s.node(n)) + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + s.token(n) + "\r\n\r\n"
}

const servedSite = `site "bench" {
  domain = "bench.example"
}
host "father" {
  api = "https://192.0.2.10:8006"
}
image "debian" {
  url      = "https://example.org/debian.qcow2"
  checksum = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
}
posture "prod" {
  auth {
    method = "node_token"
  }
}
spec "base" {
  access {
    posture = posture.prod
  }
  platform {
    packages = ["htop", "curl"]
  }
  config {
    timezone = "Europe/Berlin"
    file "/etc/motd" {
      content = "managed\n"
    }
  }
}
`

// micros writes a figure that is far below a second.
func micros(v float64) string {
	switch {
	case v < 1e-3:
		return fmt.Sprintf("%.0f µs", v*1e6)
	case v < 0.1:
		return fmt.Sprintf("%.2f ms", v*1e3)
	}
	return seconds(v)
}
