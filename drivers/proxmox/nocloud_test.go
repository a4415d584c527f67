package proxmox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	hiddenPassword = "hunter2-correct-horse"
	userData       = "#cloud-config\nchpasswd: {expire: false}\npassword: " + hiddenPassword + "\n"
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

// silent requires that the secret reached only the machine.
func silent(t *testing.T, w *world, o *wire, plans ...*plan.Plan) {
	t.Helper()
	all, err := json.Marshal(w.Host.Snapshot()) // configurations, marks, names, tasks and their logs
	require.NoError(t, err)
	require.NotContains(t, string(all), hiddenPassword)
	require.NotContains(t, o.plain.String(), hiddenPassword)
	for _, p := range plans {
		text, err := json.Marshal(p)
		require.NoError(t, err)
		require.NotContains(t, string(text), hiddenPassword)
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

// TestNewNICsOfSeededMachinesHaveNoIPConfig: such a machine has no cloud-init
// drive, so an address beside its new card would be read by nothing, and no boot of it
// is the first of a new machine.
func TestNewNICsOfSeededMachinesHaveNoIPConfig(t *testing.T) {
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

// TestNoSeedsNoRequests: one request more for each storage where
// something is, unless it is listed as a whole anyway; none where nothing is.
func TestNoSeedsNoRequests(t *testing.T) {
	requests := func(w *world) int {
		w.Converged()
		_, remembered := w.recalling(nil)
		before := total(w)
		p, _ := w.recalling(remembered)
		require.Empty(w.T, p.Steps)
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
		w.seeded("web-1", func(v *guest.VM) { v.UserData = "password: " + hiddenPassword })
		_, found := w.Site.Want("father")
		require.True(t, found.HasErrors())
		text := fmt.Sprint(found)
		require.Contains(t, text, "user_data that cloud-init would not read")
		require.NotContains(t, text, hiddenPassword)
	})
}

// put uploads a file as anybody may.
func put(w *world, name string) {
	w.T.Helper()
	require.NoError(w.T, w.Driver.SendSeed(w.T.Context(), "father", "local:iso/"+name, []byte(strings.Repeat("x", 200<<10))))
}

func TestSeedOfAMachineThatNeverCameToBeIsRemoved(t *testing.T) {
	broken := true
	fault := func(r *http.Request) (int, bool) {
		if broken && r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/qemu") {
			return 500, false
		}
		return 0, false
	}
	inTime(t, pve.Config{TaskTime: time.Second, Fault: fault}, func(t *testing.T, w *world) {
		w.seeded("web-1", nil)
		w.seeded("web-2", nil)
		require.Len(t, w.Run(w.Plan()), 2)
		require.Len(t, seeds(w), 2)
		require.Len(t, w.Plan().Steps, 2, "those who are still to come go on with theirs")
		w.Drop("web-1")
		others := []string{
			"homestak-seed.other.web-1.000000000000.00000000-0000-0000-0000-000000000000.iso",
			"homestak-seed.home.web-1.000000000000.00000000-0000-0000-0000-000000000000.iso", // another owner's
			"homestak-seed.home.web-1.iso", "debian.iso",
		}
		for _, name := range others {
			put(w, name)
		}
		broken = false
		p := w.Apply()
		gone := 0
		for _, s := range p.Steps {
			if s.Address == (model.Address{Kind: "seed", Name: "web-1"}) {
				require.Equal(t, plan.Delete, s.Action)
				gone++
			}
		}
		require.Equal(t, 1, gone, "%s", proxmoxtest.Describe(p))
		require.Len(t, w.Host.Snapshot().Guests, 1)
		require.ElementsMatch(t, []string{"local:iso/" + others[0], "local:iso/" + others[1], "local:iso/" + others[2]}, seeds(w))
		w.Converged()
	})
}

// TestUnlistedStoragesAreNotEvidence keeps the law of the incomplete view.
func TestUnlistedStoragesAreNotEvidence(t *testing.T) {
	unobservable := false
	fault := func(r *http.Request) (int, bool) {
		kind := r.URL.Query().Get("content")
		if unobservable && r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/content") && (kind == "iso" || kind == "") {
			return 596, false
		}
		return 0, false
	}
	const dark = "seed images on storage local"
	for _, c := range []struct {
		storages []pve.Storage
		unknown  []string
	}{
		{listedByKind(), []string{dark}},
		{nil, []string{"image.debian-12", "images on storage local", dark, "templates on storage local"}}, // all of it is one question
	} {
		inTime(t, pve.Config{Fault: fault, Storages: c.storages}, func(t *testing.T, w *world) {
			unobservable = false
			w.seeded("web-1", nil)
			w.Apply()
			unobservable = true
			p := w.Plan()
			require.Empty(t, p.Steps)
			var unknown []string
			for _, u := range p.Unknown {
				unknown = append(unknown, u.Scope)
			}
			require.Equal(t, c.unknown, unknown)
		})
	}
}

