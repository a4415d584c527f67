package web

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/control"
)

const (
	aliveEvery = 15 * time.Second // proxies close silent streams
	takeTime   = 10 * time.Second // that a browser has to read
)

// events sends one message for each event, so that the page asks for its regions again: server-sent events (HTML Living Standard,
// 9.2) with the IDs of the agent. A browser that comes back names the last one, and gets those after it. One that comes for the
// first time gets the newest, since its page may be older.
func (x *request) events() {
	select {
	case x.streams <- struct{}{}:
		defer func() { <-x.streams }()
	default:
		http.Error(x.w, "too many pages follow the events", http.StatusServiceUnavailable)
		return
	}
	newest := control.Event{Type: "connected"}
	err := x.o.Source.Events(x.Context(), "", false, func(e control.Event) error {
		newest = e
		return nil
	})
	if err != nil { // or the page would say that it is up to date
		http.Error(x.w, "the agent does not answer", http.StatusBadGateway)
		return
	}
	out := http.NewResponseController(x.w)
	_ = out.SetReadDeadline(time.Time{}) // it sends nothing more
	x.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	write := func(text string) bool {
		_ = out.SetWriteDeadline(time.Now().Add(takeTime))
		_, err := io.WriteString(x.w, text)
		return err == nil && out.Flush() == nil
	}
	ctx, cancel := context.WithCancel(x.Context())
	defer cancel()
	begin, last := "retry: 2000\n\n", cmp.Or(x.Header.Get("Last-Event-ID"), x.URL.Query().Get("after"))
	if last == "" {
		begin, last = begin+message(newest), newest.ID
	}
	if !write(begin) {
		return
	}
	come := make(chan control.Event)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = x.o.Source.Events(ctx, last, true, func(e control.Event) error { // when it ends, the browser connects again
			select {
			case come <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	defer func() { cancel(); <-ended }()
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		select {
		case e := <-come:
			if !write(message(e)) {
				return
			}
		case <-tick.C:
			if _, ok := x.o.Access.visitor(x.Request, x.o.Now()); !ok || !write(": alive\n\n") {
				return // a replaced key ends the stream, too
			}
		case <-ended:
			return
		case <-ctx.Done():
			return
		}
	}
}

// message is an event as the page needs it.
func message(e control.Event) string {
	id := ""
	if e.ID != "" && !strings.ContainsAny(e.ID, "\r\n\x00") {
		id = "id: " + e.ID + "\n"
	}
	kind := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r == '-' {
			return r
		}
		return -1
	}, string(e.Type))
	return id + "data: " + kind + "\n\n"
}
