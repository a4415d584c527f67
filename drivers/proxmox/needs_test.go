package proxmox_test

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// grants are the needs of the site on its host, as "PRIVILEGE on PATH".
func (w *world) grants(major int) []string {
	w.T.Helper()
	want, found := w.Site.Want("father")
	require.Zero(w.T, found.Errors(), "%v", found)
	var out []string
	for _, n := range proxmox.Needs(w.Site, want, major) {
		text := n.String()
		if n.Soft {
			text = "(" + text + ")"
		}
		out = append(out, text)
	}
	return out
}

// The needs of a plain site, in full, and of each addition to it.
func TestNeedsFollowTheSite(t *testing.T) {
	plain := []string{
		"Sys.AccessNetwork on /nodes/father", "(Sys.Audit on /nodes/father)", "SDN.Use on /sdn/zones/localnetwork/vmbr0",
		"Datastore.Allocate on /storage/local", "Datastore.AllocateTemplate on /storage/local", "Datastore.Audit on /storage/local",
		"Datastore.AllocateSpace on /storage/local-lvm",
		"VM.Allocate on /vms", "VM.Audit on /vms", "VM.Config.CDROM on /vms", "VM.Config.CPU on /vms", "VM.Config.Cloudinit on /vms",
		"VM.Config.Disk on /vms", "VM.Config.HWType on /vms", "VM.Config.Memory on /vms", "VM.Config.Network on /vms", "VM.Config.Options on /vms",
		"VM.PowerMgmt on /vms",
	}
	option := func(key, value string) func(*world, *guest.VM, *model.Node) {
		return func(_ *world, v *guest.VM, _ *model.Node) { v.Options = map[string]string{key: value} }
	}
	check := func(c model.Check) func(*world, *guest.VM, *model.Node) {
		return func(_ *world, _ *guest.VM, n *model.Node) { n.Checks = []model.Check{c} }
	}
	enter := func(via model.Via) func(*world, *guest.VM, *model.Node) {
		return func(w *world, v *guest.VM, n *model.Node) {
			w.Site.Specs = map[string]*model.Spec{"base": {Name: "base", Access: &model.Access{Via: via}}}
			n.Spec, n.Mode, v.Agent = "base", model.ModePush, true
		}
	}
	for _, c := range []struct {
		name  string
		major int
		edit  func(*world, *guest.VM, *model.Node)
		adds  []string
	}{
		{"nothing more", 9, nil, nil},
		{"startup", 9, func(_ *world, v *guest.VM, _ *model.Node) { v.Startup = &guest.Startup{} }, []string{"Sys.Modify on /"}},
		{"a vlan", 9, func(_ *world, v *guest.VM, _ *model.Node) {
			v.NICs = []guest.NIC{{Name: "lan"}, {Name: "dmz", Bridge: "vmbr1", VLAN: 12}}
		}, []string{"SDN.Use on /sdn/zones/localnetwork/vmbr1/12"}},
		{"a disk elsewhere", 9, func(_ *world, v *guest.VM, _ *model.Node) {
			v.Disks = []guest.Disk{{Name: "data", Size: 5, Storage: "fast"}}
		}, []string{"Datastore.AllocateSpace on /storage/fast"}},
		{"firmware with a disk", 9, option("efidisk0", "fast:1,efitype=4m"), []string{"Datastore.AllocateSpace on /storage/fast"}},
		{"a mapped device", 9, option("hostpci0", "mapping=gpu"), []string{"Mapping.Use on /mapping/pci/gpu"}},
		{"ballooning", 9, option("balloon", "512"), nil},
		{"the agent, on 9", 9, check(model.Check{Name: "up", Agent: true}), []string{"VM.GuestAgent.Audit on /vms"}},
		{"the agent, on 8", 8, check(model.Check{Name: "up", Agent: true}), []string{"VM.Monitor on /vms"}},
		{"a command, on 9", 9, check(model.Check{Name: "up", Command: "true"}), []string{"VM.GuestAgent.Unrestricted on /vms"}},
		{"a check from outside, of an unknown address", 9, check(model.Check{Name: "up", TCP: "22"}), []string{"VM.GuestAgent.Audit on /vms"}},
		{"a check of another machine", 9, check(model.Check{Name: "up", HTTP: "http://db.example/health"}), nil},
		{"a check from outside, of a static address", 9, func(_ *world, v *guest.VM, n *model.Node) {
			v.NICs = []guest.NIC{{Name: "lan", IP: "10.0.0.5/24"}}
			n.Checks = []model.Check{{Name: "up", SSH: true}}
		}, nil},
		{"a check of what is stopped", 9, func(_ *world, v *guest.VM, n *model.Node) {
			v.Power = "stopped"
			n.Checks = []model.Check{{Name: "up", Agent: true}}
		}, nil},
		{"a spec by the agent, on 9", 9, enter(model.ViaAgent), []string{"VM.GuestAgent.Unrestricted on /vms"}},
		{"a spec by the agent, on 8", 8, enter(model.ViaAgent), []string{"VM.Monitor on /vms"}},
		{"R1, a spec by ssh if there is a key, on 9", 9, enter(""), []string{"(VM.GuestAgent.Unrestricted on /vms)"}},
		{"R1, a spec by ssh, on 9", 9, enter(model.ViaSSH), []string{"VM.GuestAgent.Unrestricted on /vms"}},
		{"R1, a spec by ssh, on 8", 8, enter(model.ViaSSH), []string{"VM.Monitor on /vms"}},
		{"R1, a spec by the key of the host", 9, func(w *world, v *guest.VM, n *model.Node) {
			enter("")(w, v, n)
			w.Site.Hosts["father"].SSH = &model.HostSSH{Key: "a key"}
			v.NICs = []guest.NIC{{Name: "lan", IP: "10.0.0.5/24"}}
		}, []string{"VM.GuestAgent.Unrestricted on /vms"}},
		{"R1, a spec by ssh without an agent", 9, func(w *world, v *guest.VM, n *model.Node) {
			enter(model.ViaSSH)(w, v, n)
			v.Agent = false
		}, nil},
		{"a final backup", 9, func(w *world, _ *guest.VM, n *model.Node) {
			w.Site.Hosts["father"].Storage = &model.Storage{Backups: "vault"}
			n.Decomm = &model.Decomm{Policy: "requires_final_backup"}
		}, []string{"Datastore.AllocateSpace on /storage/vault", "Datastore.Audit on /storage/vault", "VM.Backup on /vms"}},
		{"a migration", 9, func(_ *world, _ *guest.VM, n *model.Node) {
			n.Decomm = &model.Decomm{Policy: "requires_migration_first"}
		}, nil},
		{"user_data", 9, func(w *world, v *guest.VM, _ *model.Node) {
			w.Site.Hosts["father"].Storage = &model.Storage{ISO: "isos"}
			v.UserData, v.Agent = "#cloud-config\n", true
		}, []string{"(Datastore.Allocate on /storage/isos)", "Datastore.AllocateTemplate on /storage/isos", "Datastore.Audit on /storage/isos", "(VM.GuestAgent.Audit on /vms)"}},
		{"a folder of the host", 9, option("virtiofs0", "dirid=share"), []string{"Mapping.Use on /mapping/dir/share"}},
		{"a CPU model of the administrator's", 9, option("cpu", "custom-old,flags=+aes"), []string{"Mapping.Use on /mapping/cpu/old"}},
		{"the same, on 8", 8, option("cpu", "cputype=custom-old"), []string{"Sys.Audit on /nodes"}},
		{"a CPU model of PVE's", 9, option("cpu", "host"), nil},
		{"documents of the administrator's", 9, option("cicustom", "user=snips:snippets/u.yaml"), []string{"(Datastore.Allocate on /storage/snips)"}},
		{"where a state is saved", 9, option("vmstatestorage", "fast"), []string{"Datastore.AllocateSpace on /storage/fast"}},
		{"a cluster", 9, func(w *world, _ *guest.VM, _ *model.Node) {
			w.Site.Hosts["father"].Nodes = []string{"father", "uncle"}
		}, []string{"(Sys.Audit on /)", "(Sys.Audit on /nodes/uncle)", "Sys.AccessNetwork on /nodes/uncle"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, pve.Config{})
			n := w.Node("web", nil)
			w.Node("other", nil)
			if c.edit != nil {
				c.edit(w, n.Resource.Spec.(*guest.VM), n)
			}
			require.ElementsMatch(t, slices.Concat(plain, c.adds), w.grants(c.major))
		})
	}
}

