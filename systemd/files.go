// Package systemd embeds the units of the agent. install.sh installs the same ones.
package systemd

import "embed"

//go:embed homestak-gitops.service homestak-gitops-once.service homestak-gitops.timer homestak-gitops-host.socket homestak-gitops-host.service homestak-gitops-upgrade.service homestak-gitops-upgrade.timer homestak-gitops.sysusers.conf
var files embed.FS

// File is a file on a machine, owned by root, which every user can read.
type File struct{ Path, Content string }

// The unit of the agent, the one for its upgrades, and what its user is made from.
const (
	Service  = "homestak-gitops.service"
	Upgrades = "homestak-gitops-upgrade.timer"
	Sysusers = "/usr/local/lib/sysusers.d/homestak-gitops.conf"
)

// Files are all of them.
func Files() []File {
	const units = "/usr/local/lib/systemd/system/"
	return []File{
		{Sysusers, content("homestak-gitops.sysusers.conf")},
		{units + Service, content(Service)},
		{units + "homestak-gitops-once.service", content("homestak-gitops-once.service")},
		{units + "homestak-gitops.timer", content("homestak-gitops.timer")},
		{units + "homestak-gitops-host.socket", content("homestak-gitops-host.socket")},
		{units + "homestak-gitops-host.service", content("homestak-gitops-host.service")},
		{units + "homestak-gitops-upgrade.service", content("homestak-gitops-upgrade.service")},
		{units + Upgrades, content(Upgrades)},
	}
}

func content(name string) string {
	text, err := files.ReadFile(name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(text)
}
