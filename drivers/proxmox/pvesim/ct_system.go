package pvesim

import (
	"regexp"
	"strings"
)

// systemByName guesses what is in a template whose content the simulator does not have:
// one from Proxmox's list, one of a simulated download, and one that Go's library cannot
// unpack (xz, zstd). Templates that distributions and Proxmox
// offer begin with the name of the system. Any other is taken for a Debian.
func systemByName(volname string) *rootSystem {
	r := &rootSystem{ostype: "debian", arch: "amd64", guessed: true}
	for _, system := range []string{"debian", "devuan", "ubuntu", "centos", "fedora", "opensuse", "archlinux", "alpine", "gentoo", "nixos"} {
		if strings.Contains(volname, system) {
			r.ostype = system
		}
	}
	for _, arch := range []string{"arm64", "armhf", "i386", "riscv64"} {
		if strings.Contains(volname, "_"+arch) {
			r.arch = arch
		}
	}
	return r
}

// knownSystems are the types of systems that PVE has code for, and the other words that
// /etc/os-release may have for them (PVE/LXC/Setup.pm).
var knownSystems = map[string]string{
	"alpine": "alpine", "archlinux": "archlinux", "centos": "centos", "debian": "debian", "devuan": "devuan", "fedora": "fedora",
	"gentoo": "gentoo", "openeuler": "openeuler", "opensuse": "opensuse", "ubuntu": "ubuntu", "nixos": "nixos", "unmanaged": "unmanaged",
	"opensuse-leap": "opensuse", "opensuse-tumbleweed": "opensuse", "opensuse-slowroll": "opensuse", "sles": "opensuse",
	"openEuler": "openeuler", "arch": "archlinux", "rocky": "centos", "almalinux": "centos",
}

// traces are the files that tell a system without a known word in /etc/os-release, in the
// order in which PVE looks for them.
var traces = []struct{ file, system string }{
	{"etc/debian_version", "debian"},
	{"etc/devuan_version", "devuan"},
	{"etc/SuSE-brand", "opensuse"},
	{"etc/SuSE-release", "opensuse"},
	{"etc/fedora-release", "fedora"},
	{"etc/centos-release", "centos"},
	{"etc/redhat-release", "centos"},
	{"etc/arch-release", "archlinux"},
	{"etc/alpine-release", "alpine"},
	{"etc/gentoo-release", "gentoo"},
	{"nix/store", "nixos"},
	{"etc/openEuler-release", "openeuler"},
}

// versionFiles are the files without which PVE does not work with a system: each
// PVE/LXC/Setup/*.pm reads its version there.
var versionFiles = map[string]string{
	"debian": "etc/debian_version", "devuan": "etc/devuan_version", "centos": "etc/redhat-release", "gentoo": "etc/gentoo-release",
}

var (
	releaseLine = regexp.MustCompile(`(?m)^\s*([a-zA-Z_][a-zA-Z0-9_]*)=(?:'([^']*)'|"((?:[^"\\]|\\.)*)"|([A-Za-z0-9]*))`)
	ubuntuID    = regexp.MustCompile(`(?im)^DISTRIB_ID=Ubuntu$`)
)

// system finds out what is in a root file system.
func (fs rootFS) system() *rootSystem {
	r := &rootSystem{arch: fs.architecture()}
	release := ""
	for _, file := range []string{"etc/os-release", "usr/lib/os-release"} {
		if f := fs.resolve(file); f != nil && !f.dir {
			release = string(f.head)
			break
		}
	}
	id := ""
	for _, m := range releaseLine.FindAllStringSubmatch(release, -1) {
		if m[1] == "ID" {
			id = m[2] + m[3] + m[4]
		}
	}
	r.ostype = knownSystems[id]
	if r.ostype == "" {
		if id != "" {
			r.notes = append(r.notes, "unknown ID '"+id+"' in /etc/os-release file, trying fallback detection")
		}
		fs.trace(r)
	}
	fs.checkVersion(r)
	return r
}

// trace tells a system by the files that only it has.
func (fs rootFS) trace(r *rootSystem) {
	if f := fs.resolve("etc/lsb-release"); f != nil && ubuntuID.Match(f.head) {
		r.ostype = "ubuntu"
		return
	}
	for _, trace := range traces {
		if f := fs.resolve(trace.file); f != nil && f.dir == (trace.file == "nix/store") {
			r.ostype = trace.system
			return
		}
	}
	if fs.resolve("etc/os-release") != nil {
		r.failure = "unable to detect OS distribution"
		return
	}
	r.notes = append(r.notes, "/etc/os-release file not found and autodetection failed, falling back to 'unmanaged'")
	r.ostype = "unmanaged"
}

func (fs rootFS) checkVersion(r *rootSystem) {
	if file := versionFiles[r.ostype]; file != "" {
		if f := fs.resolve(file); f == nil || len(f.head) == 0 {
			r.failure = "unable to read version info"
		}
	}
	if r.ostype == "ubuntu" {
		if f := fs.resolve("etc/lsb-release"); f == nil || !ubuntuID.Match(f.head) {
			r.failure = "got unknown DISTRIB_ID"
		}
	}
}

// machines are the architectures by the number of the machine in the head of a program
// (detect_elf_architecture in PVE/LXC/Tools.pm).
var machines = map[int]string{0x03: "i386", 0x3e: "amd64", 0x28: "armhf", 0xb7: "arm64"}

// architecture is told by the shell, which every system has.
func (fs rootFS) architecture() string {
	shell := fs.resolve("bin/sh")
	if shell == nil || len(shell.head) < 20 || string(shell.head[:4]) != "\x7fELF" {
		return ""
	}
	machine := int(shell.head[17])<<8 | int(shell.head[18])
	if machine == 0xf3 {
		return map[byte]string{1: "riscv32", 2: "riscv64"}[shell.head[4]]
	}
	return machines[machine]
}
