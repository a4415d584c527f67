// Package doctor examines a host before anything is done with it: whether it can be
// reached, who it is, what the token may, and whether storages, bridges, images and
// templates that a site names are there. It only reads, through the driver and its client;
// every finding says what was seen, why it matters, and what to do.
package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/rights"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Result says how a check ended.
type Result string

// What a check may say. NotChecked is neither good nor bad: what it depends on
// failed, or it cannot be seen from here.
const (
	OK         Result = "ok"
	Warning    Result = "warning"
	Failed     Result = "fail"
	NotChecked Result = "not checked"
)

// Check is one thing that the doctor looked at.
type Check struct {
	Name   string   `json:"name"`
	Result Result   `json:"result"`
	Seen   string   `json:"seen"`
	Why    string   `json:"why,omitempty"` // why it matters, or who needs it
	Fix    []string `json:"fix,omitempty"` // lines to run, or to write

	Denied bool `json:"denied,omitempty"` // it failed for want of a login or a privilege
}

// Doctor examines one host before anything is done with it. It only reads.
type Doctor struct {
	proxmox.Config
	Want *model.Want
	Of   *model.Site
	Now  func() time.Time   // nil: time.Now
	Tell func(check string) // what is looked at now; may be nil
}

// checkTime is how long one check may take. Answers come in milliseconds; a host
// that hangs must not hold up the rest for minutes.
const checkTime = 15 * time.Second

// exam is what an examination has found out so far. It belongs to one goroutine.
type exam struct {
	*Doctor
	host *model.Host
	d    *proxmox.Driver // nil if the token cannot work at all
	out  []Check
	bad  map[string]string // areas that failed, and so what depends on them is not checked

	major  int            // of the version of PVE
	pve    string         // the version as PVE says it
	skew   *time.Duration // how far the host's clock is ahead; nil if it told no time
	login  error
	rights map[string]map[string]bool // by path: privilege, and whether it is inherited below
	nodes  map[string]bool            // online
	have   model.Observed
	seen   bool // have is the whole truth
}

// area is a part of the examination. What it needs must have gone well.
type area struct {
	name    string
	needs   []string
	limit   time.Duration // checkTime if 0
	inspect func(*exam, context.Context)
}

// areas is the examination, in the order in which it is told.
func areas() []area {
	return []area{
		{name: "address", inspect: (*exam).address},
		{name: "connection", needs: []string{"address"}, inspect: (*exam).connection},
		{name: "certificate", needs: []string{"connection"}, inspect: (*exam).certificate},
		{name: "login", needs: []string{"certificate"}, inspect: (*exam).signIn},
		{name: "clock", needs: []string{"certificate"}, inspect: (*exam).clock},
		{name: "version", needs: []string{"login"}, inspect: (*exam).version},
		{name: "privileges", needs: []string{"login"}, inspect: (*exam).privileges},
		{name: "nodes", needs: []string{"login"}, inspect: (*exam).cluster},
		{name: "guests", needs: []string{"login"}, limit: 4 * checkTime, inspect: (*exam).guests},
		{name: "storages", needs: []string{"login"}, limit: 4 * checkTime, inspect: (*exam).storages},
		{name: "bridges", needs: []string{"login"}, inspect: (*exam).bridges},
		{name: "images", needs: []string{"login"}, limit: 4 * checkTime, inspect: (*exam).images},
		{name: "templates", needs: []string{"login"}, inspect: (*exam).templates},
		{name: "virtualisation", needs: []string{"login"}, inspect: (*exam).nested},
	}
}

// Examine makes all checks and gives them in order. None stops at the first
// trouble: what cannot be checked says so.
func (doc *Doctor) Examine(ctx context.Context) []Check {
	e := &exam{Doctor: doc, host: doc.Want.Host, bad: map[string]string{}, rights: map[string]map[string]bool{}, nodes: map[string]bool{}}
	if e.Now == nil {
		e.Now = time.Now
	}
	e.d, e.login = proxmox.Open(doc.Config)
	for _, a := range areas() {
		if e.Tell != nil {
			e.Tell(a.name)
		}
		e.area(ctx, a)
	}
	return e.out
}

