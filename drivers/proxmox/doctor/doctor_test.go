package doctor_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
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
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/images"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/sim/pve/simtest"
)

// hears lets the doctor hear another answer under a path.
func hears(w *proxmoxtest.World, path, body string) func(*doctor.Doctor) {
	return func(d *doctor.Doctor) {
		d.Transport = proxmoxtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
			if strings.TrimPrefix(r.URL.Path, "/api2/json") == path {
				return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
			}
			return w.Host.RoundTrip(r)
		})
	}
}

func TestDoctorChecksTemplatesOfContainers(t *testing.T) {
	w := proxmoxtest.New(t, pve.Config{})
	w.CT("copy", nil)
	w.Declare("debian-ct", &guest.Template{VMID: 9000})
	require.Contains(t, proxmoxtest.CheckNamed(t, w.Examine(nil), "template 9000").Fix[0], "pct list")

	w.Host.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: 9000, Config: map[string]string{"name": "golden", "template": "1"}})
	})
	require.Equal(t, "it is a VM", proxmoxtest.CheckNamed(t, w.Examine(nil), "template 9000").Seen)

	w.Host.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: 9000, Kind: "lxc", Config: map[string]string{"hostname": "golden"}})
	})
	require.Contains(t, proxmoxtest.CheckNamed(t, w.Examine(nil), "template 9000").Fix[0], "pct template 9000")
	w.Host.Edit(func(e *pve.Edit) { e.Set(9000, "template", "1") })
	require.Equal(t, doctor.OK, proxmoxtest.CheckNamed(t, w.Examine(nil), "template 9000").Result)

	w.Declare("debian-ct", &guest.Template{Volume: "local:vztmpl/x.tar.zst"})
	missing := proxmoxtest.CheckNamed(t, w.Examine(nil), "template debian-ct")
	require.Equal(t, doctor.Failed, missing.Result)
	require.Equal(t, "no such volume on father", missing.Seen)
	w.Root(http.MethodPost, "/nodes/father/storage/local/download-url", url.Values{"content": {"vztmpl"}, "filename": {"x.tar.zst"}, "url": {"https://images.test/x.tar.zst"}})
	require.Eventually(t, func() bool {
		return proxmoxtest.CheckNamed(t, w.Examine(nil), "template debian-ct").Result == doctor.OK
	}, 5*time.Minute, 20*time.Millisecond)
}

// With guests under HA, the doctor names the one privilege that only a removal may need.
func TestDoctorWarnsOfHA(t *testing.T) {
	w := proxmoxtest.New(t, pve.Config{Token: "ops@pve!agent=secret"})
	w.Node("web", nil)
	w.Apply()
	require.Equal(t, doctor.OK, proxmoxtest.CheckNamed(t, w.Examine(nil), "guests").Result)
	w.Root(http.MethodPost, "/cluster/ha/resources", url.Values{"sid": {"vm:10000"}})
	require.Equal(t, doctor.OK, proxmoxtest.CheckNamed(t, w.Examine(nil), "guests").Result, "the token may do all")
	w.Root(http.MethodPost, "/access/roles", url.Values{"roleid": {"Less"}, "privs": {"Sys.Audit,Sys.Modify,Sys.AccessNetwork,SDN.Use,Datastore.Allocate,Datastore.AllocateSpace,Datastore.AllocateTemplate,Datastore.Audit"}})
	w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/vms"}, "users": {"ops@pve"}, "roles": {"Administrator"}})
	w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/"}, "users": {"ops@pve"}, "roles": {"Less"}})
	w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/"}, "users": {"ops@pve"}, "roles": {"Administrator"}, "delete": {"1"}})
	require.Eventually(t, func() bool {
		got := proxmoxtest.CheckNamed(t, w.Examine(nil), "guests")
		return got.Result == doctor.Warning && strings.Contains(got.Seen, "vm.web (10000)") && strings.Contains(strings.Join(got.Fix, "\n"), "HomestakHA")
	}, 5*time.Minute, 20*time.Millisecond)
}

// TestDoctorWithoutASize: a storage of which the node does not say what is free is no storage
// that is full.
func TestDoctorWithoutASize(t *testing.T) {
	w := proxmoxtest.New(t, pve.Config{})
	w.Node("web", nil)
	answers := hears(w, "/nodes/father/storage", `{"data":[`+
		`{"storage":"local","content":"import,iso","enabled":1,"active":1,"avail":1099511627776},{"storage":"local-lvm","content":"images,rootdir","enabled":1,"active":1}]}`)
	check := proxmoxtest.CheckNamed(t, w.Examine(answers), "storage local-lvm")
	require.Equal(t, doctor.Warning, check.Result)
	require.Equal(t, "accepts what is needed; the node does not report how much is free", check.Seen)
}

