# Two levels: a VM that becomes a Proxmox VE host, and a VM on it.
manifest "n2-push" {
  description = "A PVE node and a VM on it, both configured from outside"
  pattern     = "tiered"

  node "root-pve" {
    type   = "pve" # a pve node is always configured by push
    spec   = spec.pve
    preset = preset.vm-large
    image  = image.pve-9
    vmid   = 99011
    disk   = 64
  }

  node "edge" {
    type   = "vm"
    parent = node.root-pve # it runs there: created later, destroyed earlier
    spec   = spec.base
    preset = preset.vm-small
    image  = image.debian-12
    vmid   = 99021
  }
}
