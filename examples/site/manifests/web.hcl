# A manifest says what shall exist together. The line "host" makes it real: this one is
# deployed on father. Take the manifest out of the site, and its guests go.
manifest "web" {
  description = "Two web servers and their database"
  pattern     = "flat" # no node lives on another
  host        = host.father

  node "db" {
    type   = "vm"
    spec   = spec.base
    image  = image.debian-12
    preset = preset.vm-medium
    cores  = 4 # instead of the preset's 2
    tags   = ["db"]
    onboot = true  # start with the host
    agent  = false # Debian's image has no guest agent in it

    # A further disk. Disks go by their names: to reorder them changes nothing. So do nics, but
    # the first one gets the spec's address, unless it has one of its own.
    disk "data" {
      size = 50
    }
  }

  node "web" {
    type       = "vm"
    count      = var.web_servers # web-1, web-2: one node block, many nodes
    spec       = spec.base
    image      = image.debian-12
    preset     = preset.vm-small
    tags       = ["web"]
    agent      = false
    depends_on = [node.db] # made after it, destroyed before it

    description = "Web server ${count.index + 1}"
  }
}
