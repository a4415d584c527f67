package released

// Auth is the part of the secrets of a site that its guests are known by.
const Auth = "auth:\n  ownership_key: \"" + OwnershipKey + "\"\n"

// OwnershipKey is the key of ownership tags in Auth.
const OwnershipKey = "0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e"

// Site is a small site, site.hcl: all but its host and its manifests.
const Site = `site "home" {
  domain  = "home.example"
  dns     = ["192.0.2.1"]
  gateway = "192.0.2.1"

  vmid_range "guests" {
    from = 10000
    to   = 10999
  }
}

preset "vm-small" {
  cores  = 2
  memory = 2048
  disk   = 10
}

image "debian-12" {
  url      = "https://images.example/debian-12.qcow2"
  checksum = "sha256:00000000000000000000000000000000000000000000000000000000000000aa"
}
`
