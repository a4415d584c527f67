package proxmox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// reply is how an answer of the host is bent; asked tells whether this one is.
type reply func(r *http.Request, truth func() (*http.Response, error)) (*http.Response, error)

func fixed(status int, body string) reply {
	return func(r *http.Request, _ func() (*http.Response, error)) (*http.Response, error) {
		return canned(r, status, body), nil
	}
}

// bent changes the data of the true answer, entry by entry; nil drops one.
func bent(edit func(entry map[string]any) map[string]any) reply {
	return func(_ *http.Request, truth func() (*http.Response, error)) (*http.Response, error) {
		a, err := truth()
		if err != nil {
			return nil, err
		}
		var doc struct {
			Data []map[string]any `json:"data"`
		}
		if err := json.NewDecoder(a.Body).Decode(&doc); err != nil {
			return nil, err
		}
		kept := []map[string]any{}
		for _, e := range doc.Data {
			if e = edit(e); e != nil {
				kept = append(kept, e)
			}
		}
		b, err := json.Marshal(map[string]any{"data": kept})
		a.Body = io.NopCloser(strings.NewReader(string(b)))
		a.ContentLength = int64(len(b))
		return a, err
	}
}

// badAnswers are the ways in which one answer can be none.
func badAnswers() map[string]reply {
	out := map[string]reply{
		"dropped": func(*http.Request, func() (*http.Response, error)) (*http.Response, error) {
			return nil, io.ErrUnexpectedEOF
		},
		"silent": func(r *http.Request, _ func() (*http.Response, error)) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		},
		"null":      fixed(http.StatusOK, `{"data":null}`),
		"object":    fixed(http.StatusOK, `{"data":{}}`),
		"no data":   fixed(http.StatusOK, `{}`),
		"empty":     fixed(http.StatusOK, `{"data":[]}`),
		"HTML":      fixed(http.StatusOK, "<!DOCTYPE html><title>Log in</title>"),
		"truncated": fixed(http.StatusOK, `{"data":[{"type":"node","node":"father","sta`),
		"nothing":   fixed(http.StatusOK, ""),
	}
	for _, status := range []int{401, 403, 500, 501, 502, 503, 504, 595, 596, 597, 599} {
		out[fmt.Sprint(status)] = fixed(status, `{"data":null,"message":"something\n"}`)
	}
	return out
}

// faultyWorld is a world whose host answers one path (or more) otherwise than it should.
// vm.stays is there and wanted, vm.leaves is there and not wanted any more, vm.comes
// is wanted and not there.
type faultyWorld struct {
	*world
	bend func(path string) reply
}

func inFaultyWorld(t *testing.T, story func(*testing.T, *faultyWorld)) {
	t.Helper()
	inTime(t, pve.Config{Nodes: []string{"mother"}, TaskTime: time.Second}, func(t *testing.T, w *world) {
		b := &faultyWorld{world: w, bend: func(string) reply { return nil }}
		w.Site.Hosts["father"].Nodes = []string{"father", "mother"}
		d, err := proxmox.Open(proxmox.Config{
			Keys: keysOfTests, Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(),
			Transport: proxmoxtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
				truth := func() (*http.Response, error) { return w.Host.RoundTrip(r) }
				if how := b.bend(strings.TrimPrefix(r.URL.Path, "/api2/json")); how != nil {
					return how(r, truth)
				}
				return truth()
			}),
		})
		require.NoError(t, err)
		w.Driver = d
		w.Node("leaves", nil).Nodes = []string{"father"} // 10000
		w.Node("stays", nil).Nodes = []string{"father"}  // 10001
		w.Apply()
		time.Sleep(time.Minute)
		w.Drop("leaves")
		w.Node("comes", nil).Nodes = []string{"father"}
		story(t, b)
	})
}

// look is a pass up to its plan. An error of observing is a pass that knows nothing.
func (b *faultyWorld) look() (*plan.Plan, error) {
	want, _ := b.Site.Want("father")
	ctx, cancel := context.WithTimeout(b.T.Context(), 30*time.Minute)
	defer cancel()
	have, err := b.Driver.Observe(ctx, want)
	if err != nil {
		return nil, err
	}
	return b.PlanFor(want, have), nil
}

