package proxmox_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	diskfile "github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

const (
	hush     = "hunter2-correct-horse"
	userData = "#cloud-config\nchpasswd: {expire: false}\npassword: " + hush + "\n"
)

// seeded declares a machine with user_data that was made from a secret.
func (w *world) seeded(name string, edit func(*guest.VM)) *model.Node {
	n := w.Node(name, func(v *guest.VM) {
		v.UserData = userData
		if edit != nil {
			edit(v)
		}
	})
	n.Resource.Sensitive = []string{"user_data"}
	return n
}

// wire is what went over the wire: the files that were uploaded, and all else as text.
type wire struct {
	mu      sync.Mutex
	uploads map[string][]byte // the last of each name
	order   []string          // the names in the order of their uploads
	plain   strings.Builder   // methods, URLs and the bodies that are no uploads
}

// tap lets all that the driver sends pass by.
func (w *world) tap() *wire {
	o := &wire{uploads: map[string][]byte{}}
	before := w.Sees
	w.Sees = func(r *http.Request) {
		if before != nil {
			before(r)
		}
		o.read(w.T, r)
	}
	return o
}

func (o *wire) read(t *testing.T, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fmt.Fprintln(&o.plain, r.Method, r.URL)
	if r.Body == nil {
		return
	}
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	r.Body = io.NopCloser(bytes.NewReader(body))
	kind, options, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind != "multipart/form-data" {
		o.plain.Write(body)
		return
	}
	form := multipart.NewReader(bytes.NewReader(body), options["boundary"])
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		data, err := io.ReadAll(part)
		require.NoError(t, err)
		if part.FormName() == "filename" {
			o.uploads[part.FileName()] = data
			o.order = append(o.order, part.FileName())
			continue
		}
		fmt.Fprintln(&o.plain, part.FormName(), string(data))
	}
}

// documents takes a seed image apart.
func documents(t *testing.T, image []byte) map[string]string {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	_, err = f.Write(image)
	require.NoError(t, err)
	fsys, err := iso9660.Read(diskfile.New(f, true), int64(len(image)), 0, 2048)
	require.NoError(t, err)
	require.Equal(t, "cidata", strings.TrimRight(fsys.Label(), " \x00"))
	out := map[string]string{}
	for _, name := range []string{"user-data", "meta-data", "network-config", "vendor-data"} {
		data, err := fsys.ReadFile(name)
		require.NoError(t, err)
		out[name] = string(data)
	}
	return out
}

// seeds are the seed images on the host's storages.
func seeds(w *world) []string {
	var out []string
	for _, list := range w.Host.Snapshot().Volumes {
		for _, v := range list {
			if strings.Contains(v.ID, "homestak-seed.") {
				out = append(out, v.ID)
			}
		}
	}
	return out
}

// silent requires that nobody but the machine got to know the secret.
func silent(t *testing.T, w *world, o *wire, plans ...*plan.Plan) {
	t.Helper()
	all, err := json.Marshal(w.Host.Snapshot()) // configurations, marks, names, tasks and their logs
	require.NoError(t, err)
	require.NotContains(t, string(all), hush)
	require.NotContains(t, o.plain.String(), hush)
	for _, p := range plans {
		text, err := json.Marshal(p)
		require.NoError(t, err)
		require.NotContains(t, string(text), hush)
	}
}

func TestMachineIsSeededByAnImageOfItsOwn(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		o := w.tap()
		w.seeded("web-1", func(v *guest.VM) {
			v.NICs = []guest.NIC{{Name: "lan", IP: "10.0.0.5/24"}, {Name: "dmz", IP: "dhcp", MAC: "bc:24:11:00:00:09"}}
		})
		p := w.Apply()
		require.Len(t, o.order, 1)
		require.Regexp(t, `^homestak-seed\.home\.web-1\.[0-9a-f]{12}\.[0-9a-f-]{36}\.iso$`, o.order[0])
		require.Contains(t, o.plain.String(), `"ide2":"local:iso/`+o.order[0]+`,media=cdrom"`)
		require.NotContains(t, o.plain.String(), "cloudinit", "a second volume of that label")

		g := w.Guest(10000)
		require.True(t, g.Running)
		require.Equal(t, "none,media=cdrom", g.Config["ide2"], "its agent answered, so it was read")
		require.Empty(t, seeds(w))
		for _, key := range []string{"ciuser", "sshkeys", "nameserver", "searchdomain", "ipconfig0", "ipconfig1"} {
			require.NotContains(t, g.Config, key)
		}
		require.Equal(t, "order=scsi0;ide2", g.Config["boot"], "the disk first; PVE itself appends every new CD drive")
		require.Empty(t, g.Pending)

		_, m, _ := owner.ParseDescription(g.Config["description"])
		docs := documents(t, o.uploads[o.order[0]])
		require.Equal(t, userData, docs["user-data"])
		var meta map[string]string
		require.NoError(t, yaml.Unmarshal([]byte(docs["meta-data"]), &meta))
		require.Equal(t, "web-1", meta["local-hostname"])
		require.Regexp(t, `^homestak-[0-9a-f]{12}$`, meta["instance-id"])
		require.Contains(t, o.order[0], m.UUID)
		for i := range 2 { // the guest finds its cards by the very addresses that PVE gives them
			mac := regexp.MustCompile(`[0-9A-F]{2}(:[0-9A-F]{2}){5}`).FindString(g.Config[fmt.Sprintf("net%d", i)])
			require.NotEmpty(t, mac)
			require.Contains(t, docs["network-config"], strings.ToLower(mac))
		}
		require.Contains(t, docs["network-config"], `"addresses":["10.0.0.5/24"]`)
		require.Contains(t, docs["network-config"], `"via":"10.0.0.1"`)
		require.Contains(t, docs["vendor-data"], `ops@home`)
		silent(t, w, o, p)
		w.Converged()
		time.Sleep(time.Hour)
		w.Converged()
	})
}

