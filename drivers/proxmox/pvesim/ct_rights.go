package pvesim

import (
	"maps"
	"slices"
)

// ctChange is what the rights to change a container are checked by.
type ctChange struct {
	vmid         int
	pool         string
	old          config // What is set now; nil when it is made.
	set          map[string]string
	remove       []string
	unprivileged bool
}

// mayConfigureCT checks the right to set or delete keys of a container
// (check_ct_modify_config_perm in PVE/LXC.pm).
func (c *call) mayConfigureCT(ch ctChange) error {
	if c.root() {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(ch.set)) {
		if err := c.maySetCT(ch, key, false); err != nil {
			return err
		}
	}
	for _, key := range ch.remove {
		if err := c.maySetCT(ch, key, true); err != nil {
			return err
		}
	}
	return nil
}

func (c *call) maySetCT(ch ctChange, key string, remove bool) error {
	need := func(priv string) error { return c.needVM(ch.vmid, ch.pool, priv) }
	family := familyOf(key)
	switch {
	case key == "cores", key == "cpuunits", key == "cpulimit":
		return need("VM.Config.CPU")
	case isMount(key):
		if err := need("VM.Config.Disk"); err != nil || remove {
			return err
		}
		return c.mayUseMount(ch.vmid, parseMount(key, ch.set[key]))
	case family == "unused" && key != family:
		return need("VM.Config.Disk")
	case family == "dev" && key != family:
		return forbidden("configuring device passthrough is only allowed for root@pam")
	case key == "memory", key == "swap":
		return need("VM.Config.Memory")
	case family == "net" && key != family:
		if err := need("VM.Config.Network"); err != nil {
			return err
		}
		for _, value := range []string{ch.old[key], ch.set[key]} {
			if err := c.mayUseCTBridge(value); err != nil {
				return err
			}
		}
		return nil
	case key == "nameserver", key == "searchdomain", key == "hostname":
		return need("VM.Config.Network")
	case key == "features":
		return c.mayChangeFeatures(ch, remove)
	case key == "hookscript":
		return forbidden("changing the hookscript is only allowed for root@pam")
	case key == "tags":
		return c.mayTag(ch.vmid, ch.old[key], ch.set[key])
	default:
		return need("VM.Config.Options")
	}
}

// mayUseMount: a folder or device of the host is for root alone.
func (c *call) mayUseMount(vmid int, m mount) error {
	if m.kind() != "volume" {
		return forbidden("mount point type " + m.kind() + " is only allowed for root@pam")
	}
	if storage, _, order := m.order(); order {
		return c.need("/storage/"+storage, "Datastore.AllocateSpace")
	}
	_, err := c.mayReadVolume(vmid, m.volume, "rootdir")
	return err
}

func (c *call) mayUseCTBridge(value string) error {
	n := ctProperty("net0", value)
	if n["bridge"] == "" {
		return nil
	}
	return c.mayUseBridge(n)
}

// mayChangeFeatures: nesting of an unprivileged container is for who may
// allocate it, all else for root alone.
func (c *call) mayChangeFeatures(ch ctChange, remove bool) error {
	if !ch.unprivileged {
		return forbidden("changing feature flags for privileged container is only allowed for root@pam")
	}
	before, after := ctProperty("features", ch.old["features"]), map[string]string{}
	if !remove {
		after = ctProperty("features", ch.set["features"])
	}
	nesting := before["nesting"] != after["nesting"]
	delete(before, "nesting")
	delete(after, "nesting")
	switch {
	case !maps.Equal(before, after):
		return forbidden("changing feature flags (except nesting) is only allowed for root@pam")
	case nesting:
		return c.needVM(ch.vmid, ch.pool, "VM.Allocate")
	default:
		return nil
	}
}
