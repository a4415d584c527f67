package serve

import (
	"context"
	"slices"
)

// clientKey is the key of the name of a client in the context of its request.
type clientKey struct{}

// WithClient sets the client of a request in its context. Each client gets at most its share of the server, so that
// it does not keep others waiting. Requests without a name count as those of one client.
func WithClient(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, clientKey{}, name)
}

func clientOf(ctx context.Context) string {
	name, _ := ctx.Value(clientKey{}).(string)
	return name
}

// client is a client that asks for something that is built. The lock of the spool guards it.
type client struct {
	name     string
	requests int
	queue    []*item // that wait for their turn, and perhaps some that do not any more
	running  bool    // one of its builds; it never has two, so one client leaves a slot for others
	bytes    int64   // of the files that it pays for
}

// turns decides whose build runs next: clients take turns, however much each asks for. The lock of the spool guards it.
type turns struct {
	clients map[string]*client
	order   []*client // the first one has waited longest since it came, or since its last turn
	running int
}

// enter adds a request of a client.
func (t *turns) enter(name string) *client {
	c := t.clients[name]
	if c == nil {
		c = &client{name: name}
		t.clients[name] = c
		t.order = append(t.order, c)
	}
	c.requests++
	return c
}

// leave ends what enter began.
func (t *turns) leave(c *client) {
	c.requests--
	t.forget(c)
}

// forget removes a client that has nothing to do with the spool any more.
func (t *turns) forget(c *client) {
	if c.requests == 0 && !c.running {
		delete(t.clients, c.name)
		t.order = slices.DeleteFunc(t.order, func(other *client) bool { return other == c })
	}
}

// next begins as many builds as there is room for.
func (t *turns) next() {
	for _, c := range t.order {
		c.queue = slices.DeleteFunc(c.queue, func(i *item) bool { return !i.queued })
		if t.running == mostBuilds || c.running || len(c.queue) == 0 {
			continue
		}
		i := c.queue[0]
		i.queued, i.runner, c.running = false, c, true
		t.running++
		close(i.turn)
	}
}

// end ends the turn of an item, if it has one.
func (t *turns) end(i *item) {
	c := i.runner
	if c == nil {
		return
	}
	i.runner, c.running = nil, false
	t.running--
	t.order = append(slices.DeleteFunc(t.order, func(other *client) bool { return other == c }), c)
	t.forget(c)
	t.next()
}

// pay makes an item count for the share of a client; nil for none.
func (i *item) pay(c *client) {
	if i.payer != nil {
		i.payer.bytes -= i.size
	}
	if i.payer = c; c != nil {
		c.bytes += i.size
	}
}

// cheapest is the client of an item with the least other usage; nil if it has no clients.
func (i *item) cheapest() *client {
	var best *client
	least := int64(0)
	for c := range i.clients {
		beside := c.bytes
		if c == i.payer {
			beside -= i.size
		}
		if best == nil || beside < least {
			best, least = c, beside
		}
	}
	return best
}
