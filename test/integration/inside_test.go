package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// pushed is a story whose guests are entered: those of the simulated host that have the address
// 192.0.2.50 are one real Debian.
type pushed struct {
	*story
	debian *nspawn.Machine
	key    string // private, of who enters it
	hosts  *push.KnownHosts
	notes  bytes.Buffer
	agent  atomic.Bool // its guest agent responds
	dials  atomic.Int32
	from   func(ctx context.Context, network, address string) (net.Conn, error) // instead of from itself; may be nil
	// confirm is how long a login may fail after a change: the default where it succeeds, however busy this machine is. A
	// test whose logins fail for good waits less.
	confirm time.Duration
}

// beginPush boots that Debian as an image leaves it: sshd, and a user with our key and sudo.
func beginPush(t *testing.T) *pushed {
	t.Helper()
	nspawn.Need(t)
	p := &pushed{hosts: &push.KnownHosts{Path: filepath.Join(t.TempDir(), "state", "known_hosts")}}
	p.debian = nspawn.Boot(t, nspawn.Rootfs{
		Packages: nspawn.Systemd + ",openssh-server,sudo,iproute2,libpam-systemd,ifupdown,fail2ban,python3-systemd,e2fsprogs", Ready: "HOMESTAK_MACHINES_ROOTFS",
	})
	p.debian.Run("sh", "-c", "useradd -m -s /bin/bash homestak && install -d -m 700 -o homestak /home/homestak/.ssh && "+
		"ssh-keygen -q -t ed25519 -N '' -f /root/key && install -m 600 -o homestak /root/key.pub /home/homestak/.ssh/authorized_keys && "+
		"echo 'homestak ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/90-cloud-init-users && ip address add 192.0.2.50/32 dev lo")
	p.key = p.debian.Run("cat", "/root/key")
	p.story = begin(t, pve.Config{BootTime: time.Nanosecond, Exec: func(_ int, command []string, input string) (string, string, int, bool) {
		if !p.agent.Load() {
			return "", "", 0, false
		}
		cmd := p.debian.Command(command...)
		var out, complaints bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &complaints
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			return "", err.Error(), 127, true
		}
		return out.String(), complaints.String(), cmd.ProcessState.ExitCode(), true
	}})
	p.write("host.hcl", strings.Replace(p.text("host.hcl"), "host \"father\" {\n", "host \"father\" {\n  ssh {\n    key = secret.ssh_keys[\"driver\"]\n  }\n", 1))
	p.write("secrets.yaml", p.text("secrets.yaml")+"  driver: |\n    "+strings.ReplaceAll(strings.TrimSpace(p.key), "\n", "\n    ")+"\n")
	return p
}

func (p *pushed) text(name string) string {
	p.t.Helper()
	data, err := os.ReadFile(filepath.Join(p.dir, name))
	require.NoError(p.t, err)
	return string(data)
}

// dial connects to the Debian.
func (p *pushed) dial(ctx context.Context, network, address string) (net.Conn, error) {
	p.dials.Add(1)
	if p.from != nil {
		return p.from(ctx, network, address)
	}
	return p.debian.Dial(ctx, network, address)
}

// pass makes a pass with a driver of its own, as a new process does.
func (p *pushed) pass(verb string) engine.Report {
	p.t.Helper()
	over := push.Over(engine.Provider{Kinds: proxmox.Kinds(), Open: func(_ engine.Desired, h *model.Host) (engine.Driver, error) { return p.open(h) }},
		push.Config{HostKeys: p.hosts, Dial: p.dial, Confirm: p.confirm})
	return p.story.pass(verb, func(pass *engine.Pass) {
		pass.Load = func(context.Context) engine.Desired {
			data := []byte(p.text("secrets.yaml"))
			secrets, found := hcl.ParseSecrets("secrets.yaml", data, nil)
			site, more := hcl.Load(os.DirFS(p.dir), hcl.Options{Kinds: over.Kinds, Secrets: secrets})
			return engine.Desired{Site: site, Findings: append(found, more...)}
		}
		pass.Open = func(h *model.Host) (engine.Driver, error) {
			d := pass.Load(p.t.Context())
			return over.Open(d, h)
		}
		pass.Notify = func(e apply.Event) {
			if e.What == apply.Note {
				fmt.Fprintln(&p.notes, e.Text)
			}
		}
	})
}

