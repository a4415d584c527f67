package userland

// The shell of a simulated machine is a POSIX shell like Debian's dash, also under the name
// bash. Module mvdan.cc/sh parses scripts and expands words. Commands run as processes of
// package machine, with as many descriptors as a script asks for, which the interpreter of
// that module does not support.
//
// Read Main first, then run.go (statements), call.go (commands and redirections), builtin.go.

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// shell is one shell process. It belongs to the goroutine of that.
type shell struct {
	p      *machine.Process
	vars   map[string]expand.Variable
	funcs  map[string]*syntax.Stmt
	params []string
	zero   string // $0
	pid    int    // $$, that of the outermost shell
	cfg    *expand.Config

	status   int // $?
	errexit  bool
	nounset  bool
	noglob   bool
	tested   int // how many conditions we are inside of: set -e does not count there
	jobs     []*machine.Process
	traps    map[string]string
	locals   []map[string]expand.Variable // of the functions that run: what their names were before
	flow     flow
	levels   int // loops that break or continue leaves
	exitCode int
	subst    bool // a command substitution ran in the expansion of this command
	last     bool // the next command is all that is left to do: its program replaces this process
}

// flow says how the shell continues after a statement.
type flow int

const (
	on flow = iota
	breaking
	continuing
	returning
	exiting
)

