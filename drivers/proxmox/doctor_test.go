package proxmox_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/doctor"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
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

// What a plain site needs, in full, and what each thing in it adds.
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
	enter := func(via string) func(*world, *guest.VM, *model.Node) {
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
		}, []string{"(Sys.Audit on /)", "(Sys.Audit on /nodes/uncle)"}},
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

// A spec by pct exec takes root, which doctor says.
func TestR9DoctorNamesPctExec(t *testing.T) {
	w := newWorld(t, pve.Config{})
	w.CT("box", nil)
	n := w.Site.Manifests["web"].Nodes[0]
	require.False(t, slices.ContainsFunc(w.examine(nil), func(c doctor.Check) bool { return c.Name == "pct exec" }))
	w.Site.Specs = map[string]*model.Spec{"base": {Name: "base", Access: &model.Access{Via: model.ViaExec}}}
	n.Spec, n.Mode = "base", model.ModePush
	got := said(t, w.examine(nil), "pct exec")
	if os.Geteuid() == 0 {
		require.Equal(t, "this runs as root; the agent of the installed unit does not, and cannot apply the specs of ct.box", got.Seen)
		return
	}
	require.Equal(t, doctor.Warning, got.Result)
	require.Equal(t, fmt.Sprintf("it needs root on the node, and this runs as user %d", os.Geteuid()), got.Seen)
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

// examine lets the doctor look at the host of the world; the edit may change how.
func (w *world) examine(edit func(*doctor.Doctor)) []doctor.Check {
	w.T.Helper()
	want, found := w.Site.Want("father")
	require.Zero(w.T, found.Errors(), "%v", found)
	d := &doctor.Doctor{
		Config: proxmox.Config{Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(), Transport: w.Host},
		Want:   want, Of: w.Site,
	}
	if edit != nil {
		edit(d)
	}
	return d.Examine(w.T.Context())
}

// said finds what was said under a name.
func said(t *testing.T, checks []doctor.Check, name string) doctor.Check {
	t.Helper()
	for _, c := range checks {
		if c.Name == name && c.Result != doctor.OK {
			return c
		}
	}
	for _, c := range checks {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("nothing is said of %s: %v", name, checks)
	return doctor.Check{}
}

func TestDoctorLooksAtStorages(t *testing.T) {
	w := newWorld(t, pve.Config{})
	w.Node("web", nil)
	require.Equal(t, doctor.OK, said(t, w.examine(nil), "storage local-lvm").Result)

	w.Host.Edit(func(e *pve.Edit) { e.Fill("local-lvm", true) })
	full := said(t, w.examine(nil), "storage local-lvm")
	require.Equal(t, doctor.Failed, full.Result)
	require.Equal(t, "it is full (0 MiB free), and what is still to be created needs up to 10 GiB", full.Seen)
	w.Host.Edit(func(e *pve.Edit) { e.Fill("local-lvm", false) })
	w.Apply()
	w.Host.Edit(func(e *pve.Edit) { e.Fill("local-lvm", true) })
	full = said(t, w.examine(nil), "storage local-lvm")
	require.Equal(t, doctor.Warning, full.Result, "nothing is to be made there, but nothing can grow either")
	require.Equal(t, "it is full: 0 MiB free", full.Seen)

	w.Root(http.MethodPut, "/storage/local-lvm", url.Values{"disable": {"1"}})
	off := said(t, w.examine(nil), "storage local-lvm")
	require.Equal(t, doctor.Failed, off.Result)
	require.Equal(t, []string{"pvesm set local-lvm --disable 0"}, off.Fix)
}

func TestDoctorLooksAtTemplates(t *testing.T) {
	w := newWorld(t, pve.Config{})
	w.Node("copy", func(v *guest.VM) { v.Template = "golden" })
	require.Equal(t, "no guest has this VMID", said(t, w.examine(nil), "template 9000").Seen)

	w.Host.Edit(func(e *pve.Edit) { e.Add(pve.Guest{VMID: 9000, Config: map[string]string{"name": "golden"}}) })
	plain := said(t, w.examine(nil), "template 9000")
	require.Equal(t, doctor.Failed, plain.Result)
	require.Contains(t, plain.Fix[0], "qm template 9000")

	w.Host.Edit(func(e *pve.Edit) { e.Set(9000, "template", "1") }) // the cluster's list shows that ten seconds later
	require.Equal(t, doctor.OK, said(t, w.examine(nil), "template 9000").Result)

	w.Host.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: 9000, Kind: "lxc", Config: map[string]string{"hostname": "golden"}})
	})
	require.Equal(t, "it is a container", said(t, w.examine(nil), "template 9000").Seen)
}