func (p *pushed) converged(when string) {
	p.t.Helper()
	r := p.pass("plan")
	require.Equal(p.t, engine.Planned, r.Outcome, "%s: %s", when, describe(r))
	require.Empty(p.t, steps(r.Plan), when)
	require.Empty(p.t, r.Plan.Unknown, when)
}

const baseSpec = `spec "base" {
  access {
    via = "ssh"
    user "ops" {
      sudo     = true
      ssh_keys = ["ops"]
    }
  }
  config {
    timezone = "Europe/Berlin"
    file "/etc/motd" {
      content = "managed\n"
    }
  }
}
`

// A node is there, and what its spec says is inside of it: after one apply, with a plan that shows
// it. What somebody changes by hand there is found and reverted, and what leaves the spec leaves the
// machine. The node goes with all that is inside.
func TestST02PushMakesANodeWhatItsSpecSays(t *testing.T) {
	p := beginPush(t)
	p.write("specs.hcl", baseSpec)
	p.deploy("web", vm("web-1", `agent = false`, `spec = spec.base`, `nic "lan" {`, `  ip = "192.0.2.50/24"`, `}`))

	r := p.pass("plan")
	require.Equal(t, engine.Planned, r.Outcome, describe(r))
	require.Equal(t, "create image.debian-12, create vm.web-1, create guest.web-1", strings.Join(actions(r.Plan), ", "))

	r = p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Len(t, r.Nodes, 1)
	require.Equal(t, engine.NodeCompleted, r.Nodes[0].Status)
	require.Equal(t, "managed\n", p.debian.Run("cat", "/etc/motd")+"\n")
	require.Contains(t, p.debian.Run("id", "ops"), "ops")
	require.Contains(t, p.notes.String(), "guest.web-1: ")
	p.converged("after the apply")

	p.debian.Run("sh", "-c", "echo changed >/etc/motd")
	r = p.pass("plan")
	require.Equal(t, []string{"update guest.web-1"}, actions(r.Plan))
	require.Equal(t, "config.file./etc/motd.content", r.Plan.Steps[0].Changes[0].Path)
	r = p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Equal(t, "managed", p.debian.Run("cat", "/etc/motd"))

	p.edit("specs.hcl", "    file \"/etc/motd\" {\n      content = \"managed\\n\"\n    }\n", "")
	r = p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.NotContains(t, p.debian.Run("cat", "/etc/motd"), "managed")
	p.converged("after the file left the spec")

	p.remove("manifests/web.hcl")
	r = p.pass("plan")
	require.Equal(t, []string{"delete vm.web-1"}, actions(r.Plan)[:1])
}

