// Package userland has the usual programs of a simulated machine: those of coreutils, grep, sed, find and
// util-linux that scripts call. Each is a Go function over the files and processes of that machine. An unsupported
// option is an error and never ignored. Disks and Network are the hardware as its kernel shows it, with the
// programs that read and change it; ifupdown.go and networkd.go configure an interface from Debian's files.
//
// Programs lists them with their options. The files are named after what the programs work on.
package userland

import (
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// Programs are all of them, by name.
func Programs() map[string]machine.Program {
	out := map[string]machine.Program{
		"sh": main, "dash": main, "bash": main, "true": succeed, "false": failing, "nologin": nologin, "logger": succeed,
		"kill": func(p *machine.Process) int { return killTool(p, p.Args) }, "printf": func(p *machine.Process) int { return printfTool(p, p.Args) },
		"dd": dd, "test": testing, "[": testing, "echo": echo, "chmod": chmod, "find": find, "sleep": sleep, "setsid": setsid,
	}
	for name, p := range withOptions() {
		out[name] = p.main
	}
	return out
}

// program is one whose options are read in the usual way. options lists them: those with a colon behind
// take a value, and the equals sign gives the short name of a long one. With + they end at the first
// word that is none. Fewer than least other words are an error, as an unknown option is, with the exit
// code wrong.
type program struct {
	options string
	least   int
	wrong   int
	run     func(p *machine.Process, o Options) int
}

func withOptions() map[string]program {
	return map[string]program{
		"cat":       {options: "", run: cat, wrong: 1},
		"head":      {options: "n: c:", run: head, wrong: 1},
		"tail":      {options: "n: c:", run: tail, wrong: 1},
		"cut":       {options: "d: f: c:", run: cut, wrong: 1},
		"tr":        {options: "c d", least: 1, run: tr, wrong: 1},
		"sort":      {options: "u r n", run: sortLines, wrong: 2},
		"wc":        {options: "l w c", run: wc, wrong: 1},
		"grep":      {options: "E F v q x e: i c o w l f:", run: grep, wrong: 2},
		"sed":       {options: "n e: i E", run: sed, wrong: 1},
		"cmp":       {options: "s", least: 2, run: compareFiles, wrong: 2},
		"base64":    {options: "d w:", run: base64Program, wrong: 1},
		"sha256sum": {options: "", run: sha256sum, wrong: 1},
		"mv":        {options: "f T", least: 2, run: mv, wrong: 1},
		"rm":        {options: "f r R=r", run: rm, wrong: 1},
		"cp":        {options: "f P T a p r R=r", least: 2, run: cp, wrong: 1},
		"ln":        {options: "s f T n", least: 2, run: ln, wrong: 1},
		"mkdir":     {options: "p m:", least: 1, run: mkdir, wrong: 1},
		"rmdir":     {options: "", least: 1, run: rmdir, wrong: 1},
		"chown":     {options: "R h", least: 2, run: chown, wrong: 1},
		"chgrp":     {options: "R h", least: 2, run: chown, wrong: 1},
		"touch":     {options: "", least: 1, run: touch, wrong: 1},
		"stat":      {options: "c: L", least: 1, run: stat, wrong: 1},
		"readlink":  {options: "f n", least: 1, run: readlink, wrong: 1},
		"ls":        {options: "A l d 1", run: ls, wrong: 2},
		"mktemp":    {options: "d", run: mktemp, wrong: 1},
		"sync":      {options: "", run: syncFiles, wrong: 1},
		"date":      {options: "u", run: date, wrong: 1},
		"timeout":   {options: "+ k:", least: 2, run: timeout, wrong: 125},
		"id":        {options: "u g G n", run: id, wrong: 1},
		"uname":     {options: "n r s m", run: uname, wrong: 1},
		"hostname":  {options: "f F:", run: hostname, wrong: 1},
		"flock":     {options: "w: n u", least: 1, run: flock, wrong: 64},
		"setpriv":   {options: "+ reuid: euid: regid: clear-groups init-groups", least: 1, run: setpriv, wrong: 127},
	}
}

// Program parses options in the usual way, as the programs of this package do: options lists them, a colon after
// one means that it takes a value, and the equals sign gives its name. An unlisted option, or fewer than least
// other words, is an error with the exit code wrong.
func Program(options string, least, wrong int, run func(p *machine.Process, o Options) int) machine.Program {
	return program{options: options, least: least, wrong: wrong, run: run}.main
}

func (g program) main(p *machine.Process) int {
	o, ok := parse(p, g.options)
	if ok && len(o.Args) < g.least {
		p.Failf("missing operand")
		ok = false
	}
	if !ok {
		return g.wrong
	}
	return g.run(p, o)
}

// Options are the flags of a command line, with their values, and its other words.
type Options struct {
	flags map[string][]string
	Args  []string
}

// Has reports whether a flag is there.
func (o Options) Has(name string) bool { return len(o.flags[name]) > 0 }

// All are the values of a flag that was given several times.
func (o Options) All(name string) []string { return o.flags[name] }

// Text is the value of a flag that counts: the last one.
func (o Options) Text(name string) string {
	if all := o.flags[name]; len(all) > 0 {
		return all[len(all)-1]
	}
	return ""
}

// known are the flags of a program by name: what they are noted as, and whether a value belongs to them.
type known map[string]struct {
	as    string
	value bool
}

func flagsOf(list string) known {
	out := known{}
	for word := range strings.FieldsSeq(list) {
		name, as, renamed := strings.Cut(word, "=")
		plain := strings.TrimSuffix(name, ":")
		f := out[plain]
		f.as, f.value = plain, plain != name
		if renamed {
			f.as = as
		}
		out[plain] = f
	}
	return out
}

// parse reads the flags of a command line. An unknown one is complained about.
func parse(p *machine.Process, list string) (Options, bool) {
	flags, o := flagsOf(list), Options{flags: map[string][]string{}}
	_, first := flags["+"]
	rest := slices.Clone(p.Args[1:])
	for len(rest) > 0 {
		a := rest[0]
		rest = rest[1:]
		switch {
		case a == "--":
			o.Args = append(o.Args, rest...)
			return o, true
		case len(a) < 2 || a[0] != '-':
			o.Args = append(o.Args, a)
			if first {
				o.Args = append(o.Args, rest...)
				return o, true
			}
			continue
		}
		if _, lines := flags["n"]; lines && flags["n"].value && strings.Trim(a[1:], "0123456789") == "" { // head -5
			a = "-n" + a[1:]
		}
		names, value, given := []string{a[2:]}, "", false
		if strings.HasPrefix(a, "--") {
			names[0], value, given = strings.Cut(a[2:], "=")
		} else {
			names = names[:0]
			for at := 1; at < len(a) && !given; at++ {
				names = append(names, a[at:at+1])
				if flags[a[at:at+1]].value && at+1 < len(a) {
					value, given = a[at+1:], true
				}
			}
		}
		for _, name := range names {
			f, there := flags[name]
			switch {
			case !there || strings.HasPrefix(a, "--") != (len(name) > 1):
				p.Failf("unrecognized option '%s'", a)
				return o, false
			case f.value && !given && len(rest) == 0:
				p.Failf("option '%s' requires an argument", a)
				return o, false
			case f.value && !given:
				o.flags[f.as], rest = append(o.flags[f.as], rest[0]), rest[1:]
			default:
				o.flags[f.as] = append(o.flags[f.as], value)
			}
		}
	}
	return o, true
}

func testing(p *machine.Process) int {
	args := p.Args[1:]
	if strings.HasSuffix(p.Args[0], "[") && len(args) > 0 {
		args = args[:len(args)-1]
	}
	holds, err := testTool(p, args)
	switch {
	case err != nil:
		p.Failf("%v", err)
		return 2
	case holds:
		return 0
	}
	return 1
}

func succeed(*machine.Process) int { return 0 }
func failing(*machine.Process) int { return 1 }

func nologin(p *machine.Process) int {
	p.Printf("This account is currently not available.\n")
	return 1
}

func echo(p *machine.Process) int {
	args, end := p.Args[1:], "\n"
	if len(args) > 0 && args[0] == "-n" {
		args, end = args[1:], ""
	}
	p.Printf("%s%s", strings.Join(args, " "), end)
	return 0
}
