package proxmox

import (
	"context"
	"net/http"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
)

// CardOf is cardOf for a container.
func CardOf(name, val string) health.NIC { return cardOf(name, val, "") }

// ContainerInterfaces asks a host for the interfaces of container 200.
func ContainerInterfaces(ctx context.Context, host http.RoundTripper) ([]health.Interface, error) {
	seen, _, err := container(host).interfaces(ctx)
	return seen, err
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