// A guest shows the host key that its agent gave, or is not entered: nothing is done to another machine
// that has its address.
func TestST02PushRefusesAnotherMachine(t *testing.T) {
	p := beginPush(t)
	p.agent.Store(true)
	p.write("specs.hcl", baseSpec)
	p.deploy("web", vm("web-1", `spec = spec.base`, `agent = true`, `nic "lan" {`, `  ip = "192.0.2.50/24"`, `}`))
	require.Equal(t, engine.Done, p.pass("apply").Outcome)
	known, err := os.ReadFile(p.hosts.Path)
	require.NoError(t, err)
	require.Regexp(t, `(?m)^home/father/vm\.web-1 ssh-ed25519 `, string(known))
	p.converged("with the key that the agent gave")

	// Another machine answers at its address, while the agent has the keys that it always had.
	p.debian.Run("sh", "-c", "cp -a /etc/ssh /root/ssh && rm /root/ssh/ssh_host_* && for t in rsa ecdsa ed25519; do ssh-keygen -q -t $t -N '' -f /root/ssh/ssh_host_${t}_key; done && "+
		"for t in rsa ecdsa ed25519; do echo HostKey /root/ssh/ssh_host_${t}_key >>/etc/ssh/sshd_config; done && systemctl restart ssh && echo changed >/etc/motd")
	r := p.pass("apply")
	require.Equal(t, engine.Failed, r.Outcome)
	require.Empty(t, r.Plan.Steps)
	require.Contains(t, r.Nodes[0].Error, "its host key has changed")
	require.Equal(t, "changed", p.debian.Run("cat", "/etc/motd"))

	// cloud-init gave the guest new keys, as its agent confirms.
	p.debian.Run("sh", "-c", "sed -i '/^HostKey/d' /etc/ssh/sshd_config; rm /etc/ssh/ssh_host_*; ssh-keygen -A && systemctl restart ssh")
	r = p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Equal(t, "managed", p.debian.Run("cat", "/etc/motd"))

	// Without an agent nobody can say so.
	p.agent.Store(false)
	p.debian.Run("sh", "-c", "rm /etc/ssh/ssh_host_*; ssh-keygen -A && systemctl restart ssh && echo changed >/etc/motd")
	r = p.pass("apply")
	require.Equal(t, engine.Failed, r.Outcome)
	require.Contains(t, r.Nodes[0].Error, "its host key has changed")
	require.NoError(t, p.hosts.Forget("home/father/vm.web-1")) // as somebody does who reinstalled it
	r = p.pass("apply")
	require.Equal(t, engine.Failed, r.Outcome)
	require.Contains(t, r.Nodes[0].Error, "vm.web-1 is not ready yet: its guest agent has not confirmed the host key that it shows")
	require.Equal(t, "changed", p.debian.Run("cat", "/etc/motd"))
	p.edit("manifests/web.hcl", "agent = true", "agent = false")
	require.Equal(t, engine.Done, p.pass("apply").Outcome)
	require.Equal(t, "managed", p.debian.Run("cat", "/etc/motd"))
}

// The guest agent may start later than sshd. Until it confirms the host key, nothing is done inside.
func TestST02PushWaitsForTheGuestAgent(t *testing.T) {
	p := beginPush(t)
	p.from = func(ctx context.Context, network, address string) (net.Conn, error) {
		if p.dials.Load() == 3 {
			require.Empty(t, p.debian.Run("sh", "-c", "ls /var/lib/homestak-gitops 2>/dev/null || :"))
			p.agent.Store(true)
		}
		return p.debian.Dial(ctx, network, address)
	}
	p.write("specs.hcl", baseSpec)
	p.deploy("web", vm("web-1", `spec = spec.base`, `agent = true`, `nic "lan" {`, `  ip = "192.0.2.50/24"`, `}`))
	r := p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.GreaterOrEqual(t, p.dials.Load(), int32(3))
	known, err := p.hosts.Of("home/father/vm.web-1")
	require.NoError(t, err)
	require.Len(t, known.Keys, 3, "those that the agent gave")
}

// Without any connection to the guest its agent does the same.
func TestST02PushByTheGuestAgent(t *testing.T) {
	p := beginPush(t)
	p.agent.Store(true)
	p.write("specs.hcl", strings.Replace(baseSpec, `via = "ssh"`, `via = "agent"`, 1))
	p.deploy("web", vm("web-1", `spec = spec.base`, `agent = true`))
	r := p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Equal(t, "managed", p.debian.Run("cat", "/etc/motd"))
	require.Contains(t, p.debian.Run("id", "ops"), "ops")
	p.converged("by the agent")
	require.Zero(t, p.dials.Load(), "nobody connected")
}

