package userland

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// builtin is a command of the shell itself. args begin with its name.
type builtin func(s *shell, args []string) int

func builtins() map[string]builtin {
	return map[string]builtin{
		":": ok, "true": ok, "false": func(*shell, []string) int { return 1 },
		".": source, "[": test, "test": test, "break": leaveLoop, "continue": leaveLoop, "cd": cd, "command": command,
		"echo": builtinEcho, "eval": eval, "exec": ok, "exit": exit, "export": declare, "readonly": declare, "local": declare, "kill": kill,
		"printf": printf, "pwd": pwd, "read": read, "return": exit, "set": builtinSet, "shift": shift, "trap": trap, "umask": umask,
		"unset": unset, "wait": wait,
	}
}

func ok(*shell, []string) int { return 0 }

func source(s *shell, args []string) int {
	if len(args) < 2 {
		return s.fail(2, ".: a file is missing")
	}
	text, err := s.p.ReadFile(args[1])
	if err != nil {
		s.leave(s.fail(2, ".: cannot open %s: %s", args[1], machine.ErrorText(err)))
		return 2
	}
	s.status = 0
	s.script(text)
	return s.status
}

func test(s *shell, args []string) int {
	rest := args[1:]
	if args[0] == "[" {
		if len(rest) == 0 || rest[len(rest)-1] != "]" {
			return s.fail(2, "[: missing ]")
		}
		rest = rest[:len(rest)-1]
	}
	holds, err := testTool(s.p, rest)
	if err != nil {
		return s.fail(2, "%s: %v", args[0], err)
	}
	return btoi(!holds)
}

func leaveLoop(s *shell, args []string) int {
	s.levels = 1
	if len(args) > 1 {
		s.levels, _ = strconv.Atoi(args[1])
	}
	s.flow = breaking
	if args[0] == "continue" {
		s.flow = continuing
	}
	return 0
}

func cd(s *shell, args []string) int {
	to, physical := s.vars["HOME"].Str, false
	for len(args) > 1 && (args[1] == "--" || args[1] == "-P") {
		physical = physical || args[1] == "-P"
		args = args[1:]
	}
	if len(args) > 1 {
		to = args[1]
	}
	if to == "-" {
		to = s.vars["OLDPWD"].Str
		s.p.Printf("%s\n", to)
	}
	dir := path.Clean(s.p.Path(to))
	i, err := s.p.K.FS.Stat(s.p.Cred, dir)
	switch {
	case err == nil && i.Kind != machine.Folder:
		err = syscall.ENOTDIR
	case err == nil && !s.p.K.FS.Access(s.p.Cred, dir, 1):
		err = syscall.EACCES
	}
	if err == nil && physical {
		dir, err = s.p.K.FS.Real(s.p.Cred, dir)
	}
	if err != nil {
		return s.fail(2, "cd: can't cd to %s", to)
	}
	_ = s.setText("OLDPWD", s.p.Dir)
	s.p.Dir = dir
	_ = s.setText("PWD", dir)
	return 0
}

// command is command -v, and command NAME ARGUMENT...
func command(s *shell, args []string) int {
	args = args[1:]
	if len(args) > 0 && args[0] == "-p" {
		args = args[1:]
	}
	if len(args) == 0 {
		return 0
	}
	if args[0] != "-v" && args[0] != "-V" {
		if run := builtins()[args[0]]; run != nil {
			return run(s, args)
		}
		caller{s}.program(args, nil, nil)
		return s.status
	}
	for _, name := range args[1:] {
		switch {
		case s.funcs[name] != nil || builtins()[name] != nil && name != "[":
			s.p.Printf("%s\n", name)
		default:
			s.p.Env = s.environ()
			file, err := s.p.Find(name)
			if err != nil || !s.p.K.FS.Access(s.p.Cred, file, 1) {
				return 127
			}
			s.p.Printf("%s\n", file)
		}
	}
	return 0
}

// builtinEcho is that of dash: it takes backslashes apart.
func builtinEcho(s *shell, args []string) int {
	args = args[1:]
	end := "\n"
	if len(args) > 0 && args[0] == "-n" {
		end, args = "", args[1:]
	}
	text, stop := unescape(strings.Join(args, " "), true)
	if stop {
		end = ""
	}
	if _, err := s.p.Out().Write([]byte(text + end)); err != nil {
		return 1
	}
	return 0
}

func eval(s *shell, args []string) int {
	s.status = 0
	s.script(strings.Join(args[1:], " "))
	return s.status
}

// exit is exit and return.
func exit(s *shell, args []string) int {
	code := s.status
	if len(args) > 1 {
		n, err := strconv.Atoi(args[1])
		if err != nil || n < 0 {
			s.leave(s.fail(2, "%s: Illegal number: %s", args[0], args[1]))
			return 2
		}
		code = n & 0xff
	}
	if args[0] == "return" && len(s.locals) > 0 {
		s.flow = returning
		return code
	}
	s.leave(code)
	return code
}

