# What happens to VMs and containers later: they move to another node and to another
# storage, grow, lose disks, become templates, and are found again.
resource "proxmox_virtual_environment_file" "template" {
  content_type = "vztmpl"
  datastore_id = "local"
  node_name    = var.node
  source_file {
    path      = "${path.module}/debian.tar.gz"
    file_name = "debian.tar.gz"
  }
}

resource "proxmox_virtual_environment_file" "image" {
  content_type = "import"
  datastore_id = "local"
  node_name    = var.node
  source_file {
    path      = "${path.module}/tiny.iso"
    file_name = "tiny.raw"
  }
}

resource "proxmox_storage_directory" "tank" {
  id      = "tank"
  path    = "/tank"
  content = ["images", "rootdir"]
}

resource "proxmox_virtual_environment_pool" "home" {
  pool_id = "home"
}

resource "proxmox_virtual_environment_pool" "lab" {
  pool_id = "lab"
}

# It is read back as a whole after it was forgotten.
resource "proxmox_virtual_environment_vm" "plain" {
  name        = "plain"
  description = "Plain"
  node_name   = var.node
  vm_id       = 500
  started     = true
  tags        = ["plain"]

  stop_on_destroy = true

  cpu {
    cores = 1
  }

  disk {
    datastore_id = "local-lvm"
    interface    = "scsi0"
    size         = 4
  }

  network_device {
    bridge = "vmbr0"
  }
}

resource "proxmox_virtual_environment_vm" "wanderer" {
  name      = "wanderer"
  node_name = var.edited ? "mother" : var.node
  migrate   = true
  vm_id     = 501
  started   = false
  pool_id   = var.edited ? proxmox_virtual_environment_pool.lab.pool_id : proxmox_virtual_environment_pool.home.pool_id
  disk {
    datastore_id = "local-lvm"
    interface    = "scsi0"
    size         = 4
  }
}

resource "proxmox_virtual_environment_vm" "mover" {
  name      = "mover"
  node_name = var.node
  vm_id     = 502
  started   = false
  bios      = var.edited ? "ovmf" : "seabios"

  boot_order = ["scsi0"]

  dynamic "efi_disk" {
    for_each = var.edited ? ["4m"] : []
    content {
      datastore_id = "local-lvm"
      type         = efi_disk.value
    }
  }

  disk {
    datastore_id = "local-lvm"
    interface    = "scsi0"
    import_from  = proxmox_virtual_environment_file.image.id
    size         = 4
  }

  disk {
    datastore_id = var.edited ? proxmox_storage_directory.tank.id : "local-lvm"
    file_format  = "raw"
    interface    = "virtio0"
    size         = 4
  }

  dynamic "disk" {
    for_each = var.edited ? [] : [1]
    content {
      datastore_id = "local-lvm"
      interface    = "sata0"
      size         = 1
    }
  }
}

resource "proxmox_virtual_environment_vm" "seed" {
  name      = "seed"
  node_name = var.node
  vm_id     = 504
  started   = false
  template  = var.edited
  disk {
    datastore_id = "local-lvm"
    interface    = "scsi0"
    size         = 4
  }
}

resource "proxmox_vm" "modern" {
  node_name       = var.node
  id              = 503
  name            = "modern"
  description     = var.edited ? "of the new kind" : null
  tags            = var.edited ? ["new"] : []
  stop_on_destroy = true
  cpu = {
    cores = var.edited ? 2 : 1
  }
}

resource "proxmox_pool_membership" "modern" {
  pool_id = proxmox_virtual_environment_pool.home.pool_id
  vm_id   = proxmox_vm.modern.id
}

resource "proxmox_cloned_vm" "copy" {
  node_name       = var.node
  name            = "copy"
  stop_on_destroy = true
  clone = {
    source_vm_id = proxmox_virtual_environment_vm.plain.vm_id
    full         = true
  }
  cpu = {
    cores = var.edited ? 4 : 2
  }
  memory = {
    size = var.edited ? 2048 : 1024
  }
  network = {
    net0 = {
      bridge   = "vmbr0"
      model    = "virtio"
      firewall = var.edited
    }
  }
  disk = {
    scsi0 = {
      datastore_id = "local-lvm"
      size_gb      = var.edited ? 8 : 6
    }
  }
}

resource "proxmox_virtual_environment_container" "grower" {
  node_name    = var.node
  vm_id        = 510
  started      = false
  unprivileged = true

  disk {
    datastore_id = "local-lvm"
    size         = var.edited ? 6 : 4
  }

  mount_point {
    volume = "local-lvm"
    size   = "10G" # another size is another container to the provider
    path   = "/srv"
  }

  network_interface {
    name = "eth0"
  }

  initialization {
    hostname = "grower"
  }

  operating_system {
    template_file_id = proxmox_virtual_environment_file.template.id
    type             = "debian"
  }
}

resource "proxmox_virtual_environment_firewall_options" "container" {
  node_name    = var.node
  container_id = proxmox_virtual_environment_container.grower.vm_id
  enabled      = var.edited
}

resource "proxmox_virtual_environment_firewall_rules" "container" {
  node_name    = var.node
  container_id = proxmox_virtual_environment_container.grower.vm_id
  rule {
    type   = "in"
    action = "ACCEPT"
    macro  = "SSH"
    source = "192.0.2.0/24"
  }
}