// main is sh(1) and bash(1): -c COMMAND, -s, or a script, with -e, -u and -x.
func main(p *machine.Process) int {
	s := newShell(p)
	args := p.Args[1:]
	command, stdin := false, false
	for len(args) > 0 && len(args[0]) > 1 && (args[0][0] == '-' || args[0][0] == '+') {
		flags := args[0]
		args = args[1:]
		if flags == "--" {
			break
		}
		if flags == "-o" && len(args) > 0 {
			args = args[1:]
			continue
		}
		for _, c := range flags[1:] {
			switch c {
			case 'c':
				command = true
			case 's':
				stdin = true
			case 'e':
				s.errexit = true
			case 'u':
				s.nounset = true
			case 'f':
				s.noglob = true
			case 'x', 'l', 'i', '-':
			default:
				return s.fail(2, "Illegal option -%c", c)
			}
		}
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	switch {
	case command && len(args) == 0:
		return s.fail(2, "-c requires an argument")
	case command:
		if len(args) > 1 {
			s.zero, s.params = args[1], args[2:]
		}
		return s.main(strings.NewReader(args[0]))
	case stdin || len(args) == 0:
		s.params = args
		return s.main(p.In())
	}
	s.zero, s.params = args[0], args[1:]
	text, err := p.ReadFile(args[0])
	if err != nil {
		return s.fail(127, "cannot open %s: %s", args[0], machine.ErrorText(err))
	}
	return s.main(strings.NewReader(text))
}

func newShell(p *machine.Process) *shell {
	s := &shell{p: p, zero: p.Args[0], pid: p.PID, vars: map[string]expand.Variable{}, funcs: map[string]*syntax.Stmt{}, traps: map[string]string{}}
	for _, pair := range p.Env {
		name, value, _ := strings.Cut(pair, "=")
		if syntax.ValidName(name) {
			s.vars[name] = expand.Variable{Set: true, Kind: expand.String, Str: value, Exported: true}
		}
	}
	set := func(name, value string) {
		if !s.vars[name].Set {
			s.vars[name] = expand.Variable{Set: true, Kind: expand.String, Str: value}
		}
	}
	set("IFS", " \t\n")
	set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	set("PWD", p.Dir)
	set("OPTIND", "1")
	set("PS1", "# ")
	s.configure()
	return s
}

// configure makes the expansion of words ours.
func (s *shell) configure() {
	s.cfg = &expand.Config{
		Env: env{s}, NoUnset: s.nounset,
		CmdSubst: func(w io.Writer, cs *syntax.CmdSubst) error { return s.substitute(w, cs) },
	}
	if !s.noglob {
		s.cfg.ReadDir2 = func(name string) ([]fs.DirEntry, error) {
			list, err := s.p.K.FS.ReadDir(s.p.Cred, s.p.Path(name))
			if err != nil {
				return nil, err
			}
			out := make([]fs.DirEntry, len(list))
			for i, f := range list {
				out[i] = fs.FileInfoToDirEntry(info{f})
			}
			return out, nil
		}
	}
}

// info is a file as package fs has it.
type info struct{ machine.FileInfo }

// Name is the last part of the name.
func (i info) Name() string { return i.FileInfo.Name }

// Size is in bytes.
func (i info) Size() int64 { return i.FileInfo.Size }

// Mode has the kind of the file, and its rights.
func (i info) Mode() fs.FileMode {
	return fs.FileMode(i.Perm&0o777) | map[machine.FileKind]fs.FileMode{machine.Folder: fs.ModeDir, machine.SymbolicLink: fs.ModeSymlink, machine.DeviceFile: fs.ModeDevice | fs.ModeCharDevice, machine.BlockDevice: fs.ModeDevice}[i.Kind]
}

// ModTime returns the time of its last change.
func (i info) ModTime() time.Time { return i.FileInfo.ModTime }

// IsDir reports a folder.
func (i info) IsDir() bool { return i.Kind == machine.Folder }

// Sys is nothing.
func (info) Sys() any { return nil }

// main runs a script, command by command as they are read.
func (s *shell) main(r io.Reader) int {
	text, err := io.ReadAll(r)
	if err != nil {
		return s.fail(2, "reading the script: %s", machine.ErrorText(err))
	}
	s.script(string(text))
	return s.finish()
}

// script runs a text. As in dash, what comes before a mistake runs.
func (s *shell) script(text string) {
	parser := syntax.NewParser(syntax.Variant(syntax.LangPOSIX))
	for st, err := range parser.StmtsSeq(strings.NewReader(text)) {
		if err != nil {
			s.errorf("%v", err)
			s.leave(2)
			return
		}
		s.stmt(st)
		if s.flow != on || s.p.Dead() {
			return
		}
	}
}

// finish ends the shell: the trap on EXIT runs, and its code is given.
func (s *shell) finish() int {
	code := s.status
	if s.flow == exiting {
		code = s.exitCode
	}
	if trap := s.traps["EXIT"]; trap != "" && !s.p.Dead() {
		delete(s.traps, "EXIT")
		s.flow, s.status, s.tested = on, code, 0
		s.script(trap)
		if s.flow == exiting {
			code = s.exitCode
		}
	}
	return code
}

// leave ends the shell behind the statement that runs.
func (s *shell) leave(code int) { s.flow, s.exitCode, s.status = exiting, code, code }

func (s *shell) errorf(format string, args ...any) {
	fmt.Fprintf(s.p.Err(), "%s: %s\n", path.Base(s.zero), fmt.Sprintf(format, args...))
}

func (s *shell) fail(code int, format string, args ...any) int {
	s.errorf(format, args...)
	return code
}

// fork is the shell of a subshell, in a process of its own.
func (s *shell) fork() *shell {
	c := *s
	c.p = s.p.Fork()
	c.vars, c.funcs = maps.Clone(s.vars), maps.Clone(s.funcs)
	c.jobs, c.traps, c.locals = nil, map[string]string{}, nil
	for name, trap := range s.traps {
		if trap == "" {
			c.traps[name] = ""
		}
	}
	c.configure()
	return &c
}

// subshell runs something in a process of its own. It may be waited for.
func (s *shell) subshell(run func(*shell)) *machine.Process {
	c := s.fork()
	c.p.Go(func(*machine.Process) int {
		run(c)
		return c.finish()
	})
	return c.p
}

// substitute runs $(…).
func (s *shell) substitute(w io.Writer, cs *syntax.CmdSubst) error {
	r, wr := s.p.K.Pipe()
	c := s.fork()
	c.p.SetFD(1, wr)
	c.p.Go(func(*machine.Process) int {
		c.stmts(cs.Stmts)
		return c.finish()
	})
	reader := s.p.Fork()
	reader.SetFD(0, r)
	_, err := io.Copy(w, reader.In())
	reader.Discard()
	s.status = c.p.Wait()
	s.subst = true
	if s.p.Dead() {
		return errKilled
	}
	return err
}

var errKilled = errors.New("killed")

// env is the variables of a shell for package expand.
type env struct{ s *shell }

// Get is as expand.Environ wants it.
func (e env) Get(name string) expand.Variable {
	text := func(v string) expand.Variable { return expand.Variable{Set: true, Kind: expand.String, Str: v} }
	s := e.s
	switch name {
	case "#":
		return text(strconv.Itoa(len(s.params)))
	case "@", "*":
		return expand.Variable{Set: true, Kind: expand.Indexed, List: append([]string{}, s.params...)}
	case "?":
		return text(strconv.Itoa(s.status))
	case "$":
		return text(strconv.Itoa(s.pid))
	case "PPID":
		return text(strconv.Itoa(s.p.PPID))
	case "0":
		return text(s.zero)
	case "-":
		flags := ""
		if s.errexit {
			flags += "e"
		}
		if s.nounset {
			flags += "u"
		}
		return text(flags)
	case "!":
		if n := len(s.jobs); n > 0 {
			return text(strconv.Itoa(s.jobs[n-1].PID))
		}
		return expand.Variable{}
	}
	if n, err := strconv.Atoi(name); err == nil && n > 0 {
		if n <= len(s.params) {
			return text(s.params[n-1])
		}
		return expand.Variable{}
	}
	if user, ok := strings.CutPrefix(name, "HOME "); ok {
		return text(s.home(user))
	}
	return s.vars[name]
}

// home is the home of a user as ~user has it.
func (s *shell) home(user string) string {
	text, _ := s.p.K.FS.ReadFile("/etc/passwd")
	for line := range strings.Lines(text) {
		if f := strings.Split(line, ":"); len(f) > 6 && f[0] == user {
			return f[5]
		}
	}
	return "~" + user
}

// Set is as expand.WriteEnviron wants it.
func (e env) Set(name string, v expand.Variable) error { return e.s.set(name, v) }

// Each is as expand.Environ wants it.
func (e env) Each(f func(string, expand.Variable) bool) {
	for _, name := range slices.Sorted(maps.Keys(e.s.vars)) {
		if !f(name, e.s.vars[name]) {
			return
		}
	}
}

func (s *shell) set(name string, v expand.Variable) error {
	old := s.vars[name]
	if old.ReadOnly {
		return fmt.Errorf("%s: is read only", name)
	}
	if !v.Set {
		delete(s.vars, name)
		return nil
	}
	v.Exported = v.Exported || old.Exported
	s.vars[name] = v
	return nil
}

func (s *shell) setText(name, value string) error {
	return s.set(name, expand.Variable{Set: true, Kind: expand.String, Str: value})
}

// environ returns the environment of programs.
func (s *shell) environ() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(s.vars)) {
		if v := s.vars[name]; v.Exported && v.Set {
			out = append(out, name+"="+v.Str)
		}
	}
	return out
}

