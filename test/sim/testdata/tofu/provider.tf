# Beside every story here: how to reach the host, and whether the story is in its second
# half, in which what is there is changed.
terraform {
  required_providers {
    proxmox = {
      source = "bpg/proxmox"
    }
  }
}

variable "endpoint" { type = string }
variable "token" { type = string }
variable "node" { type = string }

variable "edited" {
  type    = bool
  default = false
}

provider "proxmox" {
  endpoint  = var.endpoint
  api_token = var.token
  insecure  = true
}