// A new machine that lets no one in is reported, unless the site has a key, or the machine a password.
func TestDoctorWarnsOfMachinesWithoutALogin(t *testing.T) {
	w := proxmoxtest.New(t, pve.Config{})
	is := func(c doctor.Check) bool { return c.Name == "logins" }
	w.Site.Secrets = &model.Secrets{}
	w.Node("web", nil)
	w.Node("db", func(v *guest.VM) { v.Password = "hunter2" })
	check := proxmoxtest.CheckNamed(t, w.Examine(nil), "logins")
	require.Equal(t, doctor.Warning, check.Result)
	require.Equal(t, "users cannot log in to web", check.Why)
	w.Site.Secrets.Values = map[string]map[string]string{"ssh_keys": {"ops": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHN0b3J5c3RvcnlzdG9yeXN0b3J5c3RvcnlzdG9yeXN0 ops"}}
	require.False(t, slices.ContainsFunc(w.Examine(nil), is))
}

// A spec by pct exec takes root, which doctor says.
func TestR9DoctorNamesPctExec(t *testing.T) {
	w := proxmoxtest.New(t, pve.Config{})
	w.CT("box", nil)
	n := w.Site.Manifests["web"].Nodes[0]
	require.False(t, slices.ContainsFunc(w.Examine(nil), func(c doctor.Check) bool { return c.Name == "pct exec" }))
	w.Site.Specs = map[string]*model.Spec{"base": {Name: "base", Access: &model.Access{Via: model.ViaExec}}}
	n.Spec, n.Mode = "base", model.ModePush
	got := proxmoxtest.CheckNamed(t, w.Examine(nil), "pct exec")
	if os.Geteuid() == 0 {
		require.Equal(t, "this runs as root; the agent of the installed unit does not, and cannot apply the specs of ct.box", got.Seen)
		return
	}
	require.Equal(t, doctor.Warning, got.Result)
	require.Equal(t, fmt.Sprintf("it needs root on the node, and this runs as user %d", os.Geteuid()), got.Seen)
}

func TestDoctorChecksStorages(t *testing.T) {
	w := proxmoxtest.New(t, pve.Config{})
	w.Node("web", nil)
	require.Equal(t, doctor.OK, proxmoxtest.CheckNamed(t, w.Examine(nil), "storage local-lvm").Result)

	w.Host.Edit(func(e *pve.Edit) { e.Fill("local-lvm", true) })
	full := proxmoxtest.CheckNamed(t, w.Examine(nil), "storage local-lvm")
	require.Equal(t, doctor.Failed, full.Result)
	require.Equal(t, "it is full (0 MiB free), and what is still to be created needs up to 10 GiB", full.Seen)
	w.Host.Edit(func(e *pve.Edit) { e.Fill("local-lvm", false) })
	w.Apply()
	w.Host.Edit(func(e *pve.Edit) { e.Fill("local-lvm", true) })
	full = proxmoxtest.CheckNamed(t, w.Examine(nil), "storage local-lvm")
	require.Equal(t, doctor.Warning, full.Result, "nothing is to be made there, but nothing can grow either")
	require.Equal(t, "it is full: 0 MiB free", full.Seen)

	w.Root(http.MethodPut, "/storage/local-lvm", url.Values{"disable": {"1"}})
	off := proxmoxtest.CheckNamed(t, w.Examine(nil), "storage local-lvm")
	require.Equal(t, doctor.Failed, off.Result)
	require.Equal(t, []string{"pvesm set local-lvm --disable 0"}, off.Fix)
}

func TestDoctorChecksTemplates(t *testing.T) {
	w := proxmoxtest.New(t, pve.Config{})
	w.Node("copy", func(v *guest.VM) { v.Template = "golden" })
	require.Equal(t, "no guest has this VMID", proxmoxtest.CheckNamed(t, w.Examine(nil), "template 9000").Seen)

	w.Host.Edit(func(e *pve.Edit) { e.Add(pve.Guest{VMID: 9000, Config: map[string]string{"name": "golden"}}) })
	plain := proxmoxtest.CheckNamed(t, w.Examine(nil), "template 9000")
	require.Equal(t, doctor.Failed, plain.Result)
	require.Contains(t, plain.Fix[0], "qm template 9000")

	w.Host.Edit(func(e *pve.Edit) { e.Set(9000, "template", "1") }) // the cluster's list shows that ten seconds later
	require.Equal(t, doctor.OK, proxmoxtest.CheckNamed(t, w.Examine(nil), "template 9000").Result)

	w.Host.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: 9000, Kind: "lxc", Config: map[string]string{"hostname": "golden"}})
	})
	require.Equal(t, "it is a container", proxmoxtest.CheckNamed(t, w.Examine(nil), "template 9000").Seen)
}

