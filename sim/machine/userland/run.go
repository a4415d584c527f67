package userland

import (
	"regexp"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/pattern"
	"mvdan.cc/sh/v3/syntax"

	"github.com/homestak/homestak-gitops/sim/machine"
)

func (s *shell) stmts(list []*syntax.Stmt) {
	for _, st := range list {
		if s.flow != on || s.p.Dead() {
			return
		}
		s.stmt(st)
	}
}

// stmt runs a statement, and leaves its code in status.
func (s *shell) stmt(st *syntax.Stmt) {
	if st.Background {
		own := *st
		own.Background = false
		c := s.fork()
		if st.Cmd != nil && c.p.FD(0) != nil { // it does not read what the shell reads
			if null, err := c.p.Open("/dev/null", 0, 0); err == nil {
				c.p.SetFD(0, null)
			}
		}
		c.only(&own)
		s.jobs = append(s.jobs, c.p)
		s.status = 0
		return
	}
	if st.Negated {
		s.tested++
	}
	s.redirected(st)
	if st.Negated {
		s.tested--
		if s.flow == on {
			s.status = btoi(s.status == 0)
		}
		return
	}
	if s.errexit && s.status != 0 && s.tested == 0 && s.flow == on && fatal(st.Cmd) {
		s.leave(s.status)
	}
}

// only runs one statement as the process of a shell that was forked for it.
func (s *shell) only(st *syntax.Stmt) {
	_, simple := st.Cmd.(*syntax.CallExpr)
	s.last = simple && !st.Negated && len(s.traps) == 0
	s.p.Go(func(*machine.Process) int {
		s.stmt(st)
		return s.finish()
	})
}

// fatal reports whether set -e looks at what a command gave: lists and compounds have looked at
// their last command already.
func fatal(c syntax.Command) bool {
	switch c := c.(type) {
	case *syntax.CallExpr, *syntax.Subshell:
		return true
	case *syntax.BinaryCmd:
		return c.Op == syntax.Pipe
	}
	return false
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// redirected runs the command of a statement with its redirections.
func (s *shell) redirected(st *syntax.Stmt) {
	if call, ok := st.Cmd.(*syntax.CallExpr); ok {
		caller{s}.call(call, st.Redirs)
		return
	}
	with := caller{s}
	saved := with.save()
	defer with.restore(saved)
	if !with.redirect(s.p, st.Redirs) {
		s.status = 2
		return
	}
	if st.Cmd != nil {
		s.command(st.Cmd)
	}
}

func (s *shell) condition(list []*syntax.Stmt) bool {
	s.tested++
	s.stmts(list)
	s.tested--
	return s.status == 0 && s.flow == on
}

func (s *shell) command(c syntax.Command) {
	switch c := c.(type) {
	case *syntax.Block:
		s.stmts(c.Stmts)
	case *syntax.Subshell:
		s.status = s.subshell(func(s *shell) { s.stmts(c.Stmts) }).Wait()
	case *syntax.BinaryCmd:
		compound{s}.binary(c)
	case *syntax.IfClause:
		compound{s}.choose(c)
	case *syntax.WhileClause:
		compound{s}.while(c)
	case *syntax.ForClause:
		compound{s}.forEach(c)
	case *syntax.CaseClause:
		compound{s}.cases(c)
	case *syntax.FuncDecl:
		s.funcs[c.Name.Value] = c.Body
		s.status = 0
	default:
		s.errorf("this shell does not know %T", c)
		s.leave(2)
	}
}

// compound is the shell as it runs what is made of several commands.
type compound struct{ *shell }

func (s compound) binary(c *syntax.BinaryCmd) {
	switch c.Op {
	case syntax.AndStmt, syntax.OrStmt:
		s.tested++
		s.stmt(c.X)
		s.tested--
		if s.flow == on && !s.p.Dead() && (s.status == 0) == (c.Op == syntax.AndStmt) {
			s.stmt(c.Y)
		}
	default:
		r, w := s.p.K.Pipe()
		left, right := s.fork(), s.fork()
		left.p.SetFD(1, w)
		right.p.SetFD(0, r)
		left.only(c.X)
		right.only(c.Y)
		s.status = right.p.Wait()
		left.p.Wait()
	}
}

func (s compound) choose(c *syntax.IfClause) {
	for c != nil {
		if len(c.Cond) == 0 || s.condition(c.Cond) {
			s.status = 0
			s.stmts(c.Then)
			return
		}
		if s.flow != on {
			return
		}
		s.status = 0
		c = c.Else
	}
}

// looping reports whether a loop goes on behind one run of its body.
func (s compound) looping() bool {
	if s.p.Dead() {
		return false
	}
	if s.flow == breaking || s.flow == continuing {
		s.levels--
		if s.levels > 0 {
			return false
		}
		again := s.flow == continuing
		s.flow = on
		return again
	}
	return s.flow == on
}

func (s compound) while(c *syntax.WhileClause) {
	last := 0
	for s.condition(c.Cond) != c.Until && s.flow == on && !s.p.Dead() {
		s.stmts(c.Do)
		last = s.status
		if !s.looping() {
			break
		}
	}
	if s.flow == on {
		s.status = last
	}
}

func (s compound) forEach(c *syntax.ForClause) {
	iter, ok := c.Loop.(*syntax.WordIter) // POSIX has no other loop
	if !ok {
		return
	}
	items := s.params
	if iter.InPos.IsValid() {
		if items, ok = s.fields(iter.Items); !ok {
			return
		}
	}
	s.status = 0
	for _, item := range items {
		if err := s.setText(iter.Name.Value, item); !s.expanded(err) {
			return
		}
		s.stmts(c.Do)
		if !s.looping() {
			return
		}
	}
}

func (s compound) cases(c *syntax.CaseClause) {
	word, ok := s.literal(c.Word)
	if !ok {
		return
	}
	s.status = 0
	for _, item := range c.Items {
		for _, p := range item.Patterns {
			text, err := expand.Pattern(s.cfg, p)
			if !s.expanded(err) {
				return
			}
			if matches(text, word) {
				s.stmts(item.Stmts)
				return
			}
		}
	}
}

// matches reports whether a pattern of the shell is all of a text.
func matches(pat, text string) bool {
	if !strings.ContainsAny(pat, `*?[\`) {
		return pat == text
	}
	expr, err := pattern.Regexp(pat, pattern.EntireString)
	if err != nil {
		return pat == text
	}
	re, err := regexp.Compile(expr)
	return err == nil && re.MatchString(text)
}

// declareOne is export, readonly and local of one variable.
func (s compound) declareOne(how, name, value string, given bool) {
	if how == "local" && len(s.locals) > 0 {
		before := s.locals[len(s.locals)-1]
		if _, twice := before[name]; !twice {
			before[name] = s.vars[name]
		}
	}
	v := s.vars[name]
	if given {
		if v.ReadOnly {
			s.expanded(s.setText(name, value))
			return
		}
		v.Set, v.Kind, v.Str = true, expand.String, value
	}
	switch how {
	case "export":
		v.Exported = true
	case "readonly":
		v.ReadOnly = true
	}
	s.vars[name] = v
}
