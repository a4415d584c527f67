// Package userland is the usual programs of a simulated machine: those of coreutils, grep, sed, find
// and util-linux that scripts call. Each is a Go function over the files and processes of that machine.
// An option that a program does not have here is an error, and never left out of account.
//
// Programs lists them; the files are by what they work on.
package userland

import (
	"strings"

	"github.com/homestak/homestak-gitops/drivers/simworld/kernel"
	"github.com/homestak/homestak-gitops/drivers/simworld/sh"
)

// Programs are all of them, by name.
func Programs() map[string]kernel.Program {
	return map[string]kernel.Program{
		"sh": sh.Main, "dash": sh.Main, "bash": sh.Main, "kill": killing, "printf": printing, "test": testing, "[": testing,
		"true": succeed, "false": failing, "echo": echo, "cat": cat, "mv": mv, "rm": rm, "cp": cp, "ln": ln, "mkdir": mkdir, "rmdir": rmdir,
		"chmod": chmod, "chown": chown, "chgrp": chown, "touch": touch, "stat": stat, "readlink": readlink, "realpath": realpath, "ls": ls,
		"find": find, "head": head, "tail": tail, "cut": cut, "tr": tr, "sort": sortLines, "uniq": uniq, "wc": wc, "grep": grep, "egrep": grep,
		"sed": sed, "tee": tee, "cmp": cmp, "base64": base64Program, "sha256sum": sha256sum, "sync": syncFiles,
		"mktemp": mktemp, "date": date, "sleep": sleep, "timeout": timeout, "env": environment, "id": id, "whoami": whoami, "uname": uname,
		"hostname": hostname, "basename": basename, "dirname": dirname, "nohup": wrap, "setsid": wrap,
		"install": install, "flock": flock, "setpriv": setpriv, "which": which, "xargs": xargs, "nologin": nologin,
		"logger": succeed,
	}
}

// options are the flags of a command line.
type options struct {
	has  map[string]bool
	text map[string]string
	args []string
}

// parse reads flags. known lists them, words with a colon behind them take a value: "a b: all
// lines:=n" where = gives the short name of a long one. An unknown flag is complained about.
func parse(p *kernel.Process, known string) (options, bool) {
	o := options{has: map[string]bool{}, text: map[string]string{}}
	takes, short := map[string]bool{}, map[string]string{}
	for word := range strings.FieldsSeq(known) {
		name, alias, aliased := strings.Cut(word, "=")
		plain := strings.TrimSuffix(name, ":")
		takes[plain] = strings.HasSuffix(name, ":")
		short[plain] = plain
		if aliased {
			short[plain] = alias
		}
	}
	rest := p.Args[1:]
	note := func(name, value string) {
		o.has[short[name]] = true
		o.text[short[name]] = value
	}
	for len(rest) > 0 {
		a := rest[0]
		rest = rest[1:]
		if a == "--" {
			o.args = append(o.args, rest...)
			break
		}
		if name, ok := strings.CutPrefix(a, "--"); ok {
			name, value, given := strings.Cut(name, "=")
			takesOne, there := takes[name]
			switch {
			case !there || len(name) == 1:
				p.Failf("unrecognized option '%s'", a)
				return o, false
			case takesOne && !given && len(rest) == 0:
				p.Failf("option '%s' requires an argument", a)
				return o, false
			case takesOne && !given:
				value, rest = rest[0], rest[1:]
			}
			note(name, value)
			continue
		}
		if len(a) < 2 || a[0] != '-' {
			o.args = append(o.args, a)
			if takes["+"] || short["+"] != "" { // flags end at the first other word
				o.args = append(o.args, rest...)
				break
			}
			continue
		}
		for i := 1; i < len(a); i++ {
			name := a[i : i+1]
			takesOne, there := takes[name]
			if !there {
				if digits := strings.Trim(a[1:], "0123456789"); digits == "" && takes["n"] { // head -5
					note("n", a[1:])
					break
				}
				p.Failf("invalid option -- '%s'", name)
				return o, false
			}
			if !takesOne {
				note(name, "")
				continue
			}
			value := a[i+1:]
			if value == "" {
				if len(rest) == 0 {
					p.Failf("option requires an argument -- '%s'", name)
					return o, false
				}
				value, rest = rest[0], rest[1:]
			}
			note(name, value)
			break
		}
	}
	return o, true
}

func killing(p *kernel.Process) int  { return sh.Kill(p, p.Args) }
func printing(p *kernel.Process) int { return sh.Printf(p, p.Args) }

func testing(p *kernel.Process) int {
	args := p.Args[1:]
	if strings.HasSuffix(p.Args[0], "[") && len(args) > 0 {
		args = args[:len(args)-1]
	}
	holds, err := sh.Test(p, args)
	switch {
	case err != nil:
		p.Failf("%v", err)
		return 2
	case holds:
		return 0
	}
	return 1
}

func succeed(*kernel.Process) int { return 0 }
func failing(*kernel.Process) int { return 1 }

func nologin(p *kernel.Process) int {
	p.Printf("This account is currently not available.\n")
	return 1
}

func echo(p *kernel.Process) int {
	args, end := p.Args[1:], "\n"
	if len(args) > 0 && args[0] == "-n" {
		args, end = args[1:], ""
	}
	p.Printf("%s%s", strings.Join(args, " "), end)
	return 0
}
