# A Proxmox VE host. Its API token is not part of the site: it is looked up in the
# secrets, under api_tokens.father (see secrets.yaml.example).
host "father" {
  api = "https://192.0.2.10:8006"

  # How its certificate is verified. On the host, `pvenode cert info` prints the
  # SHA-256 fingerprint: put it here. Without this line (or ca = "FILE") the
  # certificate must be one that this machine trusts already.
  # fingerprint = "12:34:…"

  # Storages by purpose; these are the names in a fresh installation. The storage of
  # images must be a directory, and allow the content "Import" (Datacenter → Storage).
  storage {
    disks  = "local-lvm"
    images = "local"
  }

  # The hardware of the machine. Only policy/capacity.rego uses it.
  hardware {
    cpu_cores = 8
    memory_gb = 64
  }
}