// TestEveryUnusableAnswer is the list of the ways in which a view of the host can be short
// or stale, and what follows. An incomplete view is never evidence of absence: where it
// is incomplete nothing is created, nothing destroyed, and the pass says so.
//
// First every answer that a look needs, in every way in which it can be none.
func TestEveryUnusableAnswer(t *testing.T) {
	all := []string{"create vm.comes", "delete vm.leaves"}
	for path, c := range map[string]struct {
		left   []string            // steps that may be taken all the same
		though map[string][]string // by answer, where it is no blind spot, and why
	}{
		"/cluster/resources":  {},
		"/access/permissions": {},
		"/cluster/status": {though: map[string][]string{
			"403": all, // needs Sys.Audit on /; all nodes are online by the cluster's list, and PVE refuses writes without quorum
		}},
		"/nodes/father/qemu": {though: map[string][]string{
			"empty": all, // the cluster's list shows the guests, and each is read; what either list shows exists
		}},
		"/nodes/mother/qemu":               {left: all, though: nil}, // nothing wanted is made there, and ours are all seen
		"/nodes/father/qemu/10000/pending": {},                       // no file knows its name any more, so it may as well be vm.comes, renamed by hand
	} {
		for answer, how := range badAnswers() {
			t.Run(path[1:]+" "+answer, func(t *testing.T) {
				inFaultyWorld(t, func(t *testing.T, b *faultyWorld) {
					want := c.left
					if steps, ok := c.though[answer]; ok {
						want = steps
					}
					writes := b.Host.Snapshot().Writes
					b.bend = func(p string) reply {
						if p == path {
							return how
						}
						return nil
					}
					p, err := b.look()
					switch {
					case err != nil && answer != "401" && path == "/nodes/mother/qemu":
						require.NoError(t, err, "one node of several is dark")
					case err != nil:
						require.NotEmpty(t, err.Error())
					default:
						require.Equal(t, append([]string{}, want...), steps(p), card(p))
						require.True(t, len(p.Unknown) > 0 || len(want) == 2, card(p))
					}
					require.Equal(t, writes, b.Host.Snapshot().Writes)
					b.bend = func(string) reply { return nil }
					p, err = b.look()
					require.NoError(t, err)
					require.Equal(t, all, steps(p), "once all is seen, both are due")
				})
			})
		}
	}
}