// TestSeedIsEmptiedWhereItMayNotBeDeleted: AllocateTemplate is enough to upload, and to overwrite.
func TestSeedIsEmptiedWhereItMayNotBeDeleted(t *testing.T) {
	fault := func(r *http.Request) (int, bool) {
		if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/content/") {
			return 403, false
		}
		return 0, false
	}
	inTime(t, pve.Config{TaskTime: time.Second, Fault: fault}, func(t *testing.T, w *world) {
		o := w.tap()
		w.seeded("web-1", nil)
		w.Apply()
		require.Equal(t, "none,media=cdrom", w.Guest(10000).Config["ide2"])
		require.Len(t, seeds(w), 1)
		require.Equal(t, []string{o.order[0], o.order[0]}, o.order)
		require.NotContains(t, string(o.uploads[o.order[0]]), hiddenPassword, "what is there now says nothing")
		w.Converged()
		w.Drop("web-1")
		w.Apply()
		w.Converged()
	})
}

// seedStory makes one machine while one request is faulted, until nothing is left to do.
func seedStory(t *testing.T, template bool, r *storyRun) {
	t.Helper()
	r.quiet.Store(true)
	w := r.world(t, pve.Config{TaskTime: time.Second})
	machines := 1
	if template {
		w.Template(9000, "golden")
		machines++
	}
	r.quiet.Store(false)
	o := w.tap()
	w.seeded("web-1", func(v *guest.VM) {
		if template {
			v.Template = "golden"
		}
	})
	settle(w)
	time.Sleep(15 * time.Minute)
	settle(w)
	require.Len(t, w.Host.Snapshot().Guests, machines)
	g := w.Guest(10000)
	require.True(t, g.Running)
	require.Equal(t, "none,media=cdrom", g.Config["ide2"])
	require.Empty(t, seeds(w))
	_, m, _ := owner.ParseDescription(g.Config["description"])
	require.Equal(t, "uuid="+m.UUID, g.Config["smbios1"])
	require.Contains(t, m.Seed.Volume, m.UUID, "it was told who it is")
	last := o.order[len(o.order)-1]
	require.Contains(t, m.Seed.Volume, last)
	require.Equal(t, userData, documents(t, o.uploads[last])["user-data"])
	silent(t, w, o)
	w.Drop("web-1")
	settle(w)
	require.Len(t, w.Host.Snapshot().Guests, machines-1)
	require.Empty(t, seeds(w))
}

// TestEveryRequestOfASeedMayFail faults each request in turn: in the end there is one machine with one identity, and no
// superfluous image.
func TestEveryRequestOfASeedMayFail(t *testing.T) {
	for template, statuses := range map[bool][]int{false: {596, 500}, true: {-1}} {
		runWithFaults(t, fmt.Sprintf("template=%v", template), statuses, func(t *testing.T, r *storyRun) {
			seedStory(t, template, r)
		})
	}
}

