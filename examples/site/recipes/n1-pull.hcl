# The same machine, but it fetches its spec and applies it.
manifest "n1-pull" {
  description = "One VM that configures itself"
  pattern     = "flat"

  node "edge" {
    type   = "vm"
    spec   = spec.base
    preset = preset.vm-small
    image  = image.debian-12
    vmid   = 99950

    execution {
      mode = "pull"
    }
  }
}
