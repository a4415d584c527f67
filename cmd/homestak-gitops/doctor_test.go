package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/homestak/homestak-gitops/sim/pve"
)

var updateDoctor = flag.Bool("update-doctor", false, "write what doctor says into its scripts")

// login is a key of the secrets by which people log in to guests.
const login = "ssh_keys:\n  ops: \"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHN0b3J5c3RvcnlzdG9yeXN0b3J5c3RvcnlzdG9yeXN0 ops\"\n"

// TestDoctorScript runs the stories of testdata/doctor: hosts with something wrong,
// and all that doctor says of them.
//
// Commands beside those of testscript:
//
//	host NAME [version=V] [nodes=A,B] [offline=B] [storage=SPEC]... [bridge=NAME]... [guests=N] [ahead=TIME] [pretend=VERSION]
//	                              serve a host, and write site/hosts/NAME.hcl and site/secrets.yaml for it
//	token NAME USER!TOKEN SEP     make user and token without any rights, and have the site use it
//	admin NAME METHOD PATH K=V... what the administrator of the host does
//	lock NAME VMID LOCK           a task died and left this lock
//	put NAME VMID GUEST [ct] [template]   create an unmanaged guest
//	doctor CODE ARG...            run it, check its exit code, keep its output in out
func TestDoctorScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/doctor",
		RequireExplicitExec: true,
		UpdateScripts:       *updateDoctor,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOMESTAK_DATA_DIR", filepath.Join(e.WorkDir, ".data"))
			e.Setenv("HOME", e.WorkDir)
			e.Values[hostsKey{}] = map[string]*simulated{}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"host": cmdHost, "token": cmdToken, "admin": cmdAdmin, "lock": cmdLock, "put": cmdPut, "doctor": cmdDoctor,
		},
	})
}

// front stands before a simulated host and tells another time or version than it does.
type front struct {
	host    http.RoundTripper
	ahead   time.Duration
	pretend string
}

func (f front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	res, err := f.host.RoundTrip(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if f.pretend != "" && strings.HasSuffix(r.URL.Path, "/version") {
		body, _ = json.Marshal(map[string]any{"data": map[string]string{"version": f.pretend}})
	}
	maps.Copy(w.Header(), res.Header)
	w.Header().Del("Connection")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("Date", time.Now().Add(f.ahead).UTC().Format(http.TimeFormat))
	w.WriteHeader(res.StatusCode)
	_, _ = io.Copy(w, bytes.NewReader(body))
}

func cmdHost(ts *testscript.TestScript, _ bool, args []string) {
	cfg, f := pve.Config{Node: args[0]}, front{}
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		var err error
		switch key {
		case "version":
			cfg.Version = value
		case "nodes":
			cfg.Nodes = strings.Split(value, ",")
		case "offline":
			cfg.Offline = strings.Split(value, ",")
		case "storage":
			var s pve.Storage
			s, err = pve.ParseStorage(value)
			cfg.Storages = append(cfg.Storages, s)
		case "bridge":
			cfg.Bridges = append(cfg.Bridges, value)
		case "guests":
			cfg.Guests, err = strconv.Atoi(value)
		case "ahead":
			f.ahead, err = time.ParseDuration(value)
		case "pretend":
			f.pretend = value
		default:
			err = fmt.Errorf("unknown argument %q", arg)
		}
		ts.Check(err)
	}
	h := &simulated{Host: pve.New(cfg)}
	ts.Value(hostsKey{}).(map[string]*simulated)[args[0]] = h
	api, fingerprint := "", h.Fingerprint()
	if f.ahead != 0 || f.pretend != "" {
		f.host = h
		server := httptest.NewUnstartedServer(f)
		server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // whether a port accepts is tried without TLS
		server.StartTLS()
		ts.Defer(server.Close)
		api, fingerprint = server.URL, fmt.Sprintf("sha256:%x", sha256.Sum256(server.Certificate().Raw))
	} else {
		ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
		ts.Check(err)
		ctx, cancel := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() { served <- h.Serve(ctx, ln) }()
		ts.Defer(func() {
			cancel()
			ts.Check(<-served)
		})
		api = "https://" + ln.Addr().String()
	}
	ts.Setenv("API", api)
	ts.Setenv("FINGERPRINT", fingerprint)
	write(ts, "site/hosts/"+args[0]+".hcl", fmt.Sprintf("host %q {\n  api         = %q\n  fingerprint = %q\n}\n", args[0], api, fingerprint))
	write(ts, "site/secrets.yaml", secretsFor(args[0], h.Token())+login)
}

