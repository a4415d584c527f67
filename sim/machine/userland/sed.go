package userland

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// sed knows the commands s, d, p, q, n and b (without a label), alone and in braces, with addresses by line and by
// regular expression.
func sed(p *machine.Process, o Options) int {
	scripts := o.flags["e"]
	if len(scripts) == 0 {
		if len(o.Args) == 0 {
			return p.Failf("a script is missing")
		}
		scripts, o.Args = o.Args[:1], o.Args[1:]
	}
	program, err := edits(strings.Join(scripts, "\n"), o.Has("E"))
	if err != nil {
		return p.Failf("-e expression #1: %v", err)
	}
	if !o.Has("i") {
		var all strings.Builder // addresses count on from one file to the next
		code := texts(p, o.Args, func(_, text string) { all.WriteString(text) })
		p.Printf("%s", edited(program, all.String(), o.Has("n")))
		return 2 * code
	}
	return eachName(p, o.Args, "can't edit %s: %s", func(name string) error {
		text, err := p.ReadFile(name)
		if err != nil {
			return err
		}
		return save(p, name, edited(slices.Clone(program), text, o.Has("n")), os.O_TRUNC, 0)
	})
}

// edit is one command of sed.
type edit struct {
	from, to *address
	not      bool
	inside   bool // the range
	do       byte
	end      int // of {: the command that its } is
	re       *regexp.Regexp
	text     string
	global   bool
	print    bool
}

type address struct {
	line int // -1 is the last
	re   *regexp.Regexp
}

func (a *address) is(n int, last bool, line string) bool {
	return a.line == n || a.line == -1 && last || a.re != nil && a.re.MatchString(line)
}

func edits(text string, extended bool) ([]edit, error) {
	var out []edit
	var open []int // braces
	for {
		text = strings.TrimLeft(text, " \t\n;")
		if text == "" && len(open) > 0 {
			return nil, errors.New("unmatched `{'")
		}
		if text == "" {
			return out, nil
		}
		e, rest, err := oneEdit(text, extended)
		switch {
		case err != nil:
			return nil, err
		case e.do == '{':
			open = append(open, len(out))
		case e.do == '}' && len(open) == 0:
			return nil, errors.New("unexpected `}'")
		case e.do == '}':
			out[open[len(open)-1]].end, open = len(out), open[:len(open)-1]
		}
		out, text = append(out, e), rest
	}
}

func readAddress(text string, extended bool) (*address, string, error) {
	switch {
	case strings.HasPrefix(text, "$"):
		return &address{line: -1}, text[1:], nil
	case strings.HasPrefix(text, "/"), strings.HasPrefix(text, `\`) && len(text) > 1:
		text = strings.TrimPrefix(text, `\`)
		part, rest, ok := until(text[1:], text[0])
		if !ok {
			return nil, "", errors.New("unterminated address regex")
		}
		re, err := expression(part, extended)
		return &address{re: re}, rest, err
	}
	digits := text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
	if digits == "" {
		return nil, text, nil
	}
	n, err := strconv.Atoi(digits)
	return &address{line: n}, text[len(digits):], err
}

// until cuts a text at a separator that no backslash is before.
func until(text string, sep byte) (part, rest string, ok bool) {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case sep:
			return strings.ReplaceAll(text[:i], `\`+string(sep), string(sep)), text[i+1:], true
		}
	}
	return "", "", false
}

func oneEdit(text string, extended bool) (e edit, rest string, err error) {
	if e.from, text, err = readAddress(text, extended); err != nil {
		return e, "", err
	}
	if e.from != nil && strings.HasPrefix(text, ",") {
		if e.to, text, err = readAddress(text[1:], extended); err != nil {
			return e, "", err
		}
	}
	text = strings.TrimLeft(text, " ")
	if strings.HasPrefix(text, "!") {
		e.not, text = true, strings.TrimLeft(text[1:], " ")
	}
	if text == "" {
		return e, "", errors.New("missing command")
	}
	e.do, rest = text[0], text[1:]
	switch {
	case strings.IndexByte("dpqnb{}", e.do) >= 0:
		return e, rest, nil
	case e.do != 's' || rest == "":
		return e, "", fmt.Errorf("unknown command: '%c'", e.do)
	}
	sep := rest[0]
	from, rest, ok := until(rest[1:], sep)
	if ok {
		e.text, rest, ok = until(rest, sep)
	}
	if !ok {
		return e, "", errors.New("unterminated 's' command")
	}
	flags := rest[:len(rest)-len(strings.TrimLeft(rest, "gp"))]
	e.global, e.print = strings.Contains(flags, "g"), strings.Contains(flags, "p")
	rest = rest[len(flags):]
	if rest != "" && strings.IndexByte(" \t\n;}", rest[0]) < 0 {
		return e, "", errors.New("unknown option to 's'")
	}
	e.re, err = expression(from, extended)
	return e, rest, err
}

// cutLine is a line, and the end that it has.
func cutLine(raw string) (line, end string) {
	line = strings.TrimSuffix(raw, "\n")
	return line, raw[len(line):]
}

func edited(program []edit, text string, silent bool) string {
	var b strings.Builder
	all := slices.Collect(strings.Lines(text))
	for n := 0; n < len(all); n++ {
		line, end := cutLine(all[n])
		gone, quit := false, false
		for i := 0; i < len(program) && !gone && !quit; i++ {
			e := &program[i]
			if e.applies(n+1, n == len(all)-1, line) == e.not {
				i = max(i, e.end)
				continue
			}
			switch e.do {
			case 'b':
				i = len(program)
			case 'n':
				if n == len(all)-1 {
					quit = true
					continue
				}
				if !silent {
					b.WriteString(line + end)
				}
				n++
				line, end = cutLine(all[n])
			case 'd':
				gone = true
			case 'p':
				b.WriteString(line + end)
			case 'q':
				quit = true
			case 's':
				if !e.re.MatchString(line) {
					continue
				}
				line = e.substitute(line)
				if e.print {
					b.WriteString(line + end)
				}
			}
		}
		if !gone && !silent {
			b.WriteString(line + end)
		}
		if quit {
			break
		}
	}
	return b.String()
}

func (e *edit) applies(n int, last bool, line string) bool {
	switch {
	case e.from == nil:
		return true
	case e.to == nil:
		return e.from.is(n, last, line)
	case e.inside:
		e.inside = !e.to.is(n, last, line)
		return true
	case e.from.is(n, last, line):
		e.inside = e.to.line == 0 || e.to.line > n || e.to.line == -1 && !last
		return true
	}
	return false
}

var reference = regexp.MustCompile(`\\.|&`)

func (e *edit) substitute(line string) string {
	most := 1
	if e.global {
		most = -1
	}
	var b strings.Builder
	at := 0
	for _, m := range e.re.FindAllStringSubmatchIndex(line, most) {
		b.WriteString(line[at:m[0]])
		b.WriteString(reference.ReplaceAllStringFunc(e.text, func(ref string) string {
			switch {
			case ref == "&":
				return line[m[0]:m[1]]
			case ref[1] >= '0' && ref[1] <= '9':
				k := int(ref[1]-'0') * 2
				if k+1 < len(m) && m[k] >= 0 {
					return line[m[k]:m[k+1]]
				}
				return ""
			case ref[1] == 'n':
				return "\n"
			case ref[1] == 't':
				return "\t"
			}
			return ref[1:]
		}))
		at = m[1]
	}
	return b.String() + line[at:]
}
