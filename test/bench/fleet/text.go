package fleet

const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGZsZWV0ZmxlZXRmbGVldGZsZWV0ZmxlZXRmbGVldGFi ops@fleet"

// site is all that stands beside the guests.
const site = `site "fleet" {
  domain   = "fleet.example"
  timezone = "UTC"
  dns      = ["192.0.2.1"]
  gateway  = "192.0.2.1"

  vmid_range "guests" {
    from = 10000
    to   = 39999
  }
}

preset "app" {
  cores  = 2
  memory = 2048
  disk   = 10
}

image "debian-12" {
  url      = "https://images.example/debian-12.qcow2"
  checksum = "sha256:00000000000000000000000000000000000000000000000000000000000000aa"
}

posture "prod" {
  auth {
    method = "node_token"
  }
}

spec "app" {
  access {
    posture = posture.prod
    user "ops" {
      sudo = true
    }
  }
  platform {
    packages = ["nginx", "postgresql-client"]
  }
}
`

// host takes URL, fingerprint, node and nodes.
const host = `host "father" {
  api         = %q
  fingerprint = %q
  node        = %q
  nodes       = ["%s"]
}
`

// node takes name and VMID. It is about as long as real ones are.
const node = `
  node %q {
    type   = "vm"
    vmid   = %d
    preset = preset.app
    image  = image.debian-12
    spec   = spec.app
    memory = 4096
    onboot = true
    tags   = ["app", "fleet"]

    disk "data" {
      size = 20
    }
    nic "lan" {
      bridge = "vmbr0"
    }

    owner   = "platform team"
    role    = "application"
    purpose = "one of many"
  }
`

// clones takes the number of guests.
const clones = `template "golden" {
  vmid = 9000
}

manifest "clones" {
  pattern = "flat"
  host    = host.father

  node "clone" {
    type     = "vm"
    count    = %d
    preset   = preset.app
    template = template.golden
    disk     = 16
  }
}
`
