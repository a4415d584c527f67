package converge_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
)

// everything is a spec that every aspect has something to say of.
const everything = `"identity": {"hostname": "edge", "domain": "home.example"},
"network": {"ip": "10.9.0.5/24", "gateway": "10.9.0.1", "dns": ["10.9.0.1"]},
"access": {"former_users": "remove", "users": [{"name": "ann", "sudo": "nopasswd", "ssh_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGs3bGZ6c2FrZGpoZmtqc2RoZmtqaHNkZmtqaHNka2Y= ann"], "groups": ["video"], "shell": "/bin/bash"}]},
"posture": {"name": "prod", "ssh": {"port": "22", "permit_root_login": "no", "password_authentication": "no"}, "fail2ban": {}},
"platform": {"packages": ["htop"], "services": {"cron": "enabled", "ntp": "disabled"}},
"config": {"timezone": "Europe/Berlin", "sysctl": {"vm.swappiness": "1"}, "swap": 512,
 "files": [{"path": "/etc/app", "content": "x", "mode": "0644", "owner": "root", "group": "root", "restart": ["app"]}],
 "repositories": [{"name": "r", "url": "http://192.0.2.1/", "suites": ["a"], "components": ["b"], "key": "-----BEGIN PGP PUBLIC KEY BLOCK-----"}],
 "commands": [{"name": "c", "run": "true", "unless": "false"}],
 "mounts": [{"path": "/srv/data", "label": "data", "fstype": "ext4"}],
 "pve": {"no_subscription": true, "remove_subscription_nag": true, "bridge": "vmbr0"}},
"run": {"trigger": "schedule", "interval_seconds": 60}`

// Root in a guest decides what every probe answers. Whatever that is, it is taken, or it is an error: it never ends the
// program, and it costs no more than the answer is long.
func TestS7AMachineThatLies(t *testing.T) {
	aspects := strings.Fields(`repositories users commands services fail2ban swap mounts keys sysctl sshd pvebridge pverepository pvenag network timezone pull files sudo packages hostname`)
	words := []string{"", "0", "-1", "1", "99999999999999999999", "=", "=ann", "=x=y", "ann", "root", "r", "c", "/etc/app", "/srv/data", "vmbr0", "eth0", "lo", "htop", "cron", "22", "10.9.0.5/24", "::1", "yes", "no", "=\x1b[2J", "=\n\n\n", "=a:b:c:d:e:f:g", "=a:x:0:0::/:/", "={}", "=[]", "=null", "=iface eth0 inet", "=[Network]\n[", "=" + strings.Repeat("a ", 300)}
	keys := strings.Fields(`file unit hook fstab eni xfs swaps state source route resolv program ports odd networkd mounted manager linkdns lacks key its interfaces ifupdown disk dhcpcd dhclient dev container cloud card bridge addr why value trigger token sum stat shadow record passwd other mode link kernel hosts home group copy content beyond armed address sudo auto login hostname settings want static permitrootlogin passwordauthentication port row rows`)
	rapid.Check(t, func(r *rapid.T) {
		m := machine(t)
		word := rapid.SampledFrom(words)
		for _, a := range aspects {
			n := rapid.IntRange(0, 4).Draw(r, "rows of "+a)
			for range n {
				row := append([]string{rapid.SampledFrom(append(keys, a)).Draw(r, "key")}, rapid.SliceOfN(word, 0, 6).Draw(r, "fields")...)
				m.rows[a] = append(m.rows[a], strings.ReplaceAll(strings.Join(row, "|"), "\n|", "\n"))
			}
			m.codes[a] = rapid.SampledFrom([]int{0, 0, 0, 0, 1, 255}).Draw(r, "code")
		}
		if rapid.Bool().Draw(r, "armed") {
			m.rows["armed"] = []string{rapid.SampledFrom([]string{"armed", "armed|=sshd.sh", "armed|=network.sh.7", "armed|=pvebridge.sh", "armed|=x|=y"}).Draw(r, "what is armed")}
		}
		var entries []string
		for range rapid.IntRange(0, 6).Draw(r, "entries") {
			text := func(what string) string {
				b, err := json.Marshal(strings.TrimPrefix(word.Draw(r, what), "="))
				require.NoError(t, err)
				return string(b)
			}
			aspect := rapid.SampledFrom(aspects).Draw(r, "aspect")
			entries = append(entries, fmt.Sprintf(`{"aspect": %q, "item": %s, "identity": %s, "found": {%s: %s}, "put": {%s: %s}}`, aspect, text("item"), text("identity"), text("key"), text("value"), text("key"), text("value")))
		}
		m.rows["record"] = []string{`record|={"version": 1, "entries": [` + strings.Join(entries, ", ") + `]}`}
		if rapid.Bool().Draw(r, "noise") {
			noise := rapid.SampledFrom([]string{"\x00\xff", strings.Repeat("y\n", 100), "homestak-0 end\n"}).Draw(r, "noise")
			m.edit = func(out *guest.Output) { out.Out = noise + out.Out; out.Err = noise }
		}
		s, err := converge.Observe(t.Context(), m, want(t, everything))
		if err != nil {
			return
		}
		s.Changes()
		s.Steps()
	})
}
