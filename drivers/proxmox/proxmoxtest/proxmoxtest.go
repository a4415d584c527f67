// Package proxmoxtest provides a site in memory for tests: a simulated host, a driver for it, and helpers for test
// stories. Every request of the driver is checked against the API table.
package proxmoxtest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/doctor"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// World is a site in memory, a simulated host, and a driver between them. Every
// request of the driver is checked against the API table.
type World struct {
	T      *testing.T
	Site   *model.Site
	Host   *pve.Host
	Driver *proxmox.Driver
	// Orphans are nodes that go with what is in them; see plan.Input.
	Orphans []string
	// Sees is called with every request of the driver, where it is set.
	Sees func(*http.Request)
	// Parent serves nodes in mode pull, from the next Reopen on; see proxmox.Config.
	Parent interface {
		FirstBoot(node, spec, userData string) (string, error)
		HasReported(node string) bool
	}
	// Keys are those of ownership tags, from the next Reopen on: those of the function Keys, unless a test sets others; nil: the
	// site has none. See proxmox.Config.
	Keys func(owner string) [][]byte
}

// kept are the good answers of all simulated hosts here: a sweep tells one story a thousand
// times, in which most answers are the same.
var kept pve.KeptPromises

// accepted are the requests of all of them, which PVE would take.
var accepted acceptedRequests

// New is a site with one host, which has an image and a template.
func New(t *testing.T, c pve.Config) *World {
	t.Helper()
	c.Promise, c.Kept = func(deviation string) { t.Error("the simulator answers otherwise than the API promises:", deviation) }, &kept
	w := &World{T: t, Keys: Keys, Host: pve.New(c), Site: &model.Site{
		Name: "home", Domain: "home.test", Gateway: "10.0.0.1", DNS: []string{"10.0.0.1"}, Kinds: proxmox.Kinds(),
		Hosts:     map[string]*model.Host{"father": {Name: "father", API: "https://pve.test:8006"}},
		Presets:   map[string]*model.Preset{"small": {Name: "small", Cores: 2, Memory: 2048, Disk: 10}},
		Specs:     map[string]*model.Spec{},
		Manifests: map[string]*model.Manifest{"web": {Name: "web", Host: "father"}},
		Objects: model.State{
			{Kind: "image", Name: "debian-12"}: {
				Addr: model.Address{Kind: "image", Name: "debian-12"},
				Spec: &objects.Image{URL: "https://images.test/debian-12.qcow2", Checksum: fmt.Sprintf("sha256:%064d", 12)},
			},
			{Kind: "template", Name: "golden"}: {Addr: model.Address{Kind: "template", Name: "golden"}, Spec: &guest.Template{VMID: 9000}},
		},
		Secrets: &model.Secrets{Values: map[string]map[string]string{"ssh_keys": {"ops": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm2vTt0Yt2bV8m0nq0Zk2l5s7cD4pXy1hJr9uQwAbCd ops@home", "dev": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm2vTt0Yt2bV8m0nq0Zk2l5s7cD4pXy1hJr9uQwAbCe dev+1@home"}}},
	}}
	w.Reopen()
	return w
}

// Keys are the keys of ownership tags in tests, one for each owner; see proxmox.Config.
func Keys(owner string) [][]byte {
	key := sha256.Sum256([]byte("a key of " + owner))
	return [][]byte{key[:]}
}