// Who clones a template needs its bridges too, whatever the site plugs the copy into.
func TestDoctorKnowsTheBridgesOfATemplate(t *testing.T) {
	w := newWorld(t, pve.Config{Token: "ops@pve!agent=secret", Bridges: []string{"vmbr0", "vmbr1"}})
	w.Node("copy", func(v *guest.VM) { v.Template = "golden" })
	w.Host.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: 9000, Config: map[string]string{"name": "golden", "template": "1", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr1"}})
	})
	require.Equal(t, doctor.OK, said(t, w.examine(nil), "template 9000").Result)
	w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/sdn/zones/localnetwork/vmbr1"}, "users": {"ops@pve"}, "roles": {"NoAccess"}})
	got := said(t, w.examine(nil), "template 9000")
	require.Equal(t, "SDN.Use missing on /sdn/zones/localnetwork/vmbr1", got.Seen)
	require.True(t, got.Denied)
}

// A template that the token may clone and not see is not taken for missing.
func TestDoctorKnowsAHiddenTemplate(t *testing.T) {
	w := newWorld(t, pve.Config{Token: "ops@pve!agent=secret"})
	w.Node("copy", func(v *guest.VM) { v.Template = "golden" })
	w.Host.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: 9000, Config: map[string]string{"name": "golden", "template": "1"}})
	})
	w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/vms/9000"}, "users": {"ops@pve"}, "roles": {"NoAccess"}})
	require.Equal(t, doctor.NotChecked, said(t, w.examine(nil), "template 9000").Result)
}

func TestDoctorComparesFilesOfTheSite(t *testing.T) {
	const sum = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" // of "test"
	for _, c := range []struct {
		name, file, checksum string
		result               doctor.Result
	}{
		{"right", "d.qcow2", sum, doctor.OK},
		{"without a checksum", "d.qcow2", "", doctor.OK},
		{"another content", "d.qcow2", strings.Replace(sum, "9f", "00", 1), doctor.Failed},
		{"not there", "e.qcow2", sum, doctor.Failed},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, pve.Config{})
			w.Node("web", nil)
			w.Site.Objects[model.Address{Kind: "image", Name: "debian-12"}].Spec = &objects.Image{File: c.file, Checksum: c.checksum}
			files := fstest.MapFS{"d.qcow2": {Data: []byte("test")}}
			got := said(t, w.examine(func(d *doctor.Doctor) { d.Files = fs.FS(files) }), "image debian-12")
			require.Equal(t, c.result, got.Result, got.Seen)
		})
	}
}

func TestDoctorLetsTheHostTryDownloads(t *testing.T) {
	w := newWorld(t, pve.Config{})
	w.Node("web", nil)
	w.Site.Objects[model.Address{Kind: "image", Name: "debian-12"}].Spec = &objects.Image{URL: "http://nowhere.invalid/d.qcow2"}
	got := said(t, w.examine(nil), "image debian-12")
	require.Equal(t, doctor.Failed, got.Result)
	require.Contains(t, got.Seen, "http://nowhere.invalid/d.qcow2")
	require.False(t, got.Denied)
}

// A host that takes requests and never answers costs a check its own time and no
// more, and what follows says why it is not checked.
func TestDoctorDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pve.Config{})
		w.Node("web", nil)
		began := time.Now()
		checks := w.examine(func(d *doctor.Doctor) {
			d.Transport = proxmox.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				return nil, r.Context().Err()
			})
		})
		require.Equal(t, 15*time.Second, time.Since(began))
		require.Equal(t, doctor.Failed, said(t, checks, "login").Result)
		require.Equal(t, "login failed", said(t, checks, "storages").Seen)
	})
}

