package pve

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
)

// clusterFiles are the files by which a node shows what changes on it: the versions of the guests in /etc/pve, and the
// control groups of those that run. They are written below Config.Files, after each request that changed one.
type clusterFiles struct {
	began         int64
	list, counter uint64 // versions, as in pve-cluster, src/pmxcfs/status.c
	guests        map[int]clusterGuest
	running       map[string]bool // folders of control groups
}

type clusterGuest struct {
	node, kind, digest string
	version            uint64
}

// publish writes the files. It panics where they cannot be written: the folder is a test's own.
func (f *clusterFiles) publish(w *core.World, root string) {
	changed := f.guests == nil
	if changed {
		f.guests, f.running = map[int]clusterGuest{}, map[string]bool{}
	}
	running := map[string]bool{}
	for id, g := range w.Guests {
		now := clusterGuest{g.Node, g.Kind, g.Sum(), f.guests[id].version}
		if now != f.guests[id] {
			f.counter++
			now.version = f.counter
			f.guests[id], changed = now, true
			f.list++
		}
		if g.Run != nil && g.Node == w.Cfg.Node {
			running[groupOf(g)] = true
		}
	}
	for id := range f.guests {
		if w.Guests[id] == nil {
			delete(f.guests, id)
			f.list++
			changed = true
		}
	}
	if changed {
		f.list = max(f.list, 1)
		f.write(root)
	}
	for name := range running {
		if !f.running[name] {
			must(os.MkdirAll(filepath.Join(root, name), 0o750))
		}
	}
	for name := range f.running {
		if !running[name] {
			must(os.Remove(filepath.Join(root, name)))
		}
	}
	f.running = running
}

func groupOf(g *core.Guest) string {
	if g.Kind == "lxc" {
		return fmt.Sprintf("sys/fs/cgroup/lxc/%d", g.Vmid)
	}
	return fmt.Sprintf("sys/fs/cgroup/qemu.slice/%d.scope", g.Vmid)
}

// write writes both files in PVE's form. A reader sees the old one or the new one.
func (f *clusterFiles) write(root string) {
	var ids []string
	for id, g := range f.guests {
		ids = append(ids, fmt.Sprintf("\"%d\": { \"node\": \"%s\", \"type\": \"%s\", \"version\": %d }", id, g.node, g.kind, g.version))
	}
	list := fmt.Sprintf("{\n\"version\": %d\n\n}\n", f.list)
	if len(ids) > 0 {
		list = fmt.Sprintf("{\n\"version\": %d,\n\"ids\": {\n%s}\n\n}\n", f.list, strings.Join(ids, ",\n"))
	}
	version := fmt.Sprintf("{\n\"starttime\": %d,\n\"clinfo\": 1,\n\"vmlist\": %d,\n\"storage.cfg\": 1,\n\"kvstore\": {\n}\n}\n", f.began, f.list)
	folder := filepath.Join(root, "etc/pve")
	must(os.MkdirAll(folder, 0o750))
	for _, file := range []struct{ name, text string }{{".vmlist", list}, {".version", version}} {
		const mode fs.FileMode = 0o440
		next := filepath.Join(folder, file.name+".next")
		must(os.WriteFile(next, []byte(file.text), mode))
		must(os.Rename(next, filepath.Join(folder, file.name)))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
