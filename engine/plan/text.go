package plan

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// TextOptions says how the picture is drawn. The zero value is for a file or pipe.
type TextOptions struct {
	Color bool // with ANSI colours
	Width int  // of the terminal in characters; 100 unless set
	All   bool // every change on a line of its own, with its values and its class
}

// The measures of the picture.
const (
	defaultWidth  = 100
	leastDetail   = 24 // characters that the middle column has on any terminal
	mostName      = 44 // a longer name pushes its own line only
	mostUnmanaged = 10 // unmanaged guests shown one by one
)

// line is one line of the picture: sign, thing, what happens to it, what that costs.
type line struct {
	sign    rune
	color   string
	thing   string // vm web-1
	address string // "": it is not about one object
	vmid    int    // 0: not shown
	align   bool   // the VMIDs are aligned
	detail  func(room int) string
	full    string // what detail is cut from, if it says less than it might
	cost    string
	notes   []string // what else it means, each on a line below
	all     []string // what TextOptions.All adds below
}

// Text draws the plan for people, and answers whether something in it is said shorter
// than TextOptions.All would. Findings are not in it: diag.Text writes them.
//
//	site home @ 3f2c1a9   host father   plan 7c1e04b2
//	  father
//	    ~ vm db-1  (10002)    cores 4 → 8               pending (restart = never)
//	    + vm web-3            vm-small, debian-12       create
//	plan: 1 add, 1 change, 0 destroy · policy: 14 ok
func (p *Plan) Text(w io.Writer, o TextOptions) bool {
	var b bytes.Buffer
	short := false
	if lines := p.lines(o.All); p.silent() && (!o.All || len(p.Undeclared) == 0) {
		fmt.Fprintln(&b, p.last())
	} else {
		fmt.Fprintln(&b, paint(p.title(), bold, o.Color))
		if len(lines) > 0 {
			fmt.Fprintf(&b, "  %s\n", diag.Escape(p.Host))
		}
		short = draw(&b, lines, o)
		fmt.Fprintln(&b, p.last())
	}
	_, _ = w.Write(b.Bytes()) // as with fmt.Print: who needs to know has the writer
	return short
}

// Line is one line of a plan in words.
type Line struct {
	Sign    string
	Thing   string // vm web-1
	Address string // "": it is not about one object
	VMID    int    // 0: none is shown
	What    string
	Cost    string // "": it is not a step
	Notes   []string
}

// Lines are the lines that Text draws, with a title and a last line that sums them up. Values are cut only if they are very long.
func (p *Plan) Lines() (title string, lines []Line, last string) {
	const room = 2000
	for _, l := range p.lines(false) {
		lines = append(lines, Line{string(l.sign), l.thing, l.address, l.vmid, l.detail(room), l.cost, l.notes})
	}
	return p.title(), lines, p.last()
}

// silent reports whether the last line says it all.
func (p *Plan) silent() bool {
	return p.InSync() && len(p.Pending)+len(p.Deferred)+len(p.Planned)+len(p.Outputs) == 0
}

func (p *Plan) title() string {
	of := fmt.Sprintf("host %s   plan %s", diag.Escape(p.Host), diag.Escape(limit(p.ID, 8)))
	if p.Site == "" { // a machine without a site, whose spec names none
		return of
	}
	return p.source() + "   " + of
}

func (p *Plan) source() string {
	s := "site " + diag.Escape(p.Site)
	if p.Commit != "" {
		s += " @ " + diag.Escape(shortCommit(p.Commit))
	}
	return s
}

func limit(s string, n int) string { return s[:min(len(s), n)] }

// last sums the plan up, with how it was checked.
func (p *Plan) last() string {
	if p.Rules == nil {
		return p.sum()
	}
	return p.sum() + " · policy: " + p.Rules.String()
}

// String returns the count in words: 12 ok, 1 warning, 1 denied.
func (r Rules) String() string {
	text := fmt.Sprintf("%d ok", r.OK)
	switch {
	case r.Warning == 1:
		text += ", 1 warning"
	case r.Warning > 1:
		text += fmt.Sprintf(", %d warnings", r.Warning)
	}
	if r.Denied > 0 {
		text += fmt.Sprintf(", %d denied", r.Denied)
	}
	return text
}

