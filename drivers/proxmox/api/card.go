package api

import "cmp"

// CardModels are the values of a nic's model, which is the key of its MAC address
// (PVE/QemuServer.pm, nic_model_list).
var CardModels = []string{"virtio", "e1000", "e1000-82540em", "e1000-82544gc", "e1000-82545em", "e1000e", "i82551", "i82557b", "i82559er", "ne2k_isa", "ne2k_pci", "pcnet", "rtl8139", "vmxnet3"}

// CardModel returns model and MAC address of a nic's property string.
func (p PropertySet) CardModel() (model, mac string) {
	for _, m := range CardModels {
		if v, ok := p.Values[m]; ok {
			return m, v
		}
	}
	return cmp.Or(p.Values["model"], p.Keyless, "virtio"), p.Values["macaddr"]
}

// MAC is the MAC address of a card, of a VM or of a container.
func (p PropertySet) MAC() string {
	_, mac := p.CardModel()
	return cmp.Or(mac, p.Values["hwaddr"])
}
