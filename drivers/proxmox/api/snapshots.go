package api

import (
	"context"
	"encoding/json"
	"fmt"
)

// InSnapshots maps the volumes that snapshots of a guest hold to one snapshot that does.
// It costs a request for each snapshot, and one more.
func (c *Client) InSnapshots(ctx context.Context, at GuestRef) (map[string]string, error) {
	var list []struct {
		Name string `json:"name"`
	}
	if err := ReadList(ctx, c, at.Path("snapshot"), &list); err != nil {
		return nil, fmt.Errorf("asking for the snapshots of %s: %w", at, err)
	}
	out := map[string]string{}
	for _, s := range list {
		if s.Name == "current" { // PVE's name for the present state
			continue
		}
		var conf map[string]json.RawMessage
		if err := c.Get(ctx, at.Path("snapshot", s.Name, "config"), &conf); err != nil {
			return nil, fmt.Errorf("asking for snapshot %s of %s: %w", s.Name, at, err)
		}
		for key, val := range conf {
			if IsDrive(key) || IsMount(key) {
				out[VolumeOf(Text(val))] = s.Name
			}
		}
	}
	return out, nil
}
