# Specs: how a node should be configured inside. Several nodes may share one.
#
# User, keys, addresses and name servers are passed to the guest with cloud-init. The rest is
# applied inside by SSH, or as via in access says ("agent", "exec"). That needs a key to log in
# with, and the guest's address; `plan` lists the nodes where one of them is missing.

spec "base" {
  access {
    posture = posture.dev

    # Without ssh_keys every key of the secrets logs in; ssh_keys = ["ops@laptop"] names
    # some of them, ssh_keys = [] none.
    user "homestak" {
      sudo = true
    }
  }

  platform {
    packages = ["htop", "curl"]
  }

  config {
    timezone = site.timezone
  }
}

# As base, with the disk "data" of the node at /srv/data. It is formatted while it is empty,
# and never again: its data also outlive this spec.
spec "data" {
  access {
    posture = posture.dev
    user "homestak" {
      sudo = true
    }
  }

  platform {
    packages = ["htop", "curl"]
  }

  config {
    timezone = site.timezone
    swap     = 1024 # MiB

    mount "/srv/data" {
      disk    = "data"
      options = ["noatime"]
    }
  }
}

# A machine that becomes a Proxmox VE host of its own.
spec "pve" {
  access {
    posture = posture.dev
    user "homestak" {
      sudo = true
    }
  }

  platform {
    packages = ["proxmox-ve", "postfix", "open-iscsi", "chrony", "htop", "curl", "wget"]
    services {
      enable  = ["pveproxy", "pvedaemon", "pvestatd"]
      disable = ["rpcbind"]
    }
  }

  config {
    timezone = site.timezone
    pve {
      no_subscription         = true
      remove_subscription_nag = true
      bridge                  = "vmbr0" # over the network card, with its addresses
    }
  }
}
