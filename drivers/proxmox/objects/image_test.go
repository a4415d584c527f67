package objects_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/engine/images"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/sim/pve"
)

func debian(w *proxmoxtest.World) *objects.Image {
	return w.Site.Objects[model.Address{Kind: "image", Name: "debian-12"}].Spec.(*objects.Image)
}

func volumes(w *proxmoxtest.World) []string {
	var out []string
	for _, v := range w.Host.Snapshot().Volumes["local"] {
		out = append(out, v.ID)
	}
	return out
}

func TestImageIsThereBeforeItsGuests(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{TaskTime: 3 * time.Second}, func(t *testing.T, w *proxmoxtest.World) {
		w.Node("web-1", nil)
		p := w.Apply()
		require.Equal(t, "image.debian-12", p.Steps[0].Address.String())
		require.Equal(t, []model.Address{p.Steps[0].Address}, p.Steps[1].After)
		require.Equal(t, []string{"local:import/homestak.home.debian-12.000000000000.qcow2"}, volumes(w))
	})
}

func TestNewContentIsANewFileAndNoGuestIsTouched(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
		w.Node("web-1", nil)
		w.Apply()
		guest := w.Guest(10000)
		debian(w).Checksum = "sha256:" + strings.Repeat("ab", 32)
		p := w.Apply()
		require.Len(t, p.Steps, 1, "%s", proxmoxtest.Describe(p))
		require.Equal(t, plan.Update, p.Steps[0].Action)
		require.Equal(t, []string{"local:import/homestak.home.debian-12.abababababab.qcow2"}, volumes(w))
		require.Equal(t, guest.Config, w.Guest(10000).Config)
		w.Converged()
	})
}

func TestImageThatLeftTheFilesLeavesTheHost(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
		w.Node("web-1", nil)
		w.Apply()
		w.Drop("web-1")
		w.Apply()
		require.Len(t, volumes(w), 1, "still declared: kept")
		clear(w.Site.Objects)
		p := w.Apply()
		require.Len(t, p.Steps, 1)
		require.Empty(t, volumes(w))
		w.Converged()
	})
}

func TestImageIsUploadedFromTheSite(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *proxmoxtest.World) {
		content := []byte("QFI\xfb\x00\x00\x00\x03" + strings.Repeat("\x00", 24) + strings.Repeat("qcow2 bytes ", 1000))
		i := debian(w)
		i.URL, i.File, i.Checksum = "", "images/own.qcow2", fmt.Sprintf("sha256:%x", sha256.Sum256(content))
		d, err := proxmox.Open(proxmox.Config{
			Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(), Transport: w.Host,
			Files: fstest.MapFS{"images/own.qcow2": {Data: content}},
		})
		require.NoError(t, err)
		w.Driver = d
		w.Node("web-1", nil)
		w.Apply()
		for _, v := range w.Host.Snapshot().Volumes["local"] {
			require.Equal(t, "local:import/"+fmt.Sprintf("homestak.home.debian-12.%.12s.qcow2", strings.TrimPrefix(i.Checksum, "sha256:")), v.ID)
		}
		w.Converged()
	})
}

// TestImageIsJoinedFromItsParts: the parts are verified before the host has the whole file.
func TestImageIsJoinedFromItsParts(t *testing.T) {
	content := "QFI\xfb\x00\x00\x00\x03" + strings.Repeat("\x00", 24) + strings.Repeat("qcow2 bytes ", 1000)
	for name, c := range map[string]struct{ second, problem string }{
		"good":  {content[5000:], ""},
		"other": {content[5000:] + "!", "the checksum is wrong"},
		"gone":  {"", "404"},
	} {
		t.Run(name, func(t *testing.T) {
			proxmoxtest.InTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *proxmoxtest.World) {
				i := debian(w)
				i.URL, i.Parts, i.Checksum = "", []string{"https://a.test/d.qcow2.1", "https://a.test/d.qcow2.2"}, fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(content)))
				d, err := proxmox.Open(proxmox.Config{
					Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(), Transport: w.Host,
					Near: &images.Near{Web: proxmoxtest.Web{"/d.qcow2.1": content[:5000], "/d.qcow2.2": c.second}},
				})
				require.NoError(t, err)
				w.Driver = d
				w.Node("web-1", nil)
				if c.problem != "" {
					require.ErrorContains(t, w.Run(w.Plan())[model.Address{Kind: "image", Name: "debian-12"}], c.problem)
					require.Empty(t, volumes(w))
					return
				}
				w.Apply()
				require.Len(t, volumes(w), 1)
				w.Converged()
			})
		})
	}
}