// Reopen makes a new driver, as a restarted agent has.
func (w *World) Reopen() {
	w.T.Helper()
	check := RoundTripFunc(func(r *http.Request) (*http.Response, error) {
		if err := accepted.Validate(r); err != nil {
			w.T.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		if w.Sees != nil {
			w.Sees(r)
		}
		return w.Host.RoundTrip(r)
	})
	d, err := proxmox.Open(proxmox.Config{Host: w.Site.Hosts["father"], Site: "home", VMIDs: w.Site.VMIDRanges, Owner: "father", Token: w.Host.Token(), Transport: check, Parent: w.Parent, Keys: w.Keys, Moved: w.Site.Moved})
	require.NoError(w.T, err)
	w.Driver = d
}

// Node declares a VM.
func (w *World) Node(name string, edit func(*guest.VM)) *model.Node {
	vm := proxmox.Kinds().Get("vm").New().(*guest.VM)
	vm.Preset, vm.Image = "small", "debian-12"
	addr := model.Address{Kind: "vm", Name: name}
	r := &model.Resource{
		Addr: addr, Spec: vm, Manifest: "web", Node: name, Needs: []model.Address{{Kind: "image", Name: "debian-12"}},
		Guest: &model.Guest{Choose: []model.VMIDRange{{Name: "all", From: 10000, To: 10099}}},
	}
	if edit != nil {
		edit(vm)
	}
	if vm.Template != "" {
		vm.Image, r.Needs = "", []model.Address{{Kind: "template", Name: vm.Template}}
	}
	m := w.Site.Manifests["web"]
	n := &model.Node{Name: name, Block: name, Type: "vm", Resource: r, Manifest: m, Mode: "push"}
	m.Nodes = append(m.Nodes, n)
	return n
}

// VM is a declared VM.
func (w *World) VM(name string) *guest.VM {
	for _, n := range w.Site.Manifests["web"].Nodes {
		if n.Name == name {
			return n.Resource.Spec.(*guest.VM)
		}
	}
	w.T.Fatalf("no node %s", name)
	return nil
}

// Drop takes a node out of the files.
func (w *World) Drop(name string) {
	m := w.Site.Manifests["web"]
	for i, n := range m.Nodes {
		if n.Name == name {
			m.Nodes = append(m.Nodes[:i:i], m.Nodes[i+1:]...)
			return
		}
	}
	w.T.Fatalf("no node %s", name)
}

// Plan observes and plans.
func (w *World) Plan() *plan.Plan {
	w.T.Helper()
	want, found := w.Site.Want("father")
	require.Zero(w.T, found.Errors(), "%v", found)
	have, err := w.Driver.Observe(w.T.Context(), want)
	require.NoError(w.T, err)
	return w.PlanFor(want, have)
}

// PlanFor plans what brings a host from what was observed to what is wanted.
func (w *World) PlanFor(want *model.Want, have model.Observed) *plan.Plan {
	return plan.Make(plan.Input{Site: "home", Host: "father", Kinds: w.Site.Kinds, Want: want, Have: have, AllowOrphans: w.Orphans})
}

// Apply plans and converges; every step must succeed.
func (w *World) Apply() *plan.Plan {
	w.T.Helper()
	p := w.Plan()
	require.Empty(w.T, w.Run(p))
	return p
}

// Run carries out the steps one by one; what waits for a failed one is left out.
func (w *World) Run(p *plan.Plan) map[model.Address]error { return w.RunUntil(w.T.Context(), p) }

// RunUntil is Run that begins no more steps once the context has ended.
func (w *World) RunUntil(ctx context.Context, p *plan.Plan) map[model.Address]error {
	failed := map[model.Address]error{}
	for _, s := range p.Steps {
		if ctx.Err() != nil {
			break
		}
		if slices.ContainsFunc(s.After, func(a model.Address) bool { return failed[a] != nil }) {
			failed[s.Address] = errors.New("waits for what went wrong")
			continue
		}
		inTime, cancel := context.WithTimeout(ctx, time.Hour)
		if err := w.Driver.Apply(inTime, s); err != nil {
			failed[s.Address] = err
		}
		cancel()
	}
	return failed
}

// Converged requires that nothing is left to do.
func (w *World) Converged() {
	w.T.Helper()
	p := w.Plan()
	require.Empty(w.T, p.Steps, "%s", Describe(p))
	require.Empty(w.T, p.Unknown)
	require.False(w.T, p.Findings.HasErrors(), "%v", p.Findings)
}

// Describe is a plan as text.
func Describe(p *plan.Plan) string {
	var out strings.Builder
	for _, s := range p.Steps {
		fmt.Fprintf(&out, "%s %s (%s, %s):", s.Action, s.Address, s.Class, s.Reason)
		for _, c := range s.Changes {
			fmt.Fprintf(&out, " %s %v → %v;", c.Path, c.Before, c.After)
		}
		out.WriteString("\n")
	}
	return out.String()
}

// Guest is a guest of the simulated host.
func (w *World) Guest(vmid int) pve.Guest {
	w.T.Helper()
	for _, g := range w.Host.Snapshot().Guests {
		if g.VMID == vmid {
			return g
		}
	}
	w.T.Fatalf("no guest %d", vmid)
	return pve.Guest{}
}

// Paths are the attributes that a step changes.
func Paths(s plan.Step) []string {
	var out []string
	for _, c := range s.Changes {
		out = append(out, c.Path)
	}
	return out
}

// Template makes a VM template as an administrator does.
func (w *World) Template(vmid int, name string) {
	w.T.Helper()
	w.TemplateOn("father", "local-lvm", vmid, name)
}

// TemplateOn is Template for a node and a storage.
func (w *World) TemplateOn(node, storage string, vmid int, name string) {
	w.T.Helper()
	for _, call := range []struct {
		path string
		p    map[string]any
	}{
		{"/nodes/" + node + "/qemu", map[string]any{"vmid": vmid, "name": name, "scsi0": storage + ":2", "boot": "order=scsi0", "net0": "virtio,bridge=vmbr0", "net1": "virtio,bridge=vmbr0"}},
		{fmt.Sprintf("/nodes/%s/qemu/%d/template", node, vmid), map[string]any{}},
	} {
		upid, err := w.Driver.Client().Post(w.T.Context(), call.path, call.p)
		require.NoError(w.T, err)
		require.NoError(w.T, w.Driver.Client().Tasks.Wait(w.T.Context(), upid))
	}
}

// Send sends a request with a token, and returns the status and body of the answer.
func (w *World) Send(token, method, path string, values url.Values) (status int, body string) {
	w.T.Helper()
	r, err := http.NewRequestWithContext(w.T.Context(), method, "https://pve.test:8006/api2/json"+path, strings.NewReader(values.Encode()))
	require.NoError(w.T, err)
	r.Header.Set("Authorization", "PVEAPIToken="+token)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := w.Host.RoundTrip(r)
	require.NoError(w.T, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(w.T, err)
	return res.StatusCode, string(text)
}

// As sends a request with a token, which must succeed, and returns the body of the answer.
func (w *World) As(token, method, path string, values url.Values) string {
	w.T.Helper()
	status, body := w.Send(token, method, path, values)
	require.Equal(w.T, http.StatusOK, status, "%s %s: %s", method, path, body)
	return body
}

// Root sends a request as the administrator, which must succeed.
func (w *World) Root(method, path string, values url.Values) {
	w.T.Helper()
	w.As(w.Host.Token(), method, path, values)
}

// InTime tells a story in a bubble of synctest, where hours pass at once.
func InTime(t *testing.T, c pve.Config, story func(*testing.T, *World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { story(t, New(t, c)) })
}

// RoundTripFunc is a transport made of a function.
type RoundTripFunc func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f RoundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// CT declares a container, of a template that is downloaded.
func (w *World) CT(name string, edit func(*guest.CT)) *guest.CT {
	c := proxmox.Kinds().Get("ct").New().(*guest.CT)
	c.Preset, c.Template = "small", "debian-ct"
	w.Declare("debian-ct", &guest.Template{URL: "https://images.test/debian-12-standard.tar.zst", Checksum: fmt.Sprintf("sha256:%064d", 7)})
	if edit != nil {
		edit(c)
	}
	m := w.Site.Manifests["web"]
	r := &model.Resource{
		Addr: model.Address{Kind: "ct", Name: name}, Spec: c, Manifest: "web", Node: name, Needs: []model.Address{{Kind: "template", Name: c.Template}},
		Guest: &model.Guest{Choose: []model.VMIDRange{{Name: "all", From: 10000, To: 10099}}},
	}
	m.Nodes = append(m.Nodes, &model.Node{Name: name, Block: name, Type: "ct", Resource: r, Manifest: m, Mode: "push"})
	return c
}

// Declare declares a template.
func (w *World) Declare(name string, t *guest.Template) {
	addr := model.Address{Kind: "template", Name: name}
	w.Site.Objects[addr] = &model.Resource{Addr: addr, Spec: t}
}

// Examine has the doctor check the host of the world; the edit changes its options.
func (w *World) Examine(edit func(*doctor.Doctor)) []doctor.Check {
	w.T.Helper()
	want, found := w.Site.Want("father")
	require.Zero(w.T, found.Errors(), "%v", found)
	d := &doctor.Doctor{
		Config: proxmox.Config{Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(), Transport: w.Host},
		Want:   want, Of: w.Site,
	}
	if edit != nil {
		edit(d)
	}
	return d.Examine(w.T.Context())
}

// CheckNamed finds a check by its name, a failed one first.
func CheckNamed(t *testing.T, checks []doctor.Check, name string) doctor.Check {
	t.Helper()
	for _, c := range checks {
		if c.Name == name && c.Result != doctor.OK {
			return c
		}
	}
	for _, c := range checks {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("nothing is said of %s: %v", name, checks)
	return doctor.Check{}
}

// Web is a network of files, by the path of their URLs; "": there is none. It knows ranges.
type Web map[string]string

// RoundTrip implements http.RoundTripper.
func (w Web) RoundTrip(r *http.Request) (*http.Response, error) {
	out := httptest.NewRecorder()
	if w[r.URL.Path] == "" {
		http.NotFound(out, r)
	} else {
		http.ServeContent(out, r, "", time.Time{}, strings.NewReader(w[r.URL.Path]))
	}
	answer := out.Result()
	answer.Request = r
	return answer, nil
}
