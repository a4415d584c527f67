package lxc

import (
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// What PVE checks of a container's values beside their form.

// checkCTValue checks a new value before anything is changed (update_pct_config in
// PVE/LXC/Config.pm). That of a mount point at creation is checked elsewhere.
func checkCTValue(w *core.World, key, value string) error {
	switch family := perl.FamilyOf(key); {
	case perl.IsMount(key):
		return checkMount(w, perl.ParseMount(key, value))
	case family == "net" && key != family:
		n := perl.CTProperty(key, value)
		if n["host-managed"] == "1" && n["link_down"] != "1" && n["ip6"] == "auto" {
			return perl.Fail("%s: SLAAC is not supported for host-managed network configuration.", key)
		}
	case key == "hookscript":
		return guests.CheckHookscript(w, value)
	}
	return nil
}

func checkMount(w *core.World, m perl.Mount) error {
	if m.Kind() != "volume" {
		return nil
	}
	storage, _, managed := core.VolumeID(m.Volume)
	st := w.Stores[storage]
	switch {
	case !managed:
		return perl.Fail("unable to parse volume ID '%s'", m.Volume)
	case st == nil:
		return perl.Fail("storage '%s' does not exist", storage)
	case !st.Holds("rootdir"):
		return perl.Fail("storage '%s' does not allow content type 'rootdir' (Container)", storage)
	}
	return checkIDMap(m.Opts["idmap"])
}

// checkIDMap refuses mappings of a mount point that overlap (validate_id_maps in
// PVE/LXC.pm).
func checkIDMap(value string) error {
	if value == "" || value == "passthrough" {
		return nil
	}
	entries := strings.Split(value, ";")
	for _, kind := range []string{"u", "g"} {
		for side, name := range []string{"container", "host"} {
			var found [][]string
			for _, entry := range entries {
				if parts := strings.Split(entry, ":"); len(parts) == 4 && parts[0] == kind {
					found = append(found, parts)
				}
			}
			start := func(parts []string) int { return perl.Atoi(parts[1+side]) }
			slices.SortStableFunc(found, func(a, b []string) int { return start(a) - start(b) })
			for i := 1; i < len(found); i++ {
				if before, now := found[i-1], found[i]; start(before)+perl.Atoi(before[3]) > start(now) {
					return perl.Fail("invalid map entry '%s': %s %sid %d is also mapped by entry '%s'", strings.Join(now, " "), name, kind, start(now), strings.Join(before, " "))
				}
			}
		}
	}
	return nil
}

// volumesThere fails if a mount point names a volume that is not there (activate_volumes
// in PVE/Storage.pm).
func volumesThere(w *core.World, node string, conf perl.Config) error {
	for _, key := range conf.MountNames() {
		m := perl.ParseMount(key, conf[key])
		if _, _, managed := core.VolumeID(m.Volume); m.Kind() != "volume" || !managed {
			continue
		}
		if n, err := core.Locate(w, m.Volume); err != nil {
			return err
		} else if n.Find(node, n.Volume) == nil {
			return perl.Fail("volume '%s' does not exist", m.Volume)
		}
	}
	return nil
}

// quotaOfUnprivileged refuses quotas in a container that may not set them (vm_start in
// PVE/API2/LXC/Status.pm; a reboot does not ask).
func quotaOfUnprivileged(conf perl.Config) error {
	if conf["unprivileged"] != "1" {
		return nil
	}
	for _, key := range conf.MountNames() {
		if perl.ParseMount(key, conf[key]).Opts["quota"] == "1" {
			return perl.Fail("Quotas are not supported by unprivileged containers.")
		}
	}
	return nil
}

// ctCPUs is how the status of a container shows its processors: cores are a number, a
// limit is the text that it is in the configuration (vmstatus in PVE/LXC.pm).
func ctCPUs(w *core.World, g *core.Guest) any {
	if n := perl.Atoi(g.Conf["cores"]); n > 0 {
		return n
	}
	if limit := g.Conf["cpulimit"]; limit != "" && limit != "0" {
		return limit
	}
	return w.Cfg.CPUs
}

// ctChange is a change of a container, for the check of rights.
type ctChange struct {
	vmid         int
	pool         string
	old          perl.Config // Current values; nil on creation.
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
	family := perl.FamilyOf(key)
	switch {
	case key == "cores", key == "cpuunits", key == "cpulimit":
		return need("VM.Config.CPU")
	case perl.IsMount(key):
		if err := need("VM.Config.Disk"); err != nil || remove {
			return err
		}
		return mayUseMount(c, ch.vmid, perl.ParseMount(key, ch.set[key]))
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
func mayUseMount(c *core.Call, vmid int, m perl.Mount) error {
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
	n := perl.CTProperty("net0", value)
	if n["bridge"] == "" {
		return nil
	}
	return guests.MayUseBridge(c, n)
}

// mayChangeFeatures: nesting of an unprivileged container is for who may
// allocate it, all else for root alone.
func mayChangeFeatures(c *core.Call, ch ctChange, remove bool) error {
	if !ch.unprivileged {
		return perl.Forbidden("changing feature flags for privileged container is only allowed for root@pam")
	}
	before, after := perl.CTProperty("features", ch.old["features"]), map[string]string{}
	if !remove {
		after = perl.CTProperty("features", ch.set["features"])
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
