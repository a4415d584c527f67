// Package doctor checks a host before use: whether it is reachable, its identity, the token's privileges, and the
// storages, bridges, images and templates of a site. It only reads, through the driver and its client. Every
// finding says what was found, why it matters, and what to do.
package doctor

import (
	"cmp"
	"context"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Doctor checks one host before it is used. It only reads.
type Doctor struct {
	proxmox.Config
	Want *model.Want
	Of   *model.Site
	Now  func() time.Time // nil: time.Now
	// Progress is called with the current area; may be nil.
	Progress func(area string)
}

// checkTime is the time limit of one check. Answers come in milliseconds; a host
// that hangs must not delay the rest for minutes.
const checkTime = 15 * time.Second

// area is a group of checks. The areas that it needs must have succeeded.
type area struct {
	name    string
	needs   []string
	limit   time.Duration // checkTime if 0
	examine func(context.Context)
}

// Examine runs all checks and returns them in order. It does not stop at a failure; checks that
// cannot run are listed as not checked.
func (d *Doctor) Examine(ctx context.Context) []Check {
	found := &findings{bad: map[string]string{}}
	for _, a := range d.areas(found) {
		if d.Progress != nil {
			d.Progress(a.name)
		}
		a.run(ctx, found)
	}
	return found.checks
}

// areas lists all areas, in the order of the report.
func (d *Doctor) areas(found *findings) []area {
	driver, refused := proxmox.Open(d.Config)
	now := d.Now
	if now == nil {
		now = time.Now
	}
	s := &subject{findings: found, host: d.Want.Host, site: d.Of, want: d.Want, driver: driver}
	reach := &reach{subject: s, transport: d.Transport, now: now}
	session := &session{subject: s, transport: d.Transport, now: now, refused: refused}
	token := &token{subject: s, rights: map[string]map[string]bool{}}
	privileges := &privileges{subject: s, session: session, token: token}
	nodes := &nodes{subject: s, online: map[string]bool{}}
	guests := &guests{subject: s, token: token, nodes: nodes}
	storages := &storages{subject: s, session: session, token: token, nodes: nodes, guests: guests}
	network := &network{subject: s, session: session, token: token, nodes: nodes}
	images := &images{subject: s, guests: guests, files: d.Files, near: d.Near}
	templates := &templates{subject: s, token: token}
	reached, loggedIn := []string{"certificate"}, []string{"login"}
	return []area{
		{name: "address", examine: reach.address},
		{name: "connection", needs: []string{"address"}, examine: reach.connection},
		{name: "certificate", needs: []string{"connection"}, examine: reach.certificate},
		{name: "login", needs: reached, examine: session.signIn},
		{name: "clock", needs: reached, examine: session.clock},
		{name: "version", needs: loggedIn, examine: session.release},
		{name: "privileges", needs: loggedIn, examine: privileges.check},
		{name: "nodes", needs: loggedIn, examine: nodes.check},
		{name: "guests", needs: loggedIn, limit: 4 * checkTime, examine: guests.check},
		{name: "storages", needs: loggedIn, limit: 4 * checkTime, examine: storages.check},
		{name: "bridges", needs: loggedIn, examine: network.check},
		{name: "images", needs: loggedIn, limit: 4 * checkTime, examine: images.check},
		{name: "templates", needs: loggedIn, examine: templates.check},
		{name: "virtualisation", needs: loggedIn, examine: nodes.virtualisation},
		{name: "pct exec", examine: s.exec},
		{name: "reviews", examine: s.reviews},
		{name: "ownership key", examine: s.ownershipKey(d.Owner)},
	}
}

// run runs the checks of an area, if the areas that it needs succeeded.
func (a area) run(ctx context.Context, found *findings) {
	for _, n := range a.needs {
		if why := found.bad[n]; why != "" {
			found.bad[a.name] = why
			found.skip(a.name, "%s", why)
			return
		}
	}
	own, cancel := context.WithTimeout(ctx, cmp.Or(a.limit, checkTime))
	defer cancel()
	before := len(found.checks)
	if ctx.Err() == nil {
		a.examine(own)
	}
	if ctx.Err() != nil { // what an interrupted check says would look like a failing host
		found.checks = found.checks[:before]
		found.skip(a.name, "the checks were stopped")
	}
	for _, c := range found.checks[before:] {
		if c.Result == Failed && c.Name == a.name {
			found.bad[a.name] = a.name + " failed"
		}
	}
}
