package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/hcl/sops/sopstest"
	"github.com/homestak/homestak-gitops/sim/pve"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"homestak-gitops": main})
}

// TestScript runs the stories of testdata/script, one a verb, with the program
// itself against simulated hosts that listen in this process.
//
// Commands beside those of testscript:
//
//	pve NAME [task=TIME] [guests=N] [fault=FAULT] [download=DOWNLOAD]…
//	                                  serve a host, and write site/hosts/NAME.hcl and site/secrets.yaml for it
//	exits CODE PROGRAM ARG...         run a program and check its exit code
//	guests NAME [GUEST...]            the host holds just these guests (VMID:name)
//	hand NAME set|stop|delete|add …   change the host behind everybody's back
//	quiet NAME                        the host got no request that writes since the last time
//	same DOCUMENT GOLDEN              two JSON documents agree but for times, ids and fingerprints
//	commit DIR FILE...                make DIR a git checkout, and commit these files
//	push MESSAGE                      commit the folder site, and push it to site.git; needs git
//	until CODE [/TEXT] PROGRAM ARG... run a program until it exits so, and says this
//	encrypt FILE ENCRYPTED            encrypt a file as sops does, for an identity in AGE_KEY and age.key
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOMESTAK_DATA_DIR", filepath.Join(e.WorkDir, ".data"))
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("GIT_CONFIG_NOSYSTEM", "1")
			e.Setenv("HOMESTAK_LISTEN", "none") // the port is one for all who test on this machine
			e.Values[hostsKey{}] = map[string]*simulated{}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"pve": cmdPVE, "exits": cmdExits, "guests": cmdGuests, "hand": cmdHand, "quiet": cmdQuiet,
			"same": cmdSame, "commit": cmdCommit, "until": cmdUntil, "push": cmdPush,
			"encrypt": cmdEncrypt,
		},
	})
}

type hostsKey struct{}

// simulated is a host that a script serves.
type simulated struct {
	*pve.Host
	writes int // at the last quiet
}

func hostOf(ts *testscript.TestScript, name string) *simulated {
	h := ts.Value(hostsKey{}).(map[string]*simulated)[name]
	if h == nil {
		ts.Fatalf("no host %q: begin with pve %s", name, name)
	}
	return h
}

func cmdPVE(ts *testscript.TestScript, _ bool, args []string) {
	name := args[0]
	cfg := pve.Config{Node: name}
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		var err error
		switch key {
		case "task":
			cfg.TaskTime, err = time.ParseDuration(value)
		case "guests":
			cfg.Guests, err = strconv.Atoi(value)
		case "fault":
			var fault pve.Fault
			fault, err = pve.ParseFault(value)
			cfg.Fault = pve.Faults(fault)
		case "download":
			var d pve.Download
			d, err = pve.ParseDownload(value)
			cfg.Downloads = append(cfg.Downloads, d)
		default:
			err = fmt.Errorf("unknown argument %q", arg)
		}
		ts.Check(err)
	}
	var mu sync.Mutex // requests are recorded from the goroutines that serve them
	var wrong []error
	cfg.Record = func(r *http.Request, _ []byte, _ int) {
		if err := proxmoxtest.ValidateRequest(r); err != nil {
			mu.Lock()
			defer mu.Unlock()
			wrong = append(wrong, fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, err))
		}
	}
	cfg.Promise = func(deviation string) {
		mu.Lock()
		defer mu.Unlock()
		wrong = append(wrong, fmt.Errorf("an answer that the API does not promise: %s", deviation))
	}
	h := &simulated{Host: pve.New(cfg)}
	ts.Value(hostsKey{}).(map[string]*simulated)[name] = h
	ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	ts.Check(err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, ln) }()
	ts.Defer(func() {
		cancel()
		ts.Check(<-served)
		ts.Check(errors.Join(wrong...)) // every request of every script is one that the API table knows
	})
	api := "https://" + ln.Addr().String()
	ts.Setenv("API", api)
	ts.Setenv("TOKEN", h.Token())
	ts.Setenv("FINGERPRINT", h.Fingerprint())
	write(ts, "site/hosts/"+name+".hcl", fmt.Sprintf("host %q {\n  api         = %q\n  fingerprint = %q\n}\n", name, api, h.Fingerprint()))
	write(ts, "site/secrets.yaml", secretsFor(name, h.Token()))
}

// secretsFor are those of a site with a host and a key of ownership.
func secretsFor(host, token string) string {
	return fmt.Sprintf("auth:\n  ownership_key: %q\napi_tokens:\n  %s: %q\n", strings.Repeat("0e", 32), host, token)
}

func write(ts *testscript.TestScript, name, text string) {
	file := ts.MkAbs(name)
	ts.Check(os.MkdirAll(filepath.Dir(file), 0o755))
	ts.Check(os.WriteFile(file, []byte(text), 0o600))
}

func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG...")
	}
	got := 0
	var failed *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &failed) {
		got = failed.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("exit code %d, want %s", got, args[0])
	}
}

func cmdGuests(ts *testscript.TestScript, _ bool, args []string) {
	var got []string
	for _, g := range hostOf(ts, args[0]).Snapshot().Guests {
		got = append(got, fmt.Sprintf("%d:%s", g.VMID, g.Name()))
	}
	if want := args[1:]; !slices.Equal(got, want) {
		ts.Fatalf("the host holds %q, want %q", got, want)
	}
}

