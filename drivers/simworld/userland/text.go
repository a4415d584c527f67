package userland

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/simworld/files"
	"github.com/homestak/homestak-gitops/drivers/simworld/kernel"
)

// What works on texts.

// input is one file to read.
type input struct {
	name string
	io.Reader
}

// inputs opens files, and standard input for none and for "-". Whoever cannot be opened is complained
// about, and code is then not 0. done closes them.
func inputs(p *kernel.Process, names []string) (list []input, code int) {
	if len(names) == 0 {
		names = []string{"-"}
	}
	for _, name := range names {
		if name == "-" || name == "/dev/stdin" {
			list = append(list, input{"-", p.In()})
			continue
		}
		i, err := p.K.FS.Stat(p.Cred, p.Path(name))
		if err == nil && i.Kind == files.Device {
			f, err := p.K.FS.Open(p.Cred, p.Path(name), os.O_RDONLY, 0)
			if err != nil {
				code = p.Failf("%s: %s", name, files.Text(err))
				continue
			}
			list = append(list, input{name, f})
			continue
		}
		text, err := p.ReadFile(name)
		if err != nil {
			code = p.Failf("%s: %s", name, files.Text(err))
			continue
		}
		list = append(list, input{name, strings.NewReader(text)})
	}
	return list, code
}

// lines calls do for each line of all inputs, without its end, until it gives false.
func lines(list []input, do func(line string) bool) {
	for _, in := range list {
		r := bufio.NewReader(in)
		for {
			line, err := r.ReadString('\n')
			if line == "" && err != nil {
				break
			}
			if !do(strings.TrimSuffix(line, "\n")) {
				return
			}
		}
	}
}

// out is the output of a program that writes many small pieces.
func out(p *kernel.Process) (*bufio.Writer, func()) {
	w := bufio.NewWriter(p.Out())
	return w, func() { _ = w.Flush() } // who cannot write any more has been killed
}

func cat(p *kernel.Process) int {
	o, ok := parse(p, "u A")
	if !ok {
		return 1
	}
	list, code := inputs(p, o.args)
	for _, in := range list {
		if _, err := io.Copy(p.Out(), in); err != nil {
			return p.Failf("%s: %s", in.name, files.Text(err))
		}
	}
	return code
}

func head(p *kernel.Process) int {
	o, ok := parse(p, "n: c: q lines:=n bytes:=c")
	if !ok {
		return 1
	}
	list, code := inputs(p, o.args)
	if o.has["c"] {
		n, err := strconv.ParseInt(o.text["c"], 10, 64)
		if err != nil {
			return p.Failf("invalid number of bytes: '%s'", o.text["c"])
		}
		for _, in := range list {
			if _, err := io.Copy(p.Out(), io.LimitReader(in, n)); err != nil {
				return 1
			}
		}
		return code
	}
	most := 10
	if o.has["n"] {
		n, err := strconv.Atoi(o.text["n"])
		if err != nil {
			return p.Failf("invalid number of lines: '%s'", o.text["n"])
		}
		most = n
	}
	for _, in := range list {
		left := most
		w, flush := out(p)
		lines([]input{in}, func(line string) bool {
			if left--; left < 0 {
				return false
			}
			fmt.Fprintln(w, line)
			return left > 0
		})
		flush()
	}
	return code
}

func tail(p *kernel.Process) int {
	o, ok := parse(p, "n: c: q lines:=n bytes:=c")
	if !ok {
		return 1
	}
	list, code := inputs(p, o.args)
	for _, in := range list {
		text, err := io.ReadAll(in)
		if err != nil {
			return p.Failf("%s: %s", in.name, files.Text(err))
		}
		if o.has["c"] {
			n, _ := strconv.Atoi(strings.TrimPrefix(o.text["c"], "+"))
			p.Printf("%s", text[max(0, len(text)-n):])
			continue
		}
		all := slices.Collect(strings.Lines(string(text)))
		n := 10
		if o.has["n"] {
			n, _ = strconv.Atoi(strings.TrimPrefix(o.text["n"], "+"))
		}
		from := max(0, len(all)-n)
		if strings.HasPrefix(o.text["n"], "+") {
			from = min(max(n-1, 0), len(all))
		}
		p.Printf("%s", strings.Join(all[from:], ""))
	}
	return code
}

