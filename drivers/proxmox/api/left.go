package api

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/homestak/homestak-gitops/engine/model"
)

// A creation whose worker was killed leaves volumes behind, and `qm destroy` removes only those
// that a configuration names. Nothing that a check reads shows them: it takes the list of the disks
// on a storage, and a token that may see disks of a guest that does not exist (PVE/Storage.pm,
// check_volume_access). To make that list is slow where PVE starts qemu-img for each file, so it is
// asked for only where something speaks for a leftover: a guest whose creation died, what such a
// look found before, a creation that failed just now, and `doctor`. They are reported and never
// removed: only a person can know that nothing else uses them.

// LeftVolumes lists the volumes on a storage without a guest, whose VMID is in a range of the site,
// sorted. exists has the known VMIDs; PVE is asked again about the others. Only one VMID counts
// unless it is 0.
func (c *Client) LeftVolumes(ctx context.Context, at NodeStorage, want *model.Want, only int, exists map[int]string) ([]string, error) {
	path := Path("nodes", at.Node, "storage", at.Storage, "content") + "?content=images"
	if only != 0 {
		path += "&vmid=" + strconv.Itoa(only)
	}
	var list []map[string]json.RawMessage
	if err := ReadList(ctx, c, path, &list); err != nil {
		return nil, err
	}
	free := map[int]bool{}
	var out []string
	for _, e := range list {
		id := Number(e["vmid"])
		if id == 0 || only != 0 && id != only || exists[id] != "" || !want.MayUse(id) {
			continue
		}
		if _, asked := free[id]; !asked {
			taken, err := c.IsTaken(ctx, id)
			if err != nil {
				return nil, err
			}
			free[id] = !taken
		}
		if free[id] {
			out = append(out, Text(e["volid"]))
		}
	}
	slices.Sort(out)
	return out, nil
}

// FreeCommands are the commands that free volumes.
func FreeCommands(volids []string) []string {
	out := make([]string, len(volids))
	for i, v := range volids {
		out[i] = "pvesm free " + v
	}
	return out
}
