package pvesim

import (
	"slices"
	"strings"
)

// What PVE checks of a container's values beside their form.

// checkCTValue checks a new value before anything is changed (update_pct_config in
// PVE/LXC/Config.pm). That of a mount point at creation is checked elsewhere.
func (w *world) checkCTValue(key, value string) error {
	switch family := familyOf(key); {
	case isMount(key):
		return w.checkMount(parseMount(key, value))
	case family == "net" && key != family:
		n := ctProperty(key, value)
		if n["host-managed"] == "1" && n["link_down"] != "1" && n["ip6"] == "auto" {
			return fail("%s: SLAAC is not supported for host-managed network configuration.", key)
		}
	case key == "hookscript":
		return w.checkHookscript(value)
	}
	return nil
}

func (w *world) checkMount(m mount) error {
	if m.kind() != "volume" {
		return nil
	}
	storage, _, managed := volumeID(m.volume)
	st := w.stores[storage]
	switch {
	case !managed:
		return fail("unable to parse volume ID '%s'", m.volume)
	case st == nil:
		return fail("storage '%s' does not exist", storage)
	case !st.holds("rootdir"):
		return fail("storage '%s' does not allow content type 'rootdir' (Container)", storage)
	}
	return checkIDMap(m.opts["idmap"])
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
			start := func(parts []string) int { return atoi(parts[1+side]) }
			slices.SortStableFunc(found, func(a, b []string) int { return start(a) - start(b) })
			for i := 1; i < len(found); i++ {
				if before, now := found[i-1], found[i]; start(before)+atoi(before[3]) > start(now) {
					return fail("invalid map entry '%s': %s %sid %d is also mapped by entry '%s'", strings.Join(now, " "), name, kind, start(now), strings.Join(before, " "))
				}
			}
		}
	}
	return nil
}

// volumesThere fails if a mount point names a volume that is not there (activate_volumes
// in PVE/Storage.pm).
func (w *world) volumesThere(node string, conf config) error {
	for _, key := range mountNames(conf) {
		m := parseMount(key, conf[key])
		storage, name, managed := volumeID(m.volume)
		if m.kind() != "volume" || !managed {
			continue
		}
		st, err := w.store(storage)
		if err != nil {
			return err
		}
		if _, err := st.parseName(name); err != nil {
			return err
		}
		if st.find(node, name) == nil {
			return fail("volume '%s' does not exist", m.volume)
		}
	}
	return nil
}

// quotaOfUnprivileged refuses quotas in a container that may not set them (vm_start in
// PVE/API2/LXC/Status.pm; a reboot does not ask).
func quotaOfUnprivileged(conf config) error {
	if conf["unprivileged"] != "1" {
		return nil
	}
	for _, key := range mountNames(conf) {
		if parseMount(key, conf[key]).opts["quota"] == "1" {
			return fail("Quotas are not supported by unprivileged containers.")
		}
	}
	return nil
}

// ctCPUs is how the status of a container shows its processors: cores are a number, a
// limit is the text that it is in the configuration (vmstatus in PVE/LXC.pm).
func (w *world) ctCPUs(g *guest) any {
	if n := atoi(g.conf["cores"]); n > 0 {
		return n
	}
	if limit := g.conf["cpulimit"]; limit != "" && limit != "0" {
		return limit
	}
	return w.cfg.CPUs
}
