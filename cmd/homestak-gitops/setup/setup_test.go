package setup_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/setup"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// versions are those of Proxmox VE.
func versions() []string { return []string{"8.4", "9.2"} }

// What setup made is gone after undo, and what it changed is as before. A second run has nothing to do.
func TestUndoLeavesTheHostAsBefore(t *testing.T) {
	t.Parallel()
	for _, version := range versions() {
		for name, cfg := range map[string]pve.Config{"alone": {}, "cluster": {Nodes: []string{"mother"}, Guests: 3}} {
			t.Run(version+" "+name, func(t *testing.T) {
				cfg.Version = version
				w := begin(t, cfg)
				before := w.state()
				require.Positive(t, w.do())
				require.NotEqual(t, before, w.state())
				after := w.state()
				w.ran = nil
				require.Zero(t, w.do())
				require.Empty(t, w.ran, "a second run changes nothing")
				require.Equal(t, after, w.state())
				w.undo()
				require.Equal(t, before, w.state())
				w.undo()
				require.Equal(t, before, w.state(), "there is nothing more to undo")
			})
		}
	}
}

// The package brings program and units, and setup puts nothing in front of them.
func TestThePackageIsNotHidden(t *testing.T) {
	t.Parallel()
	w := begin(t, pve.Config{})
	w.file = "usr/bin/homestak-gitops"
	for _, dir := range []string{"usr/bin", "usr/lib/sysusers.d"} {
		require.NoError(t, os.MkdirAll(filepath.Join(w.root, dir), 0o755))
	}
	w.put(w.file, "the program")
	w.put("usr/lib/sysusers.d/homestak-gitops.conf", "the user")
	w.do()
	require.NoFileExists(t, filepath.Join(w.root, "usr/local/bin/homestak-gitops"))
	require.NoDirExists(t, filepath.Join(w.root, "usr/local/lib"))
}

// killed is a run that ends before a change.
var errKilled = errors.New("killed")

// However far a run got, the next one finishes it, with the same result. Undo leads back from everywhere, also if it is
// cut off itself.
func TestARunThatIsCutOffIsFinishedOrUndone(t *testing.T) {
	t.Parallel()
	whole := begin(t, pve.Config{})
	whole.do()
	want := whole.shape()
	for n, ended := 1, false; !ended; n++ {
		cut := func(w *world, undo bool) bool {
			s, left := w.setup(), n
			s.Stop = func() error {
				if left--; left == 0 {
					return errKilled
				}
				return nil
			}
			if undo {
				return errors.Is(s.Undo(t.Context()), errKilled)
			}
			p, err := s.Read(t.Context())
			require.NoError(t, err)
			return errors.Is(s.Do(t.Context(), p), errKilled)
		}
		w := begin(t, pve.Config{})
		before := w.state()
		ended = !cut(w, false)
		w.do()
		require.Empty(t, differences(want, w.shape()), "cut off before change %d", n)
		require.Zero(t, w.do())
		cut(w, true)
		w.undo()
		require.Equal(t, before, w.state(), "finished after change %d, undone", n)

		cut(w, false)
		w.undo()
		require.Equal(t, before, w.state(), "undone after change %d", n)
	}
}

// A run that is killed while it writes a file leaves a part of it, which may hold secrets.
func TestNoPartOfAFileStays(t *testing.T) {
	t.Parallel()
	w := begin(t, pve.Config{})
	before, rest := w.state(), "etc/homestak-gitops/.new-1"
	require.NoError(t, os.Mkdir(filepath.Join(w.root, "etc/homestak-gitops"), 0o755))
	w.put(rest, "token")
	w.do()
	require.NoFileExists(t, filepath.Join(w.root, rest))
	w.put(rest, "token")
	w.undo()
	require.Equal(t, before, w.state())
}