// A clone of a template needs the template's bridges too, whatever its own ones are.
func TestDoctorKnowsTheBridgesOfATemplate(t *testing.T) {
	w := proxmoxtest.New(t, pve.Config{Token: "ops@pve!agent=secret", Bridges: []string{"vmbr0", "vmbr1"}})
	w.Node("copy", func(v *guest.VM) { v.Template = "golden" })
	w.Host.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: 9000, Config: map[string]string{"name": "golden", "template": "1", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr1"}})
	})
	require.Equal(t, doctor.OK, proxmoxtest.CheckNamed(t, w.Examine(nil), "template 9000").Result)
	w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/sdn/zones/localnetwork/vmbr1"}, "users": {"ops@pve"}, "roles": {"NoAccess"}})
	got := proxmoxtest.CheckNamed(t, w.Examine(nil), "template 9000")
	require.Equal(t, "SDN.Use missing on /sdn/zones/localnetwork/vmbr1", got.Seen)
	require.True(t, got.Denied)
}

// A template that the token may clone and not see is not taken for missing.
func TestDoctorKnowsAHiddenTemplate(t *testing.T) {
	w := proxmoxtest.New(t, pve.Config{Token: "ops@pve!agent=secret"})
	w.Node("copy", func(v *guest.VM) { v.Template = "golden" })
	w.Host.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: 9000, Config: map[string]string{"name": "golden", "template": "1"}})
	})
	w.Root(http.MethodPut, "/access/acl", url.Values{"path": {"/vms/9000"}, "users": {"ops@pve"}, "roles": {"NoAccess"}})
	require.Equal(t, doctor.NotChecked, proxmoxtest.CheckNamed(t, w.Examine(nil), "template 9000").Result)
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
			w := proxmoxtest.New(t, pve.Config{})
			w.Node("web", nil)
			w.Site.Objects[model.Address{Kind: "image", Name: "debian-12"}].Spec = &objects.Image{File: c.file, Checksum: c.checksum}
			files := fstest.MapFS{"d.qcow2": {Data: []byte("test")}}
			got := proxmoxtest.CheckNamed(t, w.Examine(func(d *doctor.Doctor) { d.Files = fs.FS(files) }), "image debian-12")
			require.Equal(t, c.result, got.Result, got.Seen)
		})
	}
}

func TestDoctorAsksForParts(t *testing.T) {
	for part, result := range map[string]doctor.Result{"/2": doctor.OK, "/3": doctor.Failed} {
		w := proxmoxtest.New(t, pve.Config{})
		w.Node("web", nil)
		w.Site.Objects[model.Address{Kind: "image", Name: "debian-12"}].Spec = &objects.Image{Parts: []string{"https://a.test/1", "https://a.test" + part}, Checksum: "sha256:" + strings.Repeat("0", 64)}
		got := proxmoxtest.CheckNamed(t, w.Examine(func(d *doctor.Doctor) { d.Near = &images.Near{Web: proxmoxtest.Web{"/1": "a", "/2": "b"}} }), "image debian-12")
		require.Equal(t, result, got.Result, got.Seen)
	}
}

func TestDoctorLetsTheHostTryDownloads(t *testing.T) {
	w := proxmoxtest.New(t, pve.Config{})
	w.Node("web", nil)
	w.Site.Objects[model.Address{Kind: "image", Name: "debian-12"}].Spec = &objects.Image{URL: "http://nowhere.invalid/d.qcow2"}
	got := proxmoxtest.CheckNamed(t, w.Examine(nil), "image debian-12")
	require.Equal(t, doctor.Failed, got.Result)
	require.Contains(t, got.Seen, "http://nowhere.invalid/d.qcow2")
	require.False(t, got.Denied)
}