// A host with a pool needs its rights there, an image of the site no network, and a
// clone the template instead of any image.
func TestNeedsOfPoolFileAndTemplate(t *testing.T) {
	w := newWorld(t, pve.Config{})
	w.Site.Hosts["father"].Pool = "ours"
	w.Site.Objects[model.Address{Kind: "pool", Name: "ours"}] = &model.Resource{Addr: model.Address{Kind: "pool", Name: "ours"}, Spec: &objects.Pool{Host: "father"}}
	w.Site.Objects[model.Address{Kind: "image", Name: "debian-12"}].Spec = &objects.Image{File: "images/d.qcow2"}
	w.Node("copy", func(v *guest.VM) { v.Template = "golden" })
	got := w.grants(9)
	require.Contains(t, got, "VM.Clone on /vms/9000")
	require.Contains(t, got, "VM.Allocate on /pool/ours")
	require.Contains(t, got, "Pool.Allocate on /pool/ours")
	require.Contains(t, got, "Pool.Audit on /pool/ours")
	require.NotContains(t, strings.Join(got, "\n"), "/storage/local\n")
	w.Node("web", nil)
	require.Contains(t, w.grants(9), "Datastore.AllocateTemplate on /storage/local")
	require.NotContains(t, w.grants(9), "Sys.AccessNetwork on /nodes/father")
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
