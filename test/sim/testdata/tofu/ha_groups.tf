# High availability as it was before 9: groups.
resource "proxmox_hagroup" "all" {
  group   = "all"
  comment = var.edited ? "all of the house" : "all"
  nodes = {
    (var.node) = 2
    "mother"   = null
  }
  restricted  = false
  no_failback = var.edited
}

data "proxmox_hagroups" "all" {
  depends_on = [proxmox_hagroup.all]
}
