package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
)

// container is the type of nodes whose disks and swap their host mounts.
const container = "ct"

// clients are the packages that mount folders of other machines (Debian).
var clients = map[string]string{"nfs": "nfs-common", "cifs": "cifs-utils"}

// labels is the maximum length of the label of a file system (mke2fs(8), mkfs.xfs(8)).
var labels = map[string]int{"ext4": 16, "xfs": 12}

// disks resolves what of the spec is about the disks of the node.
func (r *resolver) disks(node *model.Node) {
	c := r.declared.Config
	if c == nil {
		return
	}
	if r.out.Config.Swap = c.Swap; c.Swap > 0 && node.Type == container {
		r.errorAt("config.swap", fmt.Sprintf("node %s is a container, and has no swap of its own", node.Name), "Its host swaps for it: write swap = %d in the node block in place of the spec.", c.Swap)
	}
	if len(c.Mounts) == 0 {
		return
	}
	known, taken := declaredDisks(node), map[string]string{}
	for _, m := range c.Mounts {
		at, kind := "config.mount."+m.Path, cmp.Or(m.NetworkType(), m.FSType, "ext4")
		switch {
		case m.Source != "" && node.Type != container:
			r.extra = append(r.extra, clients[kind])
			r.out.Config.Mounts = append(r.out.Config.Mounts, Mount{Path: m.Path, Disk: m.Source, FSType: kind, Options: Declared(m.Options), Credentials: m.Credentials})
			continue
		case node.Type == container:
			r.errorAt(at, fmt.Sprintf("node %s is a container, and mounts no disks", node.Name), "Its host mounts them: write path = %q in the disk block of the node in place of the mount.", m.Path)
		case m.Disk == "root":
			r.errorAt(at+".disk", "the root disk is mounted already", "Name another disk block of the node.")
		case len(m.Disk) > labels[kind]:
			r.errorAt(at+".disk", fmt.Sprintf("the name of disk %q is too long for a label", m.Disk), "It becomes the label of the file system, and one of %s has at most %d characters: give the disk block a shorter name.", kind, labels[kind])
		case taken[m.Disk] != "":
			r.errorAt(at+".disk", fmt.Sprintf("disk %q is mounted twice", m.Disk), "It is at %s already.", taken[m.Disk])
		case known != nil && !slices.Contains(known, m.Disk):
			r.errorAt(at+".disk", fmt.Sprintf("node %s has no disk %q", node.Name, m.Disk), "%s", orNone(known))
		}
		taken[m.Disk] = m.Path
		if kind == "xfs" {
			r.extra = append(r.extra, "xfsprogs")
		}
		r.out.Config.Mounts = append(r.out.Config.Mounts, Mount{Path: m.Path, Disk: m.Disk, FSType: kind, Options: Declared(m.Options)})
	}
}

func orNone(disks []string) string {
	if len(disks) == 0 {
		return `It has no disks beside the root disk: add a block disk "NAME" { … } to the node.`
	}
	return "It has " + strings.Join(disks, ", ") + ` beside the root disk: name one of them, or add a block disk "NAME" { … } to the node.`
}

// declaredDisks are the disk blocks of a node, whatever its kind is; nil if they are not known.
func declaredDisks(node *model.Node) []string {
	if node.Resource == nil || node.Resource.Spec == nil {
		return nil
	}
	out := []string{}
	for _, a := range model.Attrs(node.Resource.Spec) {
		if rest, ok := strings.CutPrefix(a.Path, "disk."); ok {
			name, _, _ := strings.Cut(rest, ".")
			if name != "root" && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out
}
