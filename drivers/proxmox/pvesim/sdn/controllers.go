package sdn

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// peered: a kind of section needs to know its peers, by themselves or (PVE 9) by a fabric.
func peered(conf property.Config, kind string) error {
	if conf["type"] == kind && conf["peers"] == "" && conf["fabric"] == "" {
		return perl.Fail("missing value for required option 'peers'")
	}
	return nil
}

// checkController is on_update_hook of the plugins of controllers. Those of BGP and
// IS-IS count the others of the node that is asked, and only from two others on.
func checkController(w *core.World, _ *core.Call, id string, conf, _ property.Config) error {
	if err := peered(conf, "evpn"); err != nil {
		return err
	}
	others, here := 0, 0
	for other, at := range w.Sections["sdn/controllers"] {
		if other == id || at["type"] != conf["type"] {
			continue
		}
		if others++; at["node"] == w.Cfg.Node {
			here++
		}
	}
	switch {
	case conf["type"] == "evpn" && others > 0:
		return perl.Fail("only 1 global evpn controller can be defined")
	case conf["type"] == "bgp" && here > 1:
		return perl.Fail("only 1 bgp controller can be defined")
	case conf["type"] == "isis" && here > 1:
		return perl.Fail("only 1 bgp or isis controller can be defined")
	}
	return nil
}
