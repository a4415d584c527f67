# Postures: how strict a node is. A spec names one.
#
#           is identified by      root login          passwords   sudo asks   fail2ban
#   dev     its network           yes                 yes         no          off
#   local   its network           prohibit-password   no          no          off
#   stage   the site's token      prohibit-password   no          yes         on
#   prod    a token of its own    no                  no          yes         on

# For short-lived machines.
posture "dev" {
  auth {
    method = "network"
  }
  ssh {
    port                    = 22
    permit_root_login       = "yes"
    password_authentication = "yes"
  }
  sudo {
    nopasswd = true
  }
  fail2ban {
    enabled = false
  }
  packages = ["net-tools", "strace", "tcpdump"]
}

# For machines that only your home network can reach.
posture "local" {
  auth {
    method = "network"
  }
  ssh {
    port                    = 22
    permit_root_login       = "prohibit-password"
    password_authentication = "no"
  }
  sudo {
    nopasswd = true
  }
  fail2ban {
    enabled = false
  }
}

# As prod, with tools for debugging.
posture "stage" {
  auth {
    method = "site_token"
  }
  ssh {
    port                    = 22
    permit_root_login       = "prohibit-password"
    password_authentication = "no"
  }
  sudo {
    nopasswd = false
  }
  fail2ban {
    enabled = true
  }
  packages = ["net-tools", "strace"]
}

posture "prod" {
  auth {
    method = "node_token"
  }
  ssh {
    port                    = 22
    permit_root_login       = "no"
    password_authentication = "no"
  }
  sudo {
    nopasswd = false
  }
  fail2ban {
    enabled = true
  }
}
