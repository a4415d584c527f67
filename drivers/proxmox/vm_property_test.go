package proxmox_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// drawVM draws what the files may say of a guest.
func drawVM(rt *rapid.T) func(*guest.VM) {
	flip := func(label string) bool { return rapid.Bool().Draw(rt, label) }
	some := func(label string, words ...string) []string {
		return rapid.SliceOfNDistinct(rapid.SampledFrom(words), 0, len(words), rapid.ID[string]).Draw(rt, label)
	}
	drawn := guest.VM{
		Power: rapid.SampledFrom([]string{"running", "stopped"}).Draw(rt, "power"), Agent: flip("agent"), OnBoot: flip("onboot"), Protection: flip("protection"),
		Cores: rapid.IntRange(1, 8).Draw(rt, "cores"), Sockets: rapid.IntRange(1, 2).Draw(rt, "sockets"), Memory: rapid.SampledFrom([]int{512, 1000, 2048}).Draw(rt, "memory"),
		Tags: some("tags", "Web", "db", "x_1", "a.b", "c+d"), Description: rapid.SampledFrom([]string{"", "notes", "a\n\nb  ", "100% ü #"}).Draw(rt, "description"),
	}
	if flip("startup") {
		number := func(label string) *int { n := rapid.IntRange(0, 9).Draw(rt, label); return &n }
		drawn.Startup = &guest.Startup{Order: number("order"), Down: number("down")}
	}
	for i, name := range some("disks", "data", "logs", "swap") {
		drawn.Disks = append(drawn.Disks, guest.Disk{
			Name: name, Size: 1 + i, Bus: rapid.SampledFrom([]string{"", "scsi", "virtio", "sata"}).Draw(rt, "bus"),
			Storage: rapid.SampledFrom([]string{"", "local-zfs"}).Draw(rt, "storage"), Remove: flip("remove"),
		})
	}
	for i, name := range some("nics", "lan", "dmz", "san") {
		drawn.NICs = append(drawn.NICs, guest.NIC{
			Name: name, VLAN: rapid.IntRange(0, 3).Draw(rt, "vlan"), IP: rapid.SampledFrom([]string{"dhcp", fmt.Sprintf("10.0.%d.5/24", i)}).Draw(rt, "ip"),
			MAC: rapid.SampledFrom([]string{"", fmt.Sprintf("bc:24:11:00:00:%02x", i)}).Draw(rt, "mac"),
		})
		n := &drawn.NICs[i]
		n.Firewall, n.LinkDown = flip("firewall"), flip("link_down")
		n.Rate = rapid.SampledFrom([]float64{0, 0.125, 3, 1000}).Draw(rt, "rate")
		n.Trunks = rapid.SliceOfN(rapid.SampledFrom([]string{"2", "3", "40", "3-9", "39-41"}), 0, 4).Draw(rt, "trunks")
		n.IP6 = rapid.SampledFrom([]string{"", "auto", "dhcp", fmt.Sprintf("fd00:%d::5/64", i), fmt.Sprintf("FD00:%d:0:0::5/64", i)}).Draw(rt, "ip6")
		if strings.Contains(n.IP6, "/") && flip("gateway6") {
			n.Gateway6 = "fe80::1"
		}
		if n.Model = rapid.SampledFrom([]string{"", "virtio", "e1000", "vmxnet3"}).Draw(rt, "model"); n.Model == "" || n.Model == "virtio" {
			n.MTU = rapid.SampledFrom([]int{0, 1, 576, 1500}).Draw(rt, "mtu")
			n.Queues = rapid.IntRange(0, 8).Draw(rt, "queues")
		}
		if n.IP != "dhcp" {
			n.Gateway = fmt.Sprintf("10.0.%d.1", i)
		}
	}
	options := map[string]string{}
	for _, key := range some("options", slices.Sorted(maps.Keys(everyOption))...) {
		if val := everyOption[key]; val.declared != "" && key != "boot" { // which names what may not be there
			options[index(key)] = rapid.SampledFrom([]string{val.declared, cmp.Or(val.byHand, val.declared)}).Draw(rt, key)
		}
	}
	if node := index("numa[n]"); options[node] != "" { // a machine whose topology has another size than its memory does not start
		options[node] = fmt.Sprintf("cpus=0,memory=%d", drawn.Memory)
	}
	return func(v *guest.VM) {
		preset, image := v.Preset, v.Image
		*v = drawn
		v.Preset, v.Image, v.Restart = preset, image, "never"
		v.Options = maps.Clone(options)
	}
}