// A host that takes requests and never answers costs a check its own time and no
// more, and what follows says why it is not checked.
func TestDoctorDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := proxmoxtest.New(t, pve.Config{})
		w.Node("web", nil)
		began := time.Now()
		checks := w.Examine(func(d *doctor.Doctor) {
			d.Transport = proxmoxtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				return nil, r.Context().Err()
			})
		})
		require.Equal(t, 15*time.Second, time.Since(began))
		require.Equal(t, doctor.Failed, proxmoxtest.CheckNamed(t, checks, "login").Result)
		require.Equal(t, "login failed", proxmoxtest.CheckNamed(t, checks, "storages").Seen)
	})
}

// A cancelled run reports what it has seen so far, and no false problems.
func TestDoctorCanBeStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := proxmoxtest.New(t, pve.Config{Latency: time.Second})
		w.Node("web", nil)
		want, _ := w.Site.Want("father")
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		d := &doctor.Doctor{
			Config: proxmox.Config{Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(), Transport: w.Host},
			Want:   want, Of: w.Site,
		}
		checks := d.Examine(ctx)
		require.Equal(t, doctor.OK, proxmoxtest.CheckNamed(t, checks, "login").Result)
		require.Equal(t, doctor.NotChecked, proxmoxtest.CheckNamed(t, checks, "bridges").Result)
		for _, c := range checks {
			require.NotEqual(t, doctor.Failed, c.Result, c.Seen)
		}
	})
}

// A part of the API that hangs does not keep the rest from being checked.
func TestDoctorGoesOnBehindWhatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := proxmoxtest.New(t, pve.Config{})
		w.Node("web", nil)
		checks := w.Examine(func(d *doctor.Doctor) {
			d.Transport = proxmoxtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
				if strings.HasSuffix(r.URL.Path, "/nodes/father/storage") {
					<-r.Context().Done()
					return nil, r.Context().Err()
				}
				return w.Host.RoundTrip(r)
			})
		})
		require.Equal(t, doctor.Failed, proxmoxtest.CheckNamed(t, checks, "storages").Result)
		require.Equal(t, doctor.OK, proxmoxtest.CheckNamed(t, checks, "bridge vmbr0").Result)
		require.Equal(t, doctor.OK, proxmoxtest.CheckNamed(t, checks, "image debian-12").Result)
	})
}

// A guest whose making died is named, with the command that clears it.
func TestDoctorFindsWhatACrashLeft(t *testing.T) {
	w := proxmoxtest.New(t, pve.Config{})
	w.Node("web", nil)
	w.Host.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: 10000, Lock: "create", Config: map[string]string{"name": "web"}})
	})
	got := proxmoxtest.CheckNamed(t, w.Examine(nil), "guests")
	require.Equal(t, doctor.Warning, got.Result)
	require.Contains(t, got.Fix[0], "qm unlock 10000 && qm destroy 10000")
}

