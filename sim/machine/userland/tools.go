package userland

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// testTool is test(1), without its name and brackets.
func testTool(p *machine.Process, args []string) (bool, error) {
	t := &tester{p: p, args: args}
	if len(args) == 0 {
		return false, nil
	}
	holds, err := t.or()
	if err == nil && len(t.args) > 0 {
		err = fmt.Errorf("%s: unexpected operator", t.args[0])
	}
	return holds, err
}

type tester struct {
	p    *machine.Process
	args []string
}

func (t *tester) or() (bool, error) {
	left, err := t.and()
	for err == nil && len(t.args) > 1 && t.args[0] == "-o" {
		t.args = t.args[1:]
		var right bool
		right, err = t.and()
		left = left || right
	}
	return left, err
}

func (t *tester) and() (bool, error) {
	left, err := t.not()
	for err == nil && len(t.args) > 1 && t.args[0] == "-a" {
		t.args = t.args[1:]
		var right bool
		right, err = t.not()
		left = left && right
	}
	return left, err
}

func (t *tester) not() (bool, error) {
	if len(t.args) > 1 && t.args[0] == "!" && (len(t.args) != 3 || !binary(t.args[1])) {
		t.args = t.args[1:]
		holds, err := t.not()
		return !holds, err
	}
	return t.one()
}

func binary(op string) bool {
	switch op {
	case "=", "!=", "-eq", "-ne", "-lt", "-le", "-gt", "-ge":
		return true
	}
	return false
}

func (t *tester) take(n int) []string {
	out := t.args[:n]
	t.args = t.args[n:]
	return out
}

func (t *tester) one() (bool, error) {
	switch {
	case len(t.args) == 0:
		return false, errors.New("argument expected")
	case len(t.args) >= 3 && binary(t.args[1]):
		a := t.take(3)
		return t.compare(a[0], a[1], a[2])
	case t.args[0] == "(" && len(t.args) > 1:
		t.args = t.args[1:]
		holds, err := t.or()
		if err == nil && (len(t.args) == 0 || t.args[0] != ")") {
			return false, errors.New("closing paren expected")
		}
		t.args = t.args[1:]
		return holds, err
	case len(t.args) >= 2 && len(t.args[0]) == 2 && t.args[0][0] == '-' && strings.IndexByte("bcdefhnrstwxzLO", t.args[0][1]) >= 0:
		a := t.take(2)
		return t.unary(a[0], a[1])
	}
	return t.take(1)[0] != "", nil
}

func (*tester) compare(a, op, b string) (bool, error) {
	switch op {
	case "=":
		return a == b, nil
	case "!=":
		return a != b, nil
	}
	x, err := strconv.ParseInt(strings.TrimSpace(a), 10, 64)
	if err != nil {
		return false, fmt.Errorf("Illegal number: %s", a) //nolint:staticcheck // as dash says it
	}
	y, err := strconv.ParseInt(strings.TrimSpace(b), 10, 64)
	if err != nil {
		return false, fmt.Errorf("Illegal number: %s", b) //nolint:staticcheck // as dash says it
	}
	switch op {
	case "-eq":
		return x == y, nil
	case "-ne":
		return x != y, nil
	case "-lt":
		return x < y, nil
	case "-le":
		return x <= y, nil
	case "-gt":
		return x > y, nil
	}
	return x >= y, nil
}

func (t *tester) unary(op, a string) (bool, error) {
	fs, c, name := t.p.K.FS, t.p.Cred, t.p.Path(a)
	switch op {
	case "-n":
		return a != "", nil
	case "-z":
		return a == "", nil
	case "-t":
		return false, nil
	case "-r":
		return fs.Access(c, name, 4), nil
	case "-w":
		return fs.Access(c, name, 2), nil
	case "-x":
		return fs.Access(c, name, 1), nil
	case "-h", "-L":
		i, err := fs.Lstat(c, name)
		return err == nil && i.Kind == machine.SymbolicLink, nil
	}
	i, err := fs.Stat(c, name)
	if err != nil {
		return false, nil //nolint:nilerr // what is not there has nothing
	}
	switch op {
	case "-e":
		return true, nil
	case "-f":
		return i.Kind == machine.PlainFile, nil
	case "-d":
		return i.Kind == machine.Folder, nil
	case "-c":
		return i.Kind == machine.DeviceFile, nil
	case "-b":
		return i.Kind == machine.BlockDevice, nil
	case "-s":
		return i.Size > 0, nil
	case "-O":
		return i.UID == c.UID, nil
	}
	return false, nil
}

