package specserve

import (
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// connectionBounds limit the number of connections that a boundedListener has at once, each at least 1.
type connectionBounds struct {
	Total      int
	PerClient  int
	Unverified int           // whose client has not shown a valid credential; the rest of Total is reserved for the others
	Idle       time.Duration // how long an unverified one stays between two requests
}

// boundedListener accepts a bounded number of connections at once. At the limit it closes the least useful one in favour
// of the new one: of the client with the most unverified connections the oldest without a running request, else the
// oldest; and only then a verified one, which has to be idle. If there is none, it closes the new one.
//
// Its server has to use Track as http.Server.ConnState and Context as http.Server.ConnContext.
type boundedListener struct {
	net.Listener
	bounds connectionBounds
	closed func(client netip.Prefix, open int)

	mutex      sync.Mutex // each connection is served by a goroutine of its own, and any may make room for a new one
	clients    map[netip.Prefix]*client
	all        int
	unverified int
	turns      uint64 // changes of a rank so far
}

// client is a client with connections.
type client struct {
	prefix     netip.Prefix
	open       int
	unverified int
	ranks      [kept]list.List // its connections that may be closed, by rank, each the oldest first
}

// rank says how soon a connection is closed in favor of another one.
type rank int

const (
	silent  rank = iota // unverified, and no request is under way
	busy                // unverified
	resting             // verified, and no request is under way
	kept                // verified, and not closed
)

// newBoundedListener bounds a listener. Closed is called for each connection that is closed since there are too many, with the
// number that its client had; it must not wait.
func newBoundedListener(ln net.Listener, b connectionBounds, closed func(client netip.Prefix, open int)) *boundedListener {
	return &boundedListener{Listener: ln, bounds: b, closed: closed, clients: map[netip.Prefix]*client{}}
}

// Accept waits for a connection, and makes room for it.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: accepted, listener: l}
		victims, ok := l.enter(c, networkOf(accepted.RemoteAddr().String()))
		for _, v := range victims {
			v.cut()
		}
		if ok {
			return c, nil
		}
		c.cut()
	}
}

// enter adds a connection. Victims are those that have to be closed for it; the client of each is as it was before.
func (l *boundedListener) enter(c *conn, from netip.Prefix) (victims []*conn, ok bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	own := l.clients[from]
	if own == nil {
		own = &client{prefix: from}
	}
	c.client = own
	for {
		var v *conn
		switch {
		case own.open >= l.bounds.PerClient:
			v = own.victim()
		case l.unverified >= l.bounds.Unverified, l.all >= l.bounds.Total:
			v = l.victim()
		default:
			l.clients[from] = own
			own.open++
			l.all++
			own.unverified++
			l.unverified++
			l.rank(c, silent)
			return victims, true
		}
		if v == nil {
			c.had, c.gone = own.open, true
			return victims, false
		}
		v.had = v.client.open
		l.remove(v)
		victims = append(victims, v)
	}
}

// victim is the connection of all clients that is closed first; nil if each is kept.
func (l *boundedListener) victim() *conn {
	var best *conn
	for _, c := range l.clients {
		v := c.victim()
		if v == nil {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(c.unverified, best.client.unverified), -cmp.Compare(v.rank, best.rank), -cmp.Compare(v.turn, best.turn)) > 0 {
			best = v
		}
	}
	return best
}

// victim is the connection of a client that is closed first; nil if each is kept.
func (c *client) victim() *conn {
	for i := range c.ranks {
		if first := c.ranks[i].Front(); first != nil {
			return first.Value.(*conn) //nolint:forcetypeassert // rank puts nothing else in
		}
	}
	return nil
}

// rank changes the rank of a connection. The caller has the mutex.
func (l *boundedListener) rank(c *conn, to rank) {
	l.unrank(c)
	l.turns++
	c.rank, c.turn = to, l.turns
	if to < kept {
		c.at = c.client.ranks[to].PushBack(c)
	}
}

func (*boundedListener) unrank(c *conn) {
	if c.at != nil {
		c.client.ranks[c.rank].Remove(c.at)
		c.at = nil
	}
	if c.expiry != nil {
		c.expiry.Stop()
		c.expiry = nil
	}
}

// remove forgets a connection. The caller has the mutex.
func (l *boundedListener) remove(c *conn) {
	if c.gone {
		return
	}
	c.gone = true
	l.unrank(c)
	l.all--
	if c.rank < resting {
		l.unverified--
		c.client.unverified--
	}
	if c.client.open--; c.client.open == 0 {
		delete(l.clients, c.client.prefix)
	}
}

// Track notices when a request begins and ends.
func (l *boundedListener) Track(nc net.Conn, state http.ConnState) {
	c := unwrap(nc)
	if c == nil || state != http.StateActive && state != http.StateIdle {
		return
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	switch {
	case c.gone:
	case c.rank < resting && state == http.StateActive:
		l.rank(c, busy)
	case c.rank < resting:
		l.rank(c, silent)
		turn := c.turn
		c.expiry = time.AfterFunc(l.bounds.Idle, func() { l.expire(c, turn) })
	case state == http.StateActive:
		l.rank(c, kept)
	default:
		l.rank(c, resting)
	}
}

// expire closes a connection that has been idle since a turn.
func (l *boundedListener) expire(c *conn, turn uint64) {
	l.mutex.Lock()
	same := c.turn == turn && !c.gone
	if same {
		l.remove(c)
	}
	l.mutex.Unlock()
	if same {
		_ = c.Conn.Close()
	}
}

// connKey is the key of a connection in the context of its requests.
type connKey struct{}

// Context is the context of the requests of a connection.
func (*boundedListener) Context(ctx context.Context, nc net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, unwrap(nc))
}

// verifiedConnection notices that a request has a valid credential. From then on its connection is one that others hardly make
// room for.
func verifiedConnection(r *http.Request) {
	c, _ := r.Context().Value(connKey{}).(*conn)
	if c == nil {
		return // not of a boundedListener
	}
	l := c.listener
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if c.gone || c.rank >= resting {
		return
	}
	l.unverified--
	c.client.unverified--
	l.rank(c, kept)
}

// unwrap finds the connection of a boundedListener below TLS; nil if it is another one.
func unwrap(nc net.Conn) *conn {
	if secure, is := nc.(*tls.Conn); is {
		nc = secure.NetConn()
	}
	c, _ := nc.(*conn)
	return c
}

// conn is a connection that is counted. The mutex of its listener guards what is below that.
type conn struct {
	net.Conn
	listener *boundedListener
	client   *client

	rank   rank
	turn   uint64        // when it got its rank
	at     *list.Element // in the list of its rank
	expiry *time.Timer   // ends it
	gone   bool          // it is not counted any more
	had    int           // connections of its client, when it had to be closed
}

// cut closes a connection since there are too many.
func (c *conn) cut() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // the kernel need not remember it
	}
	_ = c.Conn.Close()
	c.listener.closed(c.client.prefix, c.had)
}

// Close closes the connection, and makes room for another one.
func (c *conn) Close() error {
	c.listener.mutex.Lock()
	c.listener.remove(c)
	c.listener.mutex.Unlock()
	return c.Conn.Close()
}
