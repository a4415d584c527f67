# What holds for all nodes: options, storages, backups, high availability.
resource "proxmox_cluster_options" "all" {
  language                  = "en"
  keyboard                  = var.edited ? "de" : "en-us"
  email_from                = "pve@home.arpa"
  bandwidth_limit_migration = 102400
  max_workers               = var.edited ? 3 : 4
  migration_cidr            = "192.0.2.0/24"
  migration_type            = "secure"
  mac_prefix                = "BC:24:11"
  console                   = "html5"
  description               = "The lab\n" # as PVE gives it back
  next_id = {
    lower = 200
    upper = 8000
  }
}

resource "proxmox_storage_directory" "tank" {
  id      = "tank"
  path    = "/tank"
  content = var.edited ? ["images", "iso", "snippets"] : ["images", "iso"]
  backups {
    max_protected_backups = 5
    keep_daily            = 7
  }
}

resource "proxmox_storage_nfs" "nas" {
  id      = "nas"
  server  = "192.0.2.9"
  export  = "/export/pve"
  content = ["backup", "iso"]
  options = var.edited ? "vers=4.2" : "vers=4.1"
  backups {
    keep_last = 3
  }
}

resource "proxmox_storage_lvmthin" "fast" {
  id           = "fast"
  volume_group = "vg0"
  thin_pool    = "fast"
  content      = ["images", "rootdir"]
  disable      = var.edited
}

resource "proxmox_storage_zfspool" "rpool" {
  id             = "rpool"
  zfs_pool       = "rpool/data"
  content        = ["images", "rootdir"]
  thin_provision = true
  blocksize      = "16k"
}

resource "proxmox_storage_lvm" "slow" {
  id           = "slow"
  volume_group = "vg1"
  content      = ["images"]
}

resource "proxmox_storage_cifs" "share" {
  id       = "share"
  server   = "192.0.2.10"
  share    = "proxmox"
  username = "pve"
  password = "a secret"
  content  = ["backup"]
}

resource "proxmox_virtual_environment_vm" "guest" {
  count     = 2
  name      = "ha-${count.index}"
  node_name = var.node
  vm_id     = 400 + count.index
  started   = false
  lifecycle {
    ignore_changes = [started]
  }
}

resource "proxmox_haresource" "guest" {
  resource_id  = "vm:${proxmox_virtual_environment_vm.guest[0].vm_id}"
  state        = "stopped"
  comment      = var.edited ? "kept down for now" : "kept down"
  max_restart  = 2
  max_relocate = 1
}

resource "proxmox_backup_job" "nightly" {
  id             = "nightly"
  schedule       = var.edited ? "*-*-* 03:00" : "*-*-* 02:00"
  storage        = "local"
  all            = true
  mode           = "snapshot"
  compress       = "zstd"
  enabled        = true
  notes_template = "{{guestname}}"
  prune_backups  = { "keep-last" = "3" }
}

data "proxmox_haresources" "all" {
  depends_on = [proxmox_haresource.guest]
}
data "proxmox_backup_jobs" "all" {
  depends_on = [proxmox_backup_job.nightly]
}
data "proxmox_virtual_environment_nodes" "all" {}
data "proxmox_version" "this" {}
data "proxmox_datastores" "all" {
  node_name  = var.node
  depends_on = [proxmox_storage_directory.tank]
}
