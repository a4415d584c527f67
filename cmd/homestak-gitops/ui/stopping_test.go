package ui_test

import (
	"context"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine"
)

// The first signal ends what has nothing to finish, the second one everything.
func TestSignalsAreCounted(t *testing.T) {
	signals := make(chan os.Signal)
	ctx, s := ui.Process{Signals: signals}.Watch(t.Context())
	defer s.Close()
	reading, cancel := s.Soon(ctx)
	defer cancel()

	signals <- os.Interrupt
	<-s.Once
	<-reading.Done()
	require.ErrorIs(t, context.Cause(reading), engine.ErrInterrupted)
	require.NoError(t, ctx.Err(), "what runs is finished")

	signals <- syscall.SIGTERM
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), engine.ErrInterrupted)
}

// A program that nobody asked to end says so: its context has no cause of interruption.
func TestCloseIsNoInterruption(t *testing.T) {
	ctx, s := ui.Process{}.Watch(t.Context())
	s.Close()
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	require.NotErrorIs(t, context.Cause(ctx), engine.ErrInterrupted)
	select {
	case <-s.Once:
		require.Fail(t, "no signal came")
	default:
	}
}

func TestHangups(t *testing.T) {
	none, end := ui.Process{}.Hangups()
	end()
	require.Nil(t, none)

	var asked os.Signal
	ended := false
	p := ui.Process{Subscribe: func(s os.Signal) (<-chan os.Signal, func()) {
		asked = s
		return make(chan os.Signal), func() { ended = true }
	}}
	hangups, end := p.Hangups()
	require.NotNil(t, hangups)
	require.Equal(t, syscall.SIGHUP, asked)
	end()
	require.True(t, ended)
}
