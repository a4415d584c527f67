package userland

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// Programs for texts.

// input is one file to read.
type input struct {
	name string
	io.Reader
}

// inputs opens files, and standard input for none and for "-". Files that cannot be opened are reported, and code
// is then not 0.
func inputs(p *machine.Process, names []string) (list []input, code int) {
	if len(names) == 0 {
		names = []string{"-"}
	}
	for _, name := range names {
		if name == "-" || name == "/dev/stdin" {
			list = append(list, input{"-", p.In()})
			continue
		}
		f, err := p.K.FS.Open(p.Cred, p.Path(name), os.O_RDONLY, 0)
		if err == nil {
			_, err = f.Read(nil) // a folder cannot be read
		}
		if err != nil {
			code = p.Failf("%s: %s", name, machine.ErrorText(err))
			continue
		}
		list = append(list, input{name, f})
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

// texts gives each input as a whole to do.
func texts(p *machine.Process, names []string, do func(name, text string)) int {
	list, code := inputs(p, names)
	for _, in := range list {
		text, err := io.ReadAll(in)
		if err != nil {
			return p.Failf("%s: %s", in.name, machine.ErrorText(err))
		}
		do(in.name, string(text))
	}
	return code
}

// out is the output of a program that writes many small pieces.
func out(p *machine.Process) (*bufio.Writer, func()) {
	w := bufio.NewWriter(p.Out())
	return w, func() { _ = w.Flush() } // who cannot write any more has been killed
}

func cat(p *machine.Process, o Options) int {
	list, code := inputs(p, o.Args)
	for _, in := range list {
		if _, err := io.Copy(p.Out(), in); err != nil {
			return p.Failf("%s: %s", in.name, machine.ErrorText(err))
		}
	}
	return code
}

func head(p *machine.Process, o Options) int {
	list, code := inputs(p, o.Args)
	most, err := int64(10), error(nil)
	for _, unit := range []string{"n", "c"} {
		if o.Has(unit) {
			most, err = strconv.ParseInt(o.Text(unit), 10, 64)
		}
	}
	if err != nil {
		return p.Failf("invalid number: '%s'", o.Text("n")+o.Text("c"))
	}
	w, flush := out(p)
	defer flush()
	for _, in := range list {
		left := most
		if o.Has("c") {
			if _, err := io.Copy(w, io.LimitReader(in, left)); err != nil {
				return 1
			}
			continue
		}
		for r := bufio.NewReader(in); left > 0; left-- {
			line, err := r.ReadString('\n')
			fmt.Fprint(w, line)
			if err != nil {
				break
			}
		}
	}
	return code
}

func tail(p *machine.Process, o Options) int {
	count := "10"
	for _, unit := range []string{"n", "c"} {
		if o.Has(unit) {
			count = o.Text(unit)
		}
	}
	n, err := strconv.Atoi(strings.TrimPrefix(count, "+"))
	if err != nil {
		return p.Failf("invalid number of lines: '%s'", count)
	}
	from := func(all int) int {
		if strings.HasPrefix(count, "+") {
			return min(max(n-1, 0), all)
		}
		return max(0, all-n)
	}
	return texts(p, o.Args, func(_, text string) {
		if o.Has("c") {
			p.Printf("%s", text[from(len(text)):])
			return
		}
		all := slices.Collect(strings.Lines(text))
		p.Printf("%s", strings.Join(all[from(len(all)):], ""))
	})
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
		if err1 != nil || err2 != nil || part == "" {
			return nil, fmt.Errorf("invalid range '%s'", part)
		}
		all = append(all, s)
	}
	return func(n int) bool {
		return slices.ContainsFunc(all, func(s span) bool { return n >= s.from && n <= s.to })
	}, nil
}

func cut(p *machine.Process, o Options) int {
	in, err := ranges(o.Text("f") + o.Text("c"))
	if err != nil {
		return p.Failf("%v", err)
	}
	sep := "\t"
	switch {
	case o.Has("c"):
		sep = ""
	case o.Has("d"):
		sep = o.Text("d")
	}
	list, code := inputs(p, o.Args)
	w, flush := out(p)
	defer flush()
	lines(list, func(line string) bool {
		if sep != "" && !strings.Contains(line, sep) {
			fmt.Fprintln(w, line)
			return true
		}
		var kept []string
		for i, field := range strings.Split(line, sep) {
			if in(i + 1) {
				kept = append(kept, field)
			}
		}
		fmt.Fprintln(w, strings.Join(kept, sep))
		return true
	})
	return code
}

// set reads a set of tr(1), byte by byte.
func set(text string) []byte {
	classes := map[string]string{"print": " -~", "alpha": "A-Za-z", "digit": "0-9", "alnum": "A-Za-z0-9", "upper": "A-Z", "lower": "a-z", "space": " \t\n\v\f\r", "cntrl": "\x01-\x1f"}
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
			} else if at := strings.IndexByte("nrt", text[i]); at >= 0 {
				c = "\n\r\t"[at]
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

func tr(p *machine.Process, o Options) int {
	from, to := set(o.Args[0]), []byte(nil)
	if o.Has("c") {
		var rest []byte
		for n := range 256 {
			if bytes.IndexByte(from, byte(n)) < 0 {
				rest = append(rest, byte(n))
			}
		}
		from = rest
	}
	if len(o.Args) > 1 {
		to = set(o.Args[1])
	}
	if o.Has("d") == (len(to) > 0) {
		return p.Failf("these operands are not simulated")
	}
	var table [256]int // what becomes of each byte; -1: nothing
	for i := range table {
		table[i] = i
	}
	for i, c := range from {
		table[c] = -1
		if len(to) > 0 {
			table[c] = int(to[min(i, len(to)-1)])
		}
	}
	w, flush := out(p)
	defer flush()
	buffer, in := make([]byte, 32<<10), p.In()
	for {
		n, err := in.Read(buffer)
		for _, c := range buffer[:n] {
			if t := table[c]; t >= 0 && w.WriteByte(byte(t)) != nil {
				return 1
			}
		}
		if err != nil {
			return 0
		}
	}
}

func sortLines(p *machine.Process, o Options) int {
	list, code := inputs(p, o.Args)
	var all []string
	lines(list, func(line string) bool { all = append(all, line); return true })
	number := func(line string) float64 {
		n, _ := strconv.ParseFloat(leadingNumber.FindString(strings.TrimLeft(line, " \t")), 64)
		return n
	}
	order := strings.Compare
	if o.Has("n") {
		order = func(a, b string) int {
			if d := number(a) - number(b); d != 0 {
				return map[bool]int{true: -1, false: 1}[d < 0]
			}
			if o.Has("u") {
				return 0
			}
			return strings.Compare(a, b)
		}
	}
	slices.SortStableFunc(all, order)
	if o.Has("r") {
		slices.Reverse(all)
	}
	if o.Has("u") {
		all = slices.CompactFunc(all, func(a, b string) bool { return order(a, b) == 0 })
	}
	w, flush := out(p)
	defer flush()
	for _, line := range all {
		fmt.Fprintln(w, line)
	}
	return 2 * code
}

var leadingNumber = regexp.MustCompile(`^-?\d+(\.\d+)?`)

// wc counts one of lines, words and bytes.
func wc(p *machine.Process, o Options) int {
	if len(o.flags) != 1 {
		return p.Failf("one of -l, -w and -c is simulated")
	}
	return texts(p, o.Args, func(name, text string) {
		n := len(text)
		switch {
		case o.Has("l"):
			n = strings.Count(text, "\n")
		case o.Has("w"):
			n = len(strings.Fields(text))
		}
		if name != "-" {
			p.Printf("%d %s\n", n, name)
		} else {
			p.Printf("%d\n", n)
		}
	})
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
	return regexp.Compile(strings.NewReplacer(`\<`, `\b`, `\>`, `\b`).Replace(text))
}

func grep(p *machine.Process, o Options) int {
	patterns := o.flags["e"]
	if o.Has("f") {
		text, err := p.ReadFile(o.Text("f"))
		if err != nil {
			p.Failf("%s: %s", o.Text("f"), machine.ErrorText(err))
			return 2
		}
		patterns = append(patterns, strings.TrimSuffix(text, "\n"))
	}
	if len(patterns) == 0 {
		if len(o.Args) == 0 {
			p.Failf("a pattern is missing")
			return 2
		}
		patterns, o.Args = o.Args[:1], o.Args[1:]
	}
	var all []string
	for text := range strings.SplitSeq(strings.Join(patterns, "\n"), "\n") {
		switch {
		case o.Has("F"):
			text = regexp.QuoteMeta(text)
		case !o.Has("E"):
			text = basic(text)
		}
		all = append(all, text)
	}
	whole := "(?:" + strings.Join(all, "|") + ")"
	if o.Has("x") {
		whole = "^" + whole + "$"
	}
	if o.Has("w") {
		whole = `\b` + whole + `\b`
	}
	if o.Has("i") {
		whole = "(?i)" + whole
	}
	re, err := expression(whole, true)
	if err != nil {
		p.Failf("%v", err)
		return 2
	}
	return matching(p, o, re)
}

// matching prints what grep finds, and gives its exit code.
func matching(p *machine.Process, o Options, re *regexp.Regexp) int {
	list, code := inputs(p, o.Args)
	w, flush := out(p)
	defer flush()
	found := false
	for _, in := range list {
		prefix, count := "", 0
		if len(o.Args) > 1 {
			prefix = in.name + ":"
		}
		lines([]input{in}, func(line string) bool {
			if re.MatchString(line) == o.Has("v") {
				return true
			}
			found = true
			count++
			switch {
			case o.Has("q"):
				return false
			case o.Has("c"), o.Has("l"):
			case o.Has("o"):
				for _, part := range re.FindAllString(line, -1) {
					if part != "" {
						fmt.Fprintln(w, prefix+part)
					}
				}
			default:
				fmt.Fprintln(w, prefix+line)
			}
			return true
		})
		switch {
		case o.Has("q"):
		case o.Has("c"):
			fmt.Fprintf(w, "%s%d\n", prefix, count)
		case o.Has("l") && count > 0:
			fmt.Fprintln(w, in.name)
		}
	}
	switch {
	case found && (code == 0 || o.Has("q")):
		return 0
	case code != 0:
		return 2
	}
	return 1
}

func compareFiles(p *machine.Process, o Options) int {
	var both []string
	if texts(p, o.Args[:2], func(_, text string) { both = append(both, text) }) != 0 {
		return 2
	}
	if both[0] == both[1] {
		return 0
	}
	if !o.Has("s") {
		p.Printf("%s %s differ\n", o.Args[0], o.Args[1])
	}
	return 1
}

// dd reads the beginning of a file: if and count=BYTES with iflag=count_bytes. Links are followed unless iflag has nofollow.
func dd(p *machine.Process) int {
	name, most, bytes := "", int64(-1), false
	for _, word := range p.Args[1:] {
		key, value, _ := strings.Cut(word, "=")
		known, err := true, error(nil)
		switch key {
		case "if":
			name = value
		case "count":
			most, err = strconv.ParseInt(value, 10, 64)
		case "iflag":
			for flag := range strings.SplitSeq(value, ",") {
				bytes = bytes || flag == "count_bytes"
				known = known && slices.Contains([]string{"nofollow", "nonblock", "fullblock", "count_bytes"}, flag)
			}
			if info, statErr := p.K.FS.Lstat(p.Cred, p.Path(name)); strings.Contains(value, "nofollow") && statErr == nil && info.Kind == machine.SymbolicLink {
				return p.Failf("failed to open '%s': Too many levels of symbolic links", name)
			}
		case "bs":
		default:
			known = word == "status=none"
		}
		if !known || err != nil {
			return p.Failf("this is not simulated: %s", word)
		}
	}
	if name == "" || most < 0 || !bytes {
		return p.Failf("this is not simulated: %s", strings.Join(p.Args, " "))
	}
	list, code := inputs(p, []string{name})
	for _, in := range list {
		if _, err := io.Copy(p.Out(), io.LimitReader(in, most)); err != nil {
			return 1
		}
	}
	return code
}

func base64Program(p *machine.Process, o Options) int {
	width := 76
	if o.Has("w") {
		width, _ = strconv.Atoi(o.Text("w"))
	}
	bad := 0
	code := texts(p, o.Args, func(_, text string) {
		if o.Has("d") {
			raw, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), ""))
			p.Printf("%s", raw)
			if err != nil {
				bad = p.Failf("invalid input")
			}
			return
		}
		encoded := base64.StdEncoding.EncodeToString([]byte(text))
		for width > 0 && encoded != "" {
			n := min(width, len(encoded))
			p.Printf("%s\n", encoded[:n])
			encoded = encoded[n:]
		}
		p.Printf("%s", encoded)
	})
	return max(bad, code)
}

func sha256sum(p *machine.Process, o Options) int {
	return texts(p, o.Args, func(name, text string) { p.Printf("%x  %s\n", sha256.Sum256([]byte(text)), name) })
}
