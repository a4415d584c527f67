# A deployment: nodes on one host. Without the line "host" it is a recipe, which only
# "homestak-gitops test" runs.
manifest "web" {
  description = "Two web servers"
  pattern     = "flat"
  host        = host.father

  node "web" {
    type   = "vm"
    preset = preset.vm-small
    image  = image.debian-12
    count  = 2 # web-1 and web-2
    tags   = ["web"]
    agent  = false # Debian's image has no guest agent in it

    nic "lan" {
      bridge = "vmbr0"
      # ip = "192.0.2.20/24" # DHCP without this line
    }
  }
}
