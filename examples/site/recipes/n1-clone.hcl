# A VM for a short while: a linked clone takes no time and no room for its disk.
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
