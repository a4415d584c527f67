# Texts for other programs. The agent writes each into its data folder whenever one of its
# facts changes; "homestak-gitops output hosts" prints one. A template sees nodes, hosts and
# site, and no secret.
output "ssh-config" {
  template = file("outputs/ssh_config.tmpl")
  to       = "ssh_config"
}

output "hosts" {
  template = file("outputs/hosts.tmpl")
  to       = "hosts"
}

output "ansible" {
  template = file("outputs/ansible.tmpl")
  to       = "ansible.ini"
}

output "prometheus" {
  template = file("outputs/prometheus.tmpl")
  to       = "prometheus.json" # or a folder that output_folders of agent.hcl permits
}

output "backups" {
  template = file("outputs/backups.tmpl")
  to       = "backups.txt"
}

output "devices" {
  template = file("outputs/devices.tmpl")
  to       = "devices.json"
}

output "services" {
  template = file("outputs/services.tmpl")
  to       = "services.json"
}

output "compose" {
  template = file("outputs/compose.tmpl")
  to       = "compose.yaml"
}

output "zone" {
  template = file("outputs/zone.tmpl")
  to       = "zone"
}

output "lifecycle" {
  template = file("outputs/lifecycle.tmpl")
  to       = "lifecycle.md"
}