// TestLostUploadIsNotRepeated: the list tells that it got through.
func TestLostUploadIsNotRepeated(t *testing.T) {
	for _, effect := range []bool{false, true} {
		lose := true
		fault := func(r *http.Request) (int, bool) {
			if lose && strings.HasSuffix(r.URL.Path, "/upload") {
				lose = false
				return 596, effect
			}
			return 0, false
		}
		inTime(t, pve.Config{Fault: fault}, func(t *testing.T, w *world) {
			o := w.tap()
			w.seeded("web-1", nil)
			failed := w.Run(w.Plan())
			require.Len(t, o.order, 1)
			require.Equal(t, !effect, len(failed) == 1, "%v", failed)
		})
	}
}

// TestAStepThatIsTakenTwiceSeedsOnce: the answer to the last request of a making
// may be lost after all was done, the seed's removal included.
func TestAStepThatIsTakenTwiceSeedsOnce(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		o := w.tap()
		w.seeded("web-1", nil)
		p := w.Apply()
		require.Empty(t, w.Run(p))
		require.Len(t, o.order, 1)
		require.Empty(t, seeds(w))
		w.Converged()
	})
}

// TestADeclaredBootOrderBearsTheSeed: PVE appends a drive whose medium changes to the
// order, and that is nothing the files have to say.
func TestADeclaredBootOrderBearsTheSeed(t *testing.T) {
	for declared, want := range map[string]string{
		"order=scsi0;net0": "order=scsi0;net0;ide2", "order=ide2;scsi0": "order=ide2;scsi0", "order=net0": "order=net0;ide2",
	} {
		for _, template := range []string{"", "golden"} {
			t.Run(declared+template, func(t *testing.T) {
				inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
					w.Template(9000, "golden")
					w.seeded("web-1", func(v *guest.VM) { v.Options, v.Template = map[string]string{"boot": declared}, template })
					w.Apply()
					g := w.Guest(10000)
					require.Equal(t, want, g.Config["boot"])
					require.Empty(t, g.Pending)
					w.Converged()
					w.VM("web-1").Options["boot"] = "order=scsi0"
					require.Equal(t, []string{"update vm.web-1: options.boot"}, steps(w.Plan()))
					w.Apply()
					w.Converged()
				})
			})
		}
	}
}

// TestTheLastSeedIsRemembered: when no node has user_data any more, nothing on the host
// leads to an image that could not be removed, but what the last look left.
func TestTheLastSeedIsRemembered(t *testing.T) {
	broken := true
	fault := func(r *http.Request) (int, bool) {
		if broken && (r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/qemu") || r.Method == http.MethodDelete) {
			return 500, false
		}
		return 0, false
	}
	inTime(t, pve.Config{TaskTime: time.Second, Fault: fault, Storages: listedByKind()}, func(t *testing.T, w *world) {
		w.Node("calm", nil)
		var sweepHints []string
		pass := func() *plan.Plan {
			want, found := w.Site.Want("father")
			require.Zero(t, found.Errors())
			want.SweepHints = sweepHints
			have, err := w.Driver.Observe(t.Context(), want)
			require.NoError(t, err)
			sweepHints = have.SweepHints
			p := w.PlanFor(want, have)
			w.Run(p)
			return p
		}
		pass()
		require.Empty(t, sweepHints)
		w.seeded("web-1", nil)
		pass()
		require.Equal(t, []string{"seeds father local"}, sweepHints)
		require.Len(t, seeds(w), 1)
		w.Drop("web-1")
		pass()
		require.Len(t, seeds(w), 1, "it could not be removed")
		require.Equal(t, []string{"seeds father local"}, sweepHints)
		broken = false
		pass()
		require.Empty(t, seeds(w))
		before := total(w)
		pass()
		require.Empty(t, sweepHints, "nothing is left to be remembered")
		once := total(w) - before
		before = total(w)
		require.Empty(t, pass().Steps)
		require.Equal(t, once-1, total(w)-before)
	})
}

