# Read this first. A site is a folder of *.hcl files; this block has the settings for the
# whole site. File names and the order of blocks have no meaning.
site "home" {
  domain   = "home.example"
  timezone = "Europe/Berlin"

  # For guests with a static address. The addresses of this example are from
  # 192.0.2.0/24, which is reserved for documentation: replace them with yours.
  gateway = "192.0.2.1"
  dns     = ["192.0.2.1"]

  # The user that every guest is created with, and the bridge it is connected to unless
  # a more specific block names another.
  vm_user = "homestak"
  bridge  = "vmbr0"

  # Packages of every node, before those of its posture and its spec.
  packages = ["htop", "curl", "wget", "git", "vim", "tmux", "tree", "jq", "rsync"]

  # VMIDs that this site may use. Other guests of the same host should have VMIDs outside
  # of them. A node without a vmid draws the lowest free one of the default range.
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

# A value that you can set for one run: --var web_servers=3.
variable "web_servers" {
  type    = number
  default = 2
}

# Where the agent reports what fails, drifts, is refused or expires. It needs a secret of this name, so it is a comment here.
#
# notify "ops" {
#   type   = "ntfy"
#   to     = "https://ntfy.sh/TOPIC"
#   secret = secret.passwords.ntfy
# }
