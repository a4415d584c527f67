# Addresses that are computed, and a node for every entry of a map.
manifest "dns" {
  description = "Name servers with fixed addresses"
  pattern     = "flat"
  host        = host.father
  on_error    = "continue" # if one fails, still make the other

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

      # IPv6 from the router's advertisements; PVE's firewall filters this card, and it gets
      # no more than 10 MB/s. What is not written has PVE's default.
      ip6      = "auto"
      firewall = true
      rate     = 10
    }

    # A running guest is never restarted for a change unless this says "allowed": the
    # change is written, and listed as pending until somebody restarts the guest.
    restart = "allowed"
  }
}
