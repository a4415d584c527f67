package node

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/host"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Socket is data of a call that, if it asks for an upgrade, gets a console instead.
type Socket struct {
	Console *Console // Nil where nobody listens.
	Data    any
}

// Refuse is what handle_api2_request of APIServer/AnyEvent.pm looks at before it gives
// a connection away.
func (Socket) Refuse(r *http.Request) error {
	version := r.Header.Get("Sec-WebSocket-Version")
	switch {
	case version != "13":
		return &perl.APIError{Status: http.StatusNotImplemented, Message: "unsupported websocket-version '" + version + "'", Plain: true}
	case r.Header.Get("Sec-WebSocket-Key") == "":
		return &perl.APIError{Status: http.StatusNotImplemented, Message: "missing websocket-key", Plain: true}
	}
	return nil
}

// framePayload is the most that one frame may carry ($max_payload_size).
const framePayload = 128 << 10

// Operator connects callers with the consoles of a host.
type Operator struct {
	// Ask asks the world something while a console is open.
	Ask func(ask func(*core.World))
}

// Connect serves a console over a connection until either side ends it; the end of the
// console is that of its worker.
func (o Operator) Connect(conn net.Conn, buffered *bufio.ReadWriter, r *http.Request, con *Console) {
	upgrader := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}
	if protocols := websocket.Subprotocols(r); len(protocols) > 0 {
		upgrader.Subprotocols = protocols[:1] // PVE says back what it was asked for.
	}
	ws, err := upgrader.Upgrade(givenAway{conn, buffered}, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = ws.Close() }()
	if !o.take(con) {
		return
	}
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-con.ended: // Somebody stopped the task.
			_ = ws.Close()
		case <-over:
		}
	}()
	ws.SetReadLimit(framePayload)
	ws.SetCloseHandler(func(int, string) error { return nil }) // PVE says no goodbye, it hangs up.
	wire := &frames{ws: ws}
	if con.terminal {
		err = o.terminal(wire, con)
	} else {
		err = o.screen(wire, con)
	}
	if _, ok := errors.AsType[hungUpError](err); ok {
		err = nil // That is how consoles end.
	}
	o.leave(con, err)
}

// hungUpError is what reading from and writing to a caller fails with who is gone.
type hungUpError struct{ error }

// take is the one caller that a console has.
func (o Operator) take(con *Console) (first bool) {
	o.Ask(func(w *core.World) {
		first = !con.taken && consolesOf(w)[con.port] == con
		con.taken = con.taken || first
	})
	return first
}

// leave ends the worker of a console.
func (o Operator) leave(con *Console, err error) {
	o.Ask(func(w *core.World) {
		if consolesOf(w)[con.port] != con {
			return // It was stopped.
		}
		delete(consolesOf(w), con.port)
		if con.worker.Running() {
			con.worker.Finish(err)
		}
	})
}

// givenAway is a connection as those want it who take it over from a server.
type givenAway struct {
	conn     net.Conn
	buffered *bufio.ReadWriter
}

func (givenAway) Header() http.Header           { return http.Header{} }
func (g givenAway) Write(b []byte) (int, error) { return g.conn.Write(b) }
func (g givenAway) WriteHeader(status int) {
	_, _ = fmt.Fprintf(g.conn, "HTTP/1.1 %d refused\r\n\r\n", status)
}
func (g givenAway) Hijack() (net.Conn, *bufio.ReadWriter, error) { return g.conn, g.buffered, nil }

// frames is a websocket as a stream: what is behind it knows nothing of frames.
type frames struct {
	ws   *websocket.Conn
	rest io.Reader
}

func (f *frames) Read(b []byte) (int, error) {
	for {
		if f.rest == nil {
			_, next, err := f.ws.NextReader()
			if err != nil {
				return 0, err
			}
			f.rest = next
		}
		n, err := f.rest.Read(b)
		if errors.Is(err, io.EOF) {
			f.rest, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (f *frames) Write(b []byte) (int, error) {
	if err := f.ws.WriteMessage(websocket.BinaryMessage, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// maxTyped is how much one message may bring, and with it the line of the ticket.
const maxTyped = 64 << 10

// terminal is what termproxy of pve-xtermjs does: the caller says in a first line who it
// is, with the ticket of the console; "OK" comes back, and from then on what the program
// writes. What is typed comes as "0:LENGTH:DATA", the size of the window as
// "1:COLUMNS:ROWS:", a sign of life as "2".
func (o Operator) terminal(wire *frames, con *Console) error {
	failed := perl.Fail("command '/usr/bin/termproxy %d --path %s --perm %s' failed: exit code 1", con.port, con.path, con.perm)
	_ = wire.ws.SetReadDeadline(time.Now().Add(consolePatience))
	in := bufio.NewReaderSize(wire, maxTyped)
	line, err := in.ReadSlice('\n')
	user, ticket, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), ":")
	allowed := false
	o.Ask(func(w *core.World) { allowed = err == nil && mayCall(w, con, user, ticket) })
	if !allowed {
		return failed
	}
	_ = wire.ws.SetReadDeadline(time.Time{})
	if _, err := io.WriteString(wire, "OK"); err != nil {
		return failed
	}
	shell := o.shell(con)
	for typed := ""; ; {
		said, done := shell.typed(typed)
		if said != "" {
			if _, err := io.WriteString(wire, said); err != nil {
				return hungUpError{err}
			}
		}
		if done {
			return nil
		}
		if typed, err = nextTyped(in); err != nil {
			return hungUpError{err}
		}
	}
}

// nextTyped reads one message of a caller.
func nextTyped(in *bufio.Reader) (string, error) {
	kind, err := in.ReadByte()
	if err != nil {
		return "", err
	}
	switch kind {
	case '0':
		if colon, err := in.ReadByte(); err != nil || colon != ':' {
			return "", errors.New("no length")
		}
		digits, err := in.ReadSlice(':') // Never more than the reader holds.
		if err != nil {
			return "", err
		}
		n, err := strconv.Atoi(strings.TrimSuffix(string(digits), ":"))
		if err != nil || n < 0 || n > maxTyped {
			return "", fmt.Errorf("a length of %s", digits)
		}
		data := make([]byte, n)
		_, err = io.ReadFull(in, data)
		return string(data), err
	case '1':
		for range 3 { // The empty field before the first colon, too.
			if _, err := in.ReadSlice(':'); err != nil {
				return "", err
			}
		}
		return "", nil
	case '2':
		return "", nil
	}
	return "", fmt.Errorf("a message of kind %q", kind)
}

// mayCall says whether somebody may use a console: termproxy asks it of POST
// /access/ticket, or of /access/vncticket.
func mayCall(w *core.World, con *Console, user, ticket string) bool {
	if u := w.Access.Users[user]; u == nil || !u.Active(w.Now) {
		return false
	}
	owner, good := host.ByTicket(w, ticket)
	if (!good || owner != user) && !goodConsoleTicket(w, ticket, user, con.path, con.port) {
		return false
	}
	return w.Access.Privileges(core.Identity{User: user}, con.path)[con.perm]
}
