# Containers of a template that is fetched, and copies.
locals {
  key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHCCrgVZ3dPTOm5HpIMFuFw8oQ0U3QI8HQxQ5cO0nYI8 ann@home.arpa"
}

resource "proxmox_virtual_environment_download_file" "debian" {
  content_type = "vztmpl"
  datastore_id = "local"
  node_name    = var.node
  url          = "http://download.proxmox.com/images/system/debian-12-standard_12.12-1_amd64.tar.zst"
}

resource "proxmox_virtual_environment_pool" "home" {
  pool_id = "home"
}

resource "proxmox_virtual_environment_container" "dns" {
  description   = var.edited ? "Names, and the DHCP of the house" : "Names of the house"
  node_name     = var.node
  vm_id         = 300
  pool_id       = proxmox_virtual_environment_pool.home.pool_id
  tags          = var.edited ? ["home", "net", "prod"] : ["home", "net"]
  unprivileged  = true
  start_on_boot = !var.edited
  started       = true
  protection    = false

  features {
    nesting = true
  }

  startup {
    order      = "1"
    up_delay   = var.edited ? "30" : "15"
    down_delay = "15"
  }

  cpu {
    cores = var.edited ? 2 : 1
    units = 200
  }

  memory {
    dedicated = var.edited ? 1024 : 512
    swap      = 256
  }

  disk {
    datastore_id = "local-lvm"
    size         = 4
  }

  mount_point {
    volume = "local-lvm"
    size   = "10G"
    path   = "/srv/data"
    backup = true
  }

  network_interface {
    name     = "eth0"
    bridge   = "vmbr0"
    firewall = true
  }

  dynamic "network_interface" {
    for_each = var.edited ? [20] : []
    content {
      name       = "eth1"
      bridge     = "vmbr0"
      vlan_id    = network_interface.value
      rate_limit = 10
    }
  }

  initialization {
    hostname = var.edited ? "dns2" : "dns"
    dns {
      domain  = "home.arpa"
      servers = ["192.0.2.1"]
    }
    ip_config {
      ipv4 {
        address = "192.0.2.53/24"
        gateway = "192.0.2.1"
      }
    }
    dynamic "ip_config" {
      for_each = var.edited ? ["dhcp"] : []
      content {
        ipv4 {
          address = ip_config.value
        }
      }
    }
    user_account {
      keys     = [local.key]
      password = "a secret"
    }
  }

  operating_system {
    template_file_id = proxmox_virtual_environment_download_file.debian.id
    type             = "debian"
  }

  console {
    type      = "tty"
    tty_count = 2
  }
}

resource "proxmox_virtual_environment_container" "template" {
  node_name    = var.node
  vm_id        = 9300
  template     = true
  started      = false
  unprivileged = true

  disk {
    datastore_id = "local-lvm"
    size         = 4
  }

  network_interface {
    name = "eth0"
  }

  initialization {
    hostname = "template"
    ip_config {
      ipv4 {
        address = "dhcp"
      }
    }
  }

  operating_system {
    template_file_id = proxmox_virtual_environment_download_file.debian.id
    type             = "debian"
  }
}

resource "proxmox_virtual_environment_container" "copy" {
  node_name   = var.node
  vm_id       = 301
  description = var.edited ? "a copy" : "a fresh copy"
  started     = !var.edited

  clone {
    vm_id = proxmox_virtual_environment_container.template.vm_id
  }

  initialization {
    hostname = "copy"
  }
}

data "proxmox_virtual_environment_container" "dns" {
  node_name = var.node
  vm_id     = proxmox_virtual_environment_container.dns.vm_id
}

data "proxmox_virtual_environment_containers" "all" {
  depends_on = [proxmox_virtual_environment_container.copy]
}
