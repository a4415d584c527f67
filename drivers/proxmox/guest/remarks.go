package guest

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Remarks implements model.Kind.Remarks for VMs and containers, and for templates that are made here, which are guests
// of PVE, too.
func Remarks(host *model.Host, want, have *model.Resource) model.Remarks {
	if have.Guest == nil {
		return model.Remarks{}
	}
	out := model.Remarks{Findings: slices.Concat(remarkNode(host, want, have), remarkLock(have))}
	h := StateOf(have)
	if h == nil {
		return out
	}
	aim := haPower(want, have)
	runs := have.Guest.Running
	if aim != "" {
		runs = aim == "running"
	}
	out.Pending = h.pending(have.Addr, runs)
	out.Findings = append(out.Findings, remarkPower(have, aim)...)
	if want == nil || TargetOf(want) == nil {
		return out
	}
	w := TargetOf(want)
	out.Pending = append(out.Pending, h.firstBootChanges(have.Addr, want)...)
	out.Undeclared = undeclaredOptions(have.Addr, w.Common(), h)
	out.Findings = slices.Concat(out.Findings, w.ineffectiveChanges(want, h), remarkRestarts(w, have), remarkOrigin(w, have))
	return out
}

// remarkNode warns of a guest on a node where it may not live. It stays managed, and is not moved.
func remarkNode(host *model.Host, want, have *model.Resource) diag.List {
	if host == nil {
		return nil
	}
	may, where := host.AllNodes(), "nodes of host "+host.Name
	if want != nil && want.Guest != nil && len(want.Guest.Nodes) > 0 {
		may, where = want.Guest.Nodes, "its nodes"
	}
	if slices.Contains(may, have.Guest.Node) {
		return nil
	}
	at := api.RefOf(have)
	how := pick(at.LXC, "--restart", "--online")
	return diag.List{Finding(diag.Warning, have.Addr,
		fmt.Sprintf("drift: %s is on node %s, not on %s (%s): it stays managed there", have.Addr, at.Node, where, strings.Join(may, ", ")),
		fmt.Sprintf("add the node to nodes, or migrate the guest: `%s migrate %d %s` on node %s, with %s if it runs", at.Tool(), at.VMID, may[0], at.Node, how))}
}

// remarkLock reports a guest whose lock must be cleared by hand.
func remarkLock(have *model.Resource) diag.List {
	g := have.Guest
	if !g.LockLeft {
		return nil
	}
	return diag.List{warning(have.Addr, fmt.Sprintf("%s is locked (%s) and cannot be changed", have.Addr, g.Lock), lifecycle.LockText(api.RefOf(have), g.Lock, nil))}
}

// remarkPower reports a guest that is left to the HA manager, which is bringing it to the power of aim, and a VM that
// stands still.
func remarkPower(have *model.Resource, aim string) diag.List {
	var out diag.List
	warn := func(summary, detail string) { out = append(out, Finding(diag.Warning, have.Addr, summary, detail)) }
	const fix = "if it stays so, `ha-manager status` on a node shows why"
	switch addr, g := have.Addr, have.Guest; {
	case aim == "":
	case g.HA == "error": // PVE would refuse a start, so no step is planned
		warn(fmt.Sprintf("%s does not run", addr), lifecycle.HAError(api.RefOf(have)))
	case aim == "running":
		warn(fmt.Sprintf("%s does not run: that is left to the HA manager, which has it (state %s)", addr, g.HA), fix)
	default:
		warn(fmt.Sprintf("%s still runs: that is left to the HA manager, which is stopping it", addr), fix)
	}
	if f := StateOf(have).Observed().Facts; f.halted(have.Guest.Lock != "") {
		warn(fmt.Sprintf("%s does not run: %s", have.Addr, lifecycle.HaltReason(f.QMP)), lifecycle.HaltFix(api.RefOf(have), f.QMP))
	}
	return out
}

// remarkRestarts reports a guest that is not restarted for its pending changes, since restarts do not help. The changes
// stay listed.
func remarkRestarts(want Target, have *model.Resource) diag.List {
	h := StateOf(have)
	why := h.Observed().UselessRestart
	if why == "" || !restartAsked(want, h) {
		return nil
	}
	at := api.RefOf(have)
	return diag.List{warning(have.Addr, fmt.Sprintf("%s is not restarted again for its pending changes: %s", have.Addr, why),
		fmt.Sprintf("this is retried an hour later; find out why (does the guest react to a shutdown? is startup { down } long enough?), or restart it yourself: `%s stop %d && %s start %d` on node %s",
			at.Tool(), at.VMID, at.Tool(), at.VMID, at.Node))}
}

// undeclaredOptions are the options of a guest that no file names and that this program never set.
// A boot order that begins with the root disk is the one from its creation.
func undeclaredOptions(addr model.Address, want Common, have State) []model.Setting {
	var out []model.Setting
	seen := have.Observed()
	for key, val := range have.Common().Options {
		_, named := want.Options[key]
		devices := BootDevices(val)
		made := key == "boot" && len(devices) > 0 && devices[0] == seen.Tag.Slots["disk.root"]
		ours := named || made || slices.Contains(seen.Tag.Options, key) || want.Keys.Invented[key]
		if !ours && !want.Keys.Same(key, val, "") && seen.Config.Now[key] == val {
			out = append(out, model.Setting{Address: addr, Path: "options." + key, Value: val})
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Path < out[j].Path })
	return out
}
