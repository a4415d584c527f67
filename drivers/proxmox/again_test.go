package proxmox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// TestNothingIsLeftToDo: values that PVE keeps in another form than they were
// written in are no differences.
func TestNothingIsLeftToDo(t *testing.T) {
	for name, edit := range map[string]func(*world, *guest.VM){
		"description with blanks at its end": func(_ *world, v *guest.VM) { v.Description = "notes\n\n" },
		"blank description":                  func(_ *world, v *guest.VM) { v.Description = " \n" },
		"two keys in one secret": func(w *world, _ *guest.VM) {
			w.Site.Secrets.Values["ssh_keys"]["both"] = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm2vTt0Yt2bV8m0nq0Zk2l5s7cD4pXy1hJr9uQwAbCx x@home\n\nssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm2vTt0Yt2bV8m0nq0Zk2l5s7cD4pXy1hJr9uQwAbCy y@home\n"
		},
		"boot order": func(_ *world, v *guest.VM) { v.Options = map[string]string{"boot": "order=scsi0;net0"} },
		"UEFI": func(_ *world, v *guest.VM) {
			v.Options = map[string]string{"bios": "ovmf", "efidisk0": "local-lvm:1,efitype=4m"}
		},
		"startup without anything": func(_ *world, v *guest.VM) { v.Startup = &guest.Startup{} },
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
				w.Node("web-1", func(v *guest.VM) { edit(w, v) })
				w.Apply()
				w.Converged()
				for _, g := range w.Host.Snapshot().Guests {
					require.Empty(t, g.Config["unused0"])
				}
			})
		})
	}
}

// TestCloneTakesOverNothing: what a template has and the files have not goes at once,
// or the next plan would show it.
func TestCloneTakesOverNothing(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(_ *testing.T, w *world) {
		w.Template(9000, "golden")
		w.Host.Edit(func(e *pve.Edit) {
			for k, v := range map[string]string{
				"ipconfig0": "ip=dhcp", "ipconfig1": "ip=10.9.9.9/24", "startup": "order=2", "nameserver": "9.9.9.9", "searchdomain": "else.test",
				"sshkeys": "ssh-rsa%20AAAA%20old", "protection": "1",
			} {
				e.Set(9000, k, v)
			}
		})
		w.Site.DNS, w.Site.Domain, w.Site.Secrets = nil, "", nil
		w.Node("web-1", func(v *guest.VM) {
			v.Template = "golden"
			v.NICs = []guest.NIC{{Name: "lan"}, {Name: "dmz"}}
		})
		w.Apply()
		w.Converged()
	})
}

// TestOptionsThatAreNoSettings are refused before anything is asked of PVE.
func TestOptionsThatAreNoSettings(t *testing.T) {
	for key, value := range map[string]string{
		"virtio0": "local-lvm:5", "sata1": "local-lvm:5", "unused0": "local-lvm:vm-1-disk-0", // each apply would allocate another one
		"bwlimit": "100", "live-restore": "1", // of a request, not of a guest
		"delete": "cores", "skiplock": "1", "digest": "x", "revert": "cores",
		"snaptime": "1", "cipassword": "secret", "args": "-S", "cdrom": "none",
		"usb0": "host=1234:5678", "hostpci0": "0000:01:00.0", "serial1": "/dev/ttyS0", "efidisk0": "local-lvm:vm-1-disk-0",
	} {
		inTime(t, pve.Config{}, func(t *testing.T, w *world) {
			w.Node("web-1", func(v *guest.VM) { v.Options = map[string]string{key: value} })
			_, found := w.Site.Want("father")
			require.NotZero(t, found.Errors(), key)
		})
	}
}