// TestEachMachineIsAnInstanceOfItsOwn, also one that is recreated under its old name: or
// what cloud-init kept of the other would be taken for its own.
func TestEachMachineIsAnInstanceOfItsOwn(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		o := w.tap()
		w.seeded("web-1", nil)
		w.seeded("web-2", nil)
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) { e.Delete(10000) })
		w.Apply()
		instances := map[string]bool{}
		for _, image := range o.uploads {
			var meta map[string]string
			require.NoError(t, yaml.Unmarshal([]byte(documents(t, image)["meta-data"]), &meta))
			instances[meta["instance-id"]] = true
		}
		require.Len(t, instances, 3)
	})
}

func TestWithoutAgentTheSeedGoesAfterTenMinutes(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.seeded("web-1", func(v *guest.VM) { v.Agent = false })
		w.Apply()
		require.Len(t, seeds(w), 1)
		w.Converged()
		time.Sleep(9 * time.Minute)
		w.Converged()
		require.Len(t, seeds(w), 1, "it may still be booting")
		time.Sleep(2 * time.Minute)
		o := w.tap()
		p := w.Apply()
		require.Len(t, p.Steps, 1)
		require.Equal(t, []string{"seed"}, proxmoxtest.Paths(p.Steps[0]))
		require.Equal(t, model.ClassNone, p.Steps[0].Class)
		require.Equal(t, "none,media=cdrom", w.Guest(10000).Config["ide2"])
		require.Empty(t, seeds(w))
		require.Empty(t, o.order)
		w.Converged()
	})
}

func TestStoppedMachineKeepsItsSeed(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.seeded("web-1", func(v *guest.VM) { v.Power = "stopped" })
		w.Apply()
		time.Sleep(time.Hour)
		w.Converged()
		require.Len(t, seeds(w), 1)
		require.Contains(t, w.Guest(10000).Config["ide2"], seeds(w)[0])
		w.VM("web-1").Description = "edited" // writes the ownership tag again, which must go on naming the seed
		w.Apply()
		w.Drop("web-1")
		w.Apply()
		require.Empty(t, seeds(w), "PVE leaves images alone when it destroys a machine")
		require.Empty(t, w.Host.Snapshot().Guests)
	})
}

func TestCloneGetsTheSeedInPlaceOfItsTemplatesDrive(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Template(9000, "golden")
		w.Host.Edit(func(e *pve.Edit) { e.Set(9000, "ciuser", "somebody") })
		_, err := w.Driver.Post(t.Context(), "/nodes/father/qemu/9000/config", map[string]any{"sata1": "local-lvm:cloudinit"})
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Contains(t, w.Guest(9000).Config["sata1"], "cloudinit")
		o := w.tap()
		w.seeded("web-1", func(v *guest.VM) { v.Template, v.Power = "golden", "stopped" })
		w.Apply()
		c := w.Guest(10000).Config
		require.Contains(t, c["ide2"], o.order[0])
		require.NotContains(t, strings.Join(slices.Collect(maps.Values(c)), " "), "cloudinit")
		require.NotContains(t, c, "ciuser")
		docs := documents(t, o.uploads[o.order[0]])
		mac := regexp.MustCompile(`[0-9A-F]{2}(:[0-9A-F]{2}){5}`).FindString(c["net0"])
		require.Contains(t, docs["network-config"], strings.ToLower(mac))
		w.Converged()
		w.VM("web-1").Power = "running"
		w.Apply()
		time.Sleep(time.Hour)
		w.Apply()
		require.Empty(t, seeds(w))
		w.Converged()
	})
}

