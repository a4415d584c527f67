# What containers are created from. The host downloads a template when the first container
# needs it; a checksum pins it, as in images.hcl. A template that exists on the host
# already is named by its volume instead, and one to clone by its VMID:
#
#   template "debian-12-ct" {
#     volume = "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst"
#   }

template "debian-12-ct" {
  url = "https://download.proxmox.com/images/system/debian-12-standard_12.7-1_amd64.tar.zst"
}

# A VM template that is created from an image, once for each host that needs it, and
# recreated when the content of the image changes. A clone of it takes seconds, with
# clone = "linked" even without a copy of the disk. But then the clone depends on the
# template, which cannot be removed before the clone.
template "debian-12" {
  image = image.debian-12
  vmid  = 99900
}
