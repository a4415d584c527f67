package view

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// Config is a guest's configuration. PVE has two of them: what runs (now) and
// what the next full restart makes of it (next); they differ in what is pending.
type Config struct {
	Now, Next map[string]string
	Waits     bool // they may differ
	Digest    string

	BootFollows bool // PVE itself made the pending boot order of the one in force: package guest sets it
}

// ReadConfig reads both configurations and the digest in one request.
func ReadConfig(ctx context.Context, c *api.Client, at GuestRef) (Config, error) {
	cfg := Config{Now: make(map[string]string, usualKeys)}
	type change struct {
		key, val string
		goes     bool
	}
	var changes []change // that wait
	_, err := c.Rows(ctx, at.Path("pending"), func(e api.Row) {
		key, value, pending, gone := e.Text("key"), e.Raw("value"), e.Raw("pending"), e.Raw("delete")
		if key == "digest" {
			cfg.Digest = api.Text(value)
			return
		}
		if value != nil {
			cfg.Now[key] = api.Text(value)
		}
		cfg.Waits = cfg.Waits || pending != nil || gone != nil
		if pending != nil {
			changes = append(changes, change{key, api.Text(pending), false})
		}
		if n := api.Text(gone); n != "" && n != "0" && pending == nil { // of a container that restarts a value which waits comes after its deletion
			changes = append(changes, change{key, "", true})
		}
	})
	if err != nil {
		return Config{}, err
	}
	if len(cfg.Now) == 0 { // even a guest whose making died has its lock
		return Config{}, &api.NetError{Method: "GET", Path: at.Path("pending"), Err: errors.New("the answer holds no configuration")}
	}
	cfg.Next = cfg.Now // nearly always; thousands of guests are in memory at once
	if !cfg.Waits {
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

// WaitsFor reports whether the next full restart changes a key.
func (c Config) WaitsFor(key string) bool {
	now, there := c.Now[key]
	next, stays := c.Next[key]
	return c.Waits && (there != stays || now != next)
}

// WaitingKeys are the keys that the next full restart changes, in order, but for a boot
// order that PVE itself keeps up with the drives.
func (c Config) WaitingKeys() []string {
	if !c.Waits {
		return nil
	}
	keys := map[string]bool{}
	for _, side := range []map[string]string{c.Now, c.Next} {
		for key := range side {
			keys[key] = keys[key] || c.WaitsFor(key)
		}
	}
	maps.DeleteFunc(keys, func(key string, waits bool) bool { return !waits || key == "boot" && c.BootFollows })
	return slices.Sorted(maps.Keys(keys))
}

// Reverted is the configuration after some keys were reverted.
func (c Config) Reverted(keys map[string]bool) Config {
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

// InForce is the configuration without all that waits.
func (c Config) InForce() Config {
	c.Next, c.Waits = c.Now, false
	return c
}

// Removes reports whether the next full restart deletes a key.
func (c Config) Removes(key string) bool {
	_, stays := c.Next[key]
	return !stays
}

// Current is the value of a key in force, else the one that waits. What the files have no
// opinion about stays as the former has it.
func (c Config) Current(key string) string { return cmp.Or(c.Now[key], c.Next[key]) }

// Description is what is in force. One that waits is of a change that failed in between.
func (c Config) Description() string {
	if text, there := c.Now["description"]; there {
		return text
	}
	return c.Next["description"]
}