// differences are the lines that only one of two texts has.
func differences(a, b string) (out []string) {
	in := func(text, line string) bool {
		return strings.Contains("\n"+text+"\n", "\n"+strings.TrimRight(line, "\n")+"\n")
	}
	for line := range strings.Lines(a) {
		if !in(b, line) {
			out = append(out, "- "+line)
		}
	}
	for line := range strings.Lines(b) {
		if !in(a, line) {
			out = append(out, "+ "+line)
		}
	}
	return out
}

// The files are those that the agent reads.
func TestTheFilesAreGood(t *testing.T) {
	t.Parallel()
	w := begin(t, pve.Config{Guests: 2})
	w.do()
	secrets, found := hcl.ParseSecrets("secrets.yaml", []byte(w.text("etc/homestak-gitops/secrets.yaml")), nil)
	require.Empty(t, found)
	require.Contains(t, secrets.Values["api_tokens"]["father"], "homestak@pve!gitops=")
	require.Equal(t, "-----BEGIN KEY-----\nabc\n-----END KEY-----\n", secrets.Values["ssh_keys"]["gitops-private"])
	require.Len(t, secrets.OwnershipKeys("home", "father"), 1)
	_, found = hcl.ParseAgent("agent.hcl", []byte(w.text("etc/homestak-gitops/agent.hcl")))
	require.Empty(t, found)
	for name, mode := range map[string]os.FileMode{"secrets.yaml": 0o600, "setup.json": 0o600, "agent.hcl": 0o644} {
		info, err := os.Stat(filepath.Join(w.root, "etc/homestak-gitops", name))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), name)
	}
	require.NotContains(t, strings.Join(w.said, "\n"), secrets.Values["api_tokens"]["father"][20:], "no secret is shown")
	require.NotContains(t, w.text("etc/homestak-gitops/setup.json"), secrets.Values["api_tokens"]["father"][20:])
}

// What setup grants is what the page on permissions grants by hand to a site without a pool, which a test of the whole shows to be
// enough.
func TestThePageOnPermissionsGrantsTheSame(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/permissions.md")
	require.NoError(t, err)
	least, _, more := strings.Cut(string(page), "\n## What needs more\n")
	require.True(t, more)
	w := begin(t, pve.Config{})
	w.do()
	ran, found := strings.Join(w.ran, "\n"), 0
	for line := range strings.Lines(strings.Replace(least, "acl modify /pool/homestak ", "acl modify /vms ", 1)) {
		if words := strings.Fields(strings.ReplaceAll(line, `"`, "")); strings.HasPrefix(line, "    pveum ") && words[1] != "pool" {
			found++
			require.Contains(t, ran, strings.Join(words, " "))
		}
	}
	require.Equal(t, 12, found)
	require.Equal(t, 12, strings.Count(ran, "pveum "), "and nothing else")
}