func (p *Plan) sum() string {
	s := p.Summary
	also := ""
	if n := len(p.Planned); n > 0 {
		also = fmt.Sprintf(", %d planned", n)
	}
	if s.Unmanaged > 0 {
		also += fmt.Sprintf(", %d unmanaged", s.Unmanaged)
	}
	switch waits := p.waits(); {
	case len(waits) > 0 && len(p.Steps) == 0:
		return fmt.Sprintf("nothing to do now: %s · %d unchanged%s", strings.Join(waits, "; "), s.Unchanged, also)
	case p.InSync():
		return fmt.Sprintf("in sync: %s on host %s, %d unchanged%s", p.source(), diag.Escape(p.Host), s.Unchanged, also)
	}
	return "plan: " + s.Text() + also
}

// waits lists differences that get no step, each with the first part of the reason unless that is long:
// findings and lines of the plan have the rest.
func (p *Plan) waits() []string {
	const most = 3
	var out []string
	for _, f := range p.Findings {
		if f.Source == diag.FromGuard || f.Severity == diag.Error {
			out = append(out, clause(f.Summary))
		}
	}
	for _, u := range p.unknownOnce() {
		out = append(out, clause(u.Scope+" cannot be read"))
	}
	for _, d := range p.Deferred {
		if d.Differs {
			out = append(out, clause(d.Address+" is "+d.Why))
		}
	}
	for _, d := range p.Pending {
		out = append(out, clause(d.Address.String()+" has a pending restart"))
	}
	if out = slices.Compact(out); len(out) > most {
		out = append(out[:most], fmt.Sprintf("%d more", len(out)-most))
	}
	return out
}

// clause is the first part of a sentence.
func clause(s string) string {
	s, _, _ = strings.Cut(s, ";")
	return diag.Escape(s)
}

// lines lists what the picture shows, from what is done to what is left alone.
func (p *Plan) lines(all bool) []line {
	var out []line
	most := maxValue
	if all {
		most = maxWide
	}
	for _, s := range p.Steps {
		out = append(out, s.line())
	}
	for _, d := range p.Pending {
		c := Change{Path: d.Path, Before: d.Before, After: d.After}
		l := line{
			sign: '·', color: dim, thing: thing(d.Address.String()), address: d.Address.String(),
			detail: func(int) string { return "pending restart: " + c.text(most) },
		}
		if d.Why != model.PendingRestart {
			l.notes = []string{diag.Escape(d.Why)}
		}
		out = append(out, l)
	}
	for _, s := range p.Undeclared {
		if all {
			out = append(out, line{
				sign: '·', color: dim, thing: thing(s.Address.String()),
				detail: constant(fmt.Sprintf("%s is %s: set by hand and not declared, so it is not drift", s.Path, valued(s.Value, most))),
			})
		}
	}
	for _, u := range p.unknownOnce() {
		out = append(out, line{sign: '!', color: yellow, thing: thing(u.Scope), detail: constant(u.Why + withheldNote(u.Withheld))})
	}
	for _, r := range p.Planned {
		out = append(out, line{sign: '·', color: dim, thing: thing(r.Address.String()), address: r.Address.String(), detail: constant(r.text())})
	}
	if len(p.Outputs) > 0 {
		out = append(out, outputsLine(p.Outputs))
	}
	for _, d := range p.Deferred {
		out = append(out, line{sign: '·', color: dim, thing: thing(d.Address), detail: constant(d.Why)})
	}
	unmanaged := slices.DeleteFunc(slices.Clone(p.Unmanaged), func(f model.Unmanaged) bool { return f.Duplicate }) // a finding names those
	if len(unmanaged) > mostUnmanaged {
		return append(out, line{
			sign: '?', color: dim, thing: fmt.Sprintf("%d guests", len(unmanaged)), detail: constant("unmanaged, ignored"),
		})
	}
	for _, f := range unmanaged {
		out = append(out, line{
			sign: '?', color: dim, thing: strings.TrimSpace(diag.Escape(f.Kind) + " " + diag.Escape(f.Name)), vmid: f.VMID,
			detail: constant(ignoredNote(f)),
		})
	}
	return out
}

// line counts the lines of an output that change; with TextOptions.All they are below it.
func (o *OutputChange) line() line {
	what := diag.Count(len(o.Lines), "line") + " change"
	if len(o.Lines) == 1 {
		what += "s"
	}
	l := line{sign: '·', color: dim, thing: "output " + o.Name, detail: constant(what), full: strings.Join(o.Lines, " ")}
	for _, text := range o.Lines {
		l.all = append(l.all, limited(diag.Escape(text), maxWide))
	}
	return l
}