// unescape takes backslashes apart; stop says that a \c ended it. With zero, octal digits follow a 0.
func unescape(text string, zero bool) (out string, stop bool) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 == len(text) {
			b.WriteByte(text[i])
			continue
		}
		i++
		if at := strings.IndexByte(`abfnrtv\`, text[i]); at >= 0 {
			b.WriteByte("\a\b\f\n\r\t\v\\"[at])
			continue
		}
		if text[i] == 'c' {
			return b.String(), true
		}
		from, most := i, 3
		if zero && text[i] == '0' {
			from++
		}
		end := from
		for end < len(text) && end-from < most && text[end] >= '0' && text[end] <= '7' {
			end++
		}
		if text[i] < '0' || text[i] > '7' || zero && text[i] != '0' && end == from {
			b.WriteByte('\\')
			b.WriteByte(text[i])
			continue
		}
		n, _ := strconv.ParseUint(text[from:end], 8, 16)
		b.WriteByte(byte(n))
		i = end - 1
	}
	return b.String(), false
}

// printfTool is printf(1).
func printfTool(p *machine.Process, args []string) int {
	if len(args) < 2 {
		return p.Failf("usage: printf format [arg ...]")
	}
	if args[1] == "--" {
		args = args[1:]
	}
	format, rest := args[1], args[2:]
	var b strings.Builder
	code := 0
	next := func() string {
		if len(rest) == 0 {
			return ""
		}
		first := rest[0]
		rest = rest[1:]
		return first
	}
	for first := true; first || len(rest) > 0; first = false {
		before := len(rest)
		stop := once(&b, format, next, func(bad string) {
			fmt.Fprintf(p.Err(), "printf: %s: expected numeric value\n", bad)
			code = 1
		})
		if stop || len(rest) == before {
			break
		}
	}
	if _, err := p.Out().Write([]byte(b.String())); err != nil {
		return 1
	}
	return code
}

// once writes the format once, and reports whether nothing may follow.
func once(b *strings.Builder, format string, next func() string, bad func(string)) bool {
	for i := 0; i < len(format); i++ {
		if format[i] == '\\' {
			end := i + 2
			for end < len(format) && end < i+4 && format[i+1] >= '0' && format[i+1] <= '7' && format[end] >= '0' && format[end] <= '7' {
				end++
			}
			text, stop := unescape(format[i:min(end, len(format))], false)
			b.WriteString(text)
			if stop {
				return true
			}
			i = end - 1
			continue
		}
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		end := i + 1
		for end < len(format) && strings.IndexByte("-+ #0123456789.", format[end]) >= 0 {
			end++
		}
		if end == len(format) {
			b.WriteByte('%')
			continue
		}
		spec := format[i:end]
		i = end
		switch c := format[end]; c {
		case '%':
			b.WriteByte('%')
		case 's':
			fmt.Fprintf(b, spec+"s", next())
		case 'b':
			text, stop := unescape(next(), true)
			fmt.Fprintf(b, spec+"s", text)
			if stop {
				return true
			}
		case 'c':
			if a := next(); a != "" {
				b.WriteByte(a[0])
			}
		case 'd', 'i', 'u', 'o', 'x', 'X':
			a := next()
			n, err := strconv.ParseInt(strings.TrimSpace(a), 0, 64)
			if err != nil && a != "" {
				if len(a) > 1 && (a[0] == '\'' || a[0] == '"') {
					n = int64(a[1])
				} else {
					bad(a)
				}
			}
			if c == 'i' || c == 'u' {
				c = 'd'
			}
			fmt.Fprintf(b, spec+string(c), n)
		default:
			bad(spec + string(c)) // not simulated
		}
	}
	return false
}

func signals() map[string]syscall.Signal {
	return map[string]syscall.Signal{
		"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "ABRT": syscall.SIGABRT, "KILL": syscall.SIGKILL, "USR1": syscall.SIGUSR1,
		"SEGV": syscall.SIGSEGV, "USR2": syscall.SIGUSR2, "PIPE": syscall.SIGPIPE, "ALRM": syscall.SIGALRM, "TERM": syscall.SIGTERM, "CHLD": syscall.SIGCHLD, "CONT": syscall.SIGCONT,
	}
}

// SignalName is the name of a signal without SIG.
func SignalName(s syscall.Signal) string {
	for name, n := range signals() {
		if n == s {
			return name
		}
	}
	return strconv.Itoa(int(s))
}

// killTool is kill(1).
func killTool(p *machine.Process, args []string) int {
	sig := syscall.SIGTERM
	args = args[1:]
	if len(args) > 1 && args[0] == "-s" {
		args = append([]string{"-" + args[1]}, args[2:]...)
	}
	if len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "--" {
		name := strings.TrimPrefix(args[0][1:], "SIG")
		args = args[1:]
		if n, err := strconv.Atoi(name); err == nil {
			sig = syscall.Signal(n)
		} else if n, there := signals()[name]; there {
			sig = n
		} else {
			fmt.Fprintf(p.Err(), "kill: Illegal option -%s\n", name)
			return 2
		}
	}
	code := 0
	for _, a := range args {
		pid, err := strconv.Atoi(a)
		if err != nil {
			if a == "--" {
				continue
			}
			fmt.Fprintf(p.Err(), "kill: Illegal number: %s\n", a)
			return 2
		}
		to := p.K.Find(max(pid, -pid))
		switch {
		case to == nil:
			fmt.Fprintf(p.Err(), "kill: No such process\n")
			code = 1
		case p.Cred.UID != 0 && p.Cred.UID != to.Cred.UID:
			fmt.Fprintf(p.Err(), "kill: Operation not permitted\n")
			code = 1
		default:
			to.Signal(sig)
		}
	}
	return code
}

// SignalNumber is a signal by its name without SIG; SIGTERM for one that is not known.
func SignalNumber(name string) syscall.Signal {
	if n, there := signals()[name]; there {
		return n
	}
	return syscall.SIGTERM
}
