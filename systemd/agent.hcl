# The settings of the agent on this machine; everything else comes from the site. If a
# line is missing, the value after "unless set" applies.
# homestak-gitops agent --print-config shows the values in effect, and where each is from.

# The host of the site to converge: the short name of this machine, unless set.
# identity = "father"

repository {
  url = "https://git.example.org/home/site.git" # https, ssh, or a folder of this machine

  # branch = "main"
  # path   = ""    # the folder that holds the site: the top of the repository, unless set
  # poll   = "60s"

  # A path without a leading slash is relative to the folder of this file. Only the agent
  # may read these files: chown homestak-gitops FILE && chmod 400 FILE
  # auth {
  #   token_file       = "git-token"    # https
  #   key_file         = "git-key"      # ssh: a private key without passphrase
  #   known_hosts_file = "known_hosts"  # ssh: what ssh-keyscan prints, after you compared it
  # }
}

# drift_every = "5m" # a full check of the host, also without a new commit
# concurrency = 8    # steps at once