// ranges reads lists such as 1,3-5,7-.
func ranges(text string) (func(n int) bool, error) {
	type span struct{ from, to int }
	var all []span
	for part := range strings.SplitSeq(text, ",") {
		from, to, isSpan := strings.Cut(part, "-")
		s := span{1, 1 << 30}
		var err1, err2 error
		if from != "" {
			s.from, err1 = strconv.Atoi(from)
		}
		if to != "" {
			s.to, err2 = strconv.Atoi(to)
		} else if !isSpan {
			s.to = s.from
		}
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("invalid range '%s'", part)
		}
		all = append(all, s)
	}
	return func(n int) bool {
		return slices.ContainsFunc(all, func(s span) bool { return n >= s.from && n <= s.to })
	}, nil
}

func cut(p *kernel.Process) int {
	o, ok := parse(p, "d: f: c: b:=c s delimiter:=d fields:=f characters:=c output-delimiter:=o")
	if !ok {
		return 1
	}
	in, err := ranges(o.text["f"] + o.text["c"])
	if err != nil {
		return p.Failf("%v", err)
	}
	sep := "\t"
	if o.has["d"] {
		sep = o.text["d"]
	}
	join := sep
	if o.has["o"] {
		join = o.text["o"]
	}
	list, code := inputs(p, o.args)
	w, flush := out(p)
	defer flush()
	lines(list, func(line string) bool {
		if o.has["c"] {
			var b []byte
			for i := range len(line) {
				if in(i + 1) {
					b = append(b, line[i])
				}
			}
			fmt.Fprintf(w, "%s\n", b)
			return true
		}
		if !strings.Contains(line, sep) {
			if !o.has["s"] {
				fmt.Fprintln(w, line)
			}
			return true
		}
		var kept []string
		for i, field := range strings.Split(line, sep) {
			if in(i + 1) {
				kept = append(kept, field)
			}
		}
		fmt.Fprintln(w, strings.Join(kept, join))
		return true
	})
	return code
}

// set reads a set of tr(1), byte by byte.
func set(text string) []byte {
	classes := map[string]string{"print": " -~", "alpha": "A-Za-z", "digit": "0-9", "alnum": "A-Za-z0-9", "upper": "A-Z", "lower": "a-z", "space": " \t\n\v\f\r", "punct": "!-/:-@[-`{-~", "blank": " \t", "cntrl": "\x01-\x1f"}
	for name, of := range classes {
		text = strings.ReplaceAll(text, "[:"+name+":]", of)
	}
	var b []byte
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '\\' && i+1 < len(text) {
			i++
			end := i
			for end < len(text) && end < i+3 && text[end] >= '0' && text[end] <= '7' {
				end++
			}
			if end > i {
				n, _ := strconv.ParseUint(text[i:end], 8, 16)
				c = byte(n)
				i = end - 1
			} else if at := strings.IndexByte("nrtabfv", text[i]); at >= 0 {
				c = "\n\r\t\a\b\f\v"[at]
			} else {
				c = text[i]
			}
		}
		if i+2 < len(text) && text[i+1] == '-' {
			for n := int(c); n <= int(text[i+2]); n++ {
				b = append(b, byte(n))
			}
			i += 2
			continue
		}
		b = append(b, c)
	}
	return b
}

func tr(p *kernel.Process) int {
	o, ok := parse(p, "c d s C=c complement=c delete=d squeeze-repeats=s")
	if !ok || len(o.args) == 0 {
		return 1
	}
	from := set(o.args[0])
	if o.has["c"] {
		var rest []byte
		for n := range 256 {
			if !bytes.Contains(from, []byte{byte(n)}) {
				rest = append(rest, byte(n))
			}
		}
		from = rest
	}
	var to []byte
	if len(o.args) > 1 {
		to = set(o.args[1])
	}
	var table [256]int
	for i := range table {
		table[i] = i
	}
	for i, c := range from {
		if o.has["d"] {
			table[c] = -1
		} else if len(to) > 0 {
			table[c] = int(to[min(i, len(to)-1)])
		}
	}
	squeezed := from
	if len(to) > 0 {
		squeezed = to
	}
	w, flush := out(p)
	defer flush()
	last := -1
	buffer := make([]byte, 32<<10)
	in := p.In()
	for {
		n, err := in.Read(buffer)
		for _, c := range buffer[:n] {
			t := table[c]
			if t < 0 || o.has["s"] && t == last && bytes.IndexByte(squeezed, byte(t)) >= 0 {
				continue
			}
			last = t
			if err := w.WriteByte(byte(t)); err != nil {
				return 1
			}
		}
		if err != nil {
			return 0
		}
	}
}