// Then what is well formed and still not the whole truth.
func TestAnswersThatAreNotTheWholeTruth(t *testing.T) {
	all := []string{"create vm.comes", "delete vm.leaves"}
	isGuest := func(e map[string]any, id float64) bool { return e["vmid"] == id }
	drop := func(id float64) reply {
		return bent(func(e map[string]any) map[string]any {
			if isGuest(e, id) {
				return nil
			}
			return e
		})
	}
	narrow := fixed(http.StatusOK, `{"data":{"/pool/prod":{"VM.Audit":1,"VM.Allocate":1}}}`)
	for name, c := range map[string]struct {
		edit  func(*pve.Edit)
		bend  map[string]reply
		steps []string
		says  string
	}{
		"list without nodes": {bend: map[string]reply{"/cluster/resources": bent(func(e map[string]any) map[string]any {
			if e["type"] == "node" {
				return nil
			}
			return e
		})}, says: "contains no node"},
		"list of another host": {bend: map[string]reply{"/cluster/resources": bent(func(e map[string]any) map[string]any {
			if e["node"] == "father" {
				e["node"] = "uncle"
			}
			return e
		})}, says: "has no node of that name"},
		"quorum lost":           {edit: func(e *pve.Edit) { e.Quorum(false) }, says: "no quorum"},
		"the node is offline":   {edit: func(e *pve.Edit) { e.Offline("father", true) }, says: "EOF"},
		"another node is away":  {edit: func(e *pve.Edit) { e.Offline("mother", true) }, steps: all, says: "offline"},
		"away, and who may see": {edit: func(e *pve.Edit) { e.Offline("mother", true) }, bend: map[string]reply{"/cluster/status": fixed(403, "{}")}, says: "may not see the quorum"},
		"no status daemon": {bend: map[string]reply{"/cluster/resources": bent(func(e map[string]any) map[string]any {
			if e["type"] == "qemu" || e["type"] == "node" { // of a node, too (API2Tools.pm, extract_node_stats)
				delete(e, "name")
				e["status"] = "unknown"
			}
			return e
		})}, steps: all},
		"stale names": {bend: map[string]reply{"/cluster/resources": bent(func(e map[string]any) map[string]any {
			if e["type"] == "qemu" {
				e["name"], e["status"] = "before", "stopped"
			}
			return e
		})}, steps: all},
		"short in the cluster's list": {bend: map[string]reply{"/cluster/resources": drop(10001)}, steps: all},
		"short in the node's list":    {bend: map[string]reply{"/nodes/father/qemu": drop(10001)}, steps: all},
		"taken out of the pool":       {bend: map[string]reply{"/access/permissions": narrow, "/cluster/resources": drop(10001), "/nodes/father/qemu": drop(10001)}, steps: []string{"delete vm.leaves"}, says: "it exists, but the token may not see it"},
		"no pool any more":            {bend: map[string]reply{"/access/permissions": fixed(http.StatusOK, `{"data":{}}`)}, says: "may see no guest"},
		"rights on users only":        {bend: map[string]reply{"/access/permissions": fixed(http.StatusOK, `{"data":{"/vms":{"VM.Audit":0}}}`)}, says: "may see no guest"},
		"moving between nodes": {bend: map[string]reply{"/cluster/resources": bent(func(e map[string]any) map[string]any {
			if isGuest(e, 10000) {
				e["node"] = "mother"
			}
			return e
		})}, says: "does not exist"},
		"on an unknown node": {bend: map[string]reply{"/cluster/resources": bent(func(e map[string]any) map[string]any {
			if isGuest(e, 10000) {
				e["node"] = "aunt"
			}
			return e
		})}, says: "aunt is offline"},
		"configuration without contents": {bend: map[string]reply{"/nodes/father/qemu/10001/pending": fixed(http.StatusOK, `{"data":[{"key":"digest","value":"0123456789012345678901234567890123456789"}]}`)}, steps: all, says: "contains no configuration"},
		"locked":                         {edit: func(e *pve.Edit) { e.Lock(10001, "backup") }, steps: all, says: "vm.stays is locked (backup)"},
		"half made":                      {edit: func(e *pve.Edit) { e.Lock(10001, "create") }, steps: all, says: "unfinished"},
		"locked, tasks null":             {edit: func(e *pve.Edit) { e.Lock(10001, "backup") }, bend: map[string]reply{"/nodes/father/tasks": fixed(http.StatusOK, `{"data":null}`)}, steps: all},
		"half made, tasks null":          {edit: func(e *pve.Edit) { e.Lock(10001, "create") }, bend: map[string]reply{"/nodes/father/tasks": fixed(http.StatusOK, `{"data":null}`)}, steps: all, says: "null"},
		"locked, tasks unseen":           {edit: func(e *pve.Edit) { e.Lock(10001, "backup") }, bend: map[string]reply{"/nodes/father/tasks": fixed(595, "")}, steps: all},
	} {
		t.Run(name, func(t *testing.T) {
			inFaultyWorld(t, func(t *testing.T, b *faultyWorld) {
				if c.edit != nil {
					b.Host.Edit(c.edit)
				}
				writes := b.Host.Snapshot().Writes
				b.bend = func(p string) reply { return c.bend[p] }
				p, err := b.look()
				if err != nil {
					require.Empty(t, c.steps)
					require.ErrorContains(t, err, c.says)
				} else {
					require.Equal(t, append([]string{}, c.steps...), steps(p), card(p))
					require.Contains(t, card(p), c.says)
				}
				require.Equal(t, writes, b.Host.Snapshot().Writes)
			})
		})
	}
}

// TestALostWriteIsReadFirst: 59x on a write says nothing of its outcome, so the next
// thing that is sent is a question.
func TestALostWriteIsReadFirst(t *testing.T) {
	for _, status := range []int{595, 596, 597, 599, -1} {
		for _, path := range []string{"/nodes/father/qemu/10000/status/shutdown", "/nodes/father/qemu/10000", "/nodes/father/qemu"} {
			t.Run(fmt.Sprint(path, status), func(t *testing.T) {
				inFaultyWorld(t, func(t *testing.T, b *faultyWorld) {
					p, err := b.look()
					require.NoError(t, err)
					lost, next := false, ""
					b.bend = func(asked string) reply {
						return func(r *http.Request, truth func() (*http.Response, error)) (*http.Response, error) {
							switch {
							case lost:
								if next == "" {
									next = r.Method
								}
							case asked == path && r.Method != http.MethodGet:
								lost = true
								if status < 0 {
									return nil, errors.New("connection reset by peer")
								}
								return canned(r, status, ""), nil
							}
							return truth()
						}
					}
					for _, s := range p.Steps {
						lost, next = false, ""
						_ = b.Driver.Apply(t.Context(), s)
						if lost {
							require.Contains(t, []string{"", http.MethodGet}, next)
						}
					}
					b.bend = func(string) reply { return nil }
					settle(b.world)
					require.Len(t, b.Host.Snapshot().Guests, 2)
				})
			})
		}
	}
}

