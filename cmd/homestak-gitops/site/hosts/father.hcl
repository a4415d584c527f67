# A Proxmox VE host. Its API token is not in the site. It is in secrets.yaml,
# under api_tokens.father.
host "father" {
  api = "https://192.0.2.10:8006"

  # How its certificate is recognised: on the host, "pvenode cert info" prints the
  # fingerprint.
  # fingerprint = "12:34:…"

  # Where things are kept. These are the defaults of a fresh installation; the
  # storage for images needs the content type "import" (PVE 8.4 and later).
  storage {
    disks  = "local-lvm"
    images = "local"
  }
}