// What setup did not make it neither changes nor removes.
func TestExistingThingsStay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, why, fix string
		make           []string
	}{
		{
			"role that lacks a privilege", "role HomestakDisks is there, and lacks Datastore.AllocateSpace",
			"pveum role modify HomestakDisks --append 1 --privs Datastore.AllocateSpace",
			[]string{"pveum role add HomestakDisks --privs Datastore.Audit"},
		},
		{
			"token without a secret", "token homestak@pve!gitops is there, and PVE shows its secret only once",
			"pveum user token remove homestak@pve gitops",
			[]string{"pveum user add homestak@pve", "pveum user token add homestak@pve gitops --output-format json"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := begin(t, pve.Config{})
			for _, line := range c.make {
				_, err := w.Run(t.Context(), strings.Fields(line))
				require.NoError(t, err)
			}
			before := w.state()
			require.Contains(t, w.refused(), c.why)
			require.Equal(t, before, w.state())
			_, err := w.Run(t.Context(), strings.Fields(c.fix))
			require.NoError(t, err)
			before = w.state()
			require.Positive(t, w.do())
			w.undo()
			require.Equal(t, before, w.state())
		})
	}
	t.Run("another program", func(t *testing.T) {
		w := begin(t, pve.Config{})
		w.put("usr/local/bin/homestak-gitops", "an older program")
		require.Contains(t, w.refused(), "differs from that of this program")
	})
	t.Run("secrets of another site", func(t *testing.T) {
		w := begin(t, pve.Config{})
		require.NoError(t, os.Mkdir(filepath.Join(w.root, "etc/homestak-gitops"), 0o755))
		w.put("etc/homestak-gitops/secrets.yaml", "passwords:\n  a: b\n")
		require.Contains(t, w.refused(), "without a token of this host")
		w.put("etc/homestak-gitops/secrets.yaml", "api_tokens:\n  father: \"homestak@pve!gitops=1\"\n")
		w.makeToken()
		before := w.state()
		w.do()
		w.undo()
		require.Equal(t, before, w.state())
	})
	t.Run("the token of secrets that stay", func(t *testing.T) {
		w := begin(t, pve.Config{})
		w.do()
		w.put("etc/homestak-gitops/secrets.yaml", w.text("etc/homestak-gitops/secrets.yaml")+"passwords:\n  a: b\n")
		w.undo()
		require.Contains(t, w.refused(), "without a token of this host that is valid")
		require.Contains(t, w.refused(), "pveum user add homestak@pve && pveum user token add homestak@pve gitops --privsep 0")
		w.makeToken()
		w.do()
		w.put("etc/homestak-gitops/secrets.yaml", strings.Replace(w.text("etc/homestak-gitops/secrets.yaml"), "father:", "mother:", 1))
		require.Contains(t, w.refused(), "token homestak@pve!gitops is there", "the line is that of another host")
	})
	t.Run("role of an earlier version", func(t *testing.T) {
		w := begin(t, pve.Config{})
		before := w.state()
		w.do()
		_, err := w.Run(t.Context(), strings.Fields("pveum role modify HomestakNode --privs Sys.Audit"))
		require.NoError(t, err)
		require.Contains(t, w.refused(), "role HomestakNode is there, and lacks Sys.AccessNetwork", "its owner changed it")
		w.put("etc/homestak-gitops/setup.json", strings.Replace(w.text("etc/homestak-gitops/setup.json"), `"Sys.AccessNetwork,Sys.Audit"`, `"Sys.Audit"`, 1))
		require.Equal(t, 1, w.do())
		w.undo()
		require.Equal(t, before, w.state())
	})
	t.Run("program of an earlier version", func(t *testing.T) {
		w := begin(t, pve.Config{})
		before := strings.Replace(w.state(), "the program", "a newer one", 1)
		w.do()
		require.NotContains(t, w.ran, "systemctl try-restart homestak-gitops.service")
		w.put("root/homestak-gitops", "a newer one")
		require.Equal(t, 1, w.do())
		require.Equal(t, "systemctl try-restart homestak-gitops.service", w.ran[len(w.ran)-1])
		w.undo()
		require.Equal(t, before, w.state())
	})
	t.Run("secrets that are lost", func(t *testing.T) {
		w := begin(t, pve.Config{Nodes: []string{"mother"}})
		w.do()
		text, file := w.text("etc/homestak-gitops/secrets.yaml"), filepath.Join(w.root, "etc/homestak-gitops/secrets.yaml")
		require.NoError(t, os.Remove(file))
		require.Contains(t, w.refused(), "secrets.yaml is gone, and guests carry tags of its ownership key")
		w.put("etc/homestak-gitops/secrets.yaml", text)
		require.Zero(t, w.do())
		require.NoError(t, errors.Join(os.Remove(file), os.Remove(filepath.Join(w.root, "etc/homestak-gitops/setup.json")))) // as on another node
		require.Contains(t, w.refused(), "one agent is for all nodes")
		require.NotContains(t, w.refused(), "pveum user token remove")
	})
	t.Run("changed afterwards", func(t *testing.T) {
		w := begin(t, pve.Config{})
		w.do()
		w.put("etc/homestak-gitops/secrets.yaml", w.text("etc/homestak-gitops/secrets.yaml")+"passwords:\n  a: b\n")
		w.put("srv/homestak-gitops.git/refs/heads/main", strings.Repeat("1", 40)+"\n")
		_, err := w.Run(t.Context(), strings.Fields("pvesm set local --content iso"))
		require.NoError(t, err)
		w.undo()
		said := strings.Join(w.said, "\n")
		for _, name := range []string{"secrets, with", "repository ", "content of storage local"} {
			require.Regexp(t, "(?m)^"+name+".*: left as it is, since it was changed after setup", said)
		}
		require.Contains(t, w.text("etc/homestak-gitops/secrets.yaml"), "a: b")
		require.NoFileExists(t, filepath.Join(w.root, "etc/homestak-gitops/setup.json"))
		require.Contains(t, w.get("/nodes/father/storage"), `"content":["iso"]`)
	})
	for what, line := range map[string]string{
		"token": "pveum user token add homestak@pve laptop --output-format json",
		"entry": "pveum acl modify /vms --users homestak@pve --roles PVEAuditor",
	} {
		t.Run("user with another "+what, func(t *testing.T) {
			w := begin(t, pve.Config{})
			w.do()
			_, err := w.Run(t.Context(), strings.Fields(line))
			require.NoError(t, err)
			w.undo()
			require.Contains(t, strings.Join(w.said, "\n"), "user homestak@pve: left as it is")
			require.Contains(t, w.get("/access/users"), "homestak@pve")
			require.NotContains(t, w.get("/access/users?full=1"), `"tokenid":"gitops"`)
		})
	}
	t.Run("repository with another branch", func(t *testing.T) {
		w := begin(t, pve.Config{})
		w.do()
		w.put("srv/homestak-gitops.git/refs/heads/feature", w.text("srv/homestak-gitops.git/refs/heads/main"))
		w.undo()
		require.FileExists(t, filepath.Join(w.root, "srv/homestak-gitops.git/refs/heads/feature"))
	})
}