func TestFailedDownloadLeavesNoGuest(t *testing.T) {
	fault := func(r *http.Request) (int, bool) {
		if strings.HasSuffix(r.URL.Path, "download-url") {
			return 500, false
		}
		return 0, false
	}
	proxmoxtest.InTime(t, pve.Config{Fault: fault}, func(t *testing.T, w *proxmoxtest.World) {
		w.Node("web-1", nil)
		failed := w.Run(w.Plan())
		require.ErrorContains(t, failed[model.Address{Kind: "image", Name: "debian-12"}], "getting image debian-12 onto storage local")
		require.Empty(t, w.Host.Snapshot().Guests)
	})
}

func TestFullStorageIsSaid(t *testing.T) {
	proxmoxtest.InTime(t, pve.Config{}, func(t *testing.T, w *proxmoxtest.World) {
		w.Node("web-1", nil)
		w.Host.Edit(func(e *pve.Edit) { e.Fill("local-lvm", true) })
		failed := w.Run(w.Plan())
		require.ErrorContains(t, failed[model.Address{Kind: "vm", Name: "web-1"}], "creating VM 10000")
		require.Empty(t, w.Host.Snapshot().Guests)
		w.Host.Edit(func(e *pve.Edit) { e.Fill("local-lvm", false) })
		w.Apply()
		w.Converged()
	})
}

func TestImageDeclarations(t *testing.T) {
	site, zeros := &model.Site{Name: "home"}, "sha256:"+strings.Repeat("0", 64)
	for name, c := range map[string]struct {
		image   objects.Image
		problem string
		volume  string
	}{
		"nothing":     {objects.Image{}, "image without url, parts or file", ""},
		"both":        {objects.Image{URL: "https://a.test/x.qcow2", File: "x"}, "image with both", ""},
		"url, parts":  {objects.Image{URL: "https://a.test/x.iso", Parts: []string{"https://a.test/x.1"}, Checksum: zeros}, "image with both url and parts", ""},
		"unchecked":   {objects.Image{Parts: []string{"https://a.test/x.1"}}, "parts without checksum", ""},
		"part no URL": {objects.Image{Parts: []string{"https://a.test/x.1", "x.2"}, Checksum: zeros}, "\"x.2\" is not a URL", ""},
		"parts":       {objects.Image{Parts: []string{"https://a.test/x.iso.001", "https://a.test/x.iso.002"}, Checksum: zeros}, "", "local:iso/homestak.home.i.000000000000.iso"},
		"climbs":      {objects.Image{File: "../x.qcow2"}, "not a path within the site", ""},
		"no URL":      {objects.Image{URL: "a.test/x"}, "is not a URL", ""},
		"checksum":    {objects.Image{URL: "https://a.test/x.qcow2", Checksum: "md5:1"}, "checksum is not a sha256", ""},
		"none":        {objects.Image{URL: "https://a.test/x.raw"}, "image without checksum", ""},
		"ubuntu":      {objects.Image{URL: "https://a.test/x.img?y=1", Checksum: "sha256:" + strings.Repeat("0", 64)}, "", "local:import/homestak.home.i.000000000000.qcow2"},
		"iso":         {objects.Image{URL: "https://a.test/x.iso", Checksum: "sha256:" + strings.Repeat("0", 64), Storage: "nas"}, "", "nas:iso/homestak.home.i.000000000000.iso"},
		"odd format":  {objects.Image{URL: "https://a.test/x.qcow2", Format: "qcow", Checksum: "sha256:" + strings.Repeat("0", 64)}, "format \"qcow\" is not valid", ""},
		"with format": {objects.Image{URL: "https://a.test/x", Format: "raw", Checksum: "sha256:" + strings.Repeat("F", 64)}, "", "local:import/homestak.home.i.ffffffffffff.raw"},
	} {
		t.Run(name, func(t *testing.T) {
			problems := proxmox.Kinds().Get("image").Resolve(&model.Resource{Spec: &c.image}, model.Scope{Site: site, Name: "i"})
			if c.problem == "" {
				require.Empty(t, problems)
				require.Equal(t, c.volume, c.image.Volume)
				return
			}
			require.NotEmpty(t, problems)
			require.Contains(t, problems[0].Summary, c.problem)
		})
	}
}
