package view

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
)

// Reachable is the address of a listener that a client on this machine can use.
func Reachable(listener net.Addr) string {
	tcp, ok := listener.(*net.TCPAddr)
	if ok && tcp.IP.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(tcp.Port))
	}
	return listener.String()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func orNothing(s string) string {
	if s == "" || s == "<nil>" {
		return "nothing"
	}
	return s
}

// Paint colours text, or leaves it unchanged.
type Paint bool

// Prefix is a name before a line that is about it, in a colour that goes with the name.
func (p Paint) Prefix(name string) string {
	if !p {
		return name + ":"
	}
	sum := 0
	for _, b := range []byte(name) {
		sum += int(b)
	}
	return "\x1b[" + strconv.Itoa(32+sum%5) + "m" + name + ":\x1b[0m" // green to cyan: red is for errors
}

// as gives text the colour of a tone.
func (p Paint) as(t Tone, text string) string {
	code, known := map[Tone]string{good: "32", bad: "31;1", busy: "36", dim: "2"}[t]
	if !bool(p) || text == "" || !known {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Tone says how a text is meant: the terminal shows it as a colour, the page as a class.
type Tone string

const (
	good Tone = "good"
	bad  Tone = "bad"
	busy Tone = "busy"
	dim  Tone = "dim"
)

// Row is one statement about a value. Terminal and page show the same rows.
type Row struct {
	Label string // "": it continues the row before
	Text  string // one line
	Tone  Tone   // "": none
	Below []string
}

// rows are collected by functions that write one after the other.
type rows []Row

func (r *rows) add(label, format string, args ...any) {
	*r = append(*r, Row{Label: label, Text: oneLine(fmt.Sprintf(format, args...))})
}

// write writes rows with a column of labels; what is below a row is indented by below.
func (r rows) write(b *strings.Builder, width int, below string, p Paint) {
	for _, row := range r {
		fmt.Fprintf(b, "  %-*s %s\n", width, row.Label, p.as(row.Tone, row.Text))
		for _, line := range row.Below {
			if line != "" {
				line = below + line
			}
			fmt.Fprintln(b, line)
		}
	}
}

// table draws rows in columns, each in one line; color returns the colour of a cell.
func table(b *strings.Builder, rows [][]string, color func(row, column int, text string) string) {
	width := map[int]int{}
	for _, r := range rows {
		for i := range r {
			r[i] = oneLine(r[i])
			width[i] = max(width[i], utf8.RuneCountInString(r[i]))
		}
	}
	for row, r := range rows {
		var line strings.Builder
		line.WriteString("  ")
		for i, cell := range r {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)+2)
			if i == len(r)-1 {
				pad = ""
			}
			line.WriteString(color(row, i, cell) + pad)
		}
		fmt.Fprintln(b, strings.TrimRight(line.String(), " "))
	}
}

// oneLine is diag.Clean for what has one line: a break in it becomes a space.
func oneLine(text string) string {
	if !strings.ContainsAny(text, "\n\r\t") {
		return diag.Clean(text)
	}
	return diag.Line(text)
}

// Commit names a commit for people.
func Commit(c *agent.CommitStatus) string {
	if c == nil {
		return "none"
	}
	return named(c.ID, c.Subject, c.Author)
}

func named(id, subject, author string) string {
	text := Short(id)
	if subject != "" {
		text += " “" + subject + "”"
	}
	if author != "" {
		text += " (" + author + ")"
	}
	return text
}

// Short is the beginning of a commit's id that people recognise.
func Short(id string) string {
	if id == "" {
		return "no commit"
	}
	return id[:min(len(id), 8)]
}

// When formats a point in time, in local time.
func When(t time.Time) string {
	if t.IsZero() {
		return "a time unknown"
	}
	return t.Local().Format(time.DateTime)
}

// ago formats the time since something.
func ago(now, t time.Time) string { return span(now.Sub(t)) }

// Age formats the time since t.
func Age(t time.Time) string { return ago(time.Now(), t) }

// until formats the time until something.
func until(now, t time.Time) string {
	if !t.After(now) {
		return "now"
	}
	return "in " + span(t.Sub(now))
}

// span formats a duration in at most two units.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d <= 90*time.Minute:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%d days", int(d.Hours())/24)
	}
}
