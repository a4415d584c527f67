# The manifest's mode is a default. One node overrides it, its child inherits it.
manifest "mixed-mode" {
  description = "Pull by default, with a PVE node that is configured from outside"
  pattern     = "tiered"

  execution {
    default_mode = "pull"
  }

  node "inner-pve" {
    type       = "pve"
    spec       = spec.pve
    preset     = preset.vm-large
    image      = image.pve-9
    disk       = 64
    vmid_range = "test"

    execution {
      mode = "push" # what a pve node does anyway
    }
  }

  node "edge" {
    type       = "vm"
    parent     = node.inner-pve
    spec       = spec.base
    preset     = preset.vm-small
    image      = image.debian-12
    vmid_range = "test"
  }
}
