# What only root@pam may do, with its password and no token.
provider "proxmox" {
  alias    = "root"
  endpoint = var.endpoint
  username = "root@pam"
  password = split("=", var.token)[1]
  insecure = true
}

resource "proxmox_virtual_environment_download_file" "debian" {
  content_type = "vztmpl"
  datastore_id = "local"
  node_name    = var.node
  url          = "http://download.proxmox.com/images/system/debian-12-standard_12.12-1_amd64.tar.zst"
}

resource "proxmox_virtual_environment_vm" "pinned" {
  provider      = proxmox.root
  name          = "pinned"
  node_name     = var.node
  vm_id         = 600
  started       = false
  machine       = "q35"
  kvm_arguments = var.edited ? "-no-reboot -nographic" : "-no-reboot"

  cpu {
    cores        = 2
    architecture = "x86_64"
    affinity     = var.edited ? "0-3" : "0-1"
  }

  hostpci {
    device = "hostpci0"
    id     = "0000:00:02.0"
    pcie   = true
  }

  usb {
    host = "1234:5678"
  }
}

resource "proxmox_virtual_environment_container" "privileged" {
  provider     = proxmox.root
  node_name    = var.node
  vm_id        = 601
  started      = false
  unprivileged = false

  features {
    nesting = true
    fuse    = var.edited
    mount   = ["nfs"]
  }

  disk {
    datastore_id = "local-lvm"
    size         = 4
  }

  mount_point {
    volume = "/srv/share"
    path   = "/share"
    shared = var.edited
  }

  device_passthrough {
    path = "/dev/ttyS0"
    mode = "0660"
  }

  network_interface {
    name = "eth0"
  }

  initialization {
    hostname = "privileged"
  }

  operating_system {
    template_file_id = proxmox_virtual_environment_download_file.debian.id
    type             = "debian"
  }
}
