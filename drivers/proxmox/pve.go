package proxmox

// pveKind is a VM that becomes a PVE host of its own. Here it is born as a VM whose
// guests can use hardware virtualisation; readGuests lists it with the others.
var pveKind = guestKindOf[VM]("pve", "A virtual machine that becomes a PVE host with children of its own.", nil)
