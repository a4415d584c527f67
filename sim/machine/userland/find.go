package userland

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"mvdan.cc/sh/v3/pattern"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// find knows -name, -path, -type, -newer, -mmin, -maxdepth, -xdev, -print, -delete, and ! before a test.
func find(p *machine.Process) int {
	args := p.Args[1:]
	var roots []string
	for len(args) > 0 && !strings.HasPrefix(args[0], "-") && args[0] != "!" {
		roots, args = append(roots, args[0]), args[1:]
	}
	if len(roots) == 0 {
		roots = []string{"."}
	}
	f := &finder{p: p, most: 1 << 20}
	if code := f.read(args); code != 0 {
		return code
	}
	for _, root := range roots {
		f.walk(root, 0)
	}
	return f.code
}

type finder struct {
	p      *machine.Process
	tests  []func(name string, i machine.FileInfo) bool
	most   int
	remove bool
	code   int
}

func (f *finder) read(args []string) int {
	not := false
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		switch word {
		case "!", "-not":
			not = !not
			continue
		case "-xdev", "-print":
			continue
		case "-delete":
			f.remove = true
			continue
		}
		if len(args) == 0 {
			return f.p.Failf("missing argument to '%s', or a predicate that is not simulated", word)
		}
		value := args[0]
		args = args[1:]
		if word == "-maxdepth" {
			f.most, _ = strconv.Atoi(value)
			continue
		}
		test := f.test(word, value)
		if test == nil {
			return f.p.Failf("invalid '%s' '%s'", word, value)
		}
		inverted := not
		not = false
		f.tests = append(f.tests, func(name string, i machine.FileInfo) bool { return test(name, i) != inverted })
	}
	return 0
}

// test is one test of a file; nil if it is not known.
func (f *finder) test(word, value string) func(name string, i machine.FileInfo) bool {
	switch word {
	case "-name":
		pat := glob(value)
		return func(name string, _ machine.FileInfo) bool { return pat.MatchString(path.Base(name)) }
	case "-path":
		pat := glob(value)
		return func(name string, _ machine.FileInfo) bool { return pat.MatchString(name) }
	case "-type":
		want, there := map[string]machine.FileKind{"f": machine.PlainFile, "d": machine.Folder, "l": machine.SymbolicLink, "c": machine.DeviceFile}[value]
		if there {
			return func(_ string, i machine.FileInfo) bool { return i.Kind == want }
		}
	case "-newer":
		of, err := f.p.K.FS.Stat(f.p.Cred, f.p.Path(value))
		if err == nil {
			return func(_ string, i machine.FileInfo) bool { return i.ModTime.After(of.ModTime) }
		}
	case "-mmin": // find(1): -N is less than that ago
		n, err := strconv.Atoi(strings.TrimPrefix(value, "-"))
		if err == nil && strings.HasPrefix(value, "-") {
			return func(_ string, i machine.FileInfo) bool {
				return f.p.K.Clock.Now().Sub(i.ModTime) < time.Duration(n)*time.Minute
			}
		}
	}
	return nil
}

func (f *finder) walk(name string, depth int) {
	i, err := f.p.K.FS.Lstat(f.p.Cred, f.p.Path(name))
	if err != nil {
		f.code = f.p.Failf("'%s': %s", name, machine.ErrorText(err))
		return
	}
	holds := !slices.ContainsFunc(f.tests, func(test func(string, machine.FileInfo) bool) bool { return !test(name, i) })
	if !f.remove && holds {
		f.p.Printf("%s\n", name)
	}
	if i.Kind == machine.Folder && depth < f.most {
		list, err := f.p.K.FS.ReadDir(f.p.Cred, f.p.Path(name))
		if err != nil {
			f.code = f.p.Failf("'%s': %s", name, machine.ErrorText(err))
		}
		for _, child := range list {
			f.walk(strings.TrimRight(name, "/")+"/"+child.Name, depth+1)
		}
	}
	if f.remove && holds {
		if err := f.p.K.FS.Remove(f.p.Cred, f.p.Path(name)); err != nil {
			f.code = f.p.Failf("cannot delete '%s': %s", name, machine.ErrorText(err))
		}
	}
}

// glob makes a pattern of the shell a regular expression.
func glob(pat string) *regexp.Regexp {
	expr, err := pattern.Regexp(pat, pattern.EntireString)
	if err != nil {
		expr = "^" + regexp.QuoteMeta(pat) + "$"
	}
	return regexp.MustCompile(expr)
}
