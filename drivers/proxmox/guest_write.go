package proxmox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
)

// writing is what one request changes of a guest's configuration: keys to set, keys
// to delete.
type writing struct {
	set  params
	gone map[string]bool
}

// text sets a key, or deletes it where the value is none.
func (w writing) text(key, val string) {
	if val == "" {
		w.gone[key] = true
		return
	}
	w.set[key] = val
}

func (w writing) empty() bool { return len(w.set)+len(w.gone) == 0 }

// body is the request; digest is that of the configuration which it was worked out for.
func (w writing) body(digest string) params {
	p := maps.Clone(w.set)
	if len(w.gone) > 0 {
		p["delete"] = strings.Join(slices.Sorted(maps.Keys(w.gone)), ",")
	}
	p["digest"] = digest
	return p
}

// strip deletes of a copy what only its template says of what the files always decide.
func (w writing) strip(copied config, settings params) {
	for key := range copied.next {
		_, decided := settings[key]
		if w.set[key] == nil && (decided || isNet(key) || strings.HasPrefix(key, "ipconfig")) {
			w.gone[key] = true
		}
	}
}

// touched reports whether a key that is about to be written or deleted is not what
// it was when the change was worked out. Attributes do not tell: a disk attached by
// hand is none of ours, but may stand in the slot that was free then.
func (w writing) touched(old, now config) bool {
	for key := range w.set {
		if now.next[key] != old.next[key] {
			return true
		}
	}
	for key := range w.gone {
		if now.next[key] != old.next[key] {
			return true
		}
	}
	return false
}

// write sends the keys, with the digest they were planned on. When that digest
// moved although nothing we look at changed (PVE renews it also for its own
// bookkeeping), it is sent once more with the new one. old is what was observed.
func (d *Driver) write(ctx context.Context, at place, w writing, have *model.Resource, old config) error {
	if w.empty() {
		return nil
	}
	_, err := d.c.put(ctx, at.path("config"), w.body(have.Guest.Digest))
	if classOf(err) != classMoved {
		return heldBack(err)
	}
	cfg, lookErr := d.readConfig(ctx, at)
	if lookErr != nil {
		return fmt.Errorf("%w; and it cannot be looked at: %w", err, lookErr)
	}
	is := d.proof(cfg, at)
	if !is.of(have.Addr) {
		return fmt.Errorf("%w; it is not provably %s any more (%s): left alone", err, have.Addr, is.why())
	}
	fresh := observedGuest(listed{vmid: at.vmid, node: at.node, lxc: at.lxc, running: have.Guest.Running}, cfg, is.notes, is.mark)
	if w.touched(old, cfg) || !reflect.DeepEqual(configured(fresh.Spec), configured(have.Spec)) {
		return fmt.Errorf("%w: somebody changed it since the plan was made; plan again", err)
	}
	_, err = d.c.put(ctx, at.path("config"), w.body(cfg.digest))
	return heldBack(err)
}

// configured are the attributes that a configuration alone decides: power and what
// waits for a restart come of the list of guests and of the list of tasks, too.
func configured(spec any) []model.Attr {
	return slices.DeleteFunc(model.Attrs(spec), func(a model.Attr) bool { return a.Path == "power" || a.Path == "pending" })
}

// bareCopy reads a copy that has the whole configuration of its template still. bare is
// false where an earlier run whose answer was lost got further: it keeps what it has.
func (d *Driver) bareCopy(ctx context.Context, at place, addr model.Address) (cfg config, bare bool, err error) {
	cfg, err = d.readConfig(ctx, at)
	if err != nil {
		return cfg, false, fmt.Errorf("reading the clone %s back: %w", at, err)
	}
	is := d.proof(cfg, at)
	if !is.of(addr) {
		return cfg, false, fmt.Errorf("the clone %s is not what was ordered (%s): left alone; plan again", at, is.why())
	}
	return cfg, is.mark.bare(), nil
}

// writeCopy makes a bare copy what the files say, all of it in one request.
func (d *Driver) writeCopy(ctx context.Context, at place, w writing, digest, template string) error {
	_, err := d.c.put(ctx, at.path("config"), w.body(digest))
	return attempt(fmt.Sprintf("configuring %s, a clone of %s", at, template), err)
}

// heldBack explains the one refusal after which the work is done: PVE has the new
// values, but the running guest did not take one of them. The next plan finds them
// pending, and tries nothing again.
func heldBack(err error) error {
	api, ok := errors.AsType[*apiError](err)
	if !ok || !slices.ContainsFunc(slices.Collect(maps.Values(api.Params)), func(s string) bool { return strings.HasPrefix(s, "hotplug problem") }) {
		return err
	}
	return fmt.Errorf("the running guest did not take it, so it waits for a restart now: %w", err)
}
