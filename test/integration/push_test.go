package integration_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/images"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/service"
	repository "github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/keys"
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
	p.debian = nspawn.Rootfs{
		Packages: nspawn.Systemd + ",openssh-server,sudo,iproute2,libpam-systemd,ifupdown,fail2ban,python3-systemd,e2fsprogs", Ready: "HOMESTAK_MACHINES_ROOTFS",
	}.Boot(t)
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
	return p.story.pass(verb, func(pass *engine.Pass) {
		p.enter(pass, push.Config{HostKeys: p.hosts, Dial: p.dial, Confirm: p.confirm})
		pass.Observer = engine.StepFunc(func(e apply.Event) {
			if e.What == apply.Note {
				fmt.Fprintln(&p.notes, e.Text)
			}
		})
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

// One apply creates a node and applies its spec inside, with a plan that shows it. A change by hand inside is found and reverted,
// and an item that leaves the spec leaves the machine. The node is removed with all that is inside.
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

	// Without an agent no key is confirmed.
	p.agent.Store(false)
	p.debian.Run("sh", "-c", "rm /etc/ssh/ssh_host_*; ssh-keygen -A && systemctl restart ssh && echo changed >/etc/motd")
	r = p.pass("apply")
	require.Equal(t, engine.Failed, r.Outcome)
	require.Contains(t, r.Nodes[0].Error, "its host key has changed")
	require.NoError(t, p.hosts.Forget("home/father/vm.web-1")) // as after a reinstallation
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
	require.Zero(t, p.dials.Load(), "no connection was made")
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

// A posture that moves sshd to another port keeps the way in, and the next pass finds the port.
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

// A spec that takes keys or sudo from the user as whom the node is entered does not lock us out: the
// change is reverted, by the next command or by the machine itself, and the error says why.
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
	// Without sudo only the machine can revert it.
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

// beginAddress gives the Debian an interface eth0 with the address 192.0.2.50, by ifupdown, and lets
// connections come from the other end of it.
func beginAddress(t *testing.T) *pushed {
	t.Helper()
	p := beginPush(t)
	p.debian.Run("sh", "-c", strings.Join([]string{
		"echo 'nameserver 127.0.0.1' >/etc/resolv.conf", "ip addr del 192.0.2.50/32 dev lo", "ip netns add lan", "ip link add eth0 type veth peer name lan0 netns lan", "ip -n lan link set lan0 up",
		"ip -n lan addr add 192.0.2.1/24 dev lan0",
		`printf 'auto eth0\niface eth0 inet static\n\taddress 192.0.2.50/24\n\tgateway 192.0.2.1\n' >/etc/network/interfaces`, "ifup eth0",
	}, " && "))
	from := p.debian.DialFrom("lan")
	p.from = func(ctx context.Context, network, address string) (net.Conn, error) {
		return from(ctx, network, address)
	}
	return p
}

const addressSpec = `spec "base" {
  network {
    ip      = "192.0.2.50/24"
    gateway = "192.0.2.1"
  }
  access {
    via = "ssh"
  }
  config {
    file "/etc/motd" {
      content = "managed\n"
    }
  }
}
`

// The address of a guest changes while we are connected to it at the old one. The next pass finds it at the
// new one, with the same host key.
func TestST02PushMovesTheAddress(t *testing.T) {
	p := beginAddress(t)
	p.write("specs.hcl", addressSpec)
	p.deploy("web", vm("web-1", `agent = false`, `spec = spec.base`))
	r := p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	p.converged("at the address of its first boot")
	known, err := os.ReadFile(p.hosts.Path)
	require.NoError(t, err)

	p.edit("specs.hcl", "192.0.2.50/24", "192.0.2.51/24")
	r = p.pass("plan")
	require.Equal(t, []string{"update vm.web-1", "update guest.web-1"}, actions(r.Plan))
	require.Equal(t, "network.ip 192.0.2.50/24 → 192.0.2.51/24", r.Plan.Steps[1].Changes[0].String())
	r = p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Contains(t, p.debian.Run("ip", "-4", "addr", "show", "dev", "eth0"), "192.0.2.51/24")
	p.converged("at the new address")
	now, err := os.ReadFile(p.hosts.Path)
	require.NoError(t, err)
	require.Equal(t, strings.ReplaceAll(string(known), "192.0.2.50", "192.0.2.51"), string(now))

	// A pass that died between the two steps: the host says the new address already, and the guest has the old one.
	p.call("PUT", fmt.Sprintf("/nodes/father/qemu/%d/config", p.vmidOf("web-1")), map[string]string{"ipconfig0": "ip=192.0.2.52/24,gw=192.0.2.1"})
	p.edit("specs.hcl", "192.0.2.51/24", "192.0.2.52/24")
	r = p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Equal(t, []string{"update guest.web-1"}, actions(r.Plan))
	p.converged("at the address after it")
}

// An address at which we do not reach the guest is taken back by the guest alone, and the next pass enters
// it where it was.
func TestST02PushOfAnAddressThatLocksUsOut(t *testing.T) {
	p := beginAddress(t)
	p.write("specs.hcl", addressSpec)
	p.deploy("web", vm("web-1", `agent = false`, `spec = spec.base`))
	require.Equal(t, engine.Done, p.pass("apply").Outcome)
	p.edit("specs.hcl", `ip      = "192.0.2.50/24"
    gateway = "192.0.2.1"`, `ip      = "198.51.100.5/24"
    gateway = "198.51.100.1"`)
	p.confirm = 10 * time.Second
	r := p.pass("apply")
	require.NotEqual(t, engine.Done, r.Outcome, describe(r))
	require.Contains(t, r.Nodes[0].Error, "no connection was possible afterwards, so the ")
	nspawn.Await(t, "the guest has its old address", func() bool {
		return strings.Contains(p.debian.Run("ip", "-4", "addr", "show", "dev", "eth0"), "192.0.2.50/24")
	})
	p.confirm = 0
	p.edit("specs.hcl", "198.51.100.5/24", "192.0.2.50/24")
	p.edit("specs.hcl", "198.51.100.1", "192.0.2.1")
	r = p.pass("apply")
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	p.converged("where it was")
}

// ST-2: an agent pushes a spec with secrets into a guest, finds them changed, and fails with them. They are where the
// spec puts them, and nowhere else: in nothing that the program prints, logs or keeps, in no task of the
// host, in no arguments or environment of a process in the guest, and in no file there that others may read.
func TestST02SecretsOfAPush(t *testing.T) {
	const mark = "c4n4ry-"
	guests := &sim.Guests{}
	t.Cleanup(guests.Close)
	f := follow(t, pve.Config{BootTime: time.Nanosecond, TaskTime: time.Millisecond, Systems: guests}, byFile())
	config, err := os.ReadFile(f.config)
	require.NoError(t, err)
	secrets := regexp.MustCompile(`secrets_file = "(.*)"`).FindSubmatch(config)[1]
	text, err := os.ReadFile(string(secrets))
	require.NoError(t, err)
	text = append(text, "passwords:\n  file: c4n4ry-f1le-7d10\n  run: c4n4ry-r0n-51aa\n  unless: c4n4ry-un1ess-93ce\n  failing: c4n4ry-fa1l-e8f0\n"...)
	require.NoError(t, os.WriteFile(string(secrets), text, 0o600))

	f.deploy("web", vm("web-1", `agent = true`))
	f.push("A machine with nothing in it")
	f.says(0, "agent", "--once", "--config", f.config)
	inside := guests.Machine("10000")
	require.NotNil(t, inside)
	var mu sync.Mutex
	processes, shown := 0, []string{}
	inside.K.Watch(func(args, env []string) {
		mu.Lock()
		defer mu.Unlock()
		processes++
		if all := strings.Join(append(args, env...), "\n"); strings.Contains(all, mark) {
			shown = append(shown, all)
		}
	})

	spec := func(content, failing string) string {
		return fmt.Sprintf(`spec "base" {
  access {
    via = "agent"
  }
  config {
    file "/etc/app.key" {
      content = "${secret.passwords.%s}\n"
      mode    = "0600"
    }
    file "/etc/sudoers.d/app" {
      content = "# ${secret.passwords.file}\nDefaults lecture=never\n"
      mode    = "0440"
    }
    command "login" {
      run    = "[ -n '${secret.passwords.run}' ] && touch /srv/in"
      unless = "[ -e /srv/in ] || [ x = '${secret.passwords.unless}' ]"
    }
%s  }
}
`, content, failing)
	}
	f.write("specs.hcl", spec("run", ""))
	f.deploy("web", vm("web-1", `agent = true`, `spec = spec.base`))
	commit := f.push("With secrets inside")
	f.begins()
	f.converged(commit)
	var said strings.Builder
	ask := func() {
		for _, verb := range [][]string{{"status"}, {"status", "--json"}, {"history"}, {"history", "--json"}, {"events"}, {"events", "--json"}, {"why", "guest.web-1"}, {"why", "vm.web-1"}} {
			r := run(t, f.dir, append(verb, "--config", f.config)...)
			said.WriteString(r.out + r.err)
		}
		for _, format := range []string{"--json", "--format=markdown", "--format=text"} {
			r := run(t, f.dir, "plan", format, "--host", "father", "--secrets", string(secrets))
			require.Zero(t, r.code, r.err)
			require.NotEmpty(t, r.out)
			said.WriteString(r.out + r.err)
		}
	}
	ask()

	// Another content, and another one by hand.
	f.write("specs.hcl", spec("file", ""))
	ask() // it is not pushed yet: the plans have the difference
	f.converged(f.push("Another secret"))
	out, code := inside.Shell("cat /etc/app.key; echo by hand >/etc/app.key")
	require.Zero(t, code, out)
	require.Equal(t, "c4n4ry-f1le-7d10\n", out, "the test has no such canary")
	f.until("it is put back", func(agent.Status) bool {
		out, _ := inside.Shell("cat /etc/app.key")
		return out == "c4n4ry-f1le-7d10\n"
	})

	// A command that prints a secret, and fails.
	f.write("specs.hcl", spec("file", "    command \"fails\" {\n      run = \"echo ${secret.passwords.failing}; echo ${secret.passwords.failing} >&2; exit 3\"\n    }\n"))
	bad := f.push("A command that fails")
	f.until("the pass on it has ended", func(s agent.Status) bool {
		return s.State == agent.Idle && s.Last != nil && s.Last.Commit == bad && s.Last.Outcome != engine.Done
	})
	ask()
	said.WriteString(f.agent.said())
	f.ends()

	require.Contains(t, said.String(), "command fails ended with exit code 3")
	require.NotContains(t, said.String(), mark)
	require.NoError(t, filepath.WalkDir(f.data, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			content, err := os.ReadFile(name)
			require.NoError(t, err)
			require.NotContains(t, string(content), mark, name)
		}
		return err
	}))
	for _, task := range f.host.Snapshot().Tasks {
		require.NotContains(t, fmt.Sprintf("%+v", task), mark)
	}
	for _, r := range f.requests() {
		require.NotContains(t, r.path, mark)
	}
	mu.Lock()
	defer mu.Unlock()
	require.Greater(t, processes, 100)
	require.Empty(t, shown)
	inside.K.Watch(nil)
	out, _ = inside.Shell("find / -type f 2>/dev/null | while read -r f; do grep -lF " + mark + " \"$f\" 2>/dev/null; done")
	where := strings.Fields(out)
	require.ElementsMatch(t, []string{"/etc/app.key", "/etc/sudoers.d/app"}, where)
	out, code = inside.Shell("stat -c '%a %U' " + strings.Join(where, " "))
	require.Zero(t, code)
	require.Equal(t, "600 root\n440 root\n", out)
}

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
		Options: specserve.Options{Identity: "father", Version: s.version, Log: slog.New(slog.NewTextHandler(s.t.Output(), nil)), Check: func() {}, Status: func() any { return nil }},
		Listen:  "127.0.0.1:0", ProgramFile: s.program, Access: keys.Files{Dir: dir},
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
	rules, found := policy.Compile(s.t.Context(), policy.Options{Site: os.DirFS(s.dir)})
	require.Empty(s.t, found)
	return s.story.pass(verb, func(pass *engine.Pass) {
		s.enter(pass, push.Config{HostKeys: s.hosts, Dial: s.dial, Upgrade: time.Minute, Children: func() push.Children { return s.server }})
		load := pass.Load
		pass.Load = func(ctx context.Context) engine.Desired {
			d := load(ctx)
			s.server.InForce(daemon.ServedCommit{
				ID: strings.Repeat("a", 40), Site: d.Site, Policies: rules,
				Needs:    func() (map[string][]string, error) { return map[string][]string{}, nil },
				Snapshot: func() (*repository.Snapshot, string, error) { return nil, "this is a test", nil },
			})
			return d
		}
		pass.Health.Reported = s.server.Reported
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
// real server of its parent. Lost and changed parts are restored.
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

	// Pins and tokens that the agent renewed count: nothing is written again.
	kept := s.debian.Run("cat", "/var/lib/homestak-gitops/parent.json")
	require.Contains(t, kept, `"config":{`, "it has fetched what it needs for its subtree")
	started := s.debian.Run("systemctl", "show", "-p", "ExecMainStartTimestampMonotonic", "homestak-gitops")
	s.works("nothing to do")
	require.Equal(t, started, s.debian.Run("systemctl", "show", "-p", "ExecMainStartTimestampMonotonic", "homestak-gitops"))

	s.debian.Run("sh", "-c", "systemctl disable --now homestak-gitops && rm /etc/homestak-gitops/api.token /usr/local/lib/systemd/system/homestak-gitops.service && userdel homestak-gitops")
	s.works("after a change by hand")
	require.Equal(t, "homestak@pve!agent=canary-2", s.debian.Run("cat", "/etc/homestak-gitops/api.token"))

	// The parent loses its data folder: it has other keys, which the child learns.
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

// A push to the repository is the only act of a person: the agent of the host creates the machine and installs its agent,
// which gets the repository from there, and creates its own node on the Proxmox VE that it runs on.
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
		o.Kinds, o.Program = append(proxmox.Kinds(), cfg.Kinds()...), s.version
		o.Open = func(fs.FS, func(string, int), *daemon.Server, *images.Near) func(engine.Desired, *model.Host) (engine.Driver, error) {
			return s.over(cfg)
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
