package bench_test

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// row is one line of the table: a goal, what we reach, what nobody could go below,
// and what a usual tool of others needs for the same work.
type row struct {
	id, what    string
	goal        string
	ours, floor float64 // floor 0: there is none
	unit        unit
	met         verdict
	peer        string // OpenTofu with the bpg provider, or who is named; as recorded on another machine
}

// verdict says whether a goal is met.
type verdict string

const (
	yes  verdict = "yes"
	no   verdict = "NO"
	open verdict = "–" // cannot be said from these figures alone
)

func met(is bool) verdict {
	if is {
		return yes
	}
	return no
}

// unit says how a figure is written.
type unit func(float64) string

func seconds(v float64) string {
	if v < 0.1 {
		return fmt.Sprintf("%.1f ms", v*1000)
	}
	return fmt.Sprintf("%.2f s", v)
}

func tenths(v float64) string    { return fmt.Sprintf("%.1f", v) }
func pieces(v float64) string    { return fmt.Sprintf("%.0f", v) }
func perVM(v float64) string     { return fmt.Sprintf("%.1f", v) }
func exponent(v float64) string  { return fmt.Sprintf("%.2f", v) }
func mebibytes(v float64) string { return fmt.Sprintf("%.1f MiB", v/(1<<20)) }
func megabytes(v float64) string { return fmt.Sprintf("%.1f MB", v/1e6) }

// write writes the table. Ratios come from one run on one machine, so they can be
// compared between machines; the figures beside them cannot.
func write(w io.Writer, rows []row, notes []string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "goal\twhat\tat most\tours\tfloor\tratio\tmet\trecorded: OpenTofu + bpg, or who is named")
	for _, r := range rows {
		floor, ratio := "–", "–"
		if r.floor > 0 {
			floor, ratio = r.unit(r.floor), fmt.Sprintf("%.2f", r.ours/r.floor)
		}
		fmt.Fprintln(t, strings.Join([]string{r.id, r.what, r.goal, r.unit(r.ours), floor, ratio, string(r.met), r.peer}, "\t"))
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	for _, n := range notes {
		fmt.Fprintln(w, "*", n)
	}
	return nil
}

func sec(d time.Duration) float64 { return d.Seconds() }
