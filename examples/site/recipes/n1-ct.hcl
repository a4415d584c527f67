# A container: it shares the kernel of its host, is created in seconds, and needs no image
# of a whole machine. PVE sets its name, its address and the SSH keys of root; a spec is
# for machines with cloud-init.
manifest "n1-ct" {
  description = "One container"
  pattern     = "flat"

  node "cache" {
    type     = "ct"
    preset   = preset.vm-xsmall
    template = template.debian-12-ct
    vmid     = 99970
    swap     = 0

    features = ["nesting"] # systemd of a recent Debian needs it

    disk "data" {
      size   = 4
      path   = "/var/lib/cache" # a volume of its own, mounted here
      backup = true
    }
  }
}
