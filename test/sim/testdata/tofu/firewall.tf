# The firewall of the cluster, a node, a VM and a container.
resource "proxmox_virtual_environment_cluster_firewall" "all" {
  enabled        = true
  ebtables       = var.edited
  input_policy   = "DROP"
  output_policy  = "ACCEPT"
  forward_policy = "ACCEPT"
  log_ratelimit {
    enabled = true
    burst   = 10
    rate    = "5/second"
  }
}

resource "proxmox_virtual_environment_firewall_alias" "gate" {
  name    = "gate"
  cidr    = var.edited ? "192.0.2.2" : "192.0.2.1"
  comment = "the way out"
}

resource "proxmox_virtual_environment_firewall_ipset" "home" {
  name    = "home"
  comment = "the house"
  cidr {
    name    = "192.0.2.0/24"
    comment = "all of it"
  }
  dynamic "cidr" {
    for_each = var.edited ? ["192.0.2.66"] : []
    content {
      name    = cidr.value
      nomatch = true
    }
  }
}

resource "proxmox_virtual_environment_cluster_firewall_security_group" "web" {
  name    = "web"
  comment = "what a web server needs"
  rule {
    type    = "in"
    action  = "ACCEPT"
    comment = "HTTP"
    dport   = "80"
    proto   = "tcp"
    log     = "info"
  }
  dynamic "rule" {
    for_each = var.edited ? ["443"] : []
    content {
      type   = "in"
      action = "ACCEPT"
      dport  = rule.value
      proto  = "tcp"
    }
  }
}

resource "proxmox_virtual_environment_firewall_rules" "cluster" {
  depends_on = [proxmox_virtual_environment_firewall_ipset.home]
  rule {
    type    = "in"
    action  = "ACCEPT"
    comment = "administration"
    source  = "+home"
    dport   = "8006"
    proto   = "tcp"
  }
  rule {
    type   = "in"
    action = var.edited ? "REJECT" : "DROP"
    macro  = "SSH"
  }
}

resource "proxmox_node_firewall" "node" {
  node_name    = var.node
  enabled      = true
  log_level_in = var.edited ? "warning" : "info"
  ndp          = true
  nosmurfs     = true
}

resource "proxmox_virtual_environment_vm" "guest" {
  name      = "guarded"
  node_name = var.node
  vm_id     = 410
  started   = false
  network_device {
    firewall = true
  }
}

resource "proxmox_virtual_environment_firewall_options" "guest" {
  node_name     = var.node
  vm_id         = proxmox_virtual_environment_vm.guest.vm_id
  enabled       = true
  dhcp          = true
  ipfilter      = var.edited
  macfilter     = true
  ndp           = true
  radv          = false
  log_level_in  = "info"
  log_level_out = "nolog"
  input_policy  = "DROP"
  output_policy = "ACCEPT"
}

resource "proxmox_virtual_environment_firewall_alias" "guest" {
  node_name = var.node
  vm_id     = proxmox_virtual_environment_vm.guest.vm_id
  name      = "self"
  cidr      = "192.0.2.41"
}

resource "proxmox_virtual_environment_firewall_ipset" "guest" {
  node_name = var.node
  vm_id     = proxmox_virtual_environment_vm.guest.vm_id
  name      = "friends"
  cidr {
    name = "192.0.2.42"
  }
}

resource "proxmox_virtual_environment_firewall_rules" "guest" {
  node_name  = var.node
  vm_id      = proxmox_virtual_environment_vm.guest.vm_id
  depends_on = [proxmox_virtual_environment_firewall_ipset.guest]
  rule {
    security_group = proxmox_virtual_environment_cluster_firewall_security_group.web.name
    comment        = "from the group"
    iface          = "net0"
  }
  rule {
    type    = "out"
    action  = "ACCEPT"
    dest    = "+friends"
    proto   = "udp"
    dport   = "53"
    enabled = var.edited
  }
}
