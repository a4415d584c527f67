package proxmox_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi/pveapitest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// world is a site in memory, a simulated host, and a driver between them. Every
// request of the driver is checked against the API table.
type world struct {
	t    *testing.T
	site *model.Site
	host *pvesim.Host
	d    *proxmox.Driver
	wire *wire // sees all that is sent, if there is one
}

// kept are the good answers of all simulated hosts here: a sweep tells one story a thousand
// times, in which most answers are the same.
var kept pvesim.KeptPromises

func newWorld(t *testing.T, c pvesim.Config) *world {
	t.Helper()
	c.Promise, c.Kept = func(deviation string) { t.Error("the simulator answers otherwise than the API promises:", deviation) }, &kept
	w := &world{t: t, host: pvesim.New(c), site: &model.Site{
		Name: "home", Domain: "home.test", Gateway: "10.0.0.1", DNS: []string{"10.0.0.1"}, Kinds: proxmox.Kinds(),
		Hosts:     map[string]*model.Host{"father": {Name: "father", API: "https://pve.test:8006"}},
		Presets:   map[string]*model.Preset{"small": {Name: "small", Cores: 2, Memory: 2048, Disk: 10}},
		Specs:     map[string]*model.Spec{},
		Manifests: map[string]*model.Manifest{"web": {Name: "web", Host: "father"}},
		Objects: model.State{
			{Kind: "image", Name: "debian-12"}: {
				Addr: model.Address{Kind: "image", Name: "debian-12"},
				Spec: &proxmox.Image{URL: "https://images.test/debian-12.qcow2", Checksum: fmt.Sprintf("sha256:%064d", 12)},
			},
			{Kind: "template", Name: "golden"}: {Addr: model.Address{Kind: "template", Name: "golden"}, Spec: &proxmox.Template{VMID: 9000}},
		},
		Secrets: &model.Secrets{Values: map[string]map[string]string{"ssh_keys": {"ops": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm2vTt0Yt2bV8m0nq0Zk2l5s7cD4pXy1hJr9uQwAbCd ops@home", "dev": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm2vTt0Yt2bV8m0nq0Zk2l5s7cD4pXy1hJr9uQwAbCe dev+1@home"}}},
	}}
	w.reopen()
	return w
}

// reopen makes a new driver, as a restarted agent has.
func (w *world) reopen() {
	w.t.Helper()
	check := proxmox.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
		if err := pveapitest.ValidateRequest(r); err != nil {
			w.t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		if w.wire != nil {
			w.wire.read(w.t, r)
		}
		return w.host.RoundTrip(r)
	})
	d, err := proxmox.Open(proxmox.Config{Host: w.site.Hosts["father"], Site: "home", Owner: "father", Token: w.host.Token(), Transport: check})
	require.NoError(w.t, err)
	w.d = d
}

// node declares a vm.
func (w *world) node(name string, edit func(*proxmox.VM)) *model.Node {
	vm := proxmox.Kinds().Get("vm").New().(*proxmox.VM)
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
	m := w.site.Manifests["web"]
	n := &model.Node{Name: name, Block: name, Type: "vm", Resource: r, Manifest: m, Mode: "push"}
	m.Nodes = append(m.Nodes, n)
	return n
}

func (w *world) vm(name string) *proxmox.VM {
	for _, n := range w.site.Manifests["web"].Nodes {
		if n.Name == name {
			return n.Resource.Spec.(*proxmox.VM)
		}
	}
	w.t.Fatalf("no node %s", name)
	return nil
}

func (w *world) drop(name string) {
	m := w.site.Manifests["web"]
	for i, n := range m.Nodes {
		if n.Name == name {
			m.Nodes = append(m.Nodes[:i:i], m.Nodes[i+1:]...)
			return
		}
	}
	w.t.Fatalf("no node %s", name)
}

// plan observes and plans.
func (w *world) plan() *plan.Plan {
	w.t.Helper()
	want, found := w.site.Want("father")
	require.Zero(w.t, found.Errors(), "%v", found)
	have, err := w.d.Observe(w.t.Context(), want)
	require.NoError(w.t, err)
	return planOf(w, want, have)
}

func planOf(w *world, want *model.Want, have model.Observed) *plan.Plan {
	return plan.Make(plan.Input{Site: "home", Host: "father", Kinds: w.site.Kinds, Want: want, Have: have})
}

// apply plans and converges; every step must succeed.
func (w *world) apply() *plan.Plan {
	w.t.Helper()
	p := w.plan()
	require.Empty(w.t, w.run(p))
	return p
}

// run carries out the steps one by one; what waits for a failed one is left out.
func (w *world) run(p *plan.Plan) map[model.Address]error {
	failed := map[model.Address]error{}
	for _, s := range p.Steps {
		if slices.ContainsFunc(s.After, func(a model.Address) bool { return failed[a] != nil }) {
			failed[s.Address] = errors.New("waits for what went wrong")
			continue
		}
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Hour)
		if err := w.d.Apply(ctx, s); err != nil {
			failed[s.Address] = err
		}
		cancel()
	}
	return failed
}

// converged requires that nothing is left to do.
func (w *world) converged() {
	w.t.Helper()
	p := w.plan()
	require.Empty(w.t, p.Steps, "%s", describe(p))
	require.Empty(w.t, p.Unknown)
	require.False(w.t, p.Findings.HasErrors(), "%v", p.Findings)
}

func describe(p *plan.Plan) string {
	out := ""
	for _, s := range p.Steps {
		out += fmt.Sprintf("%s %s (%s, %s):", s.Action, s.Address, s.Class, s.Reason)
		for _, c := range s.Changes {
			out += fmt.Sprintf(" %s %v → %v;", c.Path, c.Before, c.After)
		}
		out += "\n"
	}
	return out
}

func (w *world) guest(vmid int) pvesim.Guest {
	w.t.Helper()
	for _, g := range w.host.Snapshot().Guests {
		if g.VMID == vmid {
			return g
		}
	}
	w.t.Fatalf("no guest %d", vmid)
	return pvesim.Guest{}
}

func paths(s plan.Step) []string {
	var out []string
	for _, c := range s.Changes {
		out = append(out, c.Path)
	}
	return out
}

// template makes a VM template as an administrator does.
func (w *world) template(vmid int, name string) {
	w.t.Helper()
	w.templateOn("father", "local-lvm", vmid, name)
}

func (w *world) templateOn(node, storage string, vmid int, name string) {
	w.t.Helper()
	for _, call := range []struct {
		path string
		p    map[string]any
	}{
		{"/nodes/" + node + "/qemu", map[string]any{"vmid": vmid, "name": name, "scsi0": storage + ":2", "boot": "order=scsi0", "net0": "virtio,bridge=vmbr0", "net1": "virtio,bridge=vmbr0"}},
		{fmt.Sprintf("/nodes/%s/qemu/%d/template", node, vmid), map[string]any{}},
	} {
		upid, err := w.d.Post(w.t.Context(), call.path, call.p)
		require.NoError(w.t, err)
		require.NoError(w.t, w.d.WaitTask(w.t.Context(), upid))
	}
}
