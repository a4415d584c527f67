// Package storage lists the volumes on the storages of a host, and frees them.
package storage

import (
	"context"
	"encoding/json"

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

// Free deletes a volume; one that is gone is success.
func Free(ctx context.Context, c *api.Client, node, volid string) error {
	upid, err := c.Delete(ctx, api.Path("nodes", node, "storage", property.StorageOf(volid), "content", volid), nil)
	if err = c.Settle(ctx, upid, err); api.ClassOf(err) == api.NotFound {
		return nil
	}
	return err
}
