package pvesim

import (
	"fmt"
	"maps"
	"slices"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// area is a part of Proxmox VE, as it registers with the front: the methods that it
// answers, and what is there from the start.
type area struct {
	routes map[string]handler // Of methods of the API table, by name.
	files  []sectionFile      // Files of sections that the API table leaves out, with their methods.
	calls  []pastCall         // Single methods that it leaves out.
	begin  func(*world)       // Makes what the area has in a new host; may be nil.
}

// table says which handler is for which method of the API. A method that is not here
// answers 501.
type table struct {
	routes map[string]handler
	past   map[string][]pastMethod // What the API table leaves out, by verb and number of segments.
}

func newTable(areas []area) *table {
	t := &table{routes: map[string]handler{}, past: map[string][]pastMethod{}}
	for path, at := range indexes {
		t.routes["GET "+path] = at.handler
	}
	for _, name := range slices.Sorted(maps.Keys(beyond)) {
		t.add(beyond[name].method(name))
	}
	for _, a := range areas {
		maps.Copy(t.routes, a.routes)
		for i := range a.files {
			t.add(a.files[i].methods()...)
		}
		for _, extra := range a.calls {
			t.add(extra.method())
		}
	}
	return t
}

func (t *table) add(methods ...pastMethod) {
	for _, m := range methods {
		key := pastKey(m.Verb, m.Path)
		t.past[key] = append(t.past[key], m)
	}
}

func pastKey(verb, path string) string { return fmt.Sprint(verb, len(segments(path))) }

// find looks a method up by the path of a request. known says whether there is anything at
// the path; a method without a handler is not simulated.
func (t *table) find(verb, path string) (m *pveapi.Method, vars map[string]string, h handler, known bool) {
	m, vars, known = pveapi.Lookup(verb, path)
	if m != nil {
		return m, vars, t.routes[verb+" "+m.Path], true
	}
	plain := (&request{path: path}).shown()
	parts := segments(plain)
	var found pastMethod
	for _, m := range t.past[pastKey(verb, plain)] {
		if at, ok := match(segments(m.Path), parts); ok && (found.Method == nil || len(at) < len(vars)) {
			found, vars = m, at
		}
	}
	return found.Method, vars, found.handle, known || found.Method != nil
}
