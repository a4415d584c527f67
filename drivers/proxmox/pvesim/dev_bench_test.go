package pvesim

import (
	"fmt"
	"io"
	"net/http"
	"testing"
)

func BenchmarkDev(b *testing.B) {
	h := New(Config{Guests: 10000})
	get := func(p string) int {
		r, _ := http.NewRequest("GET", "https://x/api2/json"+p, nil)
		r.Header.Set("Authorization", "PVEAPIToken="+h.Token())
		resp, err := h.RoundTrip(r)
		if err != nil || resp.StatusCode != 200 {
			b.Fatal(err, resp.Status)
		}
		n, _ := io.Copy(io.Discard, resp.Body)
		return int(n)
	}
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			New(Config{Guests: 10000})
		}
	})
	b.Run("resources", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			get("/cluster/resources?type=vm")
		}
	})
	b.Run("qemu", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			get("/nodes/father/qemu")
		}
	})
	vm := 0
	for _, g := range h.Snapshot().Guests {
		if g.Kind == "qemu" {
			vm = g.VMID
		}
	}
	b.Run("config", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			get(fmt.Sprintf("/nodes/father/qemu/%d/config", vm))
		}
	})
	b.Run("current", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			get(fmt.Sprintf("/nodes/father/qemu/%d/status/current", vm))
		}
	})
	b.Run("version", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			get("/version")
		}
	})
}
