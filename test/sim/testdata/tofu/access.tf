# Who may do what.
resource "proxmox_virtual_environment_role" "monitor" {
  role_id    = "Monitor"
  privileges = var.edited ? ["VM.Audit", "Sys.Audit", "Datastore.Audit"] : ["VM.Audit", "Sys.Audit"]
}

resource "proxmox_virtual_environment_group" "ops" {
  group_id = "ops"
  comment  = var.edited ? "Those who are called at night" : "Operations"
}

resource "proxmox_virtual_environment_user" "ann" {
  user_id         = "ann@pve"
  password        = "a secret"
  comment         = "Ann"
  email           = var.edited ? "ann@lab.home.arpa" : "ann@home.arpa"
  first_name      = "Ann"
  last_name       = "Example"
  enabled         = true
  expiration_date = "2034-01-01T22:00:00Z"
  groups          = [proxmox_virtual_environment_group.ops.group_id]
}

resource "proxmox_virtual_environment_user" "robot" {
  user_id = "robot@pve"
  comment = "for programs"
}

resource "proxmox_user_token" "robot" {
  user_id               = proxmox_virtual_environment_user.robot.user_id
  token_name            = "metrics"
  comment               = var.edited ? "figures, and more" : "figures"
  privileges_separation = true
}

resource "proxmox_acl" "group" {
  group_id  = proxmox_virtual_environment_group.ops.group_id
  role_id   = "PVEVMAdmin"
  path      = "/pool/${proxmox_virtual_environment_pool.ops.pool_id}"
  propagate = true
}

resource "proxmox_acl" "user" {
  user_id   = proxmox_virtual_environment_user.robot.user_id
  role_id   = proxmox_virtual_environment_role.monitor.role_id
  path      = "/"
  propagate = var.edited
}

resource "proxmox_acl" "token" {
  token_id = proxmox_user_token.robot.id
  role_id  = proxmox_virtual_environment_role.monitor.role_id
  path     = "/vms"
}

resource "proxmox_virtual_environment_pool" "ops" {
  pool_id = "ops"
  comment = var.edited ? "Operations, all of it" : "Operations"
}

resource "proxmox_pool_membership" "storage" {
  pool_id    = proxmox_virtual_environment_pool.ops.pool_id
  storage_id = "local-lvm"
}

resource "proxmox_realm_ldap" "home" {
  realm     = "home"
  server1   = "ldap.home.arpa"
  port      = 389
  base_dn   = "ou=people,dc=home,dc=arpa"
  user_attr = "uid"
  comment   = var.edited ? "People, and their guests" : "People"
}

resource "proxmox_realm_openid" "sso" {
  realm          = "sso"
  issuer_url     = "https://sso.home.arpa"
  client_id      = "proxmox"
  client_key     = "a secret"
  username_claim = "email"
  autocreate     = var.edited
}

data "proxmox_virtual_environment_users" "all" {
  depends_on = [proxmox_virtual_environment_user.ann]
}
data "proxmox_virtual_environment_user" "ann" {
  user_id = proxmox_virtual_environment_user.ann.user_id
}
data "proxmox_virtual_environment_groups" "all" {}
data "proxmox_virtual_environment_group" "ops" {
  group_id = proxmox_virtual_environment_group.ops.group_id
}
data "proxmox_virtual_environment_roles" "all" {}
data "proxmox_virtual_environment_role" "admin" {
  role_id = "Administrator"
}
data "proxmox_virtual_environment_pools" "all" {}
data "proxmox_virtual_environment_pool" "ops" {
  pool_id    = proxmox_virtual_environment_pool.ops.pool_id
  depends_on = [proxmox_pool_membership.storage]
}
