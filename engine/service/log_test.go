package service

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
)

func TestLog(t *testing.T) {
	for _, c := range []struct {
		level, format string
		want          string
	}{
		{"info", "text", `2026-01-02 03:04:05 INFO  step ended  address=vm.a took=2s
2026-01-02 03:04:05 WARN  two words  host=father why="a\nb"
`},
		{"warn", "text", `2026-01-02 03:04:05 WARN  two words  host=father why="a\nb"
`},
		{"info", "json", `{"time":"2026-01-02T03:04:05Z","level":"INFO","msg":"step ended","address":"vm.a","took":2000000000}
{"time":"2026-01-02T03:04:05Z","level":"WARN","msg":"two words","host":"father","why":"a\nb"}
`},
	} {
		var out bytes.Buffer
		logTwo(t, NewLog(&out, "", c.level, c.format))
		require.Equal(t, c.want, out.String())
	}
}

// The journal has time and priority of its own, and knows the stream by its inode.
func TestLogInTheJournal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "journal"))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	require.NoError(t, err)
	at := info.Sys().(*syscall.Stat_t)
	stream := fmt.Sprintf("%d:%d", at.Dev, at.Ino)
	require.False(t, journals(stream, &bytes.Buffer{}))
	require.True(t, journals(stream, diag.Screen(f)), "as the command writes to it")
	require.False(t, journals("1:2", f), "inherited, but written elsewhere")
	logTwo(t, NewLog(diag.Screen(f), stream, "debug", "text"))
	logTwo(t, NewLog(f, stream, "error", "text"))
	logTwo(t, NewLog(f, stream, "info", "json"))
	text, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	require.Equal(t, `<6>step ended  address=vm.a took=2s
<4>two words  host=father why="a\nb"
<6>{"level":"INFO","msg":"step ended","address":"vm.a","took":2000000000}
<4>{"level":"WARN","msg":"two words","host":"father","why":"a\nb"}
`, string(text))
}

func logTwo(t *testing.T, l *slog.Logger) {
	t.Helper()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	step := slog.NewRecord(at, slog.LevelInfo, "step ended", 0)
	step.AddAttrs(slog.String("address", "vm.a"), slog.Duration("took", 2*time.Second))
	words := slog.NewRecord(at, slog.LevelWarn, "two words", 0)
	words.AddAttrs(slog.String("why", "a\nb"))
	for h, r := range map[slog.Handler]slog.Record{l.Handler(): step} {
		if h.Enabled(context.Background(), r.Level) {
			require.NoError(t, h.Handle(context.Background(), r))
		}
	}
	if h := l.With("host", "father").Handler(); h.Enabled(context.Background(), words.Level) {
		require.NoError(t, h.Handle(context.Background(), words))
	}
}
