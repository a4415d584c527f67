package plan_test

import (
	"fmt"
	"testing"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// fleet makes n guests that need an image and a pool, in one of changed different
// from what is wanted.
func fleet(n, changed int) (want, have model.State) {
	want, have = model.State{}, model.State{}
	spec := func(memory int) *VM {
		return &VM{
			Preset: "vm-small", Image: "debian-12", Machine: "q35", Cores: 2, Memory: memory, Tags: []string{"homestak", "web"},
			Description: "One of many guests of this site.", Password: "hunter2", Options: map[string]string{"cpu": "host", "bios": "ovmf"},
			Disks: []Disk{{Name: "root", Size: 10}, {Name: "data", Size: 32}}, MAC: "BC:24:11:00:00:01",
		}
	}
	for _, s := range []model.State{want, have} {
		for _, r := range []*model.Resource{object("image.debian-12", &Image{Checksum: "sha256:00"}), object("pool.lab", &Pool{Comment: "ours"})} {
			s[r.Addr] = r
		}
	}
	for i := range n {
		name := fmt.Sprintf("vm.web-%d", i)
		w := guest(name, 0, spec(2048), "image.debian-12", "pool.lab")
		h := guest(name, 1000+i, spec(2048), "image.debian-12", "pool.lab")
		if changed > 0 && i%changed == 0 {
			h.Spec.(*VM).Memory = 1024
		}
		want[w.Addr], have[h.Addr] = w, h
	}
	return want, have
}

func BenchmarkMake(b *testing.B) {
	for _, n := range []int{500, 1000, 10_000} {
		for name, mk := range map[string]func() (model.State, model.State){
			"same":   func() (model.State, model.State) { return fleet(n, 0) },
			"update": func() (model.State, model.State) { return fleet(n, 1) },
			"create": func() (model.State, model.State) { want, _ := fleet(n, 0); return want, nil },
			"delete": func() (model.State, model.State) { _, have := fleet(n, 0); return nil, have },
		} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				in := input(mk())
				b.ReportAllocs()
				for b.Loop() {
					plan.Make(in)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/resource")
			})
		}
	}
}
