package main

import (
	"context"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdUntil runs a program again and again until it exits with a code and, if there is
// a word /TEXT as well, its output has the text.
func cmdUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until CODE [/TEXT] PROGRAM ARG...")
	}
	want, text := args[0], ""
	if args = args[1:]; strings.HasPrefix(args[0], "/") {
		text, args = args[0][1:], args[1:]
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		got := 0
		var failed *exec.ExitError
		if err := ts.Exec(args[0], args[1:]...); errors.As(err, &failed) {
			got = failed.ExitCode()
		} else {
			ts.Check(err)
		}
		if strconv.Itoa(got) == want && strings.Contains(ts.ReadFile("stdout")+ts.ReadFile("stderr"), text) {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			ts.Fatalf("exit code %d, want %s and %q", got, want, text)
		}
	}
}

// cmdPush commits the folder site, and pushes it to the bare repository site.git; the
// first time it makes both.
func cmdPush(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: push MESSAGE")
	}
	git := func(args ...string) {
		ts.Check(ts.Exec("git", append([]string{"-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-C", "site"}, args...)...))
	}
	if ts.Exec("git", "-C", "site.git", "rev-parse") != nil {
		ts.Check(ts.Exec("git", "init", "-q", "--bare", "-b", "main", "site.git"))
		git("init", "-q", "-b", "main")
	}
	git("add", "-A")
	git("commit", "-q", "--allow-empty", "-m", args[0])
	git("push", "-q", "../site.git", "main")
}
