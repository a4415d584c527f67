# The host itself.
resource "proxmox_virtual_environment_time" "node" {
  node_name = var.node
  time_zone = var.edited ? "Europe/Berlin" : "UTC"
}

resource "proxmox_virtual_environment_dns" "node" {
  node_name = var.node
  domain    = "home.arpa"
  servers   = var.edited ? ["192.0.2.1", "192.0.2.2"] : ["192.0.2.1"]
}

resource "proxmox_virtual_environment_hosts" "node" {
  node_name = var.node
  entry {
    address   = "127.0.0.1"
    hostnames = ["localhost", "localhost.localdomain"]
  }
  entry {
    address   = "192.0.2.10"
    hostnames = var.edited ? ["father.home.arpa", "father", "pve"] : ["father.home.arpa", "father"]
  }
}

resource "proxmox_node_config" "node" {
  node_name   = var.node
  description = var.edited ? "The first node.\n\nIt is under the stairs." : "The first node"
}

resource "proxmox_network_linux_bridge" "lab" {
  node_name  = var.node
  name       = "vmbr9"
  address    = "198.51.100.1/24"
  comment    = var.edited ? "the lab, and its guests" : "the lab"
  autostart  = true
  vlan_aware = true
  mtu        = var.edited ? 1400 : null
}

resource "proxmox_network_linux_vlan" "lab" {
  node_name = var.node
  name      = "vmbr0.40"
  comment   = var.edited ? "things, and more things" : "things"
}

resource "proxmox_virtual_environment_file" "iso" {
  content_type = "iso"
  datastore_id = "local"
  node_name    = var.node
  source_file {
    path      = "${path.module}/tiny.iso"
    file_name = "tiny.iso"
  }
}

data "proxmox_virtual_environment_node" "node" {
  node_name = var.node
}
data "proxmox_virtual_environment_nodes" "all" {}
data "proxmox_virtual_environment_dns" "node" {
  node_name  = var.node
  depends_on = [proxmox_virtual_environment_dns.node]
}
data "proxmox_virtual_environment_time" "node" {
  node_name  = var.node
  depends_on = [proxmox_virtual_environment_time.node]
}
data "proxmox_virtual_environment_hosts" "node" {
  node_name  = var.node
  depends_on = [proxmox_virtual_environment_hosts.node]
}
data "proxmox_virtual_environment_version" "this" {}
data "proxmox_virtual_environment_datastores" "all" {
  node_name = var.node
}
data "proxmox_files" "local" {
  node_name    = var.node
  datastore_id = "local"
  depends_on   = [proxmox_virtual_environment_file.iso]
}
data "proxmox_file" "iso" {
  node_name    = var.node
  datastore_id = "local"
  content_type = "iso"
  file_name    = "tiny.iso"
  depends_on   = [proxmox_virtual_environment_file.iso]
}