// TestEveryStorageWithSeedsIsRemembered until it has none: also one whose image belongs
// to a machine that is still to come, which will have it elsewhere; and none that is gone.
func TestEveryStorageWithSeedsIsRemembered(t *testing.T) {
	broken := true
	fault := func(r *http.Request) (int, bool) {
		if broken && r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/qemu") {
			return 500, false
		}
		return 0, false
	}
	storages := append(pve.DefaultStorages(), pve.Storage{Name: "more", Type: "dir", Content: []string{"iso"}})
	inTime(t, pve.Config{TaskTime: time.Second, Fault: fault, Storages: storages}, func(t *testing.T, w *world) {
		sweepHints := []string{"seeds father gone"}
		pass := func() {
			want, found := w.Site.Want("father")
			require.Zero(t, found.Errors())
			want.SweepHints = sweepHints
			have, err := w.Driver.Observe(t.Context(), want)
			require.NoError(t, err)
			require.Empty(t, have.Unknown)
			sweepHints = have.SweepHints
			w.Run(w.PlanFor(want, have))
		}
		w.seeded("web-1", nil)
		pass()
		require.Equal(t, []string{"seeds father local"}, sweepHints)
		w.Site.Hosts["father"].Storage = &model.Storage{ISO: "more"}
		pass()
		require.Equal(t, []string{"seeds father local", "seeds father more"}, sweepHints)
		require.Len(t, seeds(w), 2)
		w.Drop("web-1")
		pass()
		pass()
		require.Empty(t, seeds(w))
		pass()
		require.Empty(t, sweepHints)
	})
}

// TestDocumentsThatTheFilesNameStay where a copy gets a seed; those of its template go.
func TestDocumentsThatTheFilesNameStay(t *testing.T) {
	for _, named := range []string{"", "user=local:snippets/a.yaml", "user=local:snippets/b.yaml"} {
		inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
			w.Template(9000, "golden")
			w.Root(http.MethodPut, "/nodes/father/qemu/9000/config", url.Values{"cicustom": {"user=local:snippets/a.yaml"}})
			w.seeded("web-1", func(v *guest.VM) {
				v.Template, v.Options = "golden", map[string]string{}
				if named != "" {
					v.Options["cicustom"] = named
				}
			})
			w.Apply()
			require.Equal(t, named, w.Guest(10000).Config["cicustom"])
			w.Converged()
		})
	}
}

// nursery is a parent: it counts its tokens, of which each is a secret.
type nursery struct {
	tokens   int
	broken   error
	reported atomic.Bool
}

func (p *nursery) FirstBoot(node, spec, userData string) (string, error) {
	if p.broken != nil {
		return "", p.broken
	}
	p.tokens++
	return fmt.Sprintf("#cloud-config\n# %s pulls %s with %s-%d\n%s", node, spec, hiddenPassword, p.tokens, userData), nil
}

func (p *nursery) HasReported(string) bool { return p.reported.Load() }

// pulling declares a node in mode pull, and a parent that serves it.
func (w *world) pulling(name string, edit func(*guest.VM)) (*model.Node, *nursery) {
	w.Site.Specs["base"] = &model.Spec{Name: "base"}
	n := w.Node(name, edit)
	n.Mode, n.Spec = model.ModePull, "base"
	p := &nursery{}
	w.Parent = p
	w.Reopen()
	return n, p
}

