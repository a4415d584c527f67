package main

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
)

// drivers are those of this program, joined into one. Open makes the one for Proxmox VE.
func drivers(open func(d engine.Desired, h *model.Host) (engine.Driver, error)) engine.Provider {
	return engine.Join(engine.Provider{Name: "proxmox", Kinds: proxmox.Kinds(), Open: open})
}

// kinds are those of all drivers: what a site may declare.
func kinds() model.Kinds { return drivers(nil).Kinds }
