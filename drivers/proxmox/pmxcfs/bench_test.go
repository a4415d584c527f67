package pmxcfs_test

import (
	"testing"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pmxcfs"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// BenchmarkRead is what a second costs an agent on a node with 1,000 guests that run, as long as nothing changes (P20).
func BenchmarkRead(b *testing.B) {
	root := b.TempDir()
	host := pve.New(pve.Config{Files: root})
	host.Edit(func(e *pve.Edit) {
		for id := range 1000 {
			e.Add(pve.Guest{VMID: 100 + id, Running: true})
		}
	})
	r := &pmxcfs.Reader{Root: root}
	for b.Loop() {
		if _, err := r.Read(); err != nil {
			b.Fatal(err)
		}
	}
}