// Who stops it gets what was seen until then, and no trouble that is none.
func TestDoctorCanBeStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pve.Config{Latency: time.Second})
		w.Node("web", nil)
		want, _ := w.Site.Want("father")
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		d := &doctor.Doctor{
			Config: proxmox.Config{Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(), Transport: w.Host},
			Want:   want, Of: w.Site,
		}
		checks := d.Examine(ctx)
		require.Equal(t, doctor.OK, said(t, checks, "login").Result)
		require.Equal(t, doctor.NotChecked, said(t, checks, "bridges").Result)
		for _, c := range checks {
			require.NotEqual(t, doctor.Failed, c.Result, c.Seen)
		}
	})
}

// A part of the API that hangs does not keep the rest from being checked.
func TestDoctorGoesOnBehindWhatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pve.Config{})
		w.Node("web", nil)
		checks := w.examine(func(d *doctor.Doctor) {
			d.Transport = proxmox.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
				if strings.HasSuffix(r.URL.Path, "/nodes/father/storage") {
					<-r.Context().Done()
					return nil, r.Context().Err()
				}
				return w.Host.RoundTrip(r)
			})
		})
		require.Equal(t, doctor.Failed, said(t, checks, "storages").Result)
		require.Equal(t, doctor.OK, said(t, checks, "bridge vmbr0").Result)
		require.Equal(t, doctor.OK, said(t, checks, "image debian-12").Result)
	})
}

// A guest whose making died is named, with the command that clears it.
func TestDoctorFindsWhatACrashLeft(t *testing.T) {
	w := newWorld(t, pve.Config{})
	w.Node("web", nil)
	w.Host.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: 10000, Lock: "create", Config: map[string]string{"name": "web"}})
	})
	got := said(t, w.examine(nil), "guests")
	require.Equal(t, doctor.Warning, got.Result)
	require.Contains(t, got.Fix[0], "qm unlock 10000 && qm destroy 10000")
}

// listen serves the host over TLS, and lets the site reach it there.
func (w *world) listen() *model.Host {
	w.T.Helper()
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(w.T, err)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- w.Host.Serve(ctx, l) }()
	w.T.Cleanup(func() {
		stop()
		require.NoError(w.T, <-served)
	})
	h := w.Site.Hosts["father"]
	h.API, h.Fingerprint = "https://"+l.Addr().String(), w.Host.Fingerprint()
	return h
}

func TestDoctorJudgesTheCertificate(t *testing.T) {
	w := newWorld(t, pve.Config{})
	h := w.listen()
	over := func(now time.Time) doctor.Check {
		return said(t, w.examine(func(d *doctor.Doctor) {
			d.Transport, d.Now = nil, func() time.Time { return now }
		}), "certificate")
	}
	require.Equal(t, doctor.OK, over(time.Now()).Result)
	soon := over(time.Now().AddDate(2, 0, -10))
	require.Equal(t, doctor.Warning, soon.Result)
	require.Regexp(t, `^it ends in (9|10) days, on `, soon.Seen)
	require.Regexp(t, "^it ended on ", over(time.Now().AddDate(2, 0, 10)).Seen)

	h.Fingerprint = "12:34"
	require.Contains(t, over(time.Now()).Seen, "is not a SHA-256")
}

func TestDoctorJudgesByAuthorityAndName(t *testing.T) {
	w := newWorld(t, pve.Config{})
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	h := w.Site.Hosts["father"]
	h.CA, h.CAPEM = "ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	look := func() doctor.Check {
		return said(t, w.examine(func(d *doctor.Doctor) { d.Transport = nil }), "certificate")
	}
	h.API = server.URL
	require.Equal(t, doctor.OK, look().Result)
	h.API = strings.Replace(server.URL, "127.0.0.1", "localhost", 1) // not among the names of that certificate
	other := look()
	require.Equal(t, doctor.Failed, other.Result)
	require.Contains(t, other.Seen, "it is for other names than localhost")
	require.Contains(t, strings.Join(other.Fix, "\n"), `fingerprint = "sha256:`)
}

// hears lets the doctor hear another answer under a path.
func (w *world) hears(path string, how reply) func(*doctor.Doctor) {
	return func(d *doctor.Doctor) {
		d.Transport = proxmox.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
			truth := func() (*http.Response, error) { return w.Host.RoundTrip(r) }
			if strings.TrimPrefix(r.URL.Path, "/api2/json") == path {
				return how(r, truth)
			}
			return truth()
		})
	}
}

