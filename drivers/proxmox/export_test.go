package proxmox

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/drives"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/options"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/drivers/proxmox/seed"
	"github.com/homestak/homestak-gitops/drivers/proxmox/storage"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
	"github.com/homestak/homestak-gitops/engine/model"
)

// The doors to internals that black-box tests need.

// SameOption compares values of a key of VMs, as the plan does for a declared and an observed one.
func SameOption(key, a, b string) bool {
	return (&guest.VM{}).SameValue(key, a, b)
}

// Card is card.
func Card(old string, n guest.NIC) string { return n.Text(old) }

// WaitTask waits for a task as the driver does.
func (d *Driver) WaitTask(ctx context.Context, upid string) error {
	return d.host.API.Tasks.Wait(ctx, upid)
}

// Post sends a POST as the driver does.
func (d *Driver) Post(ctx context.Context, path string, p map[string]any) (string, error) {
	return d.host.API.Post(ctx, path, p)
}

// Put sends a PUT as the driver does.
func (d *Driver) Put(ctx context.Context, path string, p map[string]any) (string, error) {
	return d.host.API.Put(ctx, path, p)
}

// Remove sends a DELETE as the driver does.
func (d *Driver) Remove(ctx context.Context, path string) (string, error) {
	return d.host.API.Delete(ctx, path, nil)
}

// Get sends a GET as the driver does.
func (d *Driver) Get(ctx context.Context, path string, into any) error {
	return d.host.API.Get(ctx, path, into)
}

// RoundTripFunc is a transport made of a function.
type RoundTripFunc func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f RoundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// SpokenFor tells of a key of PVE by its name in the API table who sets it: an
// attribute, an option, or nobody, and then why.
func SpokenFor(key string) (attribute, refused string) {
	return guest.SetBy(key), options.Refused(key)
}

// SendSeed uploads an ISO image as the driver does.
func (d *Driver) SendSeed(ctx context.Context, node, volid string, image []byte) error {
	return seed.Upload(ctx, d.host, node, volid, image)
}

// ReadRecorded reads an answer of GET pending as that of a guest of ours; next is the
// configuration with what waits.
func ReadRecorded(ctx context.Context, lxc bool, pending []byte) (seen *model.Resource, next map[string]string, err error) {
	answer := RoundTripFunc(func(r *http.Request) (*http.Response, error) {
		body := io.NopCloser(strings.NewReader(`{"data":` + string(pending) + `}`))
		return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: r}, nil
	})
	d, err := Open(Config{Host: &model.Host{Name: "father", API: "https://pve.test:8006"}, Token: "root@pam!x=y", Transport: answer})
	if err != nil {
		return nil, nil, err
	}
	cfg, err := view.ReadConfig(ctx, d.host.API, view.GuestRef{Node: "father", VMID: 100, LXC: lxc})
	if err != nil {
		return nil, nil, err
	}
	m := owner.Tag{V: 1, Site: "home", Node: "db", Type: "vm", UUID: owner.UUID(cfg.Next["smbios1"]), Slots: map[string]string{}}
	if lxc {
		m.Type = "ct"
	}
	for key := range cfg.Next {
		if drives.IsDrive(key) && !strings.Contains(cfg.Next[key], "media=cdrom") && !drives.HoldsState(key) && !strings.HasPrefix(key, "unused") || lxc && drives.IsMount(key) {
			m.Slots["disk."+key] = key
		}
	}
	return guest.FromConfig(view.Listed{VMID: 100, Node: "father", LXC: lxc}, cfg, "", m), cfg.Next, nil
}

// PlanForItself lists the paths that differ when a guest is wanted as it was seen.
func PlanForItself(seen *model.Resource) []string {
	want, have := model.Resource{Spec: model.Clone(seen.Spec)}, model.Resource{Spec: model.Clone(seen.Spec), Private: seen.Private}
	Kinds().Get(seen.Addr.Kind).Align(&want, &have)
	var out []string
	a, b := model.Attrs(want.Spec), model.Attrs(have.Spec)
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i].Path != b[i].Path || !reflect.DeepEqual(a[i].Value, b[i].Value) {
			out = append(out, a[min(i, len(a)-1)].Path)
		}
	}
	return out
}

// IsTyped reports whether an attribute sets a key.
func IsTyped(key string) bool {
	f := options.VM().Family(key)
	return guest.SetBy(f) != "" || options.Refused(f) != ""
}

// Content lists the volumes of a kind on a storage.
func (d *Driver) Content(ctx context.Context, node, on, content string) ([]map[string]json.RawMessage, error) {
	return storage.List(ctx, d.host.API, view.NodeStorage{Node: node, Storage: on}, content)
}
