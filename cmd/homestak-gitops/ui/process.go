package ui

// Process is the environment of the program: streams, terminals, variables and signals. Tests provide their own.

import (
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
)

// Process is one run of the program.
type Process struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Env            func(string) string
	Signals        <-chan os.Signal // that ask the program to end; nil: none ever comes

	// Subscribe gives the signals of another sort from now on, until the returned
	// function is called. Nil: none ever comes.
	Subscribe func(os.Signal) (<-chan os.Signal, func())

	InTerminal, OutTerminal, ErrTerminal bool
	Width                                int // columns of the terminal, 0 if unknown
}

// ThisProcess is the current process. From here on Signals receives the first two termination signals; the third
// one kills.
func ThisProcess() Process {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	p := Process{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Env: os.Getenv, Signals: signals, Subscribe: subscribe,
		InTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		OutTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		ErrTerminal: term.IsTerminal(int(os.Stderr.Fd())),
	}
	for _, f := range []*os.File{os.Stdout, os.Stderr} {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && p.Width == 0 {
			p.Width = w
		}
	}
	return p
}

func subscribe(s os.Signal) (<-chan os.Signal, func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, s)
	return c, func() { signal.Stop(c) }
}

// Hangups gives the SIGHUPs of the process until the returned function is called. For a verb that does not
// subscribe a SIGHUP is the end, since its terminal is gone.
func (p Process) Hangups() (<-chan os.Signal, func()) {
	if p.Subscribe == nil {
		return nil, func() {}
	}
	return p.Subscribe(syscall.SIGHUP)
}
