# Read first. A site is a folder of *.hcl files; this one block says what holds
# everywhere. File names and the order of blocks mean nothing to the program.
site "home" {
  domain   = "home.example"
  timezone = "Europe/Berlin"

  # What guests with a static address use. The addresses of this example are from
  # 192.0.2.0/24, which is reserved for documentation: put yours in.
  gateway = "192.0.2.1"
  dns     = ["192.0.2.1"]

  # The user that every guest has from its birth, and the bridge it is plugged into
  # unless something nearer says otherwise.
  vm_user = "homestak"
  bridge  = "vmbr0"

  # On every node, before the packages of its posture and its spec.
  packages = ["htop", "curl", "wget", "git", "vim", "tmux", "tree", "jq", "rsync"]

  # VMIDs that this site may use. Other guests of the same host should live outside of
  # them. A node without a vmid draws the lowest free one of the default range.
  vmid_range "guests" {
    from = 10000
    to   = 10999
  }
  vmid_range "test" { # for recipes, see recipes/
    from = 99000
    to   = 99999
  }
  vmid_default = "guests"

  # Names of nodes become host names, so they are kept simple.
  naming {
    pattern = "[a-z][a-z0-9-]*"
  }
}

# Values with a name, for use in any file: local.lan.
locals {
  lan = "192.0.2.0/24"
}

# A value that one run can set: --var web_servers=3.
variable "web_servers" {
  type    = number
  default = 2
}