// outputsLine is the line about several outputs: an edit of one node often changes most of them.
func outputsLine(list []OutputChange) line {
	if len(list) == 1 {
		return list[0].line()
	}
	l, count := line{sign: '·', color: dim, thing: "outputs"}, 0
	var names []string
	for i := range list {
		o := list[i].line()
		names, count = append(names, list[i].Name), count+len(list[i].Lines)
		for _, text := range o.all {
			l.all = append(l.all, list[i].Name+": "+text)
		}
	}
	l.detail = constant(strings.Join(names, ", ") + " change, in " + diag.Count(count, "line"))
	l.full = strings.Join(l.all, " ")
	return l
}

// unknownOnce lists what could not be seen, without the steps that are withheld for one thing alone: its line names them.
func (p *Plan) unknownOnce() []model.Unknown {
	named := map[string]string{}
	for _, u := range p.Unknown {
		if len(u.Withheld) == 1 && u.Why != "" {
			named[u.Withheld[0].String()] = u.Why
		}
	}
	return slices.DeleteFunc(slices.Clone(p.Unknown), func(u model.Unknown) bool {
		why, repeated := named[u.Scope]
		return repeated && strings.Contains(u.Why, why)
	})
}

// ignoredNote says in one line what is known of an unmanaged guest.
func ignoredNote(f model.Unmanaged) string {
	if f.Unfinished {
		return "unmanaged, ignored: " + f.Why
	}
	return "unmanaged, ignored"
}

// withheldNote names what is withheld until a part of the host can be seen, as far as a line has room.
func withheldNote(of []model.Address) string {
	const most = 5
	names := make([]string, 0, most+1)
	for _, a := range of[:min(len(of), most)] {
		names = append(names, a.String())
	}
	if more := len(of) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	if len(names) == 0 {
		return ""
	}
	return "; holds back " + strings.Join(names, ", ")
}

func constant(why string) func(int) string { return func(int) string { return diag.Escape(why) } }

// thing writes an address as the picture does, "vm web-1"; other texts as they are.
func thing(s string) string {
	if a, err := model.ParseAddress(s); err == nil && !strings.ContainsAny(a.Kind, " /") {
		return diag.Escape(a.Kind + " " + a.Name)
	}
	return diag.Escape(s)
}

func (s Step) line() line {
	l := line{sign: s.Action.Symbol(), color: yellow, thing: thing(s.Address.String()), address: s.Address.String(), vmid: s.VMID, align: true, cost: s.cost()}
	why := strings.Split(diag.Escape(s.Reason), "; ") // what it brings with it stands behind the first
	l.detail, l.full = func(room int) string { return fit(s.Changes, room) }, shown(s.Changes)
	switch s.Action {
	case Create:
		// The VMID is in the document; here it would look as if the guest were there.
		l.color, l.vmid, why = green, 0, nil
		if _, place, _ := strings.Cut(s.Reason, "; "); s.Place != "" {
			l.notes = []string{diag.Escape(place)}
		}
		if s.Brief != "" {
			l.detail, l.full = func(room int) string { return limited(diag.Escape(s.Brief), room) }, ""
		}
	case Delete:
		l.color, l.full = red, why[0]
		l.detail = func(room int) string { return limited(why[0], room) }
	case Adopt:
		text := []string{"ownership tag"}
		for _, c := range s.Changes {
			if c.Path != "mark" {
				text = append(text, c.String())
			}
		}
		l.detail, l.full, why = constant(strings.Join(text, ", ")), "", nil
	case Forget:
		l.full = why[0]
		l.detail = func(room int) string { return limited(why[0], room) }
	case Replace:
		l.color = red
	default:
	}
	if len(why) > 1 {
		l.notes = why[1:]
	}
	l.all = s.details()
	return l
}

// details are the changes one by one. Of what is new as a whole, a resource or a block,
// they show what it gets: every value that is declared, and every other that is not empty.
func (s Step) details() []string {
	var out []string
	for _, c := range s.Changes {
		block := whole(s.Changes, blockOf(c.Path))
		isNew := s.Action == Create || block == "+"
		text := c.text(maxWide)
		switch {
		case isNew && !c.Sensitive && empty(c.After) && !s.declares(c.Path), block == "-" && !c.Sensitive && empty(c.Before):
			continue
		case isNew && c.Sensitive:
			text = diag.Escape(c.Path) + " " + model.Sensitive
		case isNew:
			text = diag.Escape(c.Path) + " " + valued(c.After, maxWide)
		}
		if s.Action != Create {
			text += "    " + diag.Escape(string(c.Class))
		}
		out = append(out, text)
	}
	if s.Want == nil {
		return out
	}
	if job, ok := s.Want.Spec.(*model.BackupJob); ok {
		for _, proof := range slices.Sorted(maps.Keys(job.Proofs)) {
			var names []string
			for _, a := range job.Proofs[proof] {
				names = append(names, a.String())
			}
			out = append(out, limited(diag.Escape(proof+": "+strings.Join(names, ", ")), maxWide))
		}
	}
	return out
}

