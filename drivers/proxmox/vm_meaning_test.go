package proxmox_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// value is one option as the files have it, and as somebody might set it by hand.
type value struct{ declared, byHand string }

// everyOption holds every key of the API table that an option may set.
var everyOption = map[string]value{
	"acpi": {"0", "1"}, "allow-ksm": {"0", "1"}, "audio0": {"device=AC97", "device=ich9-intel-hda,driver=spice"},
	"autostart": {"1", "0"}, "balloon": {"512", "1024"}, "bios": {"ovmf", "seabios"}, "boot": {"order=scsi0;net0", "order=net0;scsi0"},
	"cicustom": {"vendor=local:snippets/x.yaml", "vendor=local:snippets/y.yaml"}, "citype": {"nocloud", "configdrive2"}, "ciupgrade": {"1", "0"},
	"cpu": {"x86-64-v2-AES,flags=+aes;-pcid", "host"}, "cpulimit": {"2", "1.5"}, "cpuunits": {"200", "300"},
	"efidisk0": {"local-lvm:1,efitype=4m,pre-enrolled-keys=1", ""}, // by hand it cannot become another one
	"ide[n]":   {"none,media=cdrom", "local:iso/x.iso,media=cdrom"},
	"freeze":   {"1", "0"}, "hostpci[n]": {"mapping=gpu", "mapping=gpu,pcie=1"}, "hotplug": {"disk,network", "usb"},
	"keyboard": {"de", "fr"}, "kvm": {"0", "1"}, "localtime": {"1", "0"}, "machine": {"q35", "pc"},
	"migrate_downtime": {"0.5", "1"}, "migrate_speed": {"10", "20"}, "numa": {"true", "0"}, "numa[n]": {"cpus=0;1,memory=2048", "cpus=0,memory=1024"},
	"ostype": {"l24", "l26"}, "reboot": {"0", "1"}, "rng0": {"/dev/urandom", "source=/dev/random"}, "scsihw": {"virtio-scsi-pci", "lsi"},
	"serial[n]": {"socket", ""}, "shares": {"500", "600"}, "startdate": {"2020-01-01", "now"},
	"tablet": {"0", "1"}, "tdf": {"1", "0"}, "tpmstate0": {"local-lvm:1,version=v2.0", ""}, "usb[n]": {"mapping=key", "spice"},
	"vcpus": {"1", "2"}, "vga": {"virtio,memory=32", "type=std"}, "virtiofs[n]": {"share", "dirid=share,cache=never"},
	"vmstatestorage": {"local-lvm", "local-zfs"}, "watchdog": {"i6300esb,action=reset", "model=ib700"},
}

// index names one key of a family: the highest that the defaults leave free.
func index(key string) string {
	return strings.Replace(key, "[n]", map[bool]string{true: "0", false: "1"}[key == "ide[n]"], 1) // q35 has no ide1
}

// fullHouse declares a stopped guest that has every option and every attribute.
func fullHouse(w *world) {
	order := 3
	w.Node("web-1", func(v *guest.VM) {
		v.Power, v.Options = "stopped", map[string]string{}
		v.Tags, v.Description, v.OnBoot, v.Startup = []string{"Web", "prod"}, "notes \n", true, &guest.Startup{Order: &order}
		v.Disks = []guest.Disk{{Name: "a", Size: 1}, {Name: "b", Size: 1, Bus: "virtio"}, {Name: "c", Size: 1, Bus: "sata", Remove: true}}
		v.NICs = []guest.NIC{fullNIC(), {Name: "dmz", IP: "dhcp"}}
		for key, val := range everyOption {
			if val.declared != "" {
				v.Options[index(key)] = val.declared
			}
		}
	})
}

func twoStorages() pve.Config {
	return pve.Config{Storages: append(pve.DefaultStorages(), pve.Storage{Name: "local-zfs", Type: "zfspool", Content: []string{"images", "rootdir"}})}
}

// TestEveryDocumentedKeyIsSpokenFor: what a VM can be told is an attribute, an
// option, or refused with a reason; nothing is left to chance.
func TestEveryDocumentedKeyIsSpokenFor(t *testing.T) {
	for _, call := range [][2]string{{"POST", "/nodes/n/qemu"}, {"PUT", "/nodes/n/qemu/100/config"}} {
		m, _, _ := pveapi.Lookup(call[0], call[1])
		for key, v := range m.Params {
			if v.Until != "" || key == "background_delay" {
				continue // PVE 9 dropped it
			}
			attribute, refused := guest.SetBy(key), guest.RefusedKey(key)
			said := 0
			for _, is := range []bool{attribute != "", refused != "", everyOption[key].declared != ""} {
				if is {
					said++
				}
			}
			require.Equal(t, 1, said, "%s: attribute %q, refused %q, option %v", key, attribute, refused, everyOption[key])
		}
	}
}

