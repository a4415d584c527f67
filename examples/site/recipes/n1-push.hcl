# Recipes are manifests without a host: nothing is deployed. To run one, from creation to
# removal: homestak-gitops test -M n1-push --host father
manifest "n1-push" {
  description = "One VM, configured from outside"
  pattern     = "flat"

  execution {
    default_mode = "push" # the default; written out for contrast with n1-pull
  }

  node "edge" {
    type   = "vm"
    spec   = spec.base
    preset = preset.vm-small
    image  = image.debian-12
    vmid   = 99001 # declared, so it must be in one of the site's ranges
  }
}
