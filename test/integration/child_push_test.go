package integration_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	repository "github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// raised is a real Debian that becomes a child: its parent is a real server, whose port it reaches as one of its own.
type raised struct {
	*pushed
	program string // file
	version string
	server  *daemon.Server
	stop    func()
}

func beginRaised(t *testing.T) *raised {
	t.Helper()
	s := &raised{pushed: beginPush(t), program: filepath.Join(t.TempDir(), "homestak-gitops")}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", s.program, "../../cmd/homestak-gitops")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.CommandContext(t.Context(), s.program, "version", "--json").Output()
	require.NoError(t, err)
	var v struct{ Version string }
	require.NoError(t, json.Unmarshal(out, &v))
	s.version = v.Version
	s.debian.Write("/usr/bin/pveum", 0o755, drivertest.PVEum)
	s.debian.Run("chmod", "755", "/usr/bin/pveum")
	s.deploy("web", strings.Replace(vm("inner", `agent = false`, `nic "lan" {`, `  ip = "192.0.2.50/24"`, `}`), `"vm"`, `"pve"`, 1))
	return s
}

// serve starts the server of the parent, with the keys in a folder.
func (s *raised) serve(dir string) {
	s.t.Helper()
	s.server = daemon.NewServer(daemon.ServerOptions{
		Identity: "father", Listen: "127.0.0.1:0", Version: s.version, Program: s.program, Log: slog.New(slog.NewTextHandler(s.t.Output(), nil)),
		Access: keys.Files{Dir: dir}, Check: func() {}, Status: func() any { return nil },
	})
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan struct{})
	go func() { s.server.Run(ctx); close(ended) }()
	s.stop = func() { cancel(); <-ended }
	s.t.Cleanup(func() { s.stop() })
	nspawn.Await(s.t, "the server listens", func() bool { return len(s.server.State().Pins) > 0 })
	s.forward(ctx, s.server.State().Address)
}

// forward lets the machine reach a port of the test as one of its own.
func (s *raised) forward(ctx context.Context, at string) {
	s.t.Helper()
	ln := s.debian.Listen(at)
	go func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = near.Close() }()
				far, err := new(net.Dialer).DialContext(ctx, "tcp", at)
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
				_, _ = io.Copy(near, far)
			}()
		}
	}()
}

// pass makes a pass as an agent with that server does.
func (s *raised) pass(verb string) engine.Report {
	s.t.Helper()
	over := push.Over(engine.Provider{Kinds: proxmox.Kinds(), Open: func(_ engine.Desired, h *model.Host) (engine.Driver, error) { return s.open(h) }},
		push.Config{HostKeys: s.hosts, Dial: s.dial, Upgrade: time.Minute, Children: func() push.Children { return s.server }})
	rules, found := policy.Compile(s.t.Context(), policy.Options{Site: os.DirFS(s.dir)})
	require.Empty(s.t, found)
	return s.story.pass(verb, func(pass *engine.Pass) {
		pass.Load = func(context.Context) engine.Desired {
			secrets, found := hcl.ParseSecrets("secrets.yaml", []byte(s.text("secrets.yaml")), nil)
			site, more := hcl.Load(os.DirFS(s.dir), hcl.Options{Kinds: over.Kinds, Secrets: secrets})
			s.server.InForce(daemon.ServedCommit{
				ID: strings.Repeat("a", 40), Site: site, Policies: rules,
				Needs:    func() (map[string][]string, error) { return map[string][]string{}, nil },
				Snapshot: func() (*repository.Snapshot, string, error) { return nil, "this is a test", nil },
			})
			return engine.Desired{Site: site, Findings: append(found, more...)}
		}
		pass.Health.Reported = s.server.Reported
		pass.Open = func(h *model.Host) (engine.Driver, error) { return over.Open(pass.Load(s.t.Context()), h) }
	})
}

func (s *raised) works(when string) {
	s.t.Helper()
	r := s.pass("apply")
	require.Equal(s.t, engine.Done, r.Outcome, "%s: %s\n%s", when, describe(r), s.journal())
	again := s.pass("plan")
	require.True(s.t, again.Plan.InSync(), "%s: %s", when, describe(again))
	require.Empty(s.t, again.Plan.Unknown, when)
}

