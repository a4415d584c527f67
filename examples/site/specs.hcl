# Specs: how a node should be configured inside. Several nodes may share one.
#
# Today a spec is resolved and checked, and its user, keys, addresses and name servers
# are passed to the guest with cloud-init. Packages, services and the rest are not applied
# inside guests yet; `plan` says so.

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
      remove_subscription_nag = true
    }
  }
}