// declares reports whether a line of the files sets an attribute; never of a plan from a file.
func (s Step) declares(path string) bool {
	return s.Want != nil && s.Want.Declares(path)
}

// cost is the right column: the class, or for a making what it is.
func (s Step) cost() string {
	switch {
	case s.Action == Create || s.Action == Adopt || s.Action == Forget:
		return string(s.Action)
	case s.Class == model.ClassPending:
		return "pending (restart = never)"
	default:
		return diag.Escape(string(s.Class))
	}
}

// fit names changes as completely as the room allows: with values, without those that
// take the most room, by their paths alone, or the first few paths.
func fit(changes []Change, room int) string {
	list := parts(changes)
	texts := make([]string, len(list))
	for i := range list {
		texts[i] = list[i].long
	}
	s := strings.Join(texts, ", ")
	for utf8.RuneCountInString(s) > room {
		most, saves := -1, 0
		for i := range list {
			if n := utf8.RuneCountInString(texts[i]) - utf8.RuneCountInString(list[i].short); n > saves {
				most, saves = i, n
			}
		}
		if most < 0 {
			break
		}
		texts[most] = list[most].short
		s = strings.Join(texts, ", ")
	}
	for n := len(texts) - 1; n > 0 && utf8.RuneCountInString(s) > room; n-- {
		s = fmt.Sprintf("%s and %d more", strings.Join(texts[:n], ", "), len(texts)-n)
	}
	return s
}

// draw writes the lines in columns as wide as what stands in them, and answers
// whether one had to be cut.
func draw(b *bytes.Buffer, lines []line, o TextOptions) bool {
	short := false
	name, left, cost := 0, 0, 0
	for _, l := range lines {
		if l.align && l.vmid != 0 {
			name = max(name, utf8.RuneCountInString(l.thing))
		}
		cost = max(cost, utf8.RuneCountInString(l.cost))
	}
	name = min(name, mostName)
	things := make([]string, len(lines))
	for i, l := range lines {
		things[i] = l.thing
		if l.vmid != 0 {
			if l.align {
				things[i] = pad(l.thing, name)
			}
			things[i] += fmt.Sprintf(" (%d)", l.vmid)
		}
		left = max(left, utf8.RuneCountInString(things[i]))
	}
	left = min(left, mostName+12)
	width := o.Width
	if width <= 0 {
		width = defaultWidth
	}
	const frame = len("    ~ ") + len("    ") + len("    ")
	room := max(width-frame-left-cost, leastDetail)
	middle := 0
	details := make([]string, len(lines))
	for i, l := range lines {
		details[i] = l.detail(room)
		if l.cost != "" {
			middle = max(middle, utf8.RuneCountInString(details[i]))
		}
	}
	for i, l := range lines {
		text := pad(things[i], left) + "    " + details[i]
		if l.cost != "" {
			text = pad(things[i], left) + "    " + pad(details[i], middle) + "    " + l.cost
		}
		fmt.Fprintf(b, "    %s %s\n", paint(string(l.sign), l.color, o.Color), strings.TrimRight(text, " "))
		below := l.notes
		if o.All {
			below = slices.Concat(l.all, l.notes)
		}
		for _, note := range below {
			fmt.Fprintf(b, "          %s\n", note)
		}
		short = short || l.full != "" && l.full != details[i]
	}
	return short && !o.All
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(width-utf8.RuneCountInString(s), 0))
}

// ANSI codes, by meaning: made, changed, destroyed, left alone, heading.
const (
	green  = "32"
	yellow = "33"
	red    = "31"
	dim    = "2"
	bold   = "1"
)

func paint(s, color string, on bool) string {
	if !on {
		return s
	}
	return "\x1b[" + color + "m" + s + "\x1b[0m"
}

// shortCommit is a commit as people write it; that the folder differs from it stays said.
func shortCommit(id string) string {
	base, dirty, _ := strings.Cut(id, "-")
	if dirty != "" {
		dirty = "-" + dirty
	}
	return limit(base, 7) + dirty
}
