# A short-lived VM: a linked clone needs no time and no space for its disk.
manifest "n1-clone" {
  description = "One linked clone of a template"
  pattern     = "flat"

  node "scratch" {
    type     = "vm"
    preset   = preset.vm-xsmall
    template = template.debian-12
    clone    = "linked"
    vmid     = 99971
  }
}