func cmdHand(ts *testscript.TestScript, _ bool, args []string) {
	vmid, err := strconv.Atoi(args[2])
	ts.Check(err)
	hostOf(ts, args[0]).Edit(func(e *pve.Edit) {
		switch args[1] {
		case "set":
			e.Set(vmid, args[3], args[4])
		case "stop":
			e.Stop(vmid)
		case "delete":
			e.Delete(vmid)
		case "add":
			e.Add(pve.Guest{VMID: vmid, Config: map[string]string{"name": args[3]}})
		default:
			ts.Fatalf("unknown change %q", args[1])
		}
	})
}

func cmdQuiet(ts *testscript.TestScript, neg bool, args []string) {
	h := hostOf(ts, args[0])
	now := h.Snapshot().Writes
	if wrote := now - h.writes; (wrote == 0) == neg {
		ts.Fatalf("%d requests that write", wrote)
	}
	h.writes = now
}

func cmdEncrypt(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: encrypt FILE ENCRYPTED")
	}
	secret, recipient, err := sopstest.NewKey()
	ts.Check(err)
	data, err := sopstest.Encrypt(ts.ReadFile(args[0]), sopstest.Options{Recipients: []string{recipient}, Clear: "^ssh_keys$"})
	ts.Check(err)
	write(ts, args[1], string(data))
	write(ts, "age.key", "# public key: "+recipient+"\n"+secret+"\n")
	ts.Setenv("AGE_KEY", secret)
	ts.Setenv("RECIPIENT", recipient)
}

// volatile are the keys of documents that differ from run to run, and what stands
// for them in golden files.
func volatile() map[string]any {
	return map[string]any{
		"observed_at": "TIME", "id": "ID", "duration_seconds": 0.0, "fingerprint": "FINGERPRINT", "api": "API", "token": "TOKEN",
		"commit": "COMMIT", "go": "GO", "version": "VERSION",
	}
}

func cmdSame(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: same DOCUMENT GOLDEN")
	}
	var docs [2]string
	for i, name := range args {
		var doc any
		d := json.NewDecoder(strings.NewReader(ts.ReadFile(name)))
		ts.Check(d.Decode(&doc))
		if d.More() {
			ts.Fatalf("%s holds more than one document", name)
		}
		b, err := json.MarshalIndent(settle(doc), "", "  ")
		ts.Check(err)
		docs[i] = string(b)
	}
	if docs[0] != docs[1] {
		ts.Fatalf("documents differ; got:\n%s\nwant:\n%s", docs[0], docs[1])
	}
}

// settle replaces what differs from run to run.
func settle(doc any) any {
	switch doc := doc.(type) {
	case map[string]any:
		for key, value := range doc {
			if stand, ok := volatile()[key]; ok && value != "" {
				doc[key] = stand
				continue
			}
			doc[key] = settle(value)
		}
	case []any:
		for i := range doc {
			doc[i] = settle(doc[i])
		}
	}
	return doc
}

func cmdCommit(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs(args[0])
	repo, err := git.PlainInit(dir, false)
	if errors.Is(err, git.ErrRepositoryAlreadyExists) {
		repo, err = git.PlainOpen(dir)
	}
	ts.Check(err)
	tree, err := repo.Worktree()
	ts.Check(err)
	for _, file := range args[1:] {
		_, err := tree.Add(file)
		ts.Check(err)
	}
	id, err := tree.Commit("a commit", &git.CommitOptions{Author: &object.Signature{Name: "a", Email: "a@example.org", When: time.Unix(0, 0)}})
	ts.Check(err)
	ts.Setenv("COMMIT", id.String())
}

// cmdUntil runs a program again and again until it exits with a code and, if there is
// a word /TEXT as well, its output has the text.
func cmdUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until CODE [/TEXT] PROGRAM ARG...")
	}
	want, text := args[0], ""
	if args = args[1:]; strings.HasPrefix(args[0], "/") {
		text, args = args[0][1:], args[1:]
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		got := 0
		var failed *exec.ExitError
		if err := ts.Exec(args[0], args[1:]...); errors.As(err, &failed) {
			got = failed.ExitCode()
		} else {
			ts.Check(err)
		}
		if strconv.Itoa(got) == want && strings.Contains(ts.ReadFile("stdout")+ts.ReadFile("stderr"), text) {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			ts.Fatalf("exit code %d, want %s and %q", got, want, text)
		}
	}
}

// cmdPush commits the folder site, and pushes it to the bare repository site.git; the
// first time it makes both.
func cmdPush(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: push MESSAGE")
	}
	git := func(args ...string) {
		ts.Check(ts.Exec("git", append([]string{"-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-C", "site"}, args...)...))
	}
	if ts.Exec("git", "-C", "site.git", "rev-parse") != nil {
		ts.Check(ts.Exec("git", "init", "-q", "--bare", "-b", "main", "site.git"))
		git("init", "-q", "-b", "main")
	}
	git("add", "-A")
	git("commit", "-q", "--allow-empty", "-m", args[0])
	git("push", "-q", "../site.git", "main")
}
