# A manifest is a group of nodes. With "host" it is deployed: this one on father. If you
# remove the manifest from the site, its guests are destroyed.
manifest "web" {
  description = "Two web servers and their database"
  pattern     = "flat" # no node lives on another
  host        = host.father

  # What its nodes are for. Policies can require these, and outputs show them.
  owner     = "ops"
  purpose   = "The shop"
  review_by = "2030-12-31" # after it, status and doctor report the nodes

  node "db" {
    type   = "vm"
    spec   = spec.data
    image  = image.debian-12
    preset = preset.vm-medium
    cores  = 4 # instead of the preset's 2
    tags   = ["db"]
    onboot = true  # start with the host
    agent  = false # Debian's image has no guest agent in it

    services     = ["postgresql"]
    storage_tier = "ssd"

    # Another disk. Disks are identified by name, so their order does not matter. So are nics,
    # but the first one gets the spec's address, unless it has one of its own.
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
    depends_on = [node.db] # created after it, destroyed before it
    services   = ["http", "https"]
    stacks     = ["shop"]

    description = "Web server ${count.index + 1}"
  }
}