// A node in mode pull learns its parent at its first boot. The token is only on the seed image, which is removed afterwards. A
// fresh token is not a difference.
func TestANodeInModePullLearnsItsParent(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		o := w.tap()
		_, parent := w.pulling("web-1", nil)
		p := w.Plan()
		require.Equal(t, "small, debian-12, pulls spec base", w.Site.Kinds.Get("vm").Brief(p.Steps[1].Want))
		require.Zero(t, parent.tokens, "a plan mints none")
		p = w.Apply()
		require.Equal(t, 1, parent.tokens)
		require.Len(t, o.order, 1)
		docs := documents(t, o.uploads[o.order[0]])
		require.Equal(t, "#cloud-config\n# web-1 pulls base with "+hiddenPassword+"-1\n", docs["user-data"])
		require.Contains(t, docs["vendor-data"], "ops@home")
		require.NotContains(t, o.plain.String(), "cloudinit", "a second volume of that label")
		require.Equal(t, "none,media=cdrom", w.Guest(10000).Config["ide2"], "its agent answered, so it was read")
		require.Empty(t, seeds(w))
		silent(t, w, o, p)
		w.Converged()
		require.Empty(t, w.Plan().Pending)
		require.Equal(t, 1, parent.tokens)

		w.Host.Edit(func(e *pve.Edit) { e.Delete(10000) })
		p = w.Apply()
		require.Equal(t, 2, parent.tokens, "another machine, another token")
		require.Contains(t, documents(t, o.uploads[o.order[1]])["user-data"], hiddenPassword+"-2")
		silent(t, w, o, p)
	})
}

// Beside what the site says.
func TestANodeInModePullHasUserDataToo(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		o := w.tap()
		n, _ := w.pulling("web-1", func(v *guest.VM) { v.UserData = "#cloud-config\n{}\n" })
		w.Apply()
		require.Contains(t, documents(t, o.uploads[o.order[0]])["user-data"], "#cloud-config\n{}\n")
		w.VM("web-1").UserData = ""
		pending := w.Plan().Pending
		require.Len(t, pending, 1)
		require.Equal(t, "user_data", pending[0].Path)
		n.Mode = model.ModePush
		require.Len(t, w.Plan().Pending, 1, "in mode push its knowledge of a parent does not matter")
	})
}

// Without a guest agent its own report says that the first boot is over.
func TestTheSeedGoesWhenTheNodeHasReported(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		_, parent := w.pulling("web-1", func(v *guest.VM) { v.Agent = false })
		time.AfterFunc(40*time.Second, func() { parent.reported.Store(true) })
		w.Apply()
		require.Empty(t, seeds(w))
		require.Equal(t, "none,media=cdrom", w.Guest(10000).Config["ide2"])
	})
}

// Nor does a pass that was interrupted leave the seed for long.
func TestALaterPassRemovesTheSeedOfANodeThatHasReported(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		_, parent := w.pulling("web-1", func(v *guest.VM) { v.Agent = false })
		w.Apply()
		require.Len(t, seeds(w), 1)
		w.Converged()
		parent.reported.Store(true)
		p := w.Apply()
		require.Len(t, p.Steps, 1)
		require.Equal(t, []string{"seed"}, proxmoxtest.Paths(p.Steps[0]))
		require.Empty(t, seeds(w))
		w.Converged()
	})
}

// Without a server for specs the node is not created, and the plan says what to do. An existing one is changed as usual.
func TestANodeInModePullNeedsAParent(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		n, parent := w.pulling("web-1", nil)
		w.Parent = nil
		w.Reopen()
		p := w.Apply()
		require.Empty(t, w.Host.Snapshot().Guests)
		require.Len(t, p.Findings, 1)
		require.Equal(t, "vm.web-1 is not created: it is in mode pull, and no server for its spec runs here", p.Findings[0].Summary)
		require.Contains(t, p.Findings[0].Detail, "listen")

		w.Parent = parent
		w.Reopen()
		w.Apply()
		w.Parent = nil
		w.Reopen()
		w.Converged()
		w.VM("web-1").Description = "edited"
		require.Len(t, w.Apply().Steps, 1)

		w.VM("web-1").Image, w.VM("web-1").Template = "", "golden" // recreates it
		w.Template(9000, "golden")
		p = w.Apply()
		require.Empty(t, p.Steps)
		require.Contains(t, p.Findings[len(p.Findings)-1].Summary, "vm.web-1 is not replaced")
		require.Len(t, w.Host.Snapshot().Guests, 2)

		n.Spec = "" // there is nothing to pull
		require.Len(t, w.Plan().Steps, 1)
	})
}

