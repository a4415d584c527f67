package proxmox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
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

// blinded is a world whose host answers one path (or more) otherwise than it should.
// vm.stays is there and wanted, vm.leaves is there and not wanted any more, vm.comes
// is wanted and not there.
type blinded struct {
	*world
	bend func(path string) reply
}

func blindSpot(t *testing.T, story func(*testing.T, *blinded)) {
	t.Helper()
	inTime(t, pve.Config{Nodes: []string{"mother"}, TaskTime: time.Second}, func(t *testing.T, w *world) {
		b := &blinded{world: w, bend: func(string) reply { return nil }}
		w.Site.Hosts["father"].Nodes = []string{"father", "mother"}
		d, err := proxmox.Open(proxmox.Config{
			Keys: keysOfTests, Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(),
			Transport: proxmox.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
				truth := func() (*http.Response, error) { return w.Host.RoundTrip(r) }
				if how := b.bend(strings.TrimPrefix(r.URL.Path, "/api2/json")); how != nil {
					return how(r, truth)
				}
				return truth()
			}),
		})
		require.NoError(t, err)
		w.Driver = d
		w.Node("leaves", nil) // 10000
		w.Node("stays", nil)  // 10001
		w.Apply()
		time.Sleep(time.Minute)
		w.Drop("leaves")
		w.Node("comes", nil)
		story(t, b)
	})
}

// look is a pass up to its plan. An error of observing is a pass that knows nothing.
func (b *blinded) look() (*plan.Plan, error) {
	want, _ := b.Site.Want("father")
	ctx, cancel := context.WithTimeout(b.T.Context(), 30*time.Minute)
	defer cancel()
	have, err := b.Driver.Observe(ctx, want)
	if err != nil {
		return nil, err
	}
	return b.PlanFor(want, have), nil
}

// TestEveryBlindSpot is the list of the ways in which a view of the host can be short
// or stale, and what follows. An incomplete view is never evidence of absence: where it
// is incomplete nothing is created, nothing destroyed, and the pass says so.
//
// First every answer that a look needs, in every way in which it can be none.
func TestEveryBlindSpot(t *testing.T) {
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
				blindSpot(t, func(t *testing.T, b *blinded) {
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
		})}, says: "holds no node"},
		"list of another host": {bend: map[string]reply{"/cluster/resources": bent(func(e map[string]any) map[string]any {
			if e["node"] == "father" {
				e["node"] = "uncle"
			}
			return e
		})}, says: "knows no such node"},
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
		"on a node that nobody knows": {bend: map[string]reply{"/cluster/resources": bent(func(e map[string]any) map[string]any {
			if isGuest(e, 10000) {
				e["node"] = "aunt"
			}
			return e
		})}, says: "aunt is offline"},
		"configuration without contents": {bend: map[string]reply{"/nodes/father/qemu/10001/pending": fixed(http.StatusOK, `{"data":[{"key":"digest","value":"0123456789012345678901234567890123456789"}]}`)}, steps: all, says: "holds no configuration"},
		"locked":                         {edit: func(e *pve.Edit) { e.Lock(10001, "backup") }, steps: all, says: "vm.stays is locked (backup)"},
		"half made":                      {edit: func(e *pve.Edit) { e.Lock(10001, "create") }, steps: all, says: "unfinished"},
		"locked, tasks null":             {edit: func(e *pve.Edit) { e.Lock(10001, "backup") }, bend: map[string]reply{"/nodes/father/tasks": fixed(http.StatusOK, `{"data":null}`)}, steps: all},
		"half made, tasks null":          {edit: func(e *pve.Edit) { e.Lock(10001, "create") }, bend: map[string]reply{"/nodes/father/tasks": fixed(http.StatusOK, `{"data":null}`)}, steps: all, says: "null"},
		"locked, tasks unseen":           {edit: func(e *pve.Edit) { e.Lock(10001, "backup") }, bend: map[string]reply{"/nodes/father/tasks": fixed(595, "")}, steps: all},
	} {
		t.Run(name, func(t *testing.T) {
			blindSpot(t, func(t *testing.T, b *blinded) {
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

// TestLostWriteIsLookedAtFirst: 59x on a write says nothing of its outcome, so the next
// thing that is sent is a question.
func TestLostWriteIsLookedAtFirst(t *testing.T) {
	for _, status := range []int{595, 596, 597, 599, -1} {
		for _, path := range []string{"/nodes/father/qemu/10000/status/shutdown", "/nodes/father/qemu/10000", "/nodes/father/qemu"} {
			t.Run(fmt.Sprint(path, status), func(t *testing.T) {
				blindSpot(t, func(t *testing.T, b *blinded) {
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

// TestALostAnswerOfDoneWorkIsNoFailure: the look that follows a 596 finds what was
// ordered, waits until its task has ended, and the step goes on as if it had been answered.
func TestALostAnswerOfDoneWorkIsNoFailure(t *testing.T) {
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
