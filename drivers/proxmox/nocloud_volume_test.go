package proxmox_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

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

// TestAStorageThatCannotBeListedProvesNothing keeps the law of the incomplete view.
func TestAStorageThatCannotBeListedProvesNothing(t *testing.T) {
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
		require.NotContains(t, string(o.uploads[o.order[0]]), hush, "what is there now says nothing")
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

// TestEveryRequestOfASeedMayFail faults each request in turn: there is one machine
// in the end, with one identity, and no image that nobody needs.
func TestEveryRequestOfASeedMayFail(t *testing.T) {
	for template, statuses := range map[bool][]int{false: {596, 500}, true: {-1}} {
		tellWithFaults(t, fmt.Sprintf("template=%v", template), statuses, func(t *testing.T, r *storyRun) {
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
