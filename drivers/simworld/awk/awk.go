// Package awk is the awk of a simulated machine: patterns, expressions, variables, arrays, fields and
// the usual functions (POSIX, XCU awk), without files and pipes of its own.
//
// Run is the way in; parse.go makes a tree of a program, eval.go runs it.
package awk

import (
	"bufio"
	"errors"
	"io"
	"strings"
)

// Options are those of the command line.
type Options struct {
	Separator string            // -F; "" is blanks
	Vars      map[string]string // -v
	Out       io.Writer
}

// Run runs a program over texts, and gives its exit code. An error is one of the program.
func Run(program string, o Options, in ...io.Reader) (int, error) {
	tree, err := parse(program)
	if err != nil {
		return 2, err
	}
	r := &run{vars: map[string]value{"FS": text(" "), "OFS": text(" "), "ORS": text("\n"), "SUBSEP": text("\x1c")}, arrays: map[string]map[string]value{}, out: bufio.NewWriter(o.Out)}
	if o.Separator != "" {
		r.vars["FS"] = text(o.Separator)
	}
	for name, v := range o.Vars {
		r.vars[name] = input(v)
	}
	err = r.all(tree, in)
	if flushed := r.out.Flush(); err == nil {
		err = flushed
	}
	if e, ended := errors.AsType[*exit](err); ended {
		return e.code, nil
	}
	if err != nil {
		return 2, err
	}
	return 0, nil
}

// all runs BEGIN, then every line, then END.
func (r *run) all(tree []rule, in []io.Reader) error {
	err := r.special(tree, "BEGIN")
	var e *exit
	if err == nil {
		err = r.lines(tree, in)
	}
	if err != nil && !errors.As(err, &e) {
		return err
	}
	if ended := r.special(tree, "END"); ended != nil {
		return ended
	}
	return err
}

func (r *run) special(tree []rule, name string) error {
	for _, one := range tree {
		if one.special == name {
			if err := r.block(one.body); err != nil && !errors.Is(err, errNext) {
				return err
			}
		}
	}
	return nil
}

func (r *run) lines(tree []rule, in []io.Reader) error {
	reads := false
	for _, one := range tree {
		reads = reads || one.special != "BEGIN"
	}
	if !reads {
		return nil
	}
	nr := 0
	for _, from := range in {
		reader := bufio.NewReader(from)
		for fnr := 1; ; fnr++ {
			line, err := reader.ReadString('\n')
			if line == "" && err != nil {
				break
			}
			nr++
			r.vars["NR"], r.vars["FNR"] = number(float64(nr)), number(float64(fnr))
			r.setLine(strings.TrimSuffix(line, "\n"))
			if err := r.rules(tree); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) rules(tree []rule) error {
	for i := range tree {
		one := &tree[i]
		if one.special != "" {
			continue
		}
		holds := true
		if one.from != nil {
			v, err := r.eval(one.from)
			if err != nil {
				return err
			}
			holds = v.truth()
		}
		if one.to != nil {
			if holds = holds || one.inside; holds {
				v, err := r.eval(one.to)
				if err != nil {
					return err
				}
				one.inside = !v.truth()
			}
		}
		if !holds {
			continue
		}
		if err := r.block(one.body); err != nil {
			if errors.Is(err, errNext) {
				return nil
			}
			return err
		}
	}
	return nil
}
