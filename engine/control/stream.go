package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	// alive is the interval of keep-alive comments: proxies close silent streams.
	alive = 15 * time.Second
	// patience limits the time that a client takes to read.
	patience = 10 * time.Second
	// longest is the longest line of a stream that Read takes.
	longest = 64 << 10
)

// MissedEvents is the type of an event that replaces dropped ones.
const MissedEvents EventType = "missed"

// Serve writes the events as server-sent events (HTML Living Standard, 9.2), starting after the one
// in the header Last-Event-ID. With the query follow=false it ends at the newest, else when the
// client does, or when ending is closed.
func (l *EventLog) Serve(w http.ResponseWriter, r *http.Request, ending <-chan struct{}) {
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // a client that only reads sends nothing
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	last, follow := r.Header.Get("Last-Event-ID"), r.URL.Query().Get("follow") != "false"
	write := func(text string) bool {
		_ = out.SetWriteDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(w, text); err != nil {
			return false
		}
		return out.Flush() == nil
	}
	if !write("retry: 2000\n\n") {
		return
	}
	tick := time.NewTicker(alive)
	defer tick.Stop()
	for {
		events, missed, more := l.After(last)
		text := ""
		if missed {
			text = line(Event{Type: MissedEvents, At: time.Now().UTC(), Text: "some events in between are no longer kept"})
		}
		for _, e := range events {
			text += line(e)
			last = e.ID
		}
		if missed && len(events) == 0 {
			last = ""
		}
		if text != "" && !write(text) || !follow {
			return
		}
		select {
		case <-more:
		case <-tick.C:
			if !write(": alive\n\n") {
				return
			}
		case <-r.Context().Done():
			return
		case <-ending:
			return
		}
	}
}

// line is an event in the form of the stream.
func line(e Event) string {
	data, err := json.Marshal(e)
	if err != nil {
		panic(err) // strings and times always marshal
	}
	text := "event: " + string(e.Type) + "\ndata: " + string(data) + "\n\n"
	if e.ID != "" {
		text = "id: " + e.ID + "\n" + text
	}
	return text
}

// read calls a function with each event of a stream until the stream ends, which is not an error, or the function
// returns one.
func read(ctx context.Context, from io.Reader, each func(Event) error) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, longest)
	for lines.Scan() {
		data, isData := strings.CutPrefix(lines.Text(), "data:")
		if !isData {
			continue // the ID and the type are in the data, too
		}
		var e Event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return fmt.Errorf("read the events: %w", err)
		}
		if err := each(e); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil && ctx.Err() == nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read the events: %w", err)
	}
	return nil
}
