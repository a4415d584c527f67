package sim

import (
	"net/http"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/drivers/proxmox/observation"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// Twins is the network of a plan against an observation: the twin of the observed host, in this process. Its guests are
// not entered.
func Twins(file string) (session.Network, error) {
	o, err := observation.ReadFile(file)
	if err != nil {
		return session.Network{}, err
	}
	h, err := pve.Twin(o, pve.Config{})
	if err != nil {
		return session.Network{}, err
	}
	return session.Network{
		Observed:  &session.Observed{Host: o.Name, At: o.ObservedAt},
		Transport: func(*model.Site, *model.Host) (http.RoundTripper, string) { return h, h.Token() },
	}, nil
}