func (s *raised) journal() string {
	said, _ := s.debian.Try("journalctl", "-o", "cat", "-n", "40", "-u", "homestak-gitops")
	return said
}

// A machine gets the agent of a child by push: the real program runs under the real systemd, and reports to the
// real server of its parent. What is lost or changed is put back.
func TestST03PushInstallsTheAgentOfAChild(t *testing.T) {
	s := beginRaised(t)
	dir := t.TempDir()
	s.serve(dir)
	s.works("install")
	require.Equal(t, s.version, s.server.Runs("inner"))
	require.Equal(t, "active", s.debian.Run("systemctl", "is-active", "homestak-gitops"))
	require.Equal(t, "enabled", s.debian.Run("systemctl", "is-enabled", "homestak-gitops"))
	require.Contains(t, s.debian.Run("sh", "-c", "grep ^Groups: /proc/$(systemctl show -p MainPID --value homestak-gitops)/status"), "\t33 ", "it is in the group www-data")
	require.Equal(t, "600 homestak-gitops\n600 homestak-gitops", s.debian.Run("stat", "-c", "%a %U", "/etc/homestak-gitops/parent.token", "/etc/homestak-gitops/api.token"))
	require.Equal(t, "homestak@pve!agent=canary-1", s.debian.Run("cat", "/etc/homestak-gitops/api.token"))
	require.NotContains(t, s.journal(), "canary")
	require.Equal(t, "VM.Monitor", s.debian.Run("tail", "-n", "1", "/etc/pve/roles/HomestakGuests"), "as this version calls it")

	// What the agent renewed counts: nothing is written again.
	kept := s.debian.Run("cat", "/var/lib/homestak-gitops/parent.json")
	require.Contains(t, kept, `"config":{`, "it has fetched what it needs for its subtree")
	started := s.debian.Run("systemctl", "show", "-p", "ExecMainStartTimestampMonotonic", "homestak-gitops")
	s.works("nothing to do")
	require.Equal(t, started, s.debian.Run("systemctl", "show", "-p", "ExecMainStartTimestampMonotonic", "homestak-gitops"))

	s.debian.Run("sh", "-c", "systemctl disable --now homestak-gitops && rm /etc/homestak-gitops/api.token /usr/local/lib/systemd/system/homestak-gitops.service && userdel homestak-gitops")
	s.works("after a change by hand")
	require.Equal(t, "homestak@pve!agent=canary-2", s.debian.Run("cat", "/etc/homestak-gitops/api.token"))

	// The parent loses its data folder: it has other keys, which the child gets to know.
	s.stop()
	dir = t.TempDir()
	s.serve(dir)
	s.works("after the loss")
	require.Equal(t, s.version, s.server.Runs("inner"))

	// Another program of the same version is handed down; one that does not start is taken back.
	replace := func(program []byte) {
		require.NoError(t, os.WriteFile(s.program+".new", program, 0o700))
		require.NoError(t, os.Rename(s.program+".new", s.program))
		s.stop()
		s.serve(dir)
	}
	whole, err := os.ReadFile(s.program)
	require.NoError(t, err)
	replace(slices.Concat(whole, []byte("\nanother build")))
	s.works("an upgrade")
	want := s.debian.Run("sha256sum", "/usr/local/bin/homestak-gitops")
	replace([]byte("#!/bin/sh\nexit 1\n"))
	r := s.pass("apply")
	require.ErrorContains(t, r.Err, "does not work on inner, so the previous one is restored")
	require.Equal(t, want, s.debian.Run("sha256sum", "/usr/local/bin/homestak-gitops"))
	require.Equal(t, "active", s.debian.Run("systemctl", "is-active", "homestak-gitops"))
	nspawn.Await(t, "the one before reports", func() bool { return s.server.Runs("inner") == s.version })
}

// handedDown is the server of an agent whose children get another program than that of this test.
type handedDown struct {
	*daemon.Server
	file, version string
}

func (h handedDown) Program() (sum, version string, err error) {
	data, err := os.ReadFile(h.file)
	b := sha256.Sum256(data)
	return hex.EncodeToString(b[:]), h.version, err
}

