package pve_test

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/sim/pve/simtest"
)

// TestSystemOfContainers: type and architecture come from the files of the template, and
// not from its name or the order ($autodetect_type in PVE/LXC/Setup.pm,
// detect_elf_architecture in PVE/LXC/Tools.pm).
func TestSystemOfContainers(t *testing.T) {
	const noArch = "Falling back to amd64."
	for what, test := range map[string]struct {
		files map[string]string
		order form
		want  string
		log   string
	}{
		"by its word": {map[string]string{"etc/os-release": "NAME=\"x\"\nID='alpine'\n", "bin/sh": simtest.ELF("\xb7")}, nil, "alpine arm64", "Detected container architecture: arm64"},
		"by another word": {
			map[string]string{"usr/lib/os-release": "ID=\"rocky\"\n", "etc/os-release": "-> ../usr/lib/os-release", "etc/redhat-release": "9\n", "bin": "-> usr/bin", "usr/bin/sh": "-> bash", "usr/bin/bash": simtest.ELF("\x3e")},
			nil, "centos amd64", "Detected container architecture: amd64",
		},
		"by a file":             {map[string]string{"etc/os-release": "ID=mine\n", "etc/debian_version": "13.1\n"}, nil, "debian amd64", "unknown ID 'mine' in /etc/os-release file, trying fallback detection"},
		"by Ubuntu's own file":  {map[string]string{"etc/lsb-release": "DISTRIB_ID=Ubuntu\nDISTRIB_RELEASE=24.04\n", "etc/debian_version": "trixie/sid\n"}, nil, "ubuntu amd64", noArch},
		"by a folder":           {map[string]string{"nix/store/": ""}, nil, "nixos amd64", noArch},
		"by nothing":            {map[string]string{"bin/sh": simtest.ELF("\x03")}, nil, "unmanaged amd64", "/etc/os-release file not found and autodetection failed, falling back to 'unmanaged'"},
		"another one ordered":   {map[string]string{"etc/os-release": "ID=alpine\n"}, form{"ostype": "debian", "arch": "i386"}, "alpine i386", "got unexpected ostype (alpine != debian)"},
		"not managed":           {map[string]string{"etc/os-release": "ID=alpine\n", "bin/sh": simtest.ELF("\xb7")}, form{"ostype": "unmanaged"}, "unmanaged amd64", noArch},
		"not known":             {map[string]string{"etc/os-release": "ID=mine\n"}, nil, "unable to create CT 100 - unable to detect OS distribution", ""},
		"without its version":   {map[string]string{"etc/os-release": "ID=debian\n"}, nil, "unable to create CT 100 - unable to read version info", ""},
		"a link without an end": {map[string]string{"etc/os-release": "-> os-release", "etc/arch-release": ""}, nil, "archlinux amd64", noArch},
		"a script for a shell":  {map[string]string{"etc/os-release": "ID=gentoo\n", "etc/gentoo-release": "x\n", "bin/sh": "#!/bin/sh, a long one"}, nil, "gentoo amd64", noArch},
	} {
		t.Run(what, func(t *testing.T) {
			c := newClient(t, pve.Config{})
			content := simtest.RootArchive(test.files)
			require.Equal(t, "OK", c.uploaded("vztmpl", "ubuntu_arm64.tar.gz", string(content)))
			order := form{"vmid": "100", "ostemplate": "local:vztmpl/ubuntu_arm64.tar.gz", "rootfs": "local-lvm:1"}
			maps.Copy(order, test.order)
			got := c.task("POST", "/nodes/father/lxc", order)
			if got == "OK" {
				conf := c.object(ctURL("100", "/config"))
				got = conf["ostype"].(string) + " " + conf["arch"].(string)
			}
			require.Equal(t, test.want, got)
			if test.log != "" {
				require.Contains(t, c.log(), test.log)
			}
		})
	}
}

// TestSystemByName: what the simulator cannot unpack, or was never there, is told by its name, and a
// download tells it by its content if the test's web has that.
func TestSystemByName(t *testing.T) {
	root := simtest.RootArchive(map[string]string{"etc/os-release": "ID=alpine\n"})
	for what, test := range map[string]struct{ name, content, want string }{
		"packed with zstd": {"fedora-41.tar.zst", "\x28\xb5\x2f\xfd and more", "fedora"},
		"without a system": {"mine.tar.xz", "\xfd7zXZ\x00 and more", "debian"},
		"its content":      {"fedora-41.tar.gz", string(root), "alpine"},
	} {
		t.Run(what, func(t *testing.T) {
			web := func(string) pve.Page {
				return pve.Page{Size: int64(len(test.content)), Content: []byte(test.content)}
			}
			for _, config := range []pve.Config{{}, {Web: web}} {
				c := newClient(t, config)
				if config.Web == nil {
					require.Equal(t, "OK", c.uploaded("vztmpl", test.name, test.content))
				} else {
					c.done("POST", "/nodes/father/storage/local/download-url", form{"content": "vztmpl", "filename": test.name, "url": "http://x.test/a"})
				}
				c.done("POST", "/nodes/father/lxc", form{"vmid": "100", "ostemplate": "local:vztmpl/" + test.name, "rootfs": "local-lvm:1"})
				require.Equal(t, test.want, c.object(ctURL("100", "/config"))["ostype"])
			}
		})
	}
}