func (e *exam) area(ctx context.Context, a area) {
	for _, n := range a.needs {
		if why := e.bad[n]; why != "" {
			e.bad[a.name] = why
			e.Add(Check{Name: a.name, Result: NotChecked, Seen: why})
			return
		}
	}
	limit := a.limit
	if limit == 0 {
		limit = checkTime
	}
	own, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	before := len(e.out)
	if ctx.Err() == nil {
		a.inspect(e, own)
	}
	if ctx.Err() != nil { // what an interrupted check says would look like a sick host
		e.out = e.out[:before]
		e.skip(a.name, "the examination was stopped")
	}
	for _, c := range e.out[before:] {
		if c.Result == Failed && c.Name == a.name {
			e.bad[a.name] = a.name + " failed"
		}
	}
}

func (e *exam) Add(c Check) { e.out = append(e.out, c) }

func (e *exam) ok(name, seen string, args ...any) {
	e.Add(Check{Name: name, Result: OK, Seen: fmt.Sprintf(seen, args...)})
}

func (e *exam) skip(name, why string, args ...any) {
	e.Add(Check{Name: name, Result: NotChecked, Seen: fmt.Sprintf(why, args...)})
}

func (e *exam) warn(name, seen, why string, fix ...string) {
	e.Add(Check{Name: name, Result: Warning, Seen: seen, Why: why, Fix: fix})
}

func (e *exam) fail(name, seen, why string, fix ...string) {
	e.Add(Check{Name: name, Result: Failed, Seen: seen, Why: why, Fix: fix})
}

// unread says that a request of a check failed, which proves nothing about what
// was to be checked.
func (e *exam) unread(name string, err error) {
	if api.ClassOf(err) == api.Denied {
		e.skip(name, "the token may not see it: %s", messageOf(err))
		return
	}
	e.Add(Check{Name: name, Result: Failed, Seen: err.Error(), Why: "what cannot be read cannot be checked", Denied: api.IsDenied(err), Fix: []string{"read the log of the host: journalctl -u pveproxy -u pvedaemon -n 50"}})
}

// list reads a list of the API.
func (e *exam) list(ctx context.Context, path string) ([]map[string]json.RawMessage, error) {
	var list []map[string]json.RawMessage
	err := api.ReadList(ctx, e.d.Client(), path, &list)
	return list, err
}

// can tells whether the token has a privilege, as far as the path was asked about.
// On /vms it must reach the guests below.
func (e *exam) can(g rights.Grant) bool {
	inherited, there := e.rights[g.Path][g.Priv]
	return there && (g.Path != "/vms" || inherited)
}

// at is where the host's block stands, with a space before it, or nothing.
func (e *exam) at() string {
	if e.host.At.IsZero() {
		return ""
	}
	return fmt.Sprintf(" (%s:%d)", e.host.At.File, e.host.At.Start.Line)
}

// askedBy is where a resource asks for something, for the end of a sentence.
func askedBy(r *model.Resource, attr string) string {
	at := r.RangeOf(attr)
	if at.IsZero() {
		return r.Addr.String()
	}
	return fmt.Sprintf("%s (%s:%d)", r.Addr, at.File, at.Start.Line)
}

// askers are the resources that ask for something, each once and at the place that
// says most about it.
type askers map[model.Address]string

func (a askers) add(r *model.Resource, attr string) {
	if a[r.Addr] == "" || attr != "" {
		a[r.Addr] = askedBy(r, attr)
	}
}

// String joins them, shortened where there are many.
func (a askers) String() string {
	var list []string
	for _, addr := range slices.SortedFunc(maps.Keys(a), model.Address.Compare) {
		list = append(list, a[addr])
	}
	if len(list) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:3], ", "), len(list)-3)
	}
	return strings.Join(list, ", ")
}
