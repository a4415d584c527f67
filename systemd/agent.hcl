# What the agent of this machine is told about itself; everything else comes from the
# site. Without a line, what stands behind "unless set" holds.
# homestak-gitops agent --print-config shows what holds, and why.

# The host of the site that is converged: the short name of this machine, unless set.
# identity = "father"

repository {
  url = "https://git.example.org/home/site.git" # https, ssh, or a folder of this machine

  # branch = "main"
  # path   = ""    # the folder that holds the site: the top of the repository, unless set
  # poll   = "60s"

  # A path without a slash in front starts beside this file. Give the files to the
  # agent alone: chown homestak-gitops FILE && chmod 400 FILE
  # auth {
  #   token_file       = "git-token"    # https
  #   key_file         = "git-key"      # ssh: a private key without passphrase
  #   known_hosts_file = "known_hosts"  # ssh: what ssh-keyscan prints, after you compared it
  # }
}

# drift_every = "5m" # a full check of the host, also without a new commit
# concurrency = 8    # steps at once
