package proxmox_test

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/doctor"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// optionValues are a value of every key that an option may have.
var optionValues = map[string]string{
	"acpi": "0", "allow-ksm": "0", "audio0": "device=ich9-intel-hda", "autostart": "1", "balloon": "0", "bios": "ovmf", "boot": "order=net0",
	"cicustom": "user=local:snippets/u.yaml", "citype": "nocloud", "ciupgrade": "0", "cpu": "host", "cpulimit": "1", "cpuunits": "200",
	"efidisk0": "local-lvm:1", "freeze": "1", "hostpci[n]": "mapping=gpu", "hotplug": "disk", "ide[n]": "none,media=cdrom", "keyboard": "de", "kvm": "0", "localtime": "1",
	"machine": "q35", "migrate_downtime": "1", "migrate_speed": "5", "numa": "1", "numa[n]": "cpus=0,memory=512", "ostype": "l26", "reboot": "0",
	"rng0": "source=/dev/urandom", "scsihw": "virtio-scsi-single", "serial[n]": "socket", "shares": "500", "startdate": "now",
	"tablet": "0", "tdf": "1", "tpmstate0": "local-lvm:1,version=v2.0", "usb[n]": "mapping=stick", "vcpus": "1", "vga": "std",
	"virtiofs[n]": "dirid=share", "vmstatestorage": "local-lvm", "watchdog": "model=i6300esb",
}

// Each key that the files may set asks for the privilege without which PVE refuses
// it, and with which it does not. None is left that only root@pam could set.
func TestOptionsAskForWhatPVEAsks(t *testing.T) {
	m, _, _ := pveapi.Lookup(http.MethodPost, "/nodes/n/qemu")
	for family := range m.Params {
		key := strings.Replace(family, "[n]", "0", 1)
		if guest.SetBy(family) != "" || guest.RefusedKey(family) != "" {
			continue
		}
		t.Run(key, func(t *testing.T) {
			value := optionValues[family]
			require.NotEmpty(t, value, "no value of it is tried")
			w := newWorld(t, pve.Config{Token: "ops@pve!agent=secret"})
			w.Host.Edit(func(e *pve.Edit) {
				e.Add(pve.Guest{VMID: 9500, Config: map[string]string{"name": "g"}})
			})
			priv := guest.KeyPrivilege(key)
			others := strings.Fields("VM.PowerMgmt VM.Config.CPU VM.Config.Memory VM.Config.Disk VM.Config.HWType VM.Config.Options VM.Config.Cloudinit VM.Config.Network VM.Config.CDROM")
			others = slices.DeleteFunc(others, func(p string) bool {
				return p == priv || priv == "VM.Config.Cloudinit" && p == "VM.Config.Network" // does as well
			})
			w.Root(http.MethodPost, "/access/roles", url.Values{"roleid": {"Try"}, "privs": {priv}})
			w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/vms/9500"}, "users": {"ops@pve"}, "roles": {"Try"}})
			set := func(privs ...string) (int, string) {
				w.Root(http.MethodPut, "/access/roles/Try", url.Values{"privs": {strings.Join(privs, ",")}})
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://pve.test:8006/api2/json/nodes/father/qemu/9500/config", strings.NewReader(url.Values{key: {value}}.Encode()))
				require.NoError(t, err)
				r.Header.Set("Authorization", "PVEAPIToken=ops@pve!agent=secret")
				r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				res, err := w.Host.RoundTrip(r)
				require.NoError(t, err)
				body, err := io.ReadAll(res.Body)
				require.NoError(t, err)
				require.NoError(t, res.Body.Close())
				return res.StatusCode, res.Status + " " + string(body)
			}
			status, said := set(others...)
			require.Equal(t, http.StatusForbidden, status, "without %s: %s", priv, said)
			status, said = set(priv, "VM.Config.Options") // which a site has anyway, and some VM.Config privilege PVE wants for any change
			require.NotEqual(t, http.StatusForbidden, status, "with %s: %s", priv, said)
			require.NotContains(t, said, "only root")
		})
	}
}

