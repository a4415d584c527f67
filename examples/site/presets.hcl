# Sizes. A node names one (preset = preset.vm-small) and may override its parts.
# Memory is in MiB, disk in GiB.

preset "vm-xsmall" {
  cores  = 1
  memory = 1024
  disk   = 8
}

preset "vm-small" {
  cores  = 2
  memory = 2048
  disk   = 10
}

preset "vm-medium" {
  cores  = 2
  memory = 4096
  disk   = 20
}

preset "vm-large" {
  cores  = 4
  memory = 8192
  disk   = 40
}

preset "vm-xlarge" {
  cores  = 8
  memory = 16384
  disk   = 80
}
