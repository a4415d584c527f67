package bench_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/test/bench/fleet"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

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
	home   string // of whoever runs ours and Ansible: .ssh has the key
	plays  string // folder of the playbook
}

// enter boots a guest for the programs under measurement. archive is a folder that apt installs from.
func (m *meter) enter(archive, key string, guests int) *inside {
	g := &inside{meter: m, home: m.b.TempDir(), dir: m.b.TempDir(), plays: m.b.TempDir()}
	g.debian = nspawn.Boot(m.b, debian, nspawn.Bind{From: archive, To: "/srv/apt"})
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
		"secrets.yaml": fleet.Auth + fmt.Sprintf("api_tokens:\n  father: %q\nssh_keys:\n  ops: %q\n", g.host.access.Token, strings.TrimSpace(string(public))),
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

func (g *inside) ours(verb string, args ...string) run {
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
		g.ours("apply", "--yes")
	}
	g.ansible("tuned.cfg", true)
	var ours, usual, tuned []run
	look := func() {
		r := g.ours("plan")
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
		ours, again = append(ours, g.ours("apply", "--yes")), append(again, g.ours("apply", "--yes"))
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