// Every version between the oldest and the newest that the program is tried with is good.
func TestDoctorJudgesTheVersion(t *testing.T) {
	for version, want := range map[string]doctor.Result{
		"7.4-17": doctor.Failed, "8.3.5": doctor.Failed, "8.4.0": doctor.OK, "8.4-1": doctor.OK, "8.10.2": doctor.OK,
		"9.0.3": doctor.OK, "9.2.11": doctor.OK, "10.0.1": doctor.Warning, "unknown": doctor.Warning,
	} {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t, pve.Config{})
			got := said(t, w.examine(w.hears("/version", fixed(http.StatusOK, fmt.Sprintf(`{"data":{"version":%q}}`, version)))), "version")
			require.Equal(t, want, got.Result, got.Seen)
			require.Contains(t, got.Seen, version)
			require.Equal(t, want != doctor.OK, len(got.Fix) > 0)
		})
	}
}

// Without quorum no change is taken, however healthy all else looks.
func TestDoctorMissesTheQuorum(t *testing.T) {
	w := newWorld(t, pve.Config{Nodes: []string{"mother"}})
	require.Equal(t, doctor.OK, said(t, w.examine(nil), "quorum").Result)
	w.Host.Edit(func(e *pve.Edit) { e.Quorum(false) })
	got := said(t, w.examine(nil), "quorum")
	require.Equal(t, doctor.Failed, got.Result)
	require.Contains(t, got.Seen, "has no quorum")
	require.Contains(t, got.Fix[0], "pvecm status")
}

// A node of the site that is down is a failure where guests are made on it, and a
// warning where they could only have moved there.
func TestDoctorFindsNodesThatAreDown(t *testing.T) {
	w := newWorld(t, pve.Config{Nodes: []string{"mother"}, Offline: []string{"mother"}})
	w.Site.Hosts["father"].Nodes = []string{"father", "mother"}
	got := said(t, w.examine(nil), "nodes")
	require.Equal(t, doctor.Warning, got.Result)
	require.Contains(t, got.Fix[0], "then start mother")
	w.Site.Hosts["father"].Node = "mother"
	got = said(t, w.examine(nil), "nodes")
	require.Equal(t, doctor.Failed, got.Result)
	require.Equal(t, "node mother is offline", got.Seen)
	require.Contains(t, got.Fix[0], "then start mother")
}

// Nodes that are hosts themselves need the instructions of virtualisation; others do not.
func TestDoctorLooksForVirtualisation(t *testing.T) {
	for flags, want := range map[string]struct {
		result doctor.Result
		says   string
	}{
		"fpu vmx sse": {doctor.OK, "/sys/module/kvm_intel/parameters/nested"},
		"fpu svm sse": {doctor.OK, "/sys/module/kvm_amd/parameters/nested"},
		"fpu vmxx":    {doctor.Failed, "shows neither vmx nor svm"},
	} {
		t.Run(flags, func(t *testing.T) {
			w := newWorld(t, pve.Config{})
			n := w.Node("inner", nil)
			how := w.hears("/nodes/father/status", fixed(http.StatusOK, fmt.Sprintf(`{"data":{"cpuinfo":{"flags":%q}}}`, flags)))
			for _, c := range w.examine(how) {
				require.NotEqual(t, "nested virtualisation", c.Name, "nobody needs it")
			}
			n.Type, n.Resource.Addr = "pve", model.Address{Kind: "pve", Name: "inner"}
			got := said(t, w.examine(how), "nested virtualisation")
			require.Equal(t, want.result, got.Result)
			require.Contains(t, got.Seen, want.says)
			if want.result == doctor.Failed {
				require.Contains(t, got.Why, "pve.inner")
				require.Contains(t, got.Fix[0], "qm set VMID --cpu host")
			}
		})
	}
}

// A storage that the node does not get at is told from one that is not there.
func TestDoctorFindsAStorageThatIsAway(t *testing.T) {
	w := newWorld(t, pve.Config{})
	w.Node("web", nil)
	got := said(t, w.examine(w.hears("/nodes/father/storage", bent(func(e map[string]any) map[string]any {
		if e["storage"] == "local-lvm" {
			e["active"] = 0
		}
		return e
	}))), "storage local-lvm")
	require.Equal(t, doctor.Failed, got.Result)
	require.Contains(t, got.Seen, "it is not active")
	require.Contains(t, got.Fix[0], "on node father: pvesm status")
}
