package proxmox_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// everyKey declares every key that PVE documents for a container and lets a token set.
func everyKey(c *guest.CT) {
	one := 1
	c.Description, c.OnBoot, c.Startup, c.Restart = "notes", true, &guest.Startup{Order: &one}, "allowed"
	c.Features, c.Timezone, c.Nameserver, c.Searchdomain = []string{"nesting"}, "Europe/Berlin", []string{"9.9.9.9", "1.1.1.1"}, "x.test"
	c.Disks = []guest.CTDisk{
		{Name: "root", Options: map[string]string{"acl": "1"}},
		{Name: "data", Size: 2, Path: "/srv", Backup: true, Options: map[string]string{"ro": "0", "quota": "0", "replicate": "0", "mountoptions": "noatime;nodev"}},
	}
	c.NICs = []guest.CTNIC{{
		Name: "lan", VLAN: 5, IP: "10.0.0.5/24", IP6: "auto", Firewall: true, MTU: 1400, Rate: 5, Trunks: []string{"5", "6"},
	}}
	c.Options = map[string]string{
		"arch": "amd64", "ostype": "debian", "cmode": "shell", "console": "no", "cpulimit": "2.0", "cpuunits": "512", "debug": "0", "tty": "4",
		"entrypoint": "/sbin/init", "env": "A=b",
	}
}

// byHand is another value for each of these keys.
var byHand = map[string]string{
	"arch": "arm64", "cmode": "console", "console": "1", "cores": "7", "cpulimit": "3", "cpuunits": "99", "debug": "1", "description": "",
	"entrypoint": "/bin/x", "env": "A=c", "features": "nesting=0", "hostname": "other", "memory": "999", "mp0": "mp=/srv=>mp=/else", "nameserver": "8.8.8.8",
	"net0": "bridge=vmbr0=>bridge=vmbr9", "onboot": "0", "ostype": "alpine", "protection": "1", "rootfs": "acl=1=>acl=0", "searchdomain": "y.test", "startup": "order=2",
	"swap": "0", "tags": "mine", "timezone": "host", "tty": "1", "unprivileged": "0",
}

// TestEveryKeyOfAContainer: what the files say of any key is there after one apply;
// changed or deleted by hand it is found, by the name it has in the files, and put back.
func TestEveryKeyOfAContainer(t *testing.T) {
	m, _, _ := pveapi.Lookup("PUT", "/nodes/n/lxc/100/config")
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.vlanAware("vmbr0")
		w.ct("cache", everyKey)
		w.Apply()
		w.Converged()
		time.Sleep(time.Minute)
		w.Converged()
		whole := w.Guest(10000)
		for family := range m.Params {
			switch family {
			case "node", "vmid", "digest", "delete", "revert", // of the request
				"lock", "hookscript", "dev[n]", // refused to every token
				"template", "unused[n]": // no settings
				continue
			}
			key := strings.Replace(map[string]string{"mp[n]": "mp0", "net[n]": "net0"}[family], "[n]", "", 1)
			if key == "" {
				key = family
			}
			hand, ok := byHand[key]
			require.True(t, ok, "nobody tries %s", key)
			value := whole.Config[key]
			for _, change := range []string{hand, "(deleted)"} {
				set := change
				old, repl, part := strings.Cut(change, "=>")
				switch {
				case part:
					require.Contains(t, value, old, key)
					set = strings.Replace(value, old, repl, 1)
				case key == "description": // without its notes
					_, set, _ = strings.Cut(value, "\n")
				case change == "(deleted)":
					set = ""
				}
				if change == "(deleted)" && (key == "rootfs" || key == "mp0" || key == "net0" || key == "description" || key == "unprivileged") {
					continue // disks lost and proof lost are stories of their own
				}
				w.Host.Edit(func(e *pve.Edit) { e.Set(10000, key, set) })
				p := w.Plan()
				if meansTheSame(key, value, set) {
					require.Empty(t, p.Steps, "%s: %s", key, proxmoxtest.Describe(p))
					continue
				}
				require.Len(t, p.Steps, 1, "%s=%q", key, set)
				if key == "unprivileged" {
					require.Equal(t, plan.Replace, p.Steps[0].Action, "it cannot be changed")
					w.Host.Edit(func(e *pve.Edit) { e.Set(10000, key, value) })
					continue
				}
				require.Len(t, p.Steps[0].Changes, 1, "%s=%q: %s", key, set, proxmoxtest.Describe(p))
				require.Empty(t, w.Run(p), "%s=%q", key, set)
				w.Converged()
				after := w.Guest(10000)
				require.Empty(t, after.Pending)
				require.True(t, meansTheSame(key, value, after.Config[key]), "%s: %q, %q", key, value, after.Config[key])
			}
		}
	})
}

// meansTheSame: the fixture declares these as their defaults, so that deleting them
// changes nothing.
func meansTheSame(key, a, b string) bool {
	if a == b || key == "mp0" || key == "rootfs" || key == "net0" {
		return strings.ReplaceAll(a, ",ro=0", "") == strings.ReplaceAll(b, ",ro=0", "")
	}
	defaults := map[string]string{"arch": "amd64", "debug": "0", "entrypoint": "/sbin/init", "protection": "0", "swap": "512"}
	return defaults[key] != "" && (a == "" || a == defaults[key]) && (b == "" || b == defaults[key])
}