// expanded takes the error of an expansion, which ends the shell, and reports whether there is none.
func (s *shell) expanded(err error) bool {
	if err == nil {
		return true
	}
	if !errors.Is(err, errKilled) {
		s.errorf("%v", err)
	}
	s.leave(2)
	return false
}

func (s *shell) fields(words []*syntax.Word) ([]string, bool) {
	plain := make([]*syntax.Word, len(words)) // others may run the same tree
	for i, w := range words {
		plain[i] = withoutBraces(w)
	}
	out, err := expand.Fields(s.cfg, plain...)
	return out, s.expanded(err)
}

func (s *shell) literal(w *syntax.Word) (string, bool) {
	if w == nil {
		return "", true
	}
	out, err := expand.Literal(s.cfg, w)
	return out, s.expanded(err)
}

// withoutBraces is a word whose braces stand for themselves, as in every shell but bash.
func withoutBraces(w *syntax.Word) *syntax.Word {
	out := *w
	out.Parts = slices.Clone(w.Parts)
	for i, part := range w.Parts {
		if lit, ok := part.(*syntax.Lit); ok && strings.Contains(lit.Value, "{") {
			plain := *lit
			plain.Value = strings.ReplaceAll(strings.ReplaceAll(lit.Value, `\{`, "{"), "{", `\{`)
			out.Parts[i] = &plain
		}
	}
	return &out
}
