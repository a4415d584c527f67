package service

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// NewLog creates the log of an agent. If it goes to the journal of systemd, which journalStream (the variable
// JOURNAL_STREAM) identifies, each line begins with its priority as in sd-daemon(3), and has no time, because the
// journal adds it.
func NewLog(w io.Writer, journalStream, level, format string) *slog.Logger {
	o := &slog.HandlerOptions{Level: levelOf(level)}
	h := &lineHandler{out: &logOutput{w: w}, journal: journals(journalStream, w)}
	without := func(drop ...string) func([]string, slog.Attr) slog.Attr {
		return func(groups []string, attr slog.Attr) slog.Attr {
			if len(groups) == 0 && slices.Contains(drop, attr.Key) {
				return slog.Attr{}
			}
			return attr
		}
	}
	switch {
	case format == "json" && h.journal:
		o.ReplaceAttr = without(slog.TimeKey)
		h.inner = slog.NewJSONHandler(&h.out.line, o)
	case format == "json":
		h.inner = slog.NewJSONHandler(&h.out.line, o)
	default:
		h.words = true
		o.ReplaceAttr = without(slog.TimeKey, slog.LevelKey, slog.MessageKey)
		h.inner = slog.NewTextHandler(&h.out.line, o)
	}
	return slog.New(h)
}

func levelOf(name string) slog.Level {
	var l slog.Level
	if l.UnmarshalText([]byte(name)) != nil {
		return slog.LevelInfo
	}
	return l
}

// journals reports whether what is written goes to the journal: systemd names the
// device and inode of the stream, since the variable is also inherited by programs
// whose output goes elsewhere.
func journals(stream string, w io.Writer) bool {
	if screen, is := w.(interface{ Unwrap() io.Writer }); is {
		w = screen.Unwrap()
	}
	f, ok := w.(*os.File)
	if !ok || stream == "" {
		return false
	}
	info, err := f.Stat()
	if err != nil {
		return false
	}
	at, ok := info.Sys().(*syscall.Stat_t)
	return ok && stream == fmt.Sprintf("%d:%d", at.Dev, at.Ino)
}

// lineHandler writes a record as one line: in words, what happened comes first.
type lineHandler struct {
	out     *logOutput // shared by all that are made from one
	inner   slog.Handler
	journal bool
	words   bool
}

// logOutput is the destination of lines. Any goroutine may log, so a lock keeps lines whole.
type logOutput struct {
	mu   sync.Mutex
	w    io.Writer
	line bytes.Buffer // what the inner handler wrote of the present record
}

// Enabled is as slog.Handler wants it.
func (h *lineHandler) Enabled(ctx context.Context, l slog.Level) bool { return h.inner.Enabled(ctx, l) }

// WithAttrs is as slog.Handler wants it.
func (h *lineHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.inner = h.inner.WithAttrs(attrs)
	return &c
}

// WithGroup is as slog.Handler wants it.
func (h *lineHandler) WithGroup(name string) slog.Handler {
	c := *h
	c.inner = h.inner.WithGroup(name)
	return &c
}

// Handle writes a record.
func (h *lineHandler) Handle(ctx context.Context, r slog.Record) error {
	h.out.mu.Lock()
	defer h.out.mu.Unlock()
	h.out.line.Reset()
	if err := h.inner.Handle(ctx, r); err != nil {
		return err
	}
	var head string
	if h.words {
		head = diag.Clean(r.Message)
		if !h.journal {
			head = fmt.Sprintf("%s %-5s %s", r.Time.Format(time.DateTime), r.Level, head)
		}
		if h.out.line.Len() > 1 {
			head += "  "
		}
	}
	if h.journal {
		head = priority(r.Level) + head
	}
	_, err := fmt.Fprintf(h.out.w, "%s%s", head, h.out.line.Bytes())
	return err
}

func priority(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "<3>"
	case l >= slog.LevelWarn:
		return "<4>"
	case l >= slog.LevelInfo:
		return "<6>"
	default:
		return "<7>"
	}
}