// drawCT draws what a container may be; disks only grow from one drawing to the next.
func drawCT(t *rapid.T, c *guest.CT, label string) {
	flag := func(name string) bool { return rapid.Bool().Draw(t, label+name) }
	c.Cores, c.Memory = rapid.IntRange(0, 8).Draw(t, label+"cores"), rapid.IntRange(16, 4096).Draw(t, label+"memory")
	c.Swap, c.Disk = rapid.IntRange(0, 1024).Draw(t, label+"swap"), max(c.Disk, rapid.IntRange(1, 20).Draw(t, label+"disk"))
	c.Tags = rapid.SliceOfN(rapid.StringMatching(`[A-Za-z0-9_][a-z0-9_\-+.]{0,4}`), 0, 3).Draw(t, label+"tags")
	c.Description = rapid.StringMatching(`[a-zü%&=;#"{}\\ \n\t]{0,30}`).Draw(t, label+"notes")
	c.OnBoot, c.Restart, c.Features = flag("onboot"), "allowed", nil
	c.Startup, c.Options, c.NICs = nil, nil, nil
	if flag("startup") {
		n := rapid.IntRange(0, 5).Draw(t, label+"order")
		c.Startup = &guest.Startup{Order: &n}
	}
	if flag("nesting") {
		c.Features = []string{"nesting"}
	}
	c.Power = rapid.SampledFrom([]string{"running", "stopped"}).Draw(t, label+"power")
	c.Timezone = rapid.SampledFrom([]string{"", "host", "Europe/Berlin"}).Draw(t, label+"zone")
	for key, values := range map[string][]string{"cpulimit": {"0", "1", "1.5"}, "tty": {"0", "2", "6"}, "console": {"0", "1", "true"}, "cmode": {"shell", "tty"}} {
		if flag(key) {
			if c.Options == nil {
				c.Options = map[string]string{}
			}
			c.Options[key] = rapid.SampledFrom(values).Draw(t, label+key+" value")
		}
	}
	for i := range rapid.IntRange(1, 3).Draw(t, label+"nics") {
		n := guest.CTNIC{Name: fmt.Sprintf("n%d", i), VLAN: rapid.IntRange(0, 4).Draw(t, label+"vlan"), Firewall: flag("firewall")}
		n.IP = rapid.SampledFrom([]string{"", "dhcp", "manual", "10.0.0.5/24"}).Draw(t, label+"ip")
		n.MTU = rapid.SampledFrom([]int{0, 64, 1300}).Draw(t, label+"mtu")
		n.Rate = rapid.SampledFrom([]float64{0, 0.5, 100}).Draw(t, label+"rate")
		n.LinkDown = flag("link_down")
		n.Trunks = rapid.SliceOfN(rapid.SampledFrom([]string{"2", "3", "40"}), 0, 4).Draw(t, label+"trunks")
		n.IP6 = rapid.SampledFrom([]string{"", "auto", "manual", "fd00::5/64", "FD00:0::6/64"}).Draw(t, label+"ip6")
		if flag("host-managed") && n.IP6 != "auto" {
			n.Options = map[string]string{"host-managed": rapid.SampledFrom([]string{"0", "1"}).Draw(t, label+"managed")}
		}
		c.NICs = append(c.NICs, n)
	}
	sizes := map[string]int{}
	for _, d := range c.Disks {
		sizes[d.Name] = d.Size
	}
	c.Disks = nil
	for i := range 3 {
		if flag("disk") || sizes[fmt.Sprintf("d%d", i)] > 0 { // one that went and comes back is a story of its own
			d := guest.CTDisk{Name: fmt.Sprintf("d%d", i), Path: fmt.Sprintf("/srv/%d", i), Backup: flag("backup")}
			d.Size = max(sizes[d.Name], rapid.IntRange(1, 5).Draw(t, label+"size"))
			c.Disks = append(c.Disks, d)
		}
	}
}

// TestAnyContainer: whatever is declared is there after one apply, and after any
// edit; and an edit writes exactly the keys that it changes.
func TestAnyContainer(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		first := *proxmox.Kinds().Get("ct").New().(*guest.CT)
		first.Preset, first.Template = "small", "debian-ct"
		drawCT(rt, &first, "first ")
		then := first
		drawCT(rt, &then, "then ")
		synctest.Test(t, func(t *testing.T) { becomes(t, first, then) })
	})
}

// becomes makes a container one thing, then another.
func becomes(t *testing.T, first, then guest.CT) {
	t.Helper()
	var written []string
	w := newWorld(t, pve.Config{Record: func(r *http.Request, body []byte, _ int) {
		var keys map[string]any
		if r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, "/config") || json.Unmarshal(body, &keys) != nil {
			return
		}
		if gone, ok := keys["delete"].(string); ok {
			written = append(written, strings.Split(gone, ",")...)
		}
		delete(keys, "delete")
		delete(keys, "digest")
		written = append(written, slices.Collect(maps.Keys(keys))...)
	}})
	w.vlanAware("vmbr0")
	ct := w.ct("any", func(c *guest.CT) { *c = first })
	w.Apply()
	w.Converged()
	before := w.Guest(10000)
	written = nil
	*ct = then
	w.Apply()
	w.Converged()
	after := w.Guest(10000)
	require.Empty(t, after.Pending)
	differs := keysThatDiffer(before, after)
	for _, key := range written {
		require.Contains(t, differs, key, "written for nothing: %+v became %+v", first, then)
	}
	for _, key := range differs {
		grown := (key == "rootfs" || strings.HasPrefix(key, "mp")) && before.Config[key] != ""
		kept := strings.HasPrefix(key, "unused")
		require.True(t, grown || kept || slices.Contains(written, key), "%s changed behind the plan's back: %+v became %+v", key, first, then)
	}
}