// TestEveryKeyConvergesOnce: all of them together are written once, and never differ again.
func TestEveryKeyConvergesOnce(t *testing.T) {
	inTime(t, twoStorages(), func(t *testing.T, w *world) {
		fullHouse(w)
		w.Apply()
		c := w.Guest(10000).Config
		for key := range w.VM("web-1").Options {
			require.Contains(t, c, key)
		}
		for _, key := range []string{"name", "cores", "memory", "tags", "description", "onboot", "startup", "agent", "ciuser", "sshkeys", "nameserver", "searchdomain", "net1", "ipconfig1", "scsi1", "virtio0", "sata0"} {
			require.Contains(t, c, key)
		}
		w.Converged()
		writes := w.Host.Snapshot().Writes
		w.Apply()
		require.Equal(t, writes, w.Host.Snapshot().Writes)
		w.Host.Edit(func(e *pve.Edit) { e.Start(10000) })
		w.VM("web-1").Power = "running"
		w.Converged()
	})
}

// TestEveryKeyChangedByHandIsFound by its own name and by no other, and put back.
func TestEveryKeyChangedByHandIsFound(t *testing.T) {
	inTime(t, twoStorages(), func(t *testing.T, w *world) {
		fullHouse(w)
		w.Apply()
		for _, key := range slices.Sorted(maps.Keys(everyOption)) {
			val, k := everyOption[key], index(key)
			if val.byHand == "" {
				continue
			}
			was := w.Guest(10000).Config[k]
			for _, other := range []string{val.byHand, ""} {
				if (&guest.VM{}).SameValue(k, val.declared, other) {
					continue
				}
				w.Host.Edit(func(e *pve.Edit) { e.Set(10000, k, other) })
				p := w.Plan()
				require.Len(t, p.Steps, 1, k)
				require.Equal(t, []string{"options." + k}, proxmoxtest.Paths(p.Steps[0]))
				require.Empty(t, w.Run(p), k)
				require.Equal(t, was, w.Guest(10000).Config[k])
				w.Converged()
			}
		}
	})
}

// TestAttributesChangedByHandAreFound does the same for the keys with attributes.
func TestAttributesChangedByHandAreFound(t *testing.T) {
	inTime(t, twoStorages(), func(t *testing.T, w *world) {
		order := 2
		w.Node("web-1", func(v *guest.VM) {
			v.Power, v.OnBoot, v.Protection, v.Tags, v.Startup = "stopped", true, true, []string{"web"}, &guest.Startup{Order: &order}
			v.NICs = []guest.NIC{{Name: "lan", IP: "10.0.0.5/24", MAC: "BC:24:11:00:00:09", VLAN: 5}}
		})
		w.Apply()
		for _, c := range []struct{ key, byHand, path string }{
			{"name", "other", "name"},
			{"cores", "7", "cores"},
			{"cores", "", "cores"},
			{"memory", "current=1024", "memory"},
			{"memory", "", "memory"},
			{"tags", "homestak", "tags"},
			{"onboot", "0", "onboot"},
			{"protection", "", "protection"},
			{"agent", "0", "agent"},
			{"startup", "order=3", "startup.order"},
			{"ciuser", "root", "ci_user"},
			{"sshkeys", "ssh-rsa%20AAAA", "ssh_keys"},
			{"nameserver", "9.9.9.9", "dns"},
			{"searchdomain", "x.test", "domain"},
			{"net0", "virtio=BC:24:11:00:00:08,bridge=vmbr0,tag=5", "nic.lan.mac"},
			{"net0", "virtio=BC:24:11:00:00:09,bridge=vmbr0", "nic.lan.vlan"},
			{"ipconfig0", "ip=10.0.0.6/24,gw=10.0.0.1", "nic.lan.ip"},
			{"ipconfig0", "ip=10.0.0.5/24", "nic.lan.gateway"},
		} {
			w.Host.Edit(func(e *pve.Edit) { e.Set(10000, c.key, c.byHand) })
			p := w.Plan()
			require.Len(t, p.Steps, 1, "%v", c)
			require.Equal(t, []string{c.path}, proxmoxtest.Paths(p.Steps[0]))
			require.Empty(t, w.Run(p))
			w.Converged()
		}
	})
}

// TestOtherSpellingsOnTheHost: attributes that somebody wrote in another form.
func TestOtherSpellingsOnTheHost(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		order, down := 3, 20
		w.Node("web-1", func(v *guest.VM) {
			v.Description, v.Tags, v.Startup = "notes", []string{"web", "prod"}, &guest.Startup{Order: &order, Down: &down}
			v.NICs = []guest.NIC{{Name: "lan", IP: "10.0.0.5/24", MAC: "bc:24:11:00:00:09"}}
		})
		w.Site.DNS = []string{"10.0.0.1", "10.0.0.2"}
		w.Apply()
		was := w.Guest(10000).Config
		keys := api.DecodeSSHKeys(was["sshkeys"])
		slices.Reverse(keys)
		for key, other := range map[string]string{
			"memory": "current=2048", "tags": "WEB prod,homestak;web", "description": was["description"] + "\n \n", "startup": "down=20,order=3",
			"net0": "bridge=vmbr0,macaddr=bc:24:11:00:00:09,model=virtio", "ipconfig0": "gw=10.0.0.1,ip=10.0.0.5/24", "agent": "enabled=1,type=virtio",
			"nameserver": "10.0.0.1,10.0.0.2", "sshkeys": api.EncodeSSHKeys(append(keys, "", keys[0])), "smbios1": was["smbios1"] + ",manufacturer=YWNtZQ==,base64=1",
			"scsi0": strings.Replace(was["scsi0"], "10G", "10240M", 1), "vmgenid": "11111111-1111-4111-8111-111111111111",
		} {
			w.Host.Edit(func(e *pve.Edit) { e.Set(10000, key, other) })
			p := w.Plan()
			require.Empty(t, p.Steps, "%s: %s", key, proxmoxtest.Describe(p))
		}
	})
}

