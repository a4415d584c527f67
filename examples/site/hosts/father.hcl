# A Proxmox VE host. Its API token is no part of the site: it is looked up in the
# secrets, under api_tokens.father (see secrets.yaml.example).
host "father" {
  api = "https://192.0.2.10:8006"

  # How its certificate is recognised. On the host, `pvenode cert info` prints the
  # SHA-256 fingerprint: put it here. Without this line (or ca = "FILE") the
  # certificate must be one that this machine trusts already.
  # fingerprint = "12:34:…"

  # Where things are kept; these are the names of a fresh installation. The storage of
  # images must be a directory, and allow the content "Import" (Datacenter → Storage).
  storage {
    disks  = "local-lvm"
    images = "local"
  }

  # What the machine has. Nothing is derived from it; policy/capacity.rego reads it.
  hardware {
    cpu_cores = 8
    memory_gb = 64
  }
}
