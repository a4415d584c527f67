package guest

import (
	"fmt"
	"regexp"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/model"
)

// A drive for the state of the firmware (efidisk0) or of the TPM (tpmstate0) is declared by an
// order to allocate it, "local-lvm:1,efitype=4m". PVE then shows the volume that it created.

// sameState reports whether a state drive is what an order asks for.
func sameState(key, order, drive string) bool {
	return drive != "" && api.StorageOf(order) == api.StorageOf(drive) && sameMake(key, order, drive)
}

// sameMake is sameState without the storage. What PVE decides (the size, the certificates it
// enrolled) counts only where the order names it.
func sameMake(key, order, drive string) bool {
	v, ok := VMKeys().Change.Param(key)
	if !ok {
		return order == drive
	}
	want, errWant := v.ParseProperty(order)
	have, errHave := v.ParseProperty(drive)
	if errWant != nil || errHave != nil {
		return false
	}
	for _, name := range []string{"efitype", "pre-enrolled-keys", "version", "ms-cert"} {
		if v.Members()[name] == nil || (name == "ms-cert" && want[name] == "") {
			continue
		}
		if !VMKeys().SameMember(key, name, want[name], have[name]) {
			return false
		}
	}
	return true
}

// pinned is a machine type with the version that PVE adds.
var pinned = regexp.MustCompile(`^pc-(i440fx|q35)-[0-9.]+(\+pve\d+)?$`)

// samePinned reports whether a machine has the wanted type, at the version that PVE pinned it to.
// PVE pins the version of each Windows machine whose type has none when it is declared
// (qemu-server, PVE/QemuServer/Machine.pm and PVE/API2/Qemu.pm).
func samePinned(want, have string) bool {
	w, h := api.ParseProperty(want), api.ParseProperty(have)
	m := pinned.FindStringSubmatch(h.First("type"))
	if m == nil || w.First("type") != map[string]string{"i440fx": "pc", "q35": "q35"}[m[1]] {
		return false
	}
	w.Values["type"], h.Values["type"] = "", ""
	return VMKeys().Same("machine", w.With(map[string]string{"type": "pc"}, "type"), h.With(map[string]string{"type": "pc"}, "type"))
}

// refuseStates lists the state drives that would have to be created again, and empty: PVE cannot
// change the type of one, nor move a TPM state while the VM runs.
func refuseStates(w VMTarget, h VMState) []model.Problem {
	var out []model.Problem
	for _, key := range []string{"efidisk0", "tpmstate0"} {
		order, drive := w.Options[key], h.Config.Next[key]
		if order == "" || drive == "" {
			continue
		}
		if !sameMake(key, order, drive) {
			out = append(out, model.Problem{
				Path: "options." + key, Summary: key + " cannot become of another make",
				Detail: fmt.Sprintf("it is %q, and would be recreated, empty, for %q: take it out of the files first, apply it, then declare the new one", drive, order),
			})
		}
		if key == "tpmstate0" && api.StorageOf(order) != api.StorageOf(drive) && h.Power == "running" {
			out = append(out, model.Problem{
				Path: "options." + key, Summary: "tpmstate0 cannot be moved while the guest runs",
				Detail: `set power = "stopped" in the files, apply it, then change the storage`,
			})
		}
	}
	return out
}