// TestLateUserDataIsSaidAndNotDone: cloud-init does not listen twice.
func TestLateUserDataIsSaidAndNotDone(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("open", func(v *guest.VM) { v.UserData = "#cloud-config\n{}\n" })
		w.seeded("secret", nil)
		w.Node("plain", nil)
		w.Apply()
		w.Converged()
		require.Empty(t, w.Plan().Pending)
		writes := w.Host.Snapshot().Writes

		w.VM("open").UserData += "# new\n"
		w.VM("open").NICs = []guest.NIC{{Name: "lan", IP: "10.0.0.77/24"}}
		w.VM("secret").UserData += "# new\n"
		w.VM("plain").UserData = "#cloud-config\n{}\n"
		p := w.Apply()
		require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
		require.Equal(t, writes, w.Host.Snapshot().Writes)
		said := map[string]string{}
		for _, d := range p.Pending {
			said[d.Address.Name+" "+d.Path] = d.Why
			require.Equal(t, "as declared now", d.After)
			require.Equal(t, map[bool]any{true: nil, false: "as at the first boot"}[d.Address.Name == "plain"], d.Before, "and no sums, which tell a reader nothing")
		}
		const why = "read at first boot only; takes effect when the machine is recreated"
		require.Equal(t, map[string]string{"open user_data": why, "open network_config": why, "plain user_data": why}, said,
			"of what is made from secrets no trace is kept, so nothing can be said")
		_, m, _ := owner.ParseDescription(w.Guest(10000).Config["description"])
		require.NotEmpty(t, m.Seed.Data)
		_, m, _ = owner.ParseDescription(w.Guest(10002).Config["description"])
		require.Empty(t, m.Seed.Data)
		w.VM("secret").UserData = ""
		p = w.Plan()
		require.Empty(t, p.Steps)
		require.Len(t, p.Pending, 4)
		text, err := json.Marshal(p)
		require.NoError(t, err)
		require.NotContains(t, string(text), "#cloud-config")
	})
}

// TestNewCardOfASeededMachineHasNoAddressForNobody: such a machine has no cloud-init
// drive, so an address beside its new card would be read by nothing, and no boot of it
// is the first of a new machine.
func TestNewCardOfASeededMachineHasNoAddressForNobody(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("open", func(v *guest.VM) { v.UserData = "#cloud-config\n{}\n" })
		w.Apply()
		w.Converged()
		w.VM("open").NICs = []guest.NIC{{Name: "first", VLAN: 20}, {Name: "lan", IP: "10.0.0.77/24"}}
		p := w.Apply()
		require.Len(t, p.Steps, 1, "%s", proxmoxtest.Describe(p))
		require.Equal(t, model.ClassHot, p.Steps[0].Class, "%s", proxmoxtest.Describe(p))
		require.NotContains(t, p.Steps[0].Reason, "first of a new machine")
		for key := range w.Guest(10000).Config {
			require.NotContains(t, key, "ipconfig")
		}
		for _, d := range w.Plan().Pending {
			require.Equal(t, "network_config", d.Path)
		}
		w.Converged()
	})
}

// TestWhereNothingIsSeededNothingIsAsked: one request more for each storage where
// something is, unless it is listed as a whole anyway; none where nothing is.
func TestWhereNothingIsSeededNothingIsAsked(t *testing.T) {
	requests := func(w *world) int {
		before := total(w)
		w.Converged()
		return total(w) - before
	}
	for more, storages := range map[int][]pve.Storage{1: nil, 2: listedByKind()} {
		inTime(t, pve.Config{TaskTime: time.Second, Storages: storages}, func(t *testing.T, w *world) {
			w.Node("web-1", nil)
			w.Node("web-2", nil)
			w.Apply()
			plain := requests(w)
			require.LessOrEqual(t, plain, 2+3*1+5)
			w.seeded("web-3", nil)
			w.Apply()
			require.Equal(t, plain+more, requests(w), "the guest's configuration, and the list of images")
			require.LessOrEqual(t, plain+more, 3+3*1+5)
		})
	}
}

// listedByKind are storages none of which is listed as a whole.
func listedByKind() []pve.Storage {
	list := pve.DefaultStorages()
	for i := range list {
		list[i].Shared = true
	}
	return list
}

func TestUserDataIsChecked(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.seeded("web-1", func(v *guest.VM) { v.UserData = "password: " + hush })
		_, found := w.Site.Want("father")
		require.True(t, found.HasErrors())
		text := fmt.Sprint(found)
		require.Contains(t, text, "user_data that cloud-init would not read")
		require.NotContains(t, text, hush)
	})
}
