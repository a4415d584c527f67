# The site: defaults for everything. There is exactly one such block.
# File names and order mean nothing; split the files as you like.
site "home" {
  domain   = "home.example"
  timezone = "UTC"
  dns      = ["192.0.2.1"]
  gateway  = "192.0.2.1"

  # VMIDs that this site may use. A node without a vmid gets one from here.
  vmid_range "guests" {
    from = 10000
    to   = 10999
  }
}

# Sizes. A node names one, and may override its parts.
preset "vm-small" {
  cores  = 2
  memory = 2048 # MiB
  disk   = 10   # GiB
}

# Disk images. The host downloads one when the first guest needs it. Add a checksum
# as soon as you have tried it, or validate goes on warning: take a dated URL instead
# of "latest", and write checksum = "sha256:…" of that file.
image "debian-12" {
  url = "https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-genericcloud-amd64.qcow2"
}
