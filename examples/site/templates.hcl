# What containers are made from. The host downloads a template when the first container
# needs it; a checksum pins it, as in images.hcl. A template that lies on the host
# already is named by its volume instead, and one to clone by its VMID:
#
#   template "debian-12-ct" {
#     volume = "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst"
#   }

template "debian-12-ct" {
  url = "https://download.proxmox.com/images/system/debian-12-standard_12.7-1_amd64.tar.zst"
}

# A VM template that is made from an image, once for each host that needs it, and anew
# when the image gets other content. A node cloned from it is there in seconds, with
# clone = "linked" even without a copy of the disk; but then it stands on the template,
# which stays until the clone is gone.
template "debian-12" {
  image = image.debian-12
  vmid  = 99900
}
