package sections

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

// Area is a part of Proxmox VE, as it registers with the front: the methods that it
// answers, and what is there from the start.
type Area struct {
	// Routes are methods of the API table, by name; {qemu|lxc} in a name stands for both.
	// Guests are such methods about a guest that must be there.
	Routes map[string]core.Handler
	Guests map[string]GuestHandler
	Files  []SectionFile     // Files of sections that the API table leaves out, with their methods.
	Calls  []PastCall        // Single methods that it leaves out.
	Begin  func(*core.World) // Makes what the area has in a new host; may be nil.
}

// GuestHandler does what a method about a VM or container is for.
type GuestHandler func(*core.World, *core.Call, *core.Guest) (any, error)

// handle finds the guest of a call.
func (h GuestHandler) handle(w *core.World, c *core.Call) (any, error) {
	g, err := c.GuestCall()
	if err != nil {
		return nil, err
	}
	return h(w, c, g)
}

// Table says which handler is for which method of the API. A method that is not here
// answers 501.
type Table struct {
	Routes map[string]core.Handler
	Past   map[string][]pastMethod // What the API table leaves out, by verb and number of segments.
}

// NewTable puts the methods of all areas together.
func NewTable(areas []Area) *Table {
	t := &Table{Routes: map[string]core.Handler{}, Past: map[string][]pastMethod{}}
	for path, at := range indexes {
		t.Routes["GET "+path] = at.Handler
	}
	for _, name := range slices.Sorted(maps.Keys(beyond)) {
		t.add(beyond[name].method(name))
	}
	for _, a := range areas {
		for name, h := range a.Routes {
			t.route(name, h)
		}
		for name, h := range a.Guests {
			t.route(name, h.handle)
		}
		for i := range a.Files {
			t.add(a.Files[i].methods()...)
		}
		for _, extra := range a.Calls {
			t.add(extra.method())
		}
	}
	return t
}

func (t *Table) route(name string, h core.Handler) {
	for _, kind := range []string{"qemu", "lxc"} {
		t.Routes[strings.Replace(name, "{qemu|lxc}", kind, 1)] = h
	}
}

func (t *Table) add(methods ...pastMethod) {
	for _, m := range methods {
		key := pastKey(m.Verb, m.Path)
		t.Past[key] = append(t.Past[key], m)
	}
}

func pastKey(verb, path string) string { return fmt.Sprint(verb, len(perl.Segments(path))) }

// Find looks a method up by the path of a request. known says whether there is anything at
// the path; a method without a handler is not simulated.
func (t *Table) Find(verb, path string) (m *pveapi.Method, vars map[string]string, h core.Handler, known bool) {
	m, vars, known = pveapi.Lookup(verb, path)
	if m != nil {
		return m, vars, t.Routes[verb+" "+m.Path], true
	}
	plain := (&core.Request{Path: path}).Shown()
	parts := perl.Segments(plain)
	var found pastMethod
	for _, m := range t.Past[pastKey(verb, plain)] {
		if at, ok := match(perl.Segments(m.Path), parts); ok && (found.Method == nil || len(at) < len(vars)) {
			found, vars = m, at
		}
	}
	return found.Method, vars, found.handle, known || found.Method != nil
}
