# High availability since 9: rules.
resource "proxmox_harule" "home" {
  rule      = "home"
  type      = "node-affinity"
  comment   = var.edited ? "best at home" : "at home"
  resources = ["vm:${trimprefix(proxmox_haresource.guest.resource_id, "vm:")}"]
  nodes = {
    (var.node) = 2
    "mother"   = 1
  }
  strict = var.edited
}

resource "proxmox_haresource" "second" {
  resource_id = "vm:${proxmox_virtual_environment_vm.guest[1].vm_id}"
  state       = "stopped"
}

resource "proxmox_harule" "apart" {
  rule      = "apart"
  type      = "resource-affinity"
  resources = [proxmox_haresource.guest.resource_id, proxmox_haresource.second.resource_id]
  affinity  = "negative"
}
