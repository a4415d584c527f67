// Package storage lists the volumes on the storages of a host, and frees them.
package storage

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/view"
)

// List lists the volumes on a storage that have a type of content; all of them for "".
func List(ctx context.Context, c *api.Client, at view.NodeStorage, content string) (list []map[string]json.RawMessage, err error) {
	path := api.Path("nodes", at.Node, "storage", at.Storage, "content")
	if content != "" {
		path += "?content=" + content
	}
	err = api.ReadList(ctx, c, path, &list)
	return list, err
}

// Free deletes a volume; a missing one is success.
func Free(ctx context.Context, c *api.Client, node, volid string) error {
	upid, err := c.Delete(ctx, api.Path("nodes", node, "storage", property.StorageOf(volid), "content", volid), nil)
	if err = c.AwaitWrite(ctx, upid, err); api.ClassOf(err) == api.NotFound {
		return nil
	}
	return err
}

// Clones lists the VMIDs of guests with a disk on a base volume. PVE writes the base before the
// name of such a disk (PVE/Storage/Plugin.pm, parse_volname). On an LVM thin pool a clone is
// independent and has no such name.
func Clones(ctx context.Context, c *api.Client, node, volume string) ([]int, error) {
	on, _, ok := strings.Cut(volume, ":")
	if !ok {
		return nil, nil // it has no disk
	}
	list, err := List(ctx, c, view.NodeStorage{Node: node, Storage: on}, "images")
	if err != nil {
		return nil, fmt.Errorf("listing the disks on storage %s: %w", on, err)
	}
	var out []int
	seen := map[int]bool{}
	for _, e := range list {
		if id := api.Number(e["vmid"]); strings.HasPrefix(api.Text(e["volid"]), volume+"/") && !seen[id] {
			out, seen[id] = append(out, id), true
		}
	}
	return out, nil
}