// TestALostAnswerOfDoneWorkIsNotAFailure: the look that follows a 596 finds what was
// ordered, waits until its task has ended, and the step goes on as if it had been answered.
func TestALostAnswerOfDoneWorkIsNotAFailure(t *testing.T) {
	for name, c := range map[string]struct {
		pattern string
		declare func(w *world) *model.Node
	}{
		"create": {"POST /nodes/*/qemu", func(w *world) *model.Node { return w.Node("db", nil) }},
		"clone": {"POST /nodes/*/qemu/*/clone", func(w *world) *model.Node {
			w.Template(9000, "golden")
			return w.Node("db", func(v *guest.VM) { v.Template = "golden" })
		}},
		"container": {"POST /nodes/*/lxc", func(w *world) *model.Node { w.ct("db", nil); return w.Site.Manifests["web"].Nodes[0] }},
		"backup":    {"POST /nodes/*/vzdump", func(w *world) *model.Node { return w.Node("db", nil) }},
		"destroy":   {"DELETE /nodes/*/qemu/*", func(w *world) *model.Node { return w.Node("db", nil) }},
	} {
		t.Run(name, func(t *testing.T) {
			rule, err := pve.ParseFault(c.pattern + " nth=1 status=596 apply")
			require.NoError(t, err)
			faults, lost := pve.Faults(rule), 0
			inTime(t, pve.Config{TaskTime: 4 * time.Second, Fault: func(r *http.Request) (int, bool) {
				status, apply := faults(r)
				if status != 0 {
					lost++
				}
				return status, apply
			}}, func(t *testing.T, w *world) {
				c.declare(w).Decomm = &model.Decomm{Policy: "requires_final_backup"}
				w.Apply()
				require.True(t, w.Guest(10000).Running)
				time.Sleep(time.Minute)
				w.Drop("db")
				w.Apply()
				for _, g := range w.Host.Snapshot().Guests {
					require.Equal(t, 9000, g.VMID)
				}
				require.Len(t, backups(w), 1)
				require.Equal(t, 1, lost)
			})
		})
	}
}

// An object that cannot be read withholds the steps that it may concern, and the others proceed: each case names the
// object, the withheld steps and the steps that are done. The host is a cluster of two nodes with managed guests on both.
func TestUnreadableObjectsDeferTheirSteps(t *testing.T) {
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
		"too many places where a managed guest may be": {
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
					Transport: proxmoxtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
						truth := func() (*http.Response, error) { return w.Host.RoundTrip(r) }
						if how := bent[strings.TrimPrefix(r.URL.Path, "/api2/json")]; how != nil {
							return how(r, truth)
						}
						return truth()
					}),
				})
				require.NoError(t, err)
				w.Driver = d
				w.Node("leaves", nil).Nodes = []string{"father"}
				w.Node("stays", nil).Nodes = []string{"father"}
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
				for _, n := range w.Site.Manifests["web"].Nodes {
					n.Nodes = []string{"father"}
				}
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

func TestLockedGuestIsTemporary(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.VM("web-1").Tags = []string{"new"}
		p := w.Plan()
		w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, "backup") })
		err := w.Driver.Apply(t.Context(), p.Steps[0])
		require.ErrorContains(t, err, "locked (backup)")
		var busy interface{ Temporary() bool }
		require.True(t, errors.As(err, &busy) && busy.Temporary())

		unlock := time.AfterFunc(2*time.Second, func() { w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, "") }) })
		defer unlock.Stop()
		for _, r := range apply.Run(t.Context(), p.Steps, apply.Options{}, apply.Backoff{}.Retry(w.Driver.Apply)) {
			require.NoError(t, r.Err)
		}
		w.Converged()
	})
}