// TestRandomGuestsConvergeOnce: whatever the files say, one apply is enough, and
// neither the order of what they say nor another pass changes anything.
func TestRandomGuestsConvergeOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		edit := drawVM(rt)
		turn := func(n int) int { return rapid.IntRange(0, max(n-1, 0)).Draw(rt, "turn") }
		story := func(_ *testing.T, w *world) {
			w.vlanAware("vmbr0")
			w.iso("local:iso/x.iso")
			w.Host.Edit(func(e *pve.Edit) { // A start reads them.
				e.Snippet("local:snippets/x.yaml")
				e.Snippet("local:snippets/y.yaml")
			})
			w.Node("web-1", edit)
			w.Apply()
			w.Converged()
			v := w.VM("web-1")
			v.Tags, v.Disks, v.NICs = rotated(v.Tags, turn(len(v.Tags))), rotated(v.Disks, turn(len(v.Disks))), rotated(v.NICs, turn(len(v.NICs)))
			for key, val := range v.Options {
				v.Options[key] = reordered(key, val)
			}
			w.Converged()
			edit(v)
			w.Host.Edit(func(e *pve.Edit) { e.Start(10000) })
			v.Power = "running"
			w.Converged()
		}
		inTime(t, twoStorages(), story)
	})
}

func rotated[T any](list []T, by int) []T {
	return append(slices.Clone(list[by:]), list[:by]...)
}

// reordered says the same in another order, where a value has parts without one.
func reordered(key, val string) string {
	switch {
	case key == "hotplug":
		parts := strings.Split(val, ",")
		slices.Reverse(parts)
		return strings.Join(parts, ";")
	case strings.Contains(val, ",") && strings.Contains(strings.Split(val, ",")[0], "="):
		parts := strings.Split(val, ",")
		slices.Reverse(parts)
		return strings.Join(parts, ",")
	default:
		return val
	}
}

// writes records the keys that requests to /config set and delete.
type writes struct {
	mu   sync.Mutex
	keys map[string]bool
}

func (r *writes) record(req *http.Request, body []byte, _ int) {
	if req.Method != http.MethodPut || !strings.HasSuffix(req.URL.Path, "/config") {
		return
	}
	var form map[string]any
	if json.Unmarshal(body, &form) != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range form {
		switch key {
		case "digest":
		case "delete":
			for gone := range strings.SplitSeq(fmt.Sprint(form[key]), ",") {
				r.keys[gone] = true
			}
		default:
			r.keys[key] = true
		}
	}
}

// TestRandomEditsWriteExactlyTheirKeys: of a change of the files, the keys that it
// means are written and no others; then nothing is left to do.
func TestRandomEditsWriteExactlyTheirKeys(t *testing.T) {
	all := edits()
	names := slices.Sorted(maps.Keys(all))
	rapid.Check(t, func(rt *rapid.T) {
		chosen := map[string]string{} // by what they write: of two edits of one thing the second would undo the first
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, 6, rapid.ID[string]).Draw(rt, "edits") {
			about := all[name].keys[0]
			for _, block := range []string{"net", "ipconfig", "scsi", "virtio", "sata"} {
				if rest := strings.TrimLeft(strings.TrimPrefix(about, block), "0123456789"); rest == "" {
					about = map[string]string{"net": "nic", "ipconfig": "nic"}[block] + "s"
				}
			}
			chosen[about] = name
		}
		power := rapid.SampledFrom([]string{"running", "stopped"}).Draw(rt, "power")
		restart := rapid.SampledFrom([]string{"never", "allowed"}).Draw(rt, "restart")
		seen := &writes{keys: map[string]bool{}}
		c := twoStorages()
		c.Record = seen.record
		inTime(t, c, func(t *testing.T, w *world) {
			defer func() {
				if t.Failed() {
					t.Log("edits:", chosen, "power:", power, "restart:", restart)
				}
			}()
			edited(w, "", restart, power)
			v := w.VM("web-1")
			before := shape(v)
			expect := map[string]bool{}
			clear(seen.keys)
			for _, name := range chosen {
				all[name].do(v)
				for _, key := range all[name].keys {
					expect[key] = true
				}
				if all[name].seed && power == "running" {
					expect["description"] = true // the ownership tag says when it was written
				}
				if name == "disk grown" || name == "boot" { // the one is no key, the other is so already
					delete(expect, all[name].keys[0])
				}
			}
			grown := slices.Contains(slices.Collect(maps.Values(chosen)), "disk grown")
			if shape(v) != before && (grown || len(expect) > 0) {
				expect["description"] = true // the ownership tag names slots and options, and is written along with any step
			}
			w.Apply()
			require.Equal(t, slices.Sorted(maps.Keys(expect)), slices.Sorted(maps.Keys(seen.keys)), "%v", chosen)
			w.Converged()
		})
	})
}

// shape is what the ownership tag remembers of a declared guest.
func shape(v *guest.VM) string {
	var out []string
	for _, d := range v.Disks {
		out = append(out, d.Name)
	}
	for _, n := range v.NICs {
		out = append(out, n.Name)
	}
	options := map[string]string{"cpu": "", "ostype": "", "scsihw": "", "serial0": "", "ciupgrade": ""} // which every guest has
	maps.Copy(options, v.Options)
	return fmt.Sprint(out, slices.Sorted(maps.Keys(options)))
}