func sortLines(p *kernel.Process) int {
	o, ok := parse(p, "u r n k: t: c f b V unique=u reverse=r")
	if !ok {
		return 2
	}
	list, code := inputs(p, o.args)
	var all []string
	lines(list, func(line string) bool { all = append(all, line); return true })
	key := func(line string) string { return line }
	if o.has["k"] {
		first, _, _ := strings.Cut(o.text["k"], ",")
		n, _ := strconv.Atoi(strings.TrimRight(first, "nr"))
		key = func(line string) string {
			f := strings.Fields(line)
			if o.has["t"] {
				f = strings.Split(line, o.text["t"])
			}
			if n < 1 || n > len(f) {
				return ""
			}
			return f[n-1]
		}
	}
	order := func(a, b string) int {
		if o.has["n"] || strings.Contains(o.text["k"], "n") {
			x, _ := strconv.ParseFloat(strings.TrimSpace(key(a)), 64)
			y, _ := strconv.ParseFloat(strings.TrimSpace(key(b)), 64)
			if x != y {
				return map[bool]int{true: -1, false: 1}[x < y]
			}
		}
		return strings.Compare(key(a), key(b))
	}
	slices.SortStableFunc(all, order)
	if o.has["r"] {
		slices.Reverse(all)
	}
	if o.has["u"] {
		all = slices.CompactFunc(all, func(a, b string) bool { return order(a, b) == 0 })
	}
	w, flush := out(p)
	defer flush()
	for _, line := range all {
		fmt.Fprintln(w, line)
	}
	return code
}

func uniq(p *kernel.Process) int {
	o, ok := parse(p, "c d u")
	if !ok {
		return 1
	}
	list, code := inputs(p, o.args)
	var all []string
	lines(list, func(line string) bool { all = append(all, line); return true })
	for i := 0; i < len(all); {
		end := i
		for end < len(all) && all[end] == all[i] {
			end++
		}
		n := end - i
		if skipped := o.has["d"] && n == 1 || o.has["u"] && n > 1; !skipped {
			if o.has["c"] {
				p.Printf("%7d ", n)
			}
			p.Printf("%s\n", all[i])
		}
		i = end
	}
	return code
}

func wc(p *kernel.Process) int {
	o, ok := parse(p, "l w c m")
	if !ok {
		return 1
	}
	list, code := inputs(p, o.args)
	for _, in := range list {
		text, err := io.ReadAll(in)
		if err != nil {
			return p.Failf("%s: %s", in.name, files.Text(err))
		}
		var all []string
		if o.has["l"] || len(o.has) == 0 {
			all = append(all, strconv.Itoa(bytes.Count(text, []byte("\n"))))
		}
		if o.has["w"] || len(o.has) == 0 {
			all = append(all, strconv.Itoa(len(bytes.Fields(text))))
		}
		if o.has["c"] || o.has["m"] || len(o.has) == 0 {
			all = append(all, strconv.Itoa(len(text)))
		}
		if in.name != "-" {
			all = append(all, in.name)
		}
		p.Printf("%s\n", strings.Join(all, " "))
	}
	return code
}