// TestALockedGuestIsLeftOut: what would fail for a lock that is there already is no step.
// The step that another one of this token works on waits for that.
func TestALockedGuestIsLeftOut(t *testing.T) {
	for lock, steps := range map[string]int{"backup": 0, "migrate": 0, "suspended": 1, "": 1} {
		inTime(t, pve.Config{TaskTime: time.Minute}, func(t *testing.T, w *world) {
			w.Node("web-1", nil)
			w.Apply()
			w.VM("web-1").Tags = []string{"new"}
			w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, lock) })
			p := w.Plan()
			require.Len(t, p.Steps, steps, lock)
			if steps == 0 {
				require.Len(t, p.Findings, 1)
				require.Equal(t, diag.Error, p.Findings[0].Severity)
				require.Contains(t, p.Findings[0].Summary, "vm.web-1 is not changed: VM 10000 is locked ("+lock+"), and no visible task works on it: if its task died, `qm unlock 10000` on node father clears it")
				w.Drop("web-1")
				require.Empty(t, w.Plan().Steps)
			}
			w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, "") })
			w.Apply()
			w.Converged()
		})
	}
}

// TestALockOfOurOwnTaskIsWaitedFor: it ends with the task.
func TestALockOfOurOwnTaskIsWaitedFor(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Minute}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.VM("web-1").Tags = []string{"new"}
		_, err := w.Driver.Post(t.Context(), "/nodes/father/vzdump", map[string]any{"vmid": 10000, "storage": "local"})
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Equal(t, "backup", w.Guest(10000).Lock)
		p := w.Plan()
		require.Len(t, p.Steps, 1)
		require.NoError(t, w.Driver.Apply(t.Context(), p.Steps[0]), "it reads the guest again and continues")
		w.Converged()
	})
}

func TestHostThatVanishesDuringATaskIsSaid(t *testing.T) {
	var gone atomic.Bool
	fault := func(r *http.Request) (int, bool) {
		if strings.HasSuffix(r.URL.Path, "/qemu") && r.Method == http.MethodPost {
			gone.Store(true)
			return 0, false
		}
		if gone.Load() {
			return -1, false
		}
		return 0, false
	}
	inTime(t, pve.Config{TaskTime: 10 * time.Minute, Fault: fault}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		began := time.Now()
		failed := w.Run(w.Plan())
		require.ErrorContains(t, failed[model.Address{Kind: "vm", Name: "web-1"}], "the host has not answered for")
		require.Less(t, time.Since(began), 20*time.Minute)
	})
}

// TestGuestThatIsMadeMeanwhile: the task that makes it ends between the look at the guest
// and that at the tasks. It is no half-made one, and not made a second time.
func TestGuestThatIsMadeMeanwhile(t *testing.T) {
	for why, lost := range map[string]bool{"was being created until a moment ago": false, "cannot be read any more": true} {
		t.Run(why, func(t *testing.T) {
			var looks, asked atomic.Bool
			fault := func(r *http.Request) (int, bool) {
				switch {
				case !looks.Load():
				case strings.HasSuffix(r.URL.Path, "/nodes/father/tasks"):
					asked.Store(true)
					time.Sleep(10 * time.Second)
				case lost && asked.Load() && strings.Contains(r.URL.Path, "/lxc/"):
					return http.StatusInternalServerError, false
				}
				return 0, false
			}
			inTime(t, pve.Config{TaskTime: 10 * time.Second, Fault: fault}, func(t *testing.T, w *world) {
				w.ct("cache", nil)
				p := w.Plan()
				require.NoError(t, w.Driver.Apply(t.Context(), p.Steps[0]), "its template")
				short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				require.Error(t, w.Driver.Apply(short, p.Steps[1]), "the caller is gone")
				looks.Store(true)
				p = w.Plan()
				require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
				require.NotEmpty(t, p.Unknown)
				require.Contains(t, p.Unknown[0].Why, why)
				looks.Store(false)
				w.Apply()
				require.Len(t, w.Host.Snapshot().Guests, 1)
				w.Converged()
			})
		})
	}
}

// TestALockThatEndsDuringAReadDefersNothing: the list of guests comes first. What worked
// on this one is done, so neither is it left out nor is it said that its making died.
func TestALockThatEndsDuringAReadDefersNothing(t *testing.T) {
	for lock, before := range map[string]string{"create": "/qemu/10000/pending", "backup": "/nodes/father/tasks"} {
		var w *world
		looks := false
		fault := func(r *http.Request) (int, bool) {
			if looks && strings.HasSuffix(r.URL.Path, before) {
				w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, "") })
			}
			return 0, false
		}
		inTime(t, pve.Config{Fault: fault}, func(t *testing.T, fresh *world) {
			w = fresh
			w.Node("web-1", nil)
			w.Apply()
			w.VM("web-1").Tags = []string{"new"}
			w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, lock) })
			looks = true
			p := w.Plan()
			require.Len(t, p.Steps, 1, lock)
			require.Empty(t, p.Findings, lock)
			require.Empty(t, w.Run(p))
			w.Converged()
		})
	}
}

