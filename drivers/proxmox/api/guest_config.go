package api

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
)

// GuestConfig is the configuration of a guest. PVE has two of them: the one in force (Now), and the one
// that the next full restart puts in force (Next). They differ by the pending changes.
type GuestConfig struct {
	Now, Next map[string]string
	Pending   bool // there may be pending changes
	Digest    string

	BootUpkeep bool // PVE itself made the pending boot order of the one in force: package guest sets it
}

// ReadConfig reads both configurations and the digest in one request.
func ReadConfig(ctx context.Context, c *Client, at GuestRef) (GuestConfig, error) {
	cfg := GuestConfig{Now: make(map[string]string, usualKeys)}
	type change struct {
		key, val string
		goes     bool
	}
	var changes []change // the pending ones
	_, err := c.Rows(ctx, at.Path("pending"), func(e Row) {
		key, value, pending, gone := e.Text("key"), e.Raw("value"), e.Raw("pending"), e.Raw("delete")
		if key == "digest" {
			cfg.Digest = Text(value)
			return
		}
		if value != nil {
			cfg.Now[key] = Text(value)
		}
		cfg.Pending = cfg.Pending || pending != nil || gone != nil
		if pending != nil {
			changes = append(changes, change{key, Text(pending), false})
		}
		if n := Text(gone); n != "" && n != "0" && pending == nil { // of a container that restarts a value which waits comes after its deletion
			changes = append(changes, change{key, "", true})
		}
	})
	if err != nil {
		return GuestConfig{}, err
	}
	if len(cfg.Now) == 0 { // even a guest whose making died has its lock
		return GuestConfig{}, &NetError{Method: "GET", Path: at.Path("pending"), Err: errors.New("the answer contains no configuration")}
	}
	cfg.Next = cfg.Now // nearly always; thousands of guests are in memory at once
	if !cfg.Pending {
		return cfg, nil
	}
	cfg.Next = maps.Clone(cfg.Now)
	for _, e := range changes {
		if cfg.Next[e.key] = e.val; e.goes {
			delete(cfg.Next, e.key)
		}
	}
	return cfg, nil
}

// usualKeys is about how many keys the configuration of a guest has.
const usualKeys = 24

// IsPending reports whether the next full restart changes a key.
func (c GuestConfig) IsPending(key string) bool {
	now, there := c.Now[key]
	next, stays := c.Next[key]
	return c.Pending && (there != stays || now != next)
}

// PendingKeys are the keys that the next full restart changes, sorted, without a boot order that
// PVE itself keeps in line with the drives.
func (c GuestConfig) PendingKeys() []string {
	if !c.Pending {
		return nil
	}
	keys := map[string]bool{}
	for _, side := range []map[string]string{c.Now, c.Next} {
		for key := range side {
			keys[key] = keys[key] || c.IsPending(key)
		}
	}
	maps.DeleteFunc(keys, func(key string, waits bool) bool { return !waits || key == "boot" && c.BootUpkeep })
	return slices.Sorted(maps.Keys(keys))
}

// Reverted is the configuration after some keys were reverted.
func (c GuestConfig) Reverted(keys map[string]bool) GuestConfig {
	c.Next = maps.Clone(c.Next)
	for key := range keys {
		if now, there := c.Now[key]; there {
			c.Next[key] = now
		} else {
			delete(c.Next, key)
		}
	}
	return c
}

// InForce is the configuration without its pending changes.
func (c GuestConfig) InForce() GuestConfig {
	c.Next, c.Pending = c.Now, false
	return c
}

// DropsKey reports whether the next full restart deletes a key, or the guest does not have it.
func (c GuestConfig) DropsKey(key string) bool {
	_, stays := c.Next[key]
	return !stays
}

// Current is the value of a key in force, else the pending one.
func (c GuestConfig) Current(key string) string { return cmp.Or(c.Now[key], c.Next[key]) }

// Description is the description in force. A pending one is that of a change that failed.
func (c GuestConfig) Description() string {
	if text, there := c.Now["description"]; there {
		return text
	}
	return c.Next["description"]
}
