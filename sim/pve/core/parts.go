package core

import "reflect"

// parts is the state of areas for a host or one of its nodes: a value of a type that only the area can name.
type parts struct{ all map[reflect.Type]any }

// PartOf is the value of an area. It begins as the zero value of its type.
func PartOf[T any](p *parts) *T {
	key := reflect.TypeFor[T]()
	if p.all == nil {
		p.all = map[reflect.Type]any{}
	}
	if p.all[key] == nil {
		p.all[key] = new(T)
	}
	return p.all[key].(*T)
}

// MapOf is PartOf for a value that is a map, which is there from the start.
func MapOf[M ~map[K]V, K comparable, V any](p *parts) M {
	all := PartOf[M](p)
	if *all == nil {
		*all = M{}
	}
	return *all
}

// hooks are called for events of guests in other areas. Each area adds its own when
// it begins, see Area.
type hooks struct {
	Removed []func(*Guest)                     // A guest is gone.
	Cloned  []func(from, to *Guest)            // A guest was cloned, but for what the hook copies.
	Ended   map[string]func(*Guest, *Call)     // The process of a guest ended, by its kind; the call is nil if none caused it.
	Sampled func(*Guest) Sample                // The status daemon's sample of a guest.
	Listed  []func(c *Call, kind string) []any // Further resources of a kind, for /cluster/resources.
}

// manager decides about guests under high availability, see package cluster.
type manager interface {
	// State is the requested state of a guest (started, stopped, ignored, …); empty if it is not a resource.
	State(g *Guest) string
	// managed says whether the manager decides about a guest: it is a resource that is not ignored.
	Managed(g *Guest) bool
	// status is the member ha of status/current, shown the one of the list of resources.
	Status(g *Guest) map[string]any
	Shown(g *Guest) string
	// request files a request for a state, move one for another node. Both answer with the
	// UPID of the task that does so.
	Request(c *Call, g *Guest, state string) string
	Move(c *Call, g *Guest, target string) string
	// manage makes a resource of a guest, forget takes it back.
	Manage(g *Guest, state string)
	Forget(g *Guest)
	// notice schedules a check of a guest by the manager, if it is a resource.
	Notice(g *Guest)
}