// basic makes a basic regular expression of POSIX an extended one.
func basic(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '[':
			end := i + 1
			if end < len(text) && text[end] == '^' {
				end++
			}
			if end < len(text) && text[end] == ']' {
				end++
			}
			for end < len(text) && text[end] != ']' {
				if strings.HasPrefix(text[end:], "[:") {
					end += strings.Index(text[end:], ":]") + 1
				}
				end++
			}
			b.WriteString(text[i:min(end+1, len(text))])
			i = end
		case c == '\\' && i+1 < len(text):
			i++
			if strings.IndexByte("(){}+?|", text[i]) >= 0 {
				b.WriteByte(text[i])
			} else {
				b.WriteString(text[i-1 : i+1])
			}
		case strings.IndexByte("(){}+?|", c) >= 0, c == '*' && (i == 0 || strings.HasSuffix(text[:i], `\(`)):
			b.WriteString(`\` + string(c))
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// expression compiles a regular expression as grep and sed take it.
func expression(text string, extended bool) (*regexp.Regexp, error) {
	if !extended {
		text = basic(text)
	}
	text = strings.NewReplacer(`\<`, `\b`, `\>`, `\b`).Replace(text)
	return regexp.Compile(text)
}

func grep(p *kernel.Process) int {
	o, ok := parse(p, "E F v q m: x e: i n c o s h H w l r f: a max-count:=m extended-regexp=E fixed-strings=F quiet=q invert-match=v line-regexp=x ignore-case=i count=c")
	if !ok {
		return 2
	}
	patterns, given := grepPatterns(p)
	if given && o.has["f"] {
		text, err := p.ReadFile(o.text["f"])
		if err != nil {
			return p.Failf("%s: %s", o.text["f"], files.Text(err)) + 1
		}
		patterns = append(patterns, strings.Split(strings.TrimSuffix(text, "\n"), "\n")...)
	}
	if !given {
		if len(o.args) == 0 {
			return p.Failf("a pattern is missing") + 1
		}
		patterns, o.args = strings.Split(o.args[0], "\n"), o.args[1:]
	}
	var all []*regexp.Regexp
	for _, text := range patterns {
		if o.has["F"] {
			text = regexp.QuoteMeta(text)
		} else if !o.has["E"] && !strings.HasSuffix(p.Args[0], "egrep") {
			text = basic(text)
		}
		if o.has["x"] {
			text = "^(?:" + text + ")$"
		}
		if o.has["w"] {
			text = `\b(?:` + text + `)\b`
		}
		if o.has["i"] {
			text = "(?i)" + text
		}
		re, err := expression(text, true)
		if err != nil {
			return p.Failf("%v", err) + 1
		}
		all = append(all, re)
	}
	g := &grepper{p: p, o: o, all: all, most: 1 << 30}
	if o.has["m"] {
		g.most, _ = strconv.Atoi(o.text["m"])
	}
	return g.run()
}

// grepPatterns are those of -e; whether any patterns come by options.
func grepPatterns(p *kernel.Process) (list []string, given bool) {
	args := p.Args[1:]
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			break
		}
		if len(a) < 2 || a[0] != '-' || a[1] == '-' {
			continue
		}
		at := strings.IndexAny(a, "efm")
		if at < 0 {
			continue
		}
		value := a[at+1:]
		if value == "" && i+1 < len(args) {
			i++
			value = args[i]
		}
		switch a[at] {
		case 'e':
			list, given = append(list, strings.Split(value, "\n")...), true
		case 'f':
			given = true
		}
	}
	return list, given
}

type grepper struct {
	p    *kernel.Process
	o    options
	all  []*regexp.Regexp
	most int
}

func (g *grepper) run() int {
	names := g.o.args
	if g.o.has["r"] {
		var below []string
		each(g.p, names, true, func(name string, i files.Info) error {
			if i.Kind == files.Plain {
				below = append(below, name)
			}
			return nil
		})
		names = below
		if len(below) == 0 {
			return 1
		}
	}
	quiet := g.p
	if g.o.has["s"] {
		quiet = g.p.Fork()
		quiet.SetFD(2, nil)
		defer quiet.Discard()
	}
	list, code := inputs(quiet, names)
	named := len(names) > 1 && !g.o.has["h"] || g.o.has["H"] || g.o.has["r"]
	w, flush := out(g.p)
	defer flush()
	found := false
	for _, in := range list {
		n, count := 0, 0
		lines([]input{in}, func(line string) bool {
			n++
			match := ""
			holds := slices.ContainsFunc(g.all, func(re *regexp.Regexp) bool {
				at := re.FindStringIndex(line)
				if at != nil {
					match = line[at[0]:at[1]]
				}
				return at != nil
			})
			if holds == g.o.has["v"] {
				return true
			}
			found = true
			count++
			if g.o.has["q"] {
				return false
			}
			prefix := ""
			if named {
				prefix = in.name + ":"
			}
			if g.o.has["n"] {
				prefix += strconv.Itoa(n) + ":"
			}
			if g.o.has["o"] {
				line = match
			}
			if !g.o.has["c"] && !g.o.has["l"] {
				fmt.Fprintln(w, prefix+line)
			}
			return count < g.most
		})
		switch {
		case g.o.has["l"] && count > 0:
			fmt.Fprintln(w, in.name)
		case g.o.has["c"] && !g.o.has["q"] && named:
			fmt.Fprintf(w, "%s:%d\n", in.name, count)
		case g.o.has["c"] && !g.o.has["q"]:
			fmt.Fprintln(w, count)
		}
	}
	switch {
	case found && (code == 0 || g.o.has["q"]):
		return 0
	case code != 0:
		return 2
	}
	return 1
}

func tee(p *kernel.Process) int {
	o, ok := parse(p, "a i append=a")
	if !ok {
		return 1
	}
	text, err := io.ReadAll(p.In())
	if err != nil {
		return 1
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if o.has["a"] {
		flags = os.O_WRONLY | os.O_CREATE | os.O_APPEND
	}
	code := 0
	for _, name := range o.args {
		f, err := p.Open(name, flags, 0o666)
		if err == nil {
			err = f.WriteAll(string(text))
			p.K.Close(f)
		}
		if err != nil {
			code = p.Failf("%s: %s", name, files.Text(err))
		}
	}
	p.Printf("%s", text)
	return code
}

func cmp(p *kernel.Process) int {
	o, ok := parse(p, "s quiet=s silent=s")
	if !ok || len(o.args) < 2 {
		return 2
	}
	list, code := inputs(p, o.args)
	if code != 0 {
		return 2
	}
	a, err1 := io.ReadAll(list[0])
	b, err2 := io.ReadAll(list[1])
	switch {
	case errors.Join(err1, err2) != nil:
		return 2
	case bytes.Equal(a, b):
		return 0
	case !o.has["s"]:
		p.Printf("%s %s differ\n", o.args[0], o.args[1])
	}
	return 1
}

func base64Program(p *kernel.Process) int {
	o, ok := parse(p, "d w: i decode=d wrap:=w")
	if !ok {
		return 1
	}
	list, code := inputs(p, o.args)
	if code != 0 {
		return code
	}
	text, err := io.ReadAll(list[0])
	if err != nil {
		return p.Failf("%s", files.Text(err))
	}
	if o.has["d"] {
		raw, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(string(text)), ""))
		if _, werr := p.Out().Write(raw); werr != nil {
			return 1
		}
		if err != nil {
			return p.Failf("invalid input")
		}
		return 0
	}
	width := 76
	if o.has["w"] {
		width, _ = strconv.Atoi(o.text["w"])
	}
	encoded := base64.StdEncoding.EncodeToString(text)
	if width == 0 {
		p.Printf("%s", encoded)
		return 0
	}
	for len(encoded) > 0 {
		n := min(width, len(encoded))
		p.Printf("%s\n", encoded[:n])
		encoded = encoded[n:]
	}
	return 0
}

func sha256sum(p *kernel.Process) int {
	o, ok := parse(p, "b t c")
	if !ok || o.has["c"] {
		return p.Failf("this is not simulated")
	}
	list, code := inputs(p, o.args)
	for _, in := range list {
		h := sha256.New()
		if _, err := io.Copy(h, in); err != nil {
			return p.Failf("%s: %s", in.name, files.Text(err))
		}
		p.Printf("%x  %s\n", h.Sum(nil), in.name)
	}
	return code
}

// sed knows the commands s, d, p, q and i, a, c with a text, with addresses by line and by regular
// expression, and -n, -e, -i, -E.
func sed(p *kernel.Process) int {
	o, ok := parse(p, "n e: i E r=E s quiet=n expression:=e in-place=i regexp-extended=E")
	if !ok {
		return 1
	}
	var scripts []string
	for i, a := range p.Args { // -e may be there several times
		if a == "-e" && i+1 < len(p.Args) {
			scripts = append(scripts, p.Args[i+1])
		}
	}
	if len(scripts) == 0 && o.has["e"] {
		scripts = []string{o.text["e"]}
	}
	if len(scripts) == 0 {
		if len(o.args) == 0 {
			return p.Failf("a script is missing")
		}
		scripts, o.args = o.args[:1], o.args[1:]
	}
	var program []edit
	for _, text := range scripts {
		more, err := edits(text, o.has["E"])
		if err != nil {
			return p.Failf("%v", err)
		}
		program = append(program, more...)
	}
	if !o.has["i"] {
		list, code := inputs(p, o.args)
		var b strings.Builder
		for _, in := range list {
			text, err := io.ReadAll(in)
			if err != nil {
				return p.Failf("%s", files.Text(err))
			}
			b.Write(text)
		}
		p.Printf("%s", edited(program, b.String(), o.has["n"]))
		return code
	}
	for _, name := range o.args {
		text, err := p.ReadFile(name)
		if err != nil {
			return p.Failf("can't read %s: %s", name, files.Text(err))
		}
		f, err := p.Open(name, os.O_WRONLY|os.O_TRUNC, 0)
		if err == nil {
			err = f.WriteAll(edited(program, text, o.has["n"]))
			p.K.Close(f)
		}
		if err != nil {
			return p.Failf("couldn't edit %s: %s", name, files.Text(err))
		}
	}
	return 0
}

// edit is one command of sed.
type edit struct {
	from, to *address
	not      bool
	inside   bool
	do       byte
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
	for {
		text = strings.TrimLeft(text, " \t\n;")
		if text == "" {
			return out, nil
		}
		e, rest, err := oneEdit(text, extended)
		if err != nil {
			return nil, err
		}
		out, text = append(out, e), rest
	}
}

func readAddress(text string, extended bool) (*address, string, error) {
	switch {
	case text == "":
		return nil, text, nil
	case text[0] == '$':
		return &address{line: -1}, text[1:], nil
	case text[0] == '/':
		part, rest, ok := until(text[1:], '/')
		if !ok {
			return nil, "", errors.New("unterminated address regex")
		}
		re, err := expression(part, extended)
		return &address{re: re}, rest, err
	case text[0] >= '0' && text[0] <= '9':
		digits := text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
		n, err := strconv.Atoi(digits)
		return &address{line: n}, text[len(digits):], err
	}
	return nil, text, nil
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
	e.do, text = text[0], text[1:]
	switch e.do {
	case 'd', 'p', 'q':
		return e, text, nil
	case 'a', 'i', 'c':
		line, rest, _ := strings.Cut(strings.TrimLeft(strings.TrimPrefix(strings.TrimLeft(text, " "), "\\"), " \n"), "\n")
		e.text = line
		return e, rest, nil
	case 's':
		if text == "" {
			break
		}
		sep := text[0]
		from, rest, ok := until(text[1:], sep)
		if !ok {
			break
		}
		to, rest, ok := until(rest, sep)
		if !ok {
			break
		}
		flags := rest[:len(rest)-len(strings.TrimLeft(rest, "gpiI"))]
		e.global, e.print = strings.Contains(flags, "g"), strings.Contains(flags, "p")
		if strings.ContainsAny(flags, "iI") {
			from = "(?i)" + from
		}
		e.text = to
		e.re, err = expression(from, extended)
		return e, rest[len(flags):], err
	}
	return e, "", fmt.Errorf("unknown command: '%c'", e.do)
}

var reference = regexp.MustCompile(`\\.|&`)

func edited(program []edit, text string, silent bool) string {
	var b strings.Builder
	all := slices.Collect(strings.Lines(text))
	for n, raw := range all {
		line, end := strings.TrimSuffix(raw, "\n"), "\n"
		if !strings.HasSuffix(raw, "\n") {
			end = ""
		}
		before, after, gone, quit := "", "", false, false
		for i := range program {
			e := &program[i]
			if e.applies(n+1, n == len(all)-1, line) == e.not || gone {
				continue
			}
			switch e.do {
			case 'd':
				gone = true
			case 'p':
				before += line + end
			case 'q':
				quit = true
			case 'i':
				before += e.text + "\n"
			case 'a':
				after += e.text + "\n"
			case 'c':
				gone = true
				after += e.text + "\n"
			case 's':
				changed := e.substitute(line)
				if e.print && changed != line {
					before += changed + end
				}
				line = changed
			}
		}
		b.WriteString(before)
		if !gone && !silent {
			b.WriteString(line + end)
		}
		if after != "" && end == "" {
			b.WriteString("\n")
		}
		b.WriteString(after)
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

func (e *edit) substitute(line string) string {
	times := 0
	var b strings.Builder
	at := 0
	for _, m := range e.re.FindAllStringSubmatchIndex(line, -1) {
		if times++; times > 1 && !e.global {
			break
		}
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
