package userland

import (
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// caller is the shell as it runs simple commands.
type caller struct{ *shell }

// call runs a simple command: assignments, redirections, and a function, a builtin or a program.
func (s caller) call(c *syntax.CallExpr, redirs []*syntax.Redirect) {
	last := s.last
	s.subst, s.last = false, false
	args, ok := s.fields(c.Args)
	if !ok {
		return
	}
	if len(args) == 0 {
		s.assign(c.Assigns)
		if !s.subst && s.flow == on {
			s.status = 0
		}
		saved := s.save()
		if !s.redirect(s.p, redirs) {
			s.status = 2
		}
		s.restore(saved)
		return
	}
	name := args[0]
	if body := s.funcs[name]; body != nil {
		s.within(c.Assigns, redirs, func() { s.function(body, args[1:]) })
		return
	}
	if run := builtins()[name]; run != nil {
		if name == "exec" {
			s.exec(args[1:], c.Assigns, redirs)
			return
		}
		if special(name) {
			s.assign(c.Assigns)
			c = &syntax.CallExpr{}
		}
		if s.flow == on {
			s.within(c.Assigns, redirs, func() { s.status = run(s.shell, args) })
		}
		return
	}
	if last {
		s.exec(args, c.Assigns, redirs)
		return
	}
	s.program(args, c.Assigns, redirs)
}

// special are the builtins before which assignments stay (POSIX, XCU 2.14).
func special(name string) bool {
	return slices.Contains([]string{":", ".", "break", "continue", "eval", "exec", "exit", "export", "readonly", "return", "set", "shift", "trap", "unset"}, name)
}

func (s caller) assign(list []*syntax.Assign) {
	for _, a := range list {
		value, ok := s.literal(a.Value)
		if !ok {
			return
		}
		if err := s.setText(a.Name.Value, value); !s.expanded(err) {
			return
		}
	}
}

// within runs something of the shell itself with assignments and redirections that end with it.
func (s caller) within(assigns []*syntax.Assign, redirs []*syntax.Redirect, run func()) {
	saved := s.save()
	defer s.restore(saved)
	if !s.redirect(s.p, redirs) {
		s.status = 2
		return
	}
	if len(assigns) > 0 {
		before := maps.Clone(s.vars)
		s.assign(assigns)
		for _, a := range assigns {
			v := s.vars[a.Name.Value]
			v.Exported = true
			s.vars[a.Name.Value] = v
		}
		defer func() {
			for _, a := range assigns {
				if old, there := before[a.Name.Value]; there {
					s.vars[a.Name.Value] = old
				} else {
					delete(s.vars, a.Name.Value)
				}
			}
		}()
	}
	if s.flow == on {
		run()
	}
}

func (s caller) function(body *syntax.Stmt, args []string) {
	params := s.params
	s.params = args
	s.locals = append(s.locals, map[string]expand.Variable{})
	s.stmt(body)
	for name, v := range s.locals[len(s.locals)-1] {
		if v.Set {
			s.vars[name] = v
		} else {
			delete(s.vars, name)
		}
	}
	s.locals = s.locals[:len(s.locals)-1]
	s.params = params
	if s.flow == returning {
		s.flow = on
	}
}

// program runs a program in a process of its own.
func (s caller) program(args []string, assigns []*syntax.Assign, redirs []*syntax.Redirect) {
	child := caller{s.fork()}
	if !child.redirect(child.p, redirs) {
		child.p.Discard()
		s.status = 2
		return
	}
	child.assign(assigns)
	for _, a := range assigns {
		v := child.vars[a.Name.Value]
		v.Exported = true
		child.vars[a.Name.Value] = v
	}
	if child.flow != on {
		child.p.Discard()
		s.leave(child.exitCode)
		return
	}
	child.p.Env = child.environ()
	complain := child.p.FD(2).Dup()
	if err := child.start(args); err != nil {
		child.p.SetFD(2, complain)
		s.status = child.cannot(args[0], err)
		child.p.Discard()
		return
	}
	child.p.K.Close(complain)
	s.status = child.p.Wait()
	if child.p.Died() == syscall.SIGINT {
		s.leave(s.status)
	}
}

// start starts a program as the process of this shell. A file without a first line that says how is a
// script of the shell.
func (s caller) start(args []string) error {
	err := s.p.Launch(args)
	if !errors.Is(err, syscall.ENOEXEC) {
		return err
	}
	return s.p.Launch(append([]string{"/bin/sh"}, args...))
}

// cannot says why a program did not run, and gives the code for it.
func (s caller) cannot(name string, err error) int {
	code := 126
	text := machine.ErrorText(err)
	if errors.Is(err, syscall.ENOENT) {
		code = 127
		text = "not found"
	}
	s.errorf("%s: %s", name, text)
	return code
}

// exec is the builtin: redirections stay, and a program replaces the shell.
func (s caller) exec(args []string, assigns []*syntax.Assign, redirs []*syntax.Redirect) {
	s.assign(assigns)
	if s.flow != on {
		return
	}
	if !s.redirect(s.p, redirs) {
		s.leave(2)
		return
	}
	s.status = 0
	if len(args) == 0 {
		return
	}
	s.traps = map[string]string{}
	for _, a := range assigns {
		v := s.vars[a.Name.Value]
		v.Exported = true
		s.vars[a.Name.Value] = v
	}
	s.p.Env = s.environ()
	code, err := s.p.Exec(args)
	if errors.Is(err, syscall.ENOEXEC) {
		code, err = s.p.Exec(append([]string{"/bin/sh"}, args...))
	}
	if err != nil {
		code = s.cannot(args[0], err)
	}
	s.leave(code)
}

// save keeps the descriptors, to put them back after a command.
func (s caller) save() map[int]*machine.OpenFile { return s.p.Descriptors() }

func (s caller) restore(saved map[int]*machine.OpenFile) { s.p.SetDescriptors(saved) }

// redirect carries out redirections on a process, with the words of this shell.
func (s caller) redirect(p *machine.Process, list []*syntax.Redirect) bool {
	for _, r := range list {
		if !s.redirectOne(p, r) {
			return false
		}
	}
	return true
}

func (s caller) redirectOne(p *machine.Process, r *syntax.Redirect) bool {
	fd := 1
	switch r.Op { //nolint:exhaustive // all others write
	case syntax.RdrIn, syntax.RdrInOut, syntax.DplIn, syntax.Hdoc, syntax.DashHdoc:
		fd = 0
	}
	if r.N != nil {
		n, err := strconv.Atoi(r.N.Value)
		if err != nil {
			s.errorf("bad descriptor %s", r.N.Value)
			return false
		}
		fd = n
	}
	if r.Op == syntax.Hdoc || r.Op == syntax.DashHdoc {
		return s.document(p, fd, r)
	}
	word, ok := s.literal(r.Word)
	if !ok {
		return false
	}
	flags := os.O_RDONLY
	switch r.Op { //nolint:exhaustive // all others read
	case syntax.DplIn, syntax.DplOut:
		if word == "-" {
			p.SetFD(fd, nil)
			return true
		}
		from, err := strconv.Atoi(word)
		o := p.FD(from)
		if err != nil || o == nil {
			s.errorf("%s: Bad file descriptor", word)
			return false
		}
		if from != fd {
			p.SetFD(fd, o.Dup())
		}
		return true
	case syntax.RdrOut, syntax.RdrClob:
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	case syntax.AppOut:
		flags = os.O_WRONLY | os.O_CREATE | os.O_APPEND
	case syntax.RdrInOut:
		flags = os.O_RDWR | os.O_CREATE
	}
	o, err := p.Open(word, flags, 0o666)
	if err != nil {
		verb := "cannot open"
		if flags&os.O_CREATE != 0 {
			verb = "cannot create"
		}
		s.errorf("%s %s: %s", verb, word, machine.ErrorText(err))
		return false
	}
	p.SetFD(fd, o)
	return true
}

// document gives a command a text to read.
func (s caller) document(p *machine.Process, fd int, r *syntax.Redirect) bool {
	var text strings.Builder
	if r.Hdoc != nil {
		body, err := expand.Document(s.cfg, r.Hdoc)
		if !s.expanded(err) {
			return false
		}
		for line := range strings.Lines(body) {
			if r.Op == syntax.DashHdoc {
				line = strings.TrimLeft(line, "\t")
			}
			text.WriteString(line)
		}
	}
	p.SetFD(fd, machine.TextFile(io.NopCloser(strings.NewReader(text.String()))))
	return true
}