func TestDoctorChecksTheCertificate(t *testing.T) {
	w := proxmoxtest.New(t, pve.Config{})
	h := w.Site.Hosts["father"]
	h.API, _ = simtest.Listen(t, w.Host)
	h.Fingerprint = w.Host.Fingerprint()
	over := func(now time.Time) doctor.Check {
		return proxmoxtest.CheckNamed(t, w.Examine(func(d *doctor.Doctor) {
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

func TestDoctorChecksAuthorityAndName(t *testing.T) {
	w := proxmoxtest.New(t, pve.Config{})
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	h := w.Site.Hosts["father"]
	h.CA, h.CAPEM = "ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	look := func() doctor.Check {
		return proxmoxtest.CheckNamed(t, w.Examine(func(d *doctor.Doctor) { d.Transport = nil }), "certificate")
	}
	h.API = server.URL
	require.Equal(t, doctor.OK, look().Result)
	h.API = strings.Replace(server.URL, "127.0.0.1", "localhost", 1) // not among the names of that certificate
	other := look()
	require.Equal(t, doctor.Failed, other.Result)
	require.Contains(t, other.Seen, "it is for other names than localhost")
	require.Contains(t, strings.Join(other.Fix, "\n"), `fingerprint = "sha256:`)
}

// Every version between the oldest and the newest that the program is tried with is good.
func TestDoctorChecksTheVersion(t *testing.T) {
	for version, want := range map[string]doctor.Result{
		"7.4-17": doctor.Failed, "8.3.5": doctor.Failed, "8.4.0": doctor.OK, "8.4-1": doctor.OK, "8.10.2": doctor.OK,
		"9.0.3": doctor.OK, "9.2.11": doctor.OK, "10.0.1": doctor.Warning, "unknown": doctor.Warning,
	} {
		t.Run(version, func(t *testing.T) {
			w := proxmoxtest.New(t, pve.Config{})
			got := proxmoxtest.CheckNamed(t, w.Examine(hears(w, "/version", fmt.Sprintf(`{"data":{"version":%q}}`, version))), "version")
			require.Equal(t, want, got.Result, got.Seen)
			require.Contains(t, got.Seen, version)
			require.Equal(t, want != doctor.OK, len(got.Fix) > 0)
		})
	}
}

// Without quorum no change is taken, however healthy all else looks.
func TestDoctorMissesTheQuorum(t *testing.T) {
	w := proxmoxtest.New(t, pve.Config{Nodes: []string{"mother"}})
	require.Equal(t, doctor.OK, proxmoxtest.CheckNamed(t, w.Examine(nil), "quorum").Result)
	w.Host.Edit(func(e *pve.Edit) { e.Quorum(false) })
	got := proxmoxtest.CheckNamed(t, w.Examine(nil), "quorum")
	require.Equal(t, doctor.Failed, got.Result)
	require.Contains(t, got.Seen, "has no quorum")
	require.Contains(t, got.Fix[0], "pvecm status")
}

// A node of the site that is down is a failure where guests are made on it, and a
// warning where they could only have moved there.
func TestDoctorFindsNodesThatAreDown(t *testing.T) {
	w := proxmoxtest.New(t, pve.Config{Nodes: []string{"mother"}, Offline: []string{"mother"}})
	w.Site.Hosts["father"].Nodes = []string{"father", "mother"}
	got := proxmoxtest.CheckNamed(t, w.Examine(nil), "nodes")
	require.Equal(t, doctor.Warning, got.Result)
	require.Contains(t, got.Fix[0], "then start mother")
	w.Site.Hosts["father"].Node = "mother"
	got = proxmoxtest.CheckNamed(t, w.Examine(nil), "nodes")
	require.Equal(t, doctor.Failed, got.Result)
	require.Equal(t, "node mother is offline", got.Seen)
	require.Contains(t, got.Fix[0], "then start mother")
}

// Nodes that are hosts themselves need the instructions of virtualisation; others do not.
func TestDoctorChecksVirtualisation(t *testing.T) {
	for flags, want := range map[string]struct {
		result doctor.Result
		says   string
	}{
		"fpu vmx sse": {doctor.OK, "/sys/module/kvm_intel/parameters/nested"},
		"fpu svm sse": {doctor.OK, "/sys/module/kvm_amd/parameters/nested"},
		"fpu vmxx":    {doctor.Failed, "shows neither vmx nor svm"},
	} {
		t.Run(flags, func(t *testing.T) {
			w := proxmoxtest.New(t, pve.Config{})
			n := w.Node("inner", nil)
			how := hears(w, "/nodes/father/status", fmt.Sprintf(`{"data":{"cpuinfo":{"flags":%q}}}`, flags))
			for _, c := range w.Examine(how) {
				require.NotEqual(t, "nested virtualisation", c.Name, "no node needs it")
			}
			n.Type, n.Resource.Addr = "pve", model.Address{Kind: "pve", Name: "inner"}
			got := proxmoxtest.CheckNamed(t, w.Examine(how), "nested virtualisation")
			require.Equal(t, want.result, got.Result)
			require.Contains(t, got.Seen, want.says)
			if want.result == doctor.Failed {
				require.Contains(t, got.Why, "pve.inner")
				require.Contains(t, got.Fix[0], "qm set VMID --cpu host")
			}
		})
	}
}

// Doctor distinguishes a storage that the node cannot reach from one that does not exist.
func TestDoctorFindsAStorageThatIsAway(t *testing.T) {
	w := proxmoxtest.New(t, pve.Config{})
	w.Node("web", nil)
	answers := hears(w, "/nodes/father/storage", `{"data":[`+
		`{"storage":"local","content":"import,iso","enabled":1,"active":1,"avail":1099511627776},{"storage":"local-lvm","content":"images,rootdir","enabled":1,"active":0}]}`)
	got := proxmoxtest.CheckNamed(t, w.Examine(answers), "storage local-lvm")
	require.Equal(t, doctor.Failed, got.Result)
	require.Contains(t, got.Seen, "it is not active")
	require.Contains(t, got.Fix[0], "on node father: pvesm status")
}
