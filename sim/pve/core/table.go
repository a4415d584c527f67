package core

// An [Area] is a part of Proxmox VE with its routes. A [Table] finds the method and the
// handler of a request.
//
// The API table leaves whole families out (software networks, mappings, metrics,
// notifications, ACME, disks). Their methods are described here by what the Perl code of
// Proxmox VE registers: a [ExtraCall] is one method, a [SectionFile] is a file with sections
// and the five calls on it (PVE/SectionConfig.pm).

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Area is a part of Proxmox VE, as it registers with the front: the methods that it
// answers, and the initial state.
type Area struct {
	// Routes are methods of the API table, by name; {qemu|lxc} in a name stands for both.
	// Guests are such methods about a guest that must be there.
	Routes map[string]Handler
	Guests map[string]GuestHandler
	Files  []SectionFile // Files of sections that the API table leaves out, with their methods.
	Calls  []ExtraCall   // Single methods that it leaves out.
	Begin  func(*World)  // Makes what the area has in a new host; may be nil.
}

// GuestHandler does what a method about a VM or container is for.
type GuestHandler func(*World, *Call, *Guest) (any, error)

// handle finds the guest of a call.
func (h GuestHandler) handle(w *World, c *Call) (any, error) {
	g, err := c.Guest()
	if err != nil {
		return nil, err
	}
	return h(w, c, g)
}

// Table says which handler is for which method of the API. A method that is not here
// answers 501.
type Table struct {
	Routes map[string]Handler
	Extra  map[string][]extraMethod // Methods missing in the API table, by verb and number of segments.
}

// NewTable puts the methods of all areas together.
func NewTable(areas []Area) *Table {
	t := &Table{Routes: map[string]Handler{}, Extra: map[string][]extraMethod{}}
	for path, at := range indexes {
		t.Routes["GET "+path] = at.Handler
	}
	for _, name := range slices.Sorted(maps.Keys(untabled)) {
		t.add(untabled[name].method(name))
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
		for _, call := range a.Calls {
			t.add(call.method())
		}
	}
	return t
}

func (t *Table) route(name string, h Handler) {
	for _, kind := range []string{"qemu", "lxc"} {
		t.Routes[strings.Replace(name, "{qemu|lxc}", kind, 1)] = h
	}
}

func (t *Table) add(methods ...extraMethod) {
	for _, m := range methods {
		key := extraKey(m.Verb, m.Path)
		t.Extra[key] = append(t.Extra[key], m)
	}
}

func extraKey(verb, path string) string { return fmt.Sprint(verb, len(perl.Segments(path))) }

// Find looks a method up by the path of a request. known says whether there is anything at
// the path; a method without a handler is not simulated.
func (t *Table) Find(verb, path string) (m *pveapi.Method, vars map[string]string, h Handler, known bool) {
	m, vars, known = pveapi.Lookup(verb, path)
	if m != nil {
		return m, vars, t.Routes[verb+" "+m.Path], true
	}
	plain := (&Request{Path: path}).Shown()
	parts := perl.Segments(plain)
	var found extraMethod
	for _, m := range t.Extra[extraKey(verb, plain)] {
		if at, ok := match(perl.Segments(m.Path), parts); ok && (found.Method == nil || len(at) < len(vars)) {
			found, vars = m, at
		}
	}
	return found.Method, vars, found.handle, known || found.Method != nil
}