// Where setup cannot run it says why, and what to do.
func TestHostsThatCannotBeSetUp(t *testing.T) {
	t.Parallel()
	for why, cfg := range map[string]pve.Config{
		"has no quorum":                              {Nodes: []string{"mother"}, NoQuorum: true},
		"no active storage for disks":                {Storages: []pve.Storage{{Name: "local", Type: "dir", Content: []string{"iso"}}}},
		"node 1pve has a name that a site":           {Node: "1pve"},
		"no active bridge : create one under System": {Bridges: []string{}},
	} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, begin(t, cfg).refused(), why)
		})
	}
	t.Run("names that are not there", func(t *testing.T) {
		w := begin(t, pve.Config{})
		w.with.Disks, w.with.Bridge = "fast", "vmbr9"
		require.Contains(t, w.refused(), "has no storage fast")
		require.Contains(t, w.refused(), "has no active bridge vmbr9")
	})
	t.Run("storages that do not fit", func(t *testing.T) {
		w := begin(t, pve.Config{})
		w.with.Disks, w.with.Images = "local", "local-lvm"
		require.Contains(t, w.refused(), "storage local is not active on node father, or not for disks")
		require.Contains(t, w.refused(), "storage local-lvm is not active on node father, or not for images")
	})
}

// A script has all commands, and no secret.
func TestScript(t *testing.T) {
	t.Parallel()
	w := begin(t, pve.Config{})
	s := w.setup()
	p, err := s.Read(t.Context())
	require.NoError(t, err)
	var script bytes.Buffer
	p.Script(&script)
	require.Empty(t, w.ran)
	require.NoError(t, s.Do(t.Context(), p))
	for _, line := range w.ran {
		require.Contains(t, strings.ReplaceAll(script.String(), "'", ""), line)
	}
	require.Contains(t, script.String(), `token=$(pveum user token add homestak@pve gitops --privsep 0 --output-format json)`)
}

