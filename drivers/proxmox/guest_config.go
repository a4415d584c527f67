package proxmox

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// config is a guest's configuration. PVE holds two of them: what runs (now) and
// what the next full restart makes of it (next); they differ in what is pending.
type config struct {
	now, next map[string]string
	waits     bool // they may differ
	digest    string

	bootFollows bool // the boot order that waits is what PVE made of the one in force: see settledBoot
}

// readConfig reads both configurations and the digest in one request.
func readConfig(ctx context.Context, c *api.Client, at place) (config, error) {
	cfg := config{now: make(map[string]string, usualKeys)}
	type change struct {
		key, val string
		goes     bool
	}
	var changes []change // that wait
	_, err := c.Rows(ctx, at.path("pending"), func(e api.Row) {
		key, value, pending, gone := e.Text("key"), e.Raw("value"), e.Raw("pending"), e.Raw("delete")
		if key == "digest" {
			cfg.digest = api.Text(value)
			return
		}
		if value != nil {
			cfg.now[key] = api.Text(value)
		}
		cfg.waits = cfg.waits || pending != nil || gone != nil
		if pending != nil {
			changes = append(changes, change{key, api.Text(pending), false})
		}
		if n := api.Text(gone); n != "" && n != "0" && pending == nil { // of a container that restarts a value which waits comes after its deletion
			changes = append(changes, change{key, "", true})
		}
	})
	if err != nil {
		return config{}, err
	}
	if len(cfg.now) == 0 { // even a guest whose making died has its lock
		return config{}, &api.NetError{Method: "GET", Path: at.path("pending"), Err: errors.New("the answer holds no configuration")}
	}
	cfg.next = cfg.now // nearly always; thousands of guests are held at once
	if !cfg.waits {
		return cfg, nil
	}
	cfg.next = maps.Clone(cfg.now)
	for _, e := range changes {
		if cfg.next[e.key] = e.val; e.goes {
			delete(cfg.next, e.key)
		}
	}
	return cfg, nil
}

// usualKeys is about how many keys the configuration of a guest has.
const usualKeys = 24

// waitsFor reports whether the next full restart changes a key.
func (c config) waitsFor(key string) bool {
	now, there := c.now[key]
	next, stays := c.next[key]
	return c.waits && (there != stays || now != next)
}

// waitingKeys are the keys that the next full restart changes, in order, but for a boot
// order that PVE itself keeps up with the drives.
func (c config) waitingKeys() []string {
	if !c.waits {
		return nil
	}
	keys := map[string]bool{}
	for _, side := range []map[string]string{c.now, c.next} {
		for key := range side {
			keys[key] = keys[key] || c.waitsFor(key)
		}
	}
	maps.DeleteFunc(keys, func(key string, waits bool) bool { return !waits || key == "boot" && c.bootFollows })
	return slices.Sorted(maps.Keys(keys))
}

// reverted is the configuration after some keys were reverted.
func (c config) reverted(keys map[string]bool) config {
	c.next = maps.Clone(c.next)
	for key := range keys {
		if now, there := c.now[key]; there {
			c.next[key] = now
		} else {
			delete(c.next, key)
		}
	}
	return c
}

// inForce is the configuration without all that waits.
func (c config) inForce() config {
	c.next, c.waits = c.now, false
	return c
}

// goes reports whether the next full restart deletes a key.
func (c config) goes(key string) bool {
	_, stays := c.next[key]
	return !stays
}

// current is the value of a key in force, else the one that waits. What the files have no
// opinion about stays as the former has it.
func (c config) current(key string) string { return cmp.Or(c.now[key], c.next[key]) }

// description is what is in force. One that waits is of a change that failed in between.
func (c config) description() string {
	if text, there := c.now["description"]; there {
		return text
	}
	return c.next["description"]
}
