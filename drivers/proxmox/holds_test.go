package proxmox_test

import (
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestEachBlindSpotHoldsBackWhatItMayBe, and the others proceed: each case names what is not seen, what waits for it,
// and what is done all the same. The host is a cluster of two nodes with guests of ours on both.
func TestEachBlindSpotHoldsBackWhatItMayBe(t *testing.T) {
	pooled := `{"data":{"/pool/prod":{"VM.Audit":1,"VM.Allocate":1}}}`
	for name, c := range map[string]struct {
		bend  map[string]reply
		edit  func(*world)
		holds map[string]string // by scope
		steps []string
	}{
		"images on one storage": {
			bend:  map[string]reply{"/nodes/father/storage/nas/content": fixed(595, "")},
			holds: map[string]string{"images on storage nas": "image.nas, vm.nas"},
			steps: []string{"create ct.new", "create vm.comes", "create vm.fixed", "delete vm.leaves", "update vm.stays: onboot"},
		},
		"container templates on one storage": {
			bend: map[string]reply{"/nodes/father/storage/nas/content": fixed(500, "")},
			edit: func(w *world) {
				w.Site.Objects[model.Address{Kind: "template", Name: "debian-ct"}].Spec.(*guest.Template).Storage = "nas"
			},
			holds: map[string]string{"images on storage nas": "image.nas, vm.nas", "templates on storage nas": "ct.new, template.debian-ct"},
			steps: []string{"create vm.comes", "create vm.fixed", "delete vm.leaves", "update vm.stays: onboot"},
		},
		"an unread VM in our range": {
			bend: map[string]reply{"/nodes/father/qemu/10020/pending": fixed(403, "")},
			edit: func(w *world) {
				w.Host.Edit(func(e *pve.Edit) { e.Add(pve.Guest{VMID: 10020, Config: map[string]string{"name": "renamed"}}) })
			},
			holds: map[string]string{"vm 10020": "vm.comes, vm.fixed, vm.nas"},
			steps: []string{"create image.nas", "create ct.new", "delete vm.leaves", "update vm.stays: onboot"},
		},
		"an unread VM of a known name": {
			bend: map[string]reply{"/nodes/father/qemu/10020/pending": fixed(403, "")},
			edit: func(w *world) {
				w.Host.Edit(func(e *pve.Edit) { e.Add(pve.Guest{VMID: 10020, Config: map[string]string{"name": "comes"}}) })
			},
			holds: map[string]string{"vm 10020": "vm.comes"},
			steps: []string{"create image.nas", "create vm.nas", "create ct.new", "create vm.fixed", "delete vm.leaves", "update vm.stays: onboot"},
		},
		"the list of the other node": {
			bend:  map[string]reply{"/nodes/mother/qemu": fixed(595, "")},
			holds: map[string]string{"node mother": ""},
			steps: []string{"create image.nas", "create vm.nas", "create ct.new", "create vm.comes", "create vm.fixed", "delete vm.leaves", "update vm.stays: onboot"},
		},
		"the list of the host's own node": {
			bend:  map[string]reply{"/nodes/father/qemu": fixed(595, "")},
			holds: map[string]string{"node father": "ct.new, vm.comes, vm.fixed, vm.leaves, vm.nas, vm.stays"},
			steps: []string{"create image.nas"},
		},
		"a guest that the token may not see": {
			bend: map[string]reply{
				"/access/permissions": fixed(http.StatusOK, pooled),
				"/cluster/nextid": func(r *http.Request, truth func() (*http.Response, error)) (*http.Response, error) {
					if r.URL.Query().Get("vmid") == "30000" {
						return canned(r, 400, `{"data":null,"message":"Parameter verification failed.\n","errors":{"vmid":"VM 30000 already exists"}}`), nil
					}
					return truth()
				},
			},
			holds: map[string]string{"vm 30000": "vm.fixed"},
			steps: []string{"create image.nas", "create vm.nas", "create ct.new", "create vm.comes", "delete vm.leaves", "update vm.stays: onboot"},
		},
		"too many places where one of ours may hide": {
			bend:  map[string]reply{"/access/permissions": fixed(http.StatusOK, pooled)},
			edit:  func(w *world) { w.Site.Manifests["web"].Nodes[1].Resource.Guest.Choose = nil; w.wide() },
			holds: map[string]string{"all guests": "ct.new, vm.comes, vm.fixed, vm.nas"},
			steps: []string{"create image.nas", "delete vm.leaves", "update vm.stays: onboot"},
		},
		"a node that is not in the cluster": {
			edit:  func(w *world) { w.Site.Hosts["father"].Nodes = []string{"father", "mother", "unkle"} },
			holds: map[string]string{"node unkle": ""},
			steps: []string{"create image.nas", "create vm.nas", "create ct.new", "create vm.comes", "create vm.fixed", "delete vm.leaves", "update vm.stays: onboot"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			nas := pve.Storage{Name: "nas", Type: "nfs", Content: []string{"import", "vztmpl"}, Shared: true}
			inTime(t, pve.Config{Nodes: []string{"mother"}, TaskTime: time.Second, Storages: append(pve.DefaultStorages(), nas)}, func(t *testing.T, w *world) {
				w.Site.Hosts["father"].Nodes = []string{"father", "mother"}
				bent := map[string]reply{}
				d, err := proxmox.Open(proxmox.Config{
					Keys: keysOfTests, Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(),
					Transport: proxmox.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
						truth := func() (*http.Response, error) { return w.Host.RoundTrip(r) }
						if how := bent[strings.TrimPrefix(r.URL.Path, "/api2/json")]; how != nil {
							return how(r, truth)
						}
						return truth()
					}),
				})
				require.NoError(t, err)
				w.Driver = d
				w.Node("leaves", nil)
				w.Node("stays", nil)
				w.Apply()
				time.Sleep(time.Minute)
				w.Drop("leaves")
				w.VM("stays").OnBoot = true
				w.Node("comes", nil)
				fixed := w.Node("fixed", func(v *guest.VM) { v.Image = "other" }).Resource
				fixed.Guest.VMID, fixed.Needs = 30000, []model.Address{{Kind: "image", Name: "other"}}
				w.Site.Objects[model.Address{Kind: "image", Name: "nas"}] = &model.Resource{
					Addr: model.Address{Kind: "image", Name: "nas"},
					Spec: &objects.Image{URL: "https://images.test/nas.qcow2", Checksum: "sha256:" + strings.Repeat("ef", 32), Storage: "nas"},
				}
				w.Site.Objects[model.Address{Kind: "image", Name: "other"}] = &model.Resource{
					Addr: model.Address{Kind: "image", Name: "other"},
					Spec: &objects.Image{URL: "https://images.test/other.qcow2", Checksum: "sha256:" + strings.Repeat("ee", 32), Storage: "local"},
				}
				w.Node("nas", func(v *guest.VM) { v.Image = "nas" }).Resource.Needs = []model.Address{{Kind: "image", Name: "nas"}}
				w.ct("new", nil)
				if c.edit != nil {
					c.edit(w)
					time.Sleep(20 * time.Second)
				}
				maps.Copy(bent, c.bend)
				p := w.Plan()
				got := map[string]string{}
				for _, u := range p.Unknown {
					if a, err := model.ParseAddress(u.Scope); err == nil && a.Kind != "" && !strings.Contains(u.Scope, " ") {
						continue // a step that is held back
					}
					names := []string{}
					for _, a := range u.Withheld {
						names = append(names, a.String())
					}
					got[u.Scope] = strings.Join(names, ", ")
				}
				require.Equal(t, c.holds, got, card(p))
				want := append([]string{"create image.other"}, c.steps...)
				if !strings.Contains(strings.Join(values(c.holds), " "), "template.debian-ct") {
					want = append([]string{"create template.debian-ct"}, want...)
				}
				require.ElementsMatch(t, want, steps(p), card(p))
				require.False(t, p.Findings.HasErrors(), card(p))
			})
		})
	}
}

// wide takes the ranges from all guests of ours that are not there.
func (w *world) wide() {
	for _, n := range w.Site.Manifests["web"].Nodes {
		n.Resource.Guest.Choose = []model.VMIDRange{{Name: "a", From: 10000, To: 10200}, {Name: "b", From: 20000, To: 20200}}
	}
}

func values(of map[string]string) []string {
	out := []string{}
	for _, v := range of {
		out = append(out, v)
	}
	return out
}