// TestStateDrivesAreOrderedOnce, moved with their content, and never recreated.
func TestStateDrivesAreOrderedOnce(t *testing.T) {
	inTime(t, twoStorages(), func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) {
			v.Options = map[string]string{"bios": "ovmf", "efidisk0": "local-lvm:1,efitype=4m", "tpmstate0": "local-lvm:1,version=v2.0"}
		})
		w.Apply()
		w.Converged()
		require.Len(t, volumesOf(w, 10000), 4)
		w.VM("web-1").Options["efidisk0"] = "local-zfs:1,efitype=4m"
		p := w.Apply()
		require.Equal(t, []string{"options.efidisk0"}, proxmoxtest.Paths(p.Steps[0]))
		require.Equal(t, model.ClassMigrate, p.Steps[0].Class)
		require.Contains(t, w.Guest(10000).Config["efidisk0"], "local-zfs:")
		require.Len(t, volumesOf(w, 10000), 4, "moved, not recreated")
		w.Converged()
		w.VM("web-1").Options["tpmstate0"] = "local-zfs:1,version=v2.0"
		p = w.Plan()
		require.Empty(t, p.Steps)
		require.Contains(t, fmt.Sprint(p.Findings), "cannot be moved while the guest runs")
		w.VM("web-1").Options["tpmstate0"] = "local-lvm:1,version=v2.0"
		w.VM("web-1").Options["efidisk0"] = "local-zfs:1,efitype=2m"
		p = w.Plan()
		require.Empty(t, p.Steps)
		require.Contains(t, fmt.Sprint(p.Findings), "efidisk0")
	})
}

// TestCloneKeepsItsStateDrives: the template's are copied with the rest, and an order
// for them makes no second ones.
func TestCloneKeepsItsStateDrives(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		golden := map[string]any{"vmid": 9000, "name": "golden", "scsi0": "local-lvm:2", "bios": "ovmf", "efidisk0": "local-lvm:1,efitype=4m"}
		for _, path := range []string{"/nodes/father/qemu", "/nodes/father/qemu/9000/template"} {
			upid, err := w.Driver.Post(t.Context(), path, golden)
			require.NoError(t, err)
			require.NoError(t, w.Driver.WaitTask(t.Context(), upid))
			golden = map[string]any{}
		}
		w.Node("web-1", func(v *guest.VM) {
			v.Template, v.Options = "golden", map[string]string{"bios": "ovmf", "efidisk0": "local-lvm:1,efitype=4m"}
		})
		w.Apply()
		w.Converged()
		require.Len(t, volumesOf(w, 10000), 3, "root, firmware state, cloud-init")
		require.Empty(t, w.Guest(10000).Config["unused0"])
	})
}

// TestOtherPartsOfAKeyStay: an attribute that shares its key with what somebody else
// set writes its own part only.
func TestOtherPartsOfAKeyStay(t *testing.T) {
	inTime(t, pve.Config{}, func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) { v.Power = "stopped" })
		w.Apply()
		card := w.Guest(10000).Config["net0"] // with the address that PVE made up
		w.Host.Edit(func(e *pve.Edit) {
			e.Set(10000, "agent", "enabled=1,fstrim_cloned_disks=1")
			e.Set(10000, "net0", card+",firewall=0,host-tunnel=1")
		})
		w.Converged()
		v := w.VM("web-1")
		v.Agent, v.NICs = false, []guest.NIC{{Name: "lan", IP: "10.0.0.9/24", VLAN: 7}}
		w.Apply()
		w.Converged()
		require.Equal(t, "enabled=0,fstrim_cloned_disks=1", w.Guest(10000).Config["agent"])
		require.Equal(t, "ip=10.0.0.9/24,gw=10.0.0.1", w.Guest(10000).Config["ipconfig0"])
		require.ElementsMatch(t, strings.Split(card+",firewall=0,host-tunnel=1,tag=7", ","), strings.Split(w.Guest(10000).Config["net0"], ","))
	})
}

// volumesOf lists the volumes that carry a VMID, on all storages.
func volumesOf(w *world, vmid int) []string {
	var out []string
	for _, list := range w.Host.Snapshot().Volumes {
		for _, v := range list {
			if v.VMID == vmid {
				out = append(out, v.ID)
			}
		}
	}
	slices.Sort(out)
	return out
}
