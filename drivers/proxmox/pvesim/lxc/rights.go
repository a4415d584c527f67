package lxc

import (
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/bridges"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/guests"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/property"
)

// ctChange is what the rights to change a container are checked by.
type ctChange struct {
	vmid         int
	pool         string
	old          property.Config // What is set now; nil when it is made.
	set          map[string]string
	remove       []string
	unprivileged bool
}

// mayConfigureCT checks the right to set or delete keys of a container
// (check_ct_modify_config_perm in PVE/LXC.pm).
func mayConfigureCT(c *core.Call, ch ctChange) error {
	if c.Root() {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(ch.set)) {
		if err := maySetCT(c, ch, key, false); err != nil {
			return err
		}
	}
	for _, key := range ch.remove {
		if err := maySetCT(c, ch, key, true); err != nil {
			return err
		}
	}
	return nil
}

func maySetCT(c *core.Call, ch ctChange, key string, remove bool) error {
	need := func(priv string) error { return c.NeedVM(ch.vmid, ch.pool, priv) }
	family := property.FamilyOf(key)
	switch {
	case key == "cores", key == "cpuunits", key == "cpulimit":
		return need("VM.Config.CPU")
	case property.IsMount(key):
		if err := need("VM.Config.Disk"); err != nil || remove {
			return err
		}
		return mayUseMount(c, ch.vmid, property.ParseMount(key, ch.set[key]))
	case family == "unused" && key != family:
		return need("VM.Config.Disk")
	case family == "dev" && key != family:
		return perl.Forbidden("configuring device passthrough is only allowed for root@pam")
	case key == "memory", key == "swap":
		return need("VM.Config.Memory")
	case family == "net" && key != family:
		if err := need("VM.Config.Network"); err != nil {
			return err
		}
		for _, value := range []string{ch.old[key], ch.set[key]} {
			if err := mayUseCTBridge(c, value); err != nil {
				return err
			}
		}
		return nil
	case key == "nameserver", key == "searchdomain", key == "hostname":
		return need("VM.Config.Network")
	case key == "features":
		return mayChangeFeatures(c, ch, remove)
	case key == "hookscript":
		return perl.Forbidden("changing the hookscript is only allowed for root@pam")
	case key == "tags":
		return guests.MayTag(c, ch.vmid, ch.old[key], ch.set[key])
	default:
		return need("VM.Config.Options")
	}
}

// mayUseMount: a folder or device of the host is for root alone.
func mayUseMount(c *core.Call, vmid int, m property.Mount) error {
	if m.Kind() != "volume" {
		return perl.Forbidden("mount point type " + m.Kind() + " is only allowed for root@pam")
	}
	if storage, _, order := m.Order(); order {
		return c.Need("/storage/"+storage, "Datastore.AllocateSpace")
	}
	_, err := guests.MayReadVolume(c, vmid, m.Volume, "rootdir")
	return err
}

func mayUseCTBridge(c *core.Call, value string) error {
	n := property.CTProperty("net0", value)
	if n["bridge"] == "" {
		return nil
	}
	return bridges.MayUseBridge(c, n)
}

// mayChangeFeatures: nesting of an unprivileged container is for who may
// allocate it, all else for root alone.
func mayChangeFeatures(c *core.Call, ch ctChange, remove bool) error {
	if !ch.unprivileged {
		return perl.Forbidden("changing feature flags for privileged container is only allowed for root@pam")
	}
	before, after := property.CTProperty("features", ch.old["features"]), map[string]string{}
	if !remove {
		after = property.CTProperty("features", ch.set["features"])
	}
	nesting := before["nesting"] != after["nesting"]
	delete(before, "nesting")
	delete(after, "nesting")
	switch {
	case !maps.Equal(before, after):
		return perl.Forbidden("changing feature flags (except nesting) is only allowed for root@pam")
	case nesting:
		return c.NeedVM(ch.vmid, ch.pool, "VM.Allocate")
	default:
		return nil
	}
}
