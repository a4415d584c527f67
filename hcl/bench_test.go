package hcl_test

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// large is a site of that many nodes, spread over files.
func large(nodes, manifests int) fstest.MapFS {
	site := fstest.MapFS{"site.hcl": &fstest.MapFile{Data: []byte(`site "home" {
  domain = "home.example"
  vmid_range "main" {
    from = 100
    to   = 999999
  }
}
host "father" {
  api = "https://192.0.2.10:8006"
}
preset "vm-small" {
  cores  = 2
  memory = 2048
}
image "debian-12" {
  url      = "https://images.example/debian.qcow2"
  checksum = "sha256:ab"
}
spec "base" {
  access {
    user "admin" {
      sudo = true
    }
  }
}
locals {
  storage = "fast"
}
`)}}
	for m := range manifests {
		var b strings.Builder
		fmt.Fprintf(&b, "manifest \"m%d\" {\n  pattern = \"flat\"\n  host    = host.father\n", m)
		for i := m * nodes / manifests; i < (m+1)*nodes/manifests; i++ {
			fmt.Fprintf(&b, `
  node "web-%d" {
    type    = "vm"
    preset  = preset.vm-small
    image   = image.debian-12
    spec    = spec.base
    vmid    = %d
    memory  = 4096
    tags    = ["web", "prod"]
    purpose = "web server of ${site.domain}"
    disk "data" {
      size    = 20
      storage = local.storage
    }
    nic "lan" {
      vlan = 10
      ip   = cidrhost("10.0.0.0/8", %d)
    }
  }
`, i, 100+i, i+1)
		}
		b.WriteString("}\n")
		site[fmt.Sprintf("manifests/m%03d.hcl", m)] = &fstest.MapFile{Data: []byte(b.String())}
	}
	return site
}

func BenchmarkLoad(b *testing.B) {
	for _, c := range []struct{ nodes, files int }{{1000, 1}, {1000, 1000}, {10_000, 100}} {
		site := large(c.nodes, c.files)
		o := hcl.Options{Kinds: testKinds()}
		var bytes int64
		for _, f := range site {
			bytes += int64(len(f.Data))
		}
		check := func(b *testing.B, s *model.Site, found int) {
			if n := len(s.Manifests); found > 0 || n != c.files {
				b.Fatalf("%d findings, %d manifests", found, n)
			}
		}
		b.Run(fmt.Sprintf("cold/%d-nodes-%d-files", c.nodes, c.files), func(b *testing.B) {
			b.SetBytes(bytes)
			b.ReportAllocs()
			for b.Loop() {
				s, found := hcl.Load(site, o)
				check(b, s, len(found))
			}
		})
		b.Run(fmt.Sprintf("unchanged/%d-nodes-%d-files", c.nodes, c.files), func(b *testing.B) {
			var l hcl.Loader
			l.Load(site, o)
			for b.Loop() {
				s, found := l.Load(site, o)
				check(b, s, len(found))
			}
		})
		b.Run(fmt.Sprintf("one-changed/%d-nodes-%d-files", c.nodes, c.files), func(b *testing.B) {
			var l hcl.Loader
			l.Load(site, o)
			original := site["site.hcl"].Data
			defer func() { site["site.hcl"].Data = original }()
			for i := 0; b.Loop(); i++ {
				site["site.hcl"].Data = fmt.Appendf(nil, "%s# %d\n", original, i)
				s, found := l.Load(site, o)
				check(b, s, len(found))
			}
		})
	}
}

// What a load of 10,000 nodes holds at its peak, and what the result holds.
func BenchmarkMemory(b *testing.B) {
	site := large(10_000, 100)
	o := hcl.Options{Kinds: testKinds()}
	for b.Loop() {
		debug.FreeOSMemory()
		before := heap()
		var l hcl.Loader
		s, _ := l.Load(site, o)
		peak := rss()
		debug.FreeOSMemory()
		b.ReportMetric(float64(heap()-before)/(1<<20), "MiB-kept")
		b.ReportMetric(peak, "MiB-peak-rss")
		runtime.KeepAlive(s)
		runtime.KeepAlive(&l)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// rss is the peak of the process so far, where the system tells it.
func rss() float64 {
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "VmHWM: %f kB", &kib); n == 1 {
			return kib / 1024
		}
	}
	return 0
}
