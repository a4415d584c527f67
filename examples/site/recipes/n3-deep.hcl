# Three levels: a PVE host on a PVE host. There may be more.
manifest "n3-deep" {
  description = "A VM on a PVE node on a PVE node"
  pattern     = "tiered"

  node "root-pve" {
    type   = "pve"
    spec   = spec.pve
    preset = preset.vm-large
    image  = image.pve-9
    vmid   = 99011
    disk   = 64
  }

  node "leaf-pve" {
    type   = "pve"
    parent = node.root-pve
    spec   = spec.pve
    preset = preset.vm-medium
    image  = image.pve-9
    vmid   = 99021
  }

  node "edge" {
    type   = "vm"
    parent = node.leaf-pve
    spec   = spec.base
    preset = preset.vm-small
    image  = image.debian-12
    vmid   = 99031
  }
}