// A container has no cloud-init, so its node has to deliver the files.
func TestAContainerInModePullIsNotCreated(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.pulling("web-1", nil)
		w.CT("box", nil)
		nodes := w.Site.Manifests["web"].Nodes
		nodes[1].Mode, nodes[1].Spec = model.ModePull, "base"
		p := w.Plan()
		require.Len(t, p.Findings, 1)
		require.Equal(t, "ct.box is not created: containers cannot be created in mode pull from another machine", p.Findings[0].Summary)
	})
}

// When the mode changes, a guest that was created to pull finds its parent by its first boot, any other by the agent of its host.
func TestHowAGuestWasCreated(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		n, _ := w.pulling("web-1", nil)
		n.Mode = model.ModePush
		pulls := func() bool {
			want, _ := w.Site.Want("father")
			have, err := w.Driver.Observe(t.Context(), want)
			require.NoError(t, err)
			return have.State[n.Resource.Addr].Guest.Pulls
		}
		w.Apply()
		w.Converged()
		require.Empty(t, w.Plan().Pending)
		require.False(t, pulls())
		n.Mode = model.ModePull
		w.Converged()
		require.Empty(t, w.Plan().Pending, "nothing waits for the machine to be recreated")
		w.Host.Edit(func(e *pve.Edit) { e.Delete(10000) })
		w.Apply()
		require.True(t, pulls())
	})
}

// Whichever request gets lost, there is one machine in the end, and the token of its seed is the last
// one. Where no token can be had, nothing is created.
func TestCreationInModePullGoesOn(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		_, parent := w.pulling("web-1", nil)
		parent.broken = errors.New("there is no signing key")
		failed := w.Run(w.Plan())
		require.ErrorContains(t, failed[model.Address{Kind: "vm", Name: "web-1"}], "there is no signing key")
		require.Empty(t, w.Host.Snapshot().Guests)
		require.Empty(t, seeds(w))

		parent.broken = nil
		o := w.tap()
		ctx, stop := context.WithCancel(t.Context())
		sees := w.Sees
		w.Sees = func(r *http.Request) {
			sees(r)
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/qemu") {
				stop() // the seed is there, and its machine is not
			}
		}
		w.RunUntil(ctx, w.Plan())
		require.Len(t, seeds(w), 1)
		w.Sees = sees
		w.Apply()
		require.Len(t, w.Host.Snapshot().Guests, 1)
		require.Contains(t, documents(t, o.uploads[o.order[len(o.order)-1]])["user-data"], fmt.Sprintf("%s-%d", hiddenPassword, parent.tokens))
		w.Converged()
	})
}

func TestPVENodeIsBornAsAVMThatCanHaveGuests(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		n := w.Node("inner", nil)
		n.Type, n.Resource.Addr = "pve", model.Address{Kind: "pve", Name: "inner"}
		child := w.Node("app", nil)
		child.Parent, n.Children = "inner", []string{"app"}
		p := w.Apply()
		require.Len(t, p.Steps, 2)
		require.Equal(t, "host", w.Guest(10000).Config["cpu"])
		require.Len(t, w.Host.Snapshot().Guests, 1, "children are not made here")
		require.Equal(t, "pve.inner", p.Deferred[0].Address)
		require.Contains(t, p.Deferred[0].Why, "app")
		w.Converged()

		_, m, _ := owner.ParseDescription(w.Guest(10000).Config["description"])
		require.Equal(t, "pve", m.Type)
		w.Drop("inner")
		w.Drop("app")
		require.NotEmpty(t, w.Apply().Postponed(), "its agent has not reported that it is empty")
		require.Len(t, w.Host.Snapshot().Guests, 1)

		w.Orphans = []string{"inner"}
		w.Apply()
		require.Empty(t, w.Host.Snapshot().Guests)
	})
}
