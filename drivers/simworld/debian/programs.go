package debian

import (
	"github.com/homestak/homestak-gitops/drivers/simworld/kernel"
)

// The parts of the system, each with its own programs.
type (
	accounts     struct{ *Machine }
	packages     struct{ *Machine }
	systemd      struct{ *Machine }
	server       struct{ *Machine }
	sudoers      struct{ *Machine }
	parametersOf struct{ *Machine }
)

// programs are those that belong to the system as a whole.
func (m *Machine) programs() map[string]kernel.Program {
	users, apt, init, ssh, rules, kernelOf := accounts{m}, packages{m}, systemd{m}, server{m}, sudoers{m}, parametersOf{m}
	return map[string]kernel.Program{
		"getent": users.getent, "useradd": users.useradd, "usermod": users.usermod, "userdel": users.userdel, "groupadd": users.groupadd, "groupdel": users.groupdel, "gpasswd": users.gpasswd, "passwd": users.passwdProgram,
		"dpkg-query": apt.dpkgQuery, "dpkg": apt.dpkg, "apt-get": apt.aptGet, "apt": apt.aptGet, "apt-cache": apt.aptCache, "apt-mark": apt.aptSelections,
		"systemctl": init.systemctl, "systemd-run": init.systemdRun, "loginctl": nothing, "journalctl": nothing, "sysctl": kernelOf.sysctl, "systemd-detect-virt": m.virtualisation,
		"sshd": ssh.sshdProgram, "visudo": rules.visudo, "sudo": rules.sudo, "ss": ssh.sockets, "daemon": daemon, "cron": daemon, "agetty": daemon, "cloud-init": cloudInitProgram,
	}
}

// nothing is a program that has nothing to do here.
func nothing(*kernel.Process) int { return 0 }

// daemon runs until it is ended.
func daemon(p *kernel.Process) int {
	<-p.Killed()
	return 0
}

func (m *Machine) virtualisation(p *kernel.Process) int {
	if _, err := m.K.FS.ReadFile("/etc/homestak-container"); err == nil {
		p.Printf("lxc\n")
		return 0
	}
	p.Printf("kvm\n")
	return 0
}
