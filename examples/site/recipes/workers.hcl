# Peers: none depends on another, so they are created in parallel.
manifest "workers" {
  description = "Three equal workers"
  pattern     = "flat"

  node "worker" {
    type       = "vm"
    count      = 3 # worker-1, worker-2, worker-3
    spec       = spec.base
    preset     = preset.vm-small
    image      = image.debian-12
    vmid_range = "test" # no vmid: each draws one from here
  }
}
