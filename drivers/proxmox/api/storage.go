package api

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// ListVolumes lists the volumes on a storage that have a type of content; all of them for "".
func (c *Client) ListVolumes(ctx context.Context, at NodeStorage, content string) (list []map[string]json.RawMessage, err error) {
	path := Path("nodes", at.Node, "storage", at.Storage, "content")
	if content != "" {
		path += "?content=" + content
	}
	err = ReadList(ctx, c, path, &list)
	return list, err
}

// FreeVolume deletes a volume; a missing one is success.
func (c *Client) FreeVolume(ctx context.Context, node, volid string) error {
	upid, err := c.Delete(ctx, Path("nodes", node, "storage", StorageOf(volid), "content", volid), nil)
	if err = c.AwaitWrite(ctx, upid, err); ClassOf(err) == NotFound {
		return nil
	}
	return err
}

// ClonesOfVolume lists the VMIDs of guests with a disk on a base volume. PVE writes the base before the
// name of such a disk (PVE/Storage/Plugin.pm, parse_volname). On an LVM thin pool a clone is
// independent and has no such name.
func (c *Client) ClonesOfVolume(ctx context.Context, node, volume string) ([]int, error) {
	on, _, ok := strings.Cut(volume, ":")
	if !ok {
		return nil, nil // it has no disk
	}
	list, err := c.ListVolumes(ctx, NodeStorage{Node: node, Storage: on}, "images")
	if err != nil {
		return nil, fmt.Errorf("listing the disks on storage %s: %w", on, err)
	}
	var out []int
	seen := map[int]bool{}
	for _, e := range list {
		if id := Number(e["vmid"]); strings.HasPrefix(Text(e["volid"]), volume+"/") && !seen[id] {
			out, seen[id] = append(out, id), true
		}
	}
	return out, nil
}
