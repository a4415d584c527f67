package pmxcfs_test

import (
	"testing"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pmxcfs"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
)

// BenchmarkRead is what a second costs an agent on a node with 1,000 guests that run, as long as nothing changes (P20).
func BenchmarkRead(b *testing.B) {
	root := b.TempDir()
	host := pvesim.New(pvesim.Config{Files: root})
	host.Edit(func(e *pvesim.Edit) {
		for id := range 1000 {
			e.Add(pvesim.Guest{VMID: 100 + id, Running: true})
		}
	})
	r := &pmxcfs.Reader{Root: root}
	for b.Loop() {
		if _, err := r.Read(); err != nil {
			b.Fatal(err)
		}
	}
}