func declare(s *shell, args []string) int {
	for _, a := range args[1:] {
		if strings.HasPrefix(a, "-") {
			continue
		}
		name, value, given := strings.Cut(a, "=")
		if !syntax.ValidName(name) {
			return s.fail(2, "%s: %s: bad variable name", args[0], name)
		}
		compound{s}.declareOne(args[0], name, value, given)
	}
	return 0
}

func kill(s *shell, args []string) int { return killTool(s.p, args) }

func printf(s *shell, args []string) int { return printfTool(s.p, args) }

func pwd(s *shell, _ []string) int {
	s.p.Printf("%s\n", s.p.Dir)
	return 0
}

func read(s *shell, args []string) int {
	args = args[1:]
	raw := false
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		raw = raw || strings.Contains(args[0], "r")
		args = args[1:]
	}
	var line []byte
	code := 1
	in, b := s.p.In(), make([]byte, 1)
	for escaped := false; ; { // byte by byte: what follows is for others
		n, err := in.Read(b)
		if err != nil || n == 0 {
			break
		}
		if escaped {
			escaped = false
			if b[0] != '\n' {
				line = append(line, b[0])
			}
			continue
		}
		if b[0] == '\n' {
			code = 0
			break
		}
		if escaped = !raw && b[0] == '\\'; !escaped {
			line = append(line, b[0])
		}
	}
	if len(args) == 0 {
		args = []string{"REPLY"}
	}
	for i, text := range expand.ReadFields(s.cfg, string(line), len(args), true) {
		if i < len(args) {
			_ = s.setText(args[i], text)
			args[i] = ""
		}
	}
	for _, name := range args {
		if name != "" {
			_ = s.setText(name, "")
		}
	}
	return code
}

func builtinSet(s *shell, args []string) int {
	args = args[1:]
	if len(args) == 0 {
		for _, name := range slices.Sorted(maps.Keys(s.vars)) {
			s.p.Printf("%s='%s'\n", name, strings.ReplaceAll(s.vars[name].Str, "'", `'\''`))
		}
		return 0
	}
	for len(args) > 0 && len(args[0]) > 1 && (args[0][0] == '-' || args[0][0] == '+') {
		flags, on := args[0], args[0][0] == '-'
		args = args[1:]
		if flags == "--" {
			s.params = slices.Clone(args)
			return 0
		}
		for _, c := range flags[1:] {
			switch c {
			case 'e':
				s.errexit = on
			case 'u':
				s.nounset = on
			case 'f':
				s.noglob = on
			case 'o':
				if len(args) > 0 {
					args = args[1:]
				}
			case 'x', 'v', 'm':
			default:
				return s.fail(2, "set: Illegal option -%c", c)
			}
		}
		s.configure()
		if len(args) == 0 {
			return 0
		}
	}
	s.params = slices.Clone(args)
	return 0
}

func shift(s *shell, args []string) int {
	n := 1
	if len(args) > 1 {
		n, _ = strconv.Atoi(args[1])
	}
	if n > len(s.params) || n < 0 {
		s.leave(s.fail(2, "shift: can't shift that many"))
		return 2
	}
	s.params = s.params[n:]
	return 0
}

func trap(s *shell, args []string) int {
	if len(args) < 3 {
		return 0
	}
	for _, name := range args[2:] {
		if name == "0" {
			name = "EXIT"
		}
		name = strings.TrimPrefix(name, "SIG")
		if args[1] == "-" {
			delete(s.traps, name)
		} else {
			s.traps[name] = args[1]
		}
		if sig, there := signals()[name]; there {
			s.p.Ignore(sig, args[1] == "")
		}
	}
	return 0
}

func umask(s *shell, args []string) int {
	if len(args) < 2 {
		s.p.Printf("%04o\n", s.p.Umask)
		return 0
	}
	n, err := strconv.ParseUint(args[1], 8, 32)
	if err != nil {
		return s.fail(2, "umask: Illegal mode: %s", args[1])
	}
	s.p.Umask = uint32(n) & 0o777
	return 0
}

func unset(s *shell, args []string) int {
	functions := false
	for _, name := range args[1:] {
		switch {
		case name == "-f":
			functions = true
		case name == "-v":
		case functions:
			delete(s.funcs, name)
		case s.vars[name].ReadOnly:
			return s.fail(2, "unset: %s: is read only", name)
		default:
			delete(s.vars, name)
			if name == "IFS" {
				s.configure()
			}
		}
	}
	return 0
}

func wait(s *shell, args []string) int {
	code := 0
	for _, job := range s.jobs {
		if len(args) < 2 || slices.Contains(args[1:], fmt.Sprint(job.PID)) {
			select {
			case <-job.Done():
			case <-s.p.Killed():
				return 128
			}
			if len(args) > 1 {
				code = job.Wait()
			}
		}
	}
	return code
}