// The script makes the files that setup makes.
func TestTheScriptMakesTheSame(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"git", "ssh-keygen", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	site := func(w *world) string {
		shared, err := sourcetest.Git(t.Context(), filepath.Join(w.root, "srv/homestak-gitops.git"), "config", "core.sharedRepository").Output()
		require.NoError(t, err)
		require.Contains(t, []string{"world", "2"}, strings.TrimSpace(string(shared)), "other users read what is pushed with any umask")
		out, err := sourcetest.Git(t.Context(), filepath.Join(w.root, "srv/homestak-gitops.git"), "ls-tree", "-r", "main").CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	want, w := begin(t, pve.Config{}), begin(t, pve.Config{})
	want.host = w.host // one certificate
	p, err := w.setup().Read(t.Context())
	require.NoError(t, err)
	want.do()
	var script bytes.Buffer
	p.Script(&script)
	stubs := t.TempDir() // what is not here does nothing, but for pveum, which prints a token
	for _, name := range []string{"pveum", "pvesm", "systemctl", "systemd-sysusers", "usermod"} {
		text := "#!/bin/sh\ncase $3 in add) echo '{\"full-tokenid\":\"homestak@pve!gitops\",\"value\":\"abc-123\",\"info\":{\"privsep\":\"0\"}}';; esac\n"
		require.NoError(t, os.WriteFile(filepath.Join(stubs, name), []byte(text), 0o700))
	}
	run := func(path string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "sh")
		cmd.Stdin, cmd.Env = strings.NewReader(script.String()), append(sourcetest.GitEnv(), "PATH="+path+stubs+":"+os.Getenv("PATH"),
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=commit.gpgsign", "GIT_CONFIG_VALUE_0=true") // root has no key for the author of this commit
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, text := range []string{"#!/bin/sh\n[ $2 != token ]\n", "#!/bin/sh\n"} { // it fails, or prints nothing
		broken := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(broken, "pveum"), []byte(text), 0o700))
		_, err := run(broken + ":")
		require.Error(t, err)
		require.NoFileExists(t, filepath.Join(w.root, "etc/homestak-gitops/secrets.yaml"))
	}
	out, err := run("")
	require.NoError(t, err, "%s", out)
	require.Equal(t, site(want), site(w))
	for _, name := range []string{"etc/homestak-gitops/agent.hcl", "usr/local/bin/homestak-gitops", "usr/local/lib/systemd/system/homestak-gitops.service"} {
		require.Equal(t, strings.ReplaceAll(want.text(name), want.root, ""), strings.ReplaceAll(w.text(name), w.root, ""), name)
	}
	secrets, found := hcl.ParseSecrets("secrets.yaml", []byte(w.text("etc/homestak-gitops/secrets.yaml")), nil)
	require.Empty(t, found)
	require.Equal(t, "homestak@pve!gitops=abc-123", secrets.Values["api_tokens"]["father"])
	require.Len(t, secrets.OwnershipKeys("home", "father"), 1)
	require.Contains(t, secrets.Values["ssh_keys"]["gitops-private"], "\n-----END OPENSSH PRIVATE KEY-----\n")
	info, err := os.Stat(filepath.Join(w.root, "etc/homestak-gitops/secrets.yaml"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoFileExists(t, filepath.Join(w.root, "etc/homestak-gitops/guests-key"))
}

// ipv6 is a node with an address of IPv6 alone.
type ipv6 struct{ *world }

func (w ipv6) Run(ctx context.Context, argv []string) (string, error) {
	out, err := w.world.Run(ctx, argv)
	return strings.ReplaceAll(out, "192.0.2.2", "2001:db8::2"), err
}

func TestIPv6(t *testing.T) {
	t.Parallel()
	w := begin(t, pve.Config{})
	s := w.setup()
	s.Run = ipv6{w}
	p, err := s.Read(t.Context())
	require.NoError(t, err)
	require.Contains(t, p.Next(), "git clone root@[2001:db8::2]:/")
	require.Contains(t, p.Next(), "scp root@[2001:db8::2]:/etc/")
}

// With a URL the site is pushed there. If that is refused, setup says how it gets the right, and the next run goes on.
func TestRepositoryElsewhere(t *testing.T) {
	t.Parallel()
	setUp := func(w *world) (*setup.Plan, error) {
		s := w.setup()
		p, err := s.Read(t.Context())
		require.NoError(t, err)
		return p, s.Do(t.Context(), p)
	}
	t.Run("ssh", func(t *testing.T) {
		t.Parallel()
		repo := sourcetest.New(t)
		server := repo.SSH()
		w := begin(t, pve.Config{})
		known, err := os.ReadFile(server.KnownHostsFile)
		require.NoError(t, err)
		w.with.Repository, w.hostKeys = server.URL, string(known)
		before := w.state()
		_, err = setUp(w)
		require.ErrorContains(t, err, "add this deploy key to the repository, with the right to write")
		public := w.text("etc/homestak-gitops/deploy-key.pub")
		require.ErrorContains(t, err, public)
		require.NoFileExists(t, filepath.Join(w.root, "etc/homestak-gitops/agent.hcl"))

		server.Authorize(public)
		p, err := setUp(w)
		require.NoError(t, err)
		require.Contains(t, p.Next(), "git clone "+server.URL)
		require.Contains(t, p.Next(), "Take the right to write from the deploy key")
		text, err := sourcetest.Git(t.Context(), repo.Dir, "show", "main:hosts/father.hcl").CombinedOutput()
		require.NoError(t, err, "%s", text)
		require.Contains(t, string(text), `host "father"`)
		_, found := hcl.ParseAgent("agent.hcl", []byte(w.text("etc/homestak-gitops/agent.hcl")))
		require.Empty(t, found)
		require.Contains(t, w.text("etc/homestak-gitops/agent.hcl"), "deploy-key")
		require.Zero(t, w.do())
		w.with.Repository = ""
		require.Zero(t, w.do(), "the agent follows it")
		w.undo()
		require.Equal(t, before, w.state())

		w.with.Repository = server.URL
		_, err = setUp(w)
		require.ErrorContains(t, err, "add this deploy key")
		server.Authorize(w.text("etc/homestak-gitops/deploy-key.pub"))
		head := repo.ForcePush(map[string]string{"site.hcl": ""}, "of the owner") // the same site in the same second would be the same commit
		w.do()
		require.Equal(t, head, repo.Head())
		require.Contains(t, strings.Join(w.said, "\n"), "it has commits already, and the agent follows them")
		require.Contains(t, strings.Join(w.said, "\n"), `host "father" {`)
		require.Contains(t, strings.Join(w.said, "\n"), "All agents of a site have its ownership key")
	})
	t.Run("after one on the host", func(t *testing.T) {
		t.Parallel()
		w := begin(t, pve.Config{})
		w.do()
		w.with.Repository = "git@example.org:site.git"
		require.Contains(t, w.refused(), "the agent follows "+w.root+"/srv/homestak-gitops.git")
		w.put("etc/homestak-gitops/agent.hcl", "identity = \"father\"\n")
		require.Contains(t, w.refused(), "names no repository")
	})
	t.Run("https", func(t *testing.T) {
		t.Parallel()
		repo := sourcetest.New(t)
		server := repo.HTTPS()
		server.SetLogin("git", "t0ken")
		w := begin(t, pve.Config{})
		w.with.Repository = "https://me:secret@example.org/site.git"
		require.Contains(t, w.refused(), "has a password")
		w.with.Repository = server.URL
		_, err := setUp(w)
		require.ErrorContains(t, err, "put a token that may write to the repository into")
	})
}
