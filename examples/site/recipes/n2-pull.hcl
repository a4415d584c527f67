# As n2-push, with a VM that configures itself.
manifest "n2-pull" {
  description = "A PVE node configured from outside, and a VM on it that configures itself"
  pattern     = "tiered"

  node "root-pve" {
    type   = "pve"
    spec   = spec.pve
    preset = preset.vm-large
    image  = image.pve-9
    vmid   = 99011
    disk   = 64
  }

  node "edge" {
    type   = "vm"
    parent = node.root-pve
    spec   = spec.base
    preset = preset.vm-small
    image  = image.debian-12
    vmid   = 99021

    execution {
      mode = "pull"
    }
  }
}