// asRoot sends a request as the administrator of a host, which must succeed.
func asRoot(ts *testscript.TestScript, name, method, path string, values url.Values) []byte {
	h := hostOf(ts, name)
	req, err := http.NewRequestWithContext(context.Background(), method, "https://"+name+"/api2/json"+path, strings.NewReader(values.Encode()))
	ts.Check(err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Authorization", "PVEAPIToken="+h.Token())
	res, err := h.RoundTrip(req)
	ts.Check(err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	ts.Check(err)
	if res.StatusCode != http.StatusOK {
		ts.Fatalf("%s %s: %s %s", method, path, res.Status, body)
	}
	return body
}

func cmdAdmin(ts *testscript.TestScript, _ bool, args []string) {
	values := url.Values{}
	for _, kv := range args[3:] {
		key, value, _ := strings.Cut(kv, "=")
		values.Set(key, value)
	}
	asRoot(ts, args[0], args[1], args[2], values)
}

func cmdToken(ts *testscript.TestScript, _ bool, args []string) {
	user, token, _ := strings.Cut(args[1], "!")
	asRoot(ts, args[0], http.MethodPost, "/access/users", url.Values{"userid": {user}})
	var doc struct{ Data struct{ Value string } }
	ts.Check(json.Unmarshal(asRoot(ts, args[0], http.MethodPost, "/access/users/"+user+"/token/"+token, url.Values{"privsep": {args[2]}}), &doc))
	write(ts, "site/secrets.yaml", secretsFor(args[0], args[1]+"="+doc.Data.Value)+login)
}

func cmdLock(ts *testscript.TestScript, _ bool, args []string) {
	vmid, err := strconv.Atoi(args[1])
	ts.Check(err)
	hostOf(ts, args[0]).Edit(func(e *pve.Edit) { e.Lock(vmid, args[2]) })
}

func cmdPut(ts *testscript.TestScript, _ bool, args []string) {
	vmid, err := strconv.Atoi(args[1])
	ts.Check(err)
	g := pve.Guest{VMID: vmid, Config: map[string]string{"name": args[2]}}
	for _, arg := range args[3:] {
		switch arg {
		case "ct":
			g.Kind, g.Config = "lxc", map[string]string{"hostname": args[2], "net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01,type=veth"}
		case "template":
			g.Config["template"] = "1"
		default:
			ts.Fatalf("unknown argument %q", arg)
		}
	}
	hostOf(ts, args[0]).Edit(func(e *pve.Edit) { e.Add(g) })
}

// loopback are the ports that differ from run to run.
var loopback = regexp.MustCompile(`127\.0\.0\.1:\d+`)

func cmdDoctor(ts *testscript.TestScript, _ bool, args []string) {
	before := map[string]int{}
	for name, h := range ts.Value(hostsKey{}).(map[string]*simulated) {
		before[name] = h.Snapshot().Writes
	}
	code := 0
	var failed *exec.ExitError
	if err := ts.Exec("homestak-gitops", append([]string{"doctor", "--site", "site"}, args[1:]...)...); errors.As(err, &failed) {
		code = failed.ExitCode()
	} else {
		ts.Check(err)
	}
	out := ts.ReadFile("stdout")
	for _, r := range []struct{ old, text string }{{ts.Getenv("API"), "API"}, {ts.Getenv("FINGERPRINT"), "FINGERPRINT"}} {
		out = strings.ReplaceAll(out, r.old, r.text)
	}
	if _, port, err := net.SplitHostPort(strings.TrimPrefix(ts.Getenv("API"), "https://")); err == nil {
		out = strings.ReplaceAll(out, "port "+port, "port PORT")
	}
	write(ts, "out", loopback.ReplaceAllString(out, "127.0.0.1:PORT"))
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
	for name, h := range ts.Value(hostsKey{}).(map[string]*simulated) {
		if n := h.Snapshot().Writes - before[name]; n > 0 {
			ts.Fatalf("the doctor changed host %s: %d requests that write", name, n)
		}
	}
}