func (h handedDown) OpenProgram() (io.ReadCloser, error) { return os.Open(h.file) }

// A push to the repository is all that somebody does: the agent of the host makes the machine and installs its agent,
// which gets the repository from there, and makes its own node on the Proxmox VE that it runs on.
func TestST03PushByTheAgentOfTheHost(t *testing.T) {
	s := beginRaised(t)
	second := pve.New(pve.Config{Node: "inner", Token: "homestak@pve!agent=canary-1"})
	ctx, end := context.WithCancel(t.Context())
	t.Cleanup(end)
	ln := s.debian.Listen("127.0.0.1:8006")
	go func() { _ = second.Serve(ctx, ln) }()
	conn, err := s.debian.Dial(ctx, "tcp", "127.0.0.1:8006")
	require.NoError(t, err)
	session := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, session.HandshakeContext(ctx))
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: session.ConnectionState().PeerCertificates[0].Raw})
	require.NoError(t, session.Close())
	s.debian.Run("mkdir", "-p", "/etc/pve")
	s.debian.Write("/etc/pve/pve-root-ca.pem", 0o644, string(ca))
	s.debian.Run("chmod", "644", "/etc/pve/pve-root-ca.pem")

	node := strings.Replace(vm("inner", `agent = false`, `nic "lan" {`, `  ip = "192.0.2.50/24"`, `}`), `"vm"`, `"pve"`, 1)
	s.deploy("web", node+vm("app", "parent = node.inner"))
	s.edit("manifests/web.hcl", `"flat"`, `"tiered"`)
	// The key that enters the machine is of this agent, and no secret of the site.
	s.edit("host.hcl", "  ssh {\n    key = secret.ssh_keys[\"driver\"]\n  }\n", "")
	secrets, _, _ := strings.Cut(s.text("secrets.yaml"), "  driver:")
	repo, files := sourcetest.New(t), map[string]string{}
	for _, name := range []string{"site.hcl", "host.hcl", "manifests/web.hcl"} {
		files[name] = s.text(name)
	}
	commit := repo.Commit(files, "begin")

	var father *tier
	cfg := push.Config{HostKeys: s.hosts, Dial: s.dial, PrivateKeys: []string{s.key}, Children: func() push.Children { return handedDown{father.Server(), s.program, s.version} }}
	father = startTierWith(t, "father", secrets, func(c *service.Config) { c.Repository.URL = repo.URL() }, func(o *service.Options) {
		over := push.Over(engine.Provider{Kinds: proxmox.Kinds(), Open: func(_ engine.Desired, h *model.Host) (engine.Driver, error) { return s.open(h) }}, cfg)
		o.Kinds, o.Program = over.Kinds, s.version
		o.Open = func(_ fs.FS, d engine.Desired, h *model.Host, _ func(string, int)) (engine.Driver, error) {
			return over.Open(d, h)
		}
	})
	nspawn.Await(t, "the server listens", func() bool { return len(father.Server().State().Pins) > 0 })
	s.forward(ctx, father.Server().State().Address)
	nspawn.Await(t, "the parent has converged", func() bool { return father.converged(commit)(father.Status()) })
	defer func() {
		if t.Failed() {
			said, err := json.Marshal(father.Tree())
			t.Logf("%s %v\n%s", said, err, s.journal())
		}
	}()
	require.Eventually(t, func() bool { return father.Tree().Ready }, 5*time.Minute, 10*time.Millisecond, "the child has, too")
	require.Equal(t, "inner below father, app below inner", names(father.Tree()))
	require.Equal(t, commit, father.Tree().Nodes[0].Commit)
	require.Len(t, second.Snapshot().Guests, 1)
	require.Equal(t, "app", second.Snapshot().Guests[0].Name())

	files["manifests/web.hcl"] = strings.Replace(files["manifests/web.hcl"], "node \"app\"", "node \"db\"", 1)
	commit = repo.Commit(files, "another node")
	require.NoError(t, father.client.CheckNow(ctx))
	nspawn.Await(t, "the push reaches the child", func() bool {
		return father.Tree().Ready && names(father.Tree()) == "inner below father, db below inner"
	})
	require.Equal(t, commit, father.Tree().Nodes[0].Commit)
}