// A container asks for less than a machine, and for other content of its storages;
// a template for what making or seeing it takes.
func TestNeedsOfContainers(t *testing.T) {
	base := []string{
		"(Sys.Audit on /nodes/father)", "SDN.Use on /sdn/zones/localnetwork/vmbr0", "Datastore.AllocateSpace on /storage/local-lvm",
		"VM.Allocate on /vms", "VM.Audit on /vms", "VM.Config.CPU on /vms", "VM.Config.Disk on /vms", "VM.Config.Memory on /vms",
		"VM.Config.Network on /vms", "VM.Config.Options on /vms", "VM.PowerMgmt on /vms",
	}
	download := []string{
		"Datastore.Allocate on /storage/local", "Datastore.AllocateTemplate on /storage/local", "Datastore.Audit on /storage/local",
		"Sys.AccessNetwork on /nodes/father",
	}
	for _, c := range []struct {
		name string
		edit func(*world, *guest.CT)
		adds []string
	}{
		{"a download", nil, download},
		{"startup is an option like any other", func(_ *world, c *guest.CT) { c.Startup = &guest.Startup{} }, download},
		{"more", func(_ *world, c *guest.CT) {
			c.Options = map[string]string{"cpulimit": "1", "tty": "2"}
			c.Disks = []guest.CTDisk{{Name: "data", Size: 1, Path: "/srv", Storage: "fast"}}
			c.NICs = []guest.CTNIC{{Name: "lan"}, {Name: "dmz", Bridge: "vmbr1", VLAN: 12}}
		}, append([]string{"Datastore.AllocateSpace on /storage/fast", "SDN.Use on /sdn/zones/localnetwork/vmbr1/12"}, download...)},
		{"a volume", func(w *world, _ *guest.CT) {
			w.declare("debian-ct", &guest.Template{Volume: "shelf:vztmpl/x.tar.zst"})
		}, []string{"Datastore.Audit on /storage/shelf"}},
		{"with the host's root", func(_ *world, c *guest.CT) { c.Unprivileged = false }, append([]string{"Sys.Modify on /"}, download...)},
		{"a clone", func(w *world, _ *guest.CT) { w.declare("debian-ct", &guest.Template{VMID: 9000}) }, []string{"VM.Audit on /vms/9000", "VM.Clone on /vms/9000"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, pve.Config{})
			spec := w.ct("web", nil)
			if c.edit != nil {
				c.edit(w, spec)
			}
			require.ElementsMatch(t, slices.Concat(base, c.adds), w.grants(9))
		})
	}
}

func TestDoctorLooksAtTemplatesOfContainers(t *testing.T) {
	w := newWorld(t, pve.Config{})
	w.ct("copy", nil)
	w.declare("debian-ct", &guest.Template{VMID: 9000})
	require.Contains(t, said(t, w.examine(nil), "template 9000").Fix[0], "pct list")

	w.Host.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: 9000, Config: map[string]string{"name": "golden", "template": "1"}})
	})
	require.Equal(t, "it is a VM", said(t, w.examine(nil), "template 9000").Seen)

	w.Host.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: 9000, Kind: "lxc", Config: map[string]string{"hostname": "golden"}})
	})
	require.Contains(t, said(t, w.examine(nil), "template 9000").Fix[0], "pct template 9000")
	w.Host.Edit(func(e *pve.Edit) { e.Set(9000, "template", "1") })
	require.Equal(t, doctor.OK, said(t, w.examine(nil), "template 9000").Result)

	w.declare("debian-ct", &guest.Template{Volume: "local:vztmpl/x.tar.zst"})
	missing := said(t, w.examine(nil), "template debian-ct")
	require.Equal(t, doctor.Failed, missing.Result)
	require.Equal(t, "no such volume on father", missing.Seen)
	w.Root(http.MethodPost, "/nodes/father/storage/local/download-url", url.Values{"content": {"vztmpl"}, "filename": {"x.tar.zst"}, "url": {"https://images.test/x.tar.zst"}})
	require.Eventually(t, func() bool { return said(t, w.examine(nil), "template debian-ct").Result == doctor.OK }, 5*time.Minute, 20*time.Millisecond)
}

// Who manages guests by HA hears of the one privilege that only a removal may need.
func TestDoctorWarnsOfHA(t *testing.T) {
	w := newWorld(t, pve.Config{Token: "ops@pve!agent=secret"})
	w.Node("web", nil)
	w.Apply()
	require.Equal(t, doctor.OK, said(t, w.examine(nil), "guests").Result)
	w.Root(http.MethodPost, "/cluster/ha/resources", url.Values{"sid": {"vm:10000"}})
	require.Equal(t, doctor.OK, said(t, w.examine(nil), "guests").Result, "the token may do all")
	w.Root(http.MethodPost, "/access/roles", url.Values{"roleid": {"Less"}, "privs": {"Sys.Audit,Sys.Modify,Sys.AccessNetwork,SDN.Use,Datastore.Allocate,Datastore.AllocateSpace,Datastore.AllocateTemplate,Datastore.Audit"}})
	w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/vms"}, "users": {"ops@pve"}, "roles": {"Administrator"}})
	w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/"}, "users": {"ops@pve"}, "roles": {"Less"}})
	w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/"}, "users": {"ops@pve"}, "roles": {"Administrator"}, "delete": {"1"}})
	require.Eventually(t, func() bool {
		got := said(t, w.examine(nil), "guests")
		return got.Result == doctor.Warning && strings.Contains(got.Seen, "vm.web (10000)") && strings.Contains(strings.Join(got.Fix, "\n"), "HomestakHA")
	}, 5*time.Minute, 20*time.Millisecond)
}
