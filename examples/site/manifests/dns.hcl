# Computed addresses, and a node for every entry of a map.
manifest "dns" {
  description = "Name servers with fixed addresses"
  pattern     = "flat"
  host        = host.father
  on_error    = "continue" # if one fails, still create the other

  node "ns" {
    type     = "vm"
    for_each = { a = 53, b = 54 } # ns-a and ns-b
    spec     = spec.base
    image    = image.debian-13
    preset   = preset.vm-xsmall
    agent    = false

    nic "lan" {
      # The prefix length belongs to the address; gateway and dns come from the site.
      ip = "${cidrhost(local.lan, each.value)}/24"

      # IPv6 from router advertisements. PVE's firewall filters this nic, and its rate is
      # limited to 10 MB/s. Settings that are not declared have PVE's default.
      ip6      = "auto"
      firewall = true
      rate     = 10
    }

    # A running guest is restarted for a change only if this is "allowed". Otherwise the
    # change is written, and listed as pending until the guest is restarted.
    restart = "allowed"
  }
}
