# Disk images. The host downloads an image when the first guest needs it, and keeps it
# as long as the site declares it.
#
# A checksum makes sure that what arrives is what you tried: with one, the host refuses
# anything else, and new content is a new file, so that no guest is made from a mixture.
# Without one there is a warning, as here: a true sum must come from a file that you
# hold. To pin an image, take a dated URL instead of "latest", download it, compare it
# with the publisher's list (Debian's is SHA512SUMS, beside the image), and then:
#
#   sha256sum debian-12-genericcloud-amd64-20250316-2053.qcow2
#
#   checksum = "sha256:…"

image "debian-12" {
  url = "https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-genericcloud-amd64.qcow2"
}

image "debian-13" {
  url = "https://cloud.debian.org/images/cloud/trixie/latest/debian-13-genericcloud-amd64.qcow2"
}

# There is no official cloud image of Proxmox VE. Make one (a Debian 13 cloud image in
# which proxmox-ve was installed) and put it on a web server that the host reaches. An
# image can also be a file of the site: file = "images/pve-9.qcow2".
image "pve-9" {
  url = "https://images.home.example/pve-9.qcow2"
}