// TestAHibernatedGuestIsResumedFirst: only then PVE changes it.
func TestAHibernatedGuestIsResumedFirst(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) {
			e.Stop(10000)
			e.Lock(10000, "suspended")
		})
		w.VM("web-1").Tags = []string{"new"}
		w.Apply()
		require.Empty(t, w.Guest(10000).Lock)
		require.True(t, w.Guest(10000).Running)
		w.Converged()
	})
}

// TestAHibernatedGuestThatShallNotRunIsLeftAlone: PVE would refuse each change in each
// pass. The plan says what it is and what the ways on are, one of which costs data.
func TestAHibernatedGuestThatShallNotRunIsLeftAlone(t *testing.T) {
	for name, edit := range map[string]func(*world){
		"edited":   func(w *world) { w.VM("web-1").Tags = []string{"new"} },
		"replaced": func(w *world) { w.VM("web-1").Image, w.VM("web-1").Template = "", "golden" },
		"removed":  func(w *world) { w.Drop("web-1") },
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				w.Template(9000, "golden")
				w.Node("web-1", func(v *guest.VM) { v.Power = "stopped" })
				w.Apply()
				w.Host.Edit(func(e *pve.Edit) { e.Lock(10000, "suspended") })
				p := w.Plan()
				require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
				require.Len(t, p.Findings, 1)
				require.Equal(t, diag.Warning, p.Findings[0].Severity, "as wanted: nothing is refused")
				edit(w)
				p = w.Plan()
				require.Empty(t, p.Steps, "%s", proxmoxtest.Describe(p))
				require.Len(t, p.Findings, 1)
				require.Equal(t, diag.Error, p.Findings[0].Severity)
				require.Contains(t, p.Findings[0].Summary, "VM 10000 is hibernated (lock suspended): PVE refuses changes and removal until it has run again")
				require.Contains(t, p.Findings[0].Summary, "`qm unlock 10000` on node father, which loses what it had in memory")
				if name == "edited" { // the way on
					w.VM("web-1").Power = "running"
					w.Apply()
					w.VM("web-1").Power = "stopped"
					w.Apply()
					w.Converged()
				}
			})
		})
	}
}

// TestGrowthOfAnEarlierRunIsAwaited and not requested again; the same run then completes the step.
func TestGrowthOfAnEarlierRunIsAwaited(t *testing.T) {
	c := pve.Config{TaskTime: time.Second, TaskTimes: map[string]time.Duration{"resize": 28 * time.Second}}
	inTime(t, c, func(t *testing.T, w *world) {
		ct := w.ct("cache", func(c *guest.CT) { c.Disks = srv(5) })
		w.Apply()
		ct.Disks[0].Size = 9
		dying, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		require.Error(t, w.Driver.Apply(dying, w.Plan().Steps[0]))
		w.Reopen()
		ct.Swap = 64
		p := w.Plan()
		require.Equal(t, []string{"swap", "disk.data.size"}, proxmoxtest.Paths(p.Steps[0]))
		require.Empty(t, w.Run(p))
		require.Contains(t, w.Guest(10000).Config["mp0"], "size=9G")
		require.Equal(t, "64", w.Guest(10000).Config["swap"])
		grown := 0
		for _, task := range w.Host.Snapshot().Tasks {
			if task.Type == "resize" {
				grown++
			}
		}
		require.Equal(t, 1, grown)
		w.Converged()
	})
}

// TestEditsAfterThePlanStopTheStep: only what the plan showed is done
// without another plan.
func TestEditsAfterThePlanStopTheStep(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Minute}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.VM("web-1").Tags = []string{"new"}
		p := w.Plan()
		_, err := w.Driver.Post(t.Context(), "/nodes/father/vzdump", map[string]any{"vmid": 10000, "storage": "local"})
		require.NoError(t, err)
		w.Host.Edit(func(e *pve.Edit) { e.Set(10000, "cores", "7") })
		require.ErrorContains(t, w.Driver.Apply(t.Context(), p.Steps[0]), "plan again")
		require.NotContains(t, w.Guest(10000).Config["tags"], "new")
	})
}