// Where only the host reaches its guests, connections go through it. The Debian is both here.
func TestST02PushThroughTheHost(t *testing.T) {
	p := beginPush(t)
	p.edit("host.hcl", "  ssh {\n", "  ssh {\n    address = \"127.0.0.1\"\n    user = \"homestak\"\n    jump = true\n")
	p.write("specs.hcl", baseSpec)
	p.deploy("web", vm("web-1", `agent = false`, `spec = spec.base`, `nic "lan" {`, `  ip = "192.0.2.50/24"`, `}`))
	r := p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Equal(t, "managed", p.debian.Run("cat", "/etc/motd"))
	require.EqualValues(t, 1, p.dials.Load(), "to the host, once")
	known, err := os.ReadFile(p.hosts.Path)
	require.NoError(t, err)
	require.Regexp(t, `(?m)^127\.0\.0\.1 `, string(known))
	require.Regexp(t, `(?m)^home/father/vm\.web-1 `, string(known))
	p.converged("through the host")
}

// A posture that moves sshd to another port locks nobody out, and the next pass finds the port.
func TestST02PushMovesThePort(t *testing.T) {
	p := beginPush(t)
	p.write("specs.hcl", strings.Replace(baseSpec, "  access {\n", "  access {\n    posture = \"hard\"\n", 1)+`
posture "hard" {
  ssh {
    port = 2222
  }
}
`)
	p.deploy("web", vm("web-1", `agent = false`, `spec = spec.base`, `nic "lan" {`, `  ip = "192.0.2.50/24"`, `}`))
	r := p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Contains(t, p.debian.Run("sshd", "-T"), "port 2222\n")
	p.converged("on the new port")
	p.edit("specs.hcl", "    port = 2222\n", "    port = 22\n")
	r = p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	p.converged("on the old port")
}

// A spec that takes keys or sudo from the user as whom the node is entered locks nobody out: the
// change is taken back, by the next command or by the machine itself, and the error says why.
func TestST02PushKeepsItsOwnWayIn(t *testing.T) {
	p := beginPush(t)
	p.write("secrets.yaml", p.text("secrets.yaml")+"  mine: "+p.debian.Run("cat", "/root/key.pub")+"\n")
	const entered = `spec "base" {
  access {
    via     = "ssh"
    posture = "open"
    user "homestak" {
      sudo     = true
      ssh_keys = ["mine"]
    }
  }
}

posture "open" {
  sudo {
    nopasswd = true
  }
}
`
	p.write("specs.hcl", entered)
	p.deploy("web", vm("web-1", `agent = false`, `spec = spec.base`, `nic "lan" {`, `  ip = "192.0.2.50/24"`, `}`))
	r := p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	p.converged("with its keys and rights")

	p.confirm = 10 * time.Second
	p.edit("specs.hcl", `ssh_keys = ["mine"]`, `ssh_keys = []`)
	r = p.pass("apply")
	require.Contains(t, r.Nodes[0].Error, "no connection was possible afterwards, so the old state is restored")
	require.Equal(t, []string{"update guest.web-1"}, actions(p.pass("plan").Plan), "the guest can still be entered")

	p.write("specs.hcl", strings.Replace(entered, "nopasswd = true", "nopasswd = false", 1))
	r = p.pass("apply")
	// Without sudo nobody can take it back, unless the machine did so in the meantime.
	require.Regexp(t, `no connection was possible afterwards, so (the machine restores the old state within 20s|the old state is restored): `, r.Nodes[0].Error)
	require.Contains(t, describe(r), "takes sudo without a password from user homestak, as whom vm.web-1 is entered")
	p.debian.Until("the machine restored the rule", func() bool {
		return strings.Contains(p.debian.Run("cat", "/etc/sudoers.d/zz-homestak-gitops"), "NOPASSWD")
	})
	p.confirm = 0
	p.write("specs.hcl", entered)
	p.converged("with the old spec again")
}

func actions(p *plan.Plan) []string {
	var out []string
	for _, s := range p.Steps {
		out = append(out, fmt.Sprintf("%s %s", s.Action, s.Address))
	}
	return out
}
