package api

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
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
func (c *Client) ReadConfig(ctx context.Context, at GuestRef) (GuestConfig, error) {
	var t ConfigText
	if err := t.Read(ctx, c, at); err != nil {
		return GuestConfig{}, err
	}
	return t.Config()
}

// ConfigText is PVE's answer about the configuration of a guest, before its values are decoded. It can be used again for
// the next guest.
type ConfigText struct {
	at   GuestRef
	rows []configRow
	row  []byte // of Sum
}

// configRow is a key with JSON texts: nil for what the answer does not have.
type configRow struct{ key, value, pending, gone json.RawMessage }

// Read reads the configuration of a guest.
func (t *ConfigText) Read(ctx context.Context, c *Client, at GuestRef) error {
	t.at, t.rows = at, t.rows[:0]
	_, err := c.Rows(ctx, at.Path("pending"), func(e Row) {
		t.rows = append(t.rows, configRow{e.Raw("key"), e.Raw("value"), e.Raw("pending"), e.Raw("delete")})
	})
	return err
}

// Sum tells configurations apart: texts with equal sums have the same rows. Their order does not count, since PVE lists a hash
// of Perl, which is in another order each time. The seeds are secret, so no value can be chosen to have the sum of another.
func (t *ConfigText) Sum() (sum [2]uint64) {
	seeds := sumSeeds()
	for _, r := range t.rows {
		t.row = t.row[:0]
		for _, part := range []json.RawMessage{r.key, r.value, r.pending, r.gone} {
			t.row = append(binary.AppendUvarint(t.row, uint64(len(part))), part...)
		}
		for i, seed := range seeds {
			sum[i] += maphash.Bytes(seed, t.row)
		}
	}
	return sum
}

var sumSeeds = sync.OnceValue(func() [2]maphash.Seed { return [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()} })

// Distinct reports whether each row gave one value of cfg, which Config returned: then the order of the rows does not matter.
func (t *ConfigText) Distinct(cfg GuestConfig) bool {
	keys := len(cfg.Now)
	if cfg.Digest != "" {
		keys++
	}
	return !cfg.Pending && keys == len(t.rows)
}

// Config decodes the configuration.
func (t *ConfigText) Config() (GuestConfig, error) {
	cfg := GuestConfig{Now: make(map[string]string, usualKeys)}
	type change struct {
		key, val string
		goes     bool
	}
	var changes []change // the pending ones
	for _, r := range t.rows {
		key := Text(r.key)
		if key == "digest" {
			cfg.Digest = Text(r.value)
			continue
		}
		if r.value != nil {
			cfg.Now[key] = Text(r.value)
		}
		cfg.Pending = cfg.Pending || r.pending != nil || r.gone != nil
		if r.pending != nil {
			changes = append(changes, change{key, Text(r.pending), false})
		}
		if n := Text(r.gone); n != "" && n != "0" && r.pending == nil { // of a container that restarts a value which waits comes after its deletion
			changes = append(changes, change{key, "", true})
		}
	}
	if len(cfg.Now) == 0 { // even a guest whose making died has its lock
		return GuestConfig{}, &NetError{Method: "GET", Path: t.at.Path("pending"), Err: errors.New("the answer contains no configuration")}
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
