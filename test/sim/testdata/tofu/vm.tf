# VMs as they are made at home: a template of a cloud image, copies of it, and one that
# is made of the image itself.
locals {
  key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHCCrgVZ3dPTOm5HpIMFuFw8oQ0U3QI8HQxQ5cO0nYI8 ann@home.arpa"
}

resource "proxmox_virtual_environment_download_file" "cloud" {
  content_type = "import"
  datastore_id = "local"
  node_name    = var.node
  url          = "https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-genericcloud-amd64.qcow2"
  file_name    = "debian-12.qcow2"
}

resource "proxmox_virtual_environment_download_file" "iso" {
  content_type       = "iso"
  datastore_id       = "local"
  node_name          = var.node
  url                = "https://images.home.arpa/rescue.iso"
  file_name          = "rescue.iso"
  checksum_algorithm = "sha256"
  checksum           = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
}

resource "proxmox_virtual_environment_pool" "lab" {
  pool_id = "lab"
  comment = "VMs of the lab"
}

resource "proxmox_virtual_environment_vm" "template" {
  name      = "debian-12"
  node_name = var.node
  vm_id     = 9000
  template  = true
  started   = false # else the provider finds a change in every plan
  tags      = ["template"]

  agent {
    enabled = true
  }

  cpu {
    cores = 2
    type  = "x86-64-v2-AES"
  }

  memory {
    dedicated = 1024
  }

  disk {
    datastore_id = "local-lvm"
    import_from  = proxmox_virtual_environment_download_file.cloud.id
    interface    = "scsi0"
    discard      = "on"
    iothread     = true
    size         = 10
  }

  scsi_hardware = "virtio-scsi-single"

  network_device {
    bridge = "vmbr0"
  }

  initialization {
    datastore_id = "local-lvm"
    ip_config {
      ipv4 {
        address = "dhcp"
      }
    }
  }

  operating_system {
    type = "l26"
  }

  serial_device {}
}

# A full copy, up, of which most is told anew.
resource "proxmox_virtual_environment_vm" "web" {
  name            = "web"
  description     = var.edited ? "Web server\n\n* now with more of it" : "Web server"
  tags            = var.edited ? ["lab", "prod", "web"] : ["lab", "web"]
  node_name       = var.node
  vm_id           = 201
  pool_id         = proxmox_virtual_environment_pool.lab.pool_id
  on_boot         = !var.edited
  started         = true
  stop_on_destroy = true

  clone {
    vm_id = proxmox_virtual_environment_vm.template.vm_id
    full  = true
  }

  # Nobody answers as the agent of a machine that is not there.
  agent {
    enabled = false
  }

  startup {
    order      = "3"
    up_delay   = "60"
    down_delay = var.edited ? "90" : "60"
  }

  cpu {
    cores = var.edited ? 4 : 2
    type  = "x86-64-v2-AES"
  }

  memory {
    dedicated = var.edited ? 4096 : 2048
    floating  = var.edited ? 4096 : 2048
  }

  disk {
    datastore_id = "local-lvm"
    interface    = "scsi0"
    discard      = "on"
    iothread     = true
    size         = var.edited ? 24 : 16
  }

  dynamic "disk" {
    for_each = var.edited ? [1, 2] : [1]
    content {
      datastore_id = "local-lvm"
      interface    = "scsi${disk.value}"
      file_format  = "raw"
      size         = 4 * disk.value
      backup       = false
      ssd          = true
    }
  }

  network_device {
    bridge   = "vmbr0"
    firewall = true
  }

  dynamic "network_device" {
    for_each = var.edited ? [20] : []
    content {
      bridge     = "vmbr0"
      vlan_id    = network_device.value
      model      = "virtio"
      rate_limit = 12.5
    }
  }

  initialization {
    datastore_id = "local-lvm"
    dns {
      domain  = "home.arpa"
      servers = ["192.0.2.1", "192.0.2.2"]
    }
    ip_config {
      ipv4 {
        address = var.edited ? "192.0.2.21/24" : "192.0.2.20/24"
        gateway = "192.0.2.1"
      }
      ipv6 {
        address = "2001:db8::20/64"
        gateway = "2001:db8::1"
      }
    }
    user_account {
      username = "ann"
      password = var.edited ? "another secret" : "a secret"
      keys     = [local.key]
    }
  }
}

# A linked copy that stays down, and is up later.
resource "proxmox_virtual_environment_vm" "linked" {
  name            = var.edited ? "linked-2" : "linked"
  node_name       = var.node
  vm_id           = 202
  started         = var.edited
  stop_on_destroy = true

  clone {
    vm_id = proxmox_virtual_environment_vm.template.vm_id
    full  = false
  }

  agent {
    enabled = false
  }
}

# Made of the image, with the firmware of a machine of today.
resource "proxmox_virtual_environment_vm" "db" {
  name            = "db"
  node_name       = var.node
  bios            = "ovmf"
  machine         = "q35"
  started         = !var.edited
  stop_on_destroy = true
  tablet_device   = false
  protection      = false
  boot_order      = ["scsi0"]
  scsi_hardware   = "virtio-scsi-single"
  hotplug         = "network,disk,usb"

  agent {
    enabled = true
    trim    = true
    timeout = "30s"
  }

  cpu {
    cores   = 2
    sockets = 1
    type    = "host"
    numa    = true
    limit   = 1.5
    flags   = ["+aes"]
  }

  memory {
    dedicated = 2048
    shared    = 0
  }

  efi_disk {
    datastore_id      = "local-lvm"
    file_format       = "raw"
    type              = "4m"
    pre_enrolled_keys = true
  }

  tpm_state {
    datastore_id = "local-lvm"
    version      = "v2.0"
  }

  disk {
    datastore_id = "local-lvm"
    import_from  = proxmox_virtual_environment_download_file.cloud.id
    interface    = "scsi0"
    iothread     = true
    size         = 20
  }

  disk {
    datastore_id = "local-lvm"
    interface    = "virtio1"
    size         = 8
    cache        = "writeback"
    serial       = "data-0001"
    speed {
      read  = 100
      write = var.edited ? 60 : 50
    }
  }

  cdrom {
    file_id   = proxmox_virtual_environment_download_file.iso.id
    interface = "ide2"
  }

  network_device {
    bridge      = "vmbr0"
    mac_address = "BC:24:11:00:00:01"
    queues      = 2
    mtu         = 1400
  }

  network_device {
    bridge       = "vmbr0"
    model        = "e1000"
    disconnected = true
  }

  smbios {
    manufacturer = "Home"
    product      = "Lab"
    serial       = "0001"
  }

  vga {
    type   = "virtio"
    memory = 32
  }

  rng {
    source    = "/dev/urandom"
    max_bytes = 1024
    period    = 1000
  }

  watchdog {
    model  = "i6300esb"
    action = "reset"
  }

  audio_device {
    device = "intel-hda"
    driver = "spice"
  }

  operating_system {
    type = "l26"
  }

  serial_device {}

  usb {
    host = "spice"
    usb3 = true
  }
}

data "proxmox_virtual_environment_vm" "web" {
  node_name = var.node
  vm_id     = proxmox_virtual_environment_vm.web.vm_id
}

data "proxmox_virtual_environment_vms" "lab" {
  depends_on = [proxmox_virtual_environment_vm.web]
  node_name  = var.node
  tags       = ["lab"]
}

output "web" {
  value = "${data.proxmox_virtual_environment_vm.web.name} of ${length(data.proxmox_virtual_environment_vms.lab.vms)}"
}
