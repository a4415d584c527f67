package proxmox

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// The doors to internals that black-box tests need.

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

// SendSeed uploads an ISO image as the driver does.
func (d *Driver) SendSeed(ctx context.Context, node, volid string, image []byte) error {
	return lifecycle.UploadSeed(ctx, d.host, node, volid, image)
}

// Content lists the volumes of a kind on a storage.
func (d *Driver) Content(ctx context.Context, node, on, content string) ([]map[string]json.RawMessage, error) {
	return d.host.API.ListVolumes(ctx, api.NodeStorage{Node: node, Storage: on}, content)
}

// DeclaredAddress is the address that a card of a container declares.
func DeclaredAddress(name, val string) (guest.Address, bool) {
	return declaredAddress([]nic{cardOf(name, val, "")})
}

// ChooseAddress asks a host for the interfaces of container 200, and chooses the address for a card of it.
func ChooseAddress(ctx context.Context, host http.RoundTripper, name, val string) (guest.Address, bool, error) {
	seen, by, err := container(host).interfaces(ctx)
	at, ok := chooseAddress([]nic{cardOf(name, val, "")}, seen, nil, by)
	return at, ok, err
}

// Container is container 200 of a host.
func Container(host http.RoundTripper) guest.Machine { return container(host) }

func container(host http.RoundTripper) *machine {
	of := &model.Host{Name: "father", API: "https://pve.test:8006"}
	c, err := api.Open(api.Config{Host: of, Token: "root@pam!x=y", Transport: host})
	if err != nil {
		panic(err)
	}
	return &machine{h: &kind.Host{API: c, Model: of}, at: api.GuestRef{Node: "father", VMID: 200, LXC: true}}
}

// ResolveGuest completes and checks guests of a kind.
var ResolveGuest = resolveGuest
