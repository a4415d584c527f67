# Disk images. The host downloads an image when the first guest needs it, and keeps it
# as long as the site declares it.
#
# With a checksum you get exactly the file that you tested: the host refuses anything
# else, and new content is a new file, so that no guest is created from a mixture. Without
# one there is a warning, as here: a real checksum must come from a file that you have.
# To pin an image, take a dated URL instead of "latest", download it, compare it
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

# There is no official cloud image of Proxmox VE. Build one (a Debian 13 cloud image with
# proxmox-ve installed) and put it on a web server that the host can reach. An
# image can also be a file of the site: file = "images/pve-9.qcow2".
image "pve-9" {
  url = "https://images.home.example/pve-9.qcow2"
}
