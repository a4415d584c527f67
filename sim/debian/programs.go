package debian

import (
	"maps"

	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/machine/userland"
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

// programs are those that belong to the system as a whole, with their options as userland.Program has them.
func (m *Machine) programs() map[string]machine.Program {
	users, apt, init, ssh, rules := accounts{m}, packages{m}, systemd{m}, server{m}, sudoers{m}
	const denied = 1
	all := map[string]machine.Program{
		"getent": users.getent, "apt-config": nothing,
		"useradd":  userland.Program("create-home gid: groups: shell: uid: user-group", 1, denied, users.asRoot(users.useradd)),
		"usermod":  userland.Program("append expiredate: groups: lock shell: unlock", 1, denied, users.asRoot(users.usermod)),
		"userdel":  userland.Program("force remove", 1, denied, users.asRoot(users.userdel)),
		"groupadd": userland.Program("gid:", 1, denied, users.asRoot(users.groupadd)),
		"groupdel": userland.Program("", 1, denied, users.asRoot(users.groupdel)),
		"gpasswd":  userland.Program("delete:", 1, denied, users.asRoot(users.gpasswd)),
		"loginctl": nothing, "systemd-sysusers": userland.Program("", 1, denied, users.asRoot(users.sysusers)),
		"dpkg":        userland.Program("audit configure a force-confdef force-confold", 0, 2, apt.dpkg),
		"apt-get":     userland.Program("s q y o: no-install-recommends purge print-uris", 1, 100, apt.aptGet),
		"apt-cache":   userland.Program("no-all-versions", 1, 100, apt.aptCache),
		"apt-mark":    userland.Program("", 1, 100, apt.aptSelections),
		"systemctl":   userland.Program("quiet now no-block property: value no-pager full lines: p:=property q=quiet", 1, 1, init.systemctl),
		"journalctl":  userland.Program("quiet no-pager output: lines: q=quiet o:=output n:=lines", 0, 1, init.journalctl),
		"systemd-run": init.systemdRun, "systemd-detect-virt": m.virtualisation, "cloud-init": cloudInitProgram,
		"dpkg-query": userland.Program("W f: showformat:=f", 0, 2, apt.dpkgQuery),
		"sshd":       ssh.sshdProgram, "visudo": userland.Program("c f: file:=f", 0, 1, rules.visudo), "sudo": rules.sudo, "ss": ssh.sockets,
		"ssh-keygen": userland.Program("q y t: N: C: f:", 0, 255, ssh.keygen),
		"apt-helper": apt.helper, "daemon": daemon, "systemd-timesyncd": daemon, "cron": daemon, "agetty": daemon,
	}
	disks := userland.Disks{}
	if m.disk != nil {
		disks.FS = m.disk.fs
	}
	maps.Copy(all, disks.Programs())
	maps.Copy(all, m.Network.Programs())
	return all
}

// nothing is a program that has nothing to do here.
func nothing(*machine.Process) int { return 0 }

// daemon runs until it is ended.
func daemon(p *machine.Process) int {
	<-p.Killed()
	return 0
}

func (m *Machine) virtualisation(p *machine.Process) int {
	if m.disk.container {
		p.Printf("lxc\n")
		return 0
	}
	if len(p.Args) > 1 { // --container
		p.Printf("none\n")
		return 1
	}
	p.Printf("kvm\n")
	return 0
}
