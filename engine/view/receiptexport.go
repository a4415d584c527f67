package view

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
)

// receiptColumns head the rows of receiptRows.
func receiptColumns() []string {
	return []string{
		"id", "began", "host", "site", "verb", "by", "outcome", "commit", "signer", "author", "reason", "reverts",
		"address", "vmid", "action", "status", "error", "seconds", "plan_sha256", "key",
	}
}

// receiptRows has a row for each step and check of receipts, oldest first, and one for a receipt without either.
func receiptRows(list []ledger.Receipt) [][]string {
	var rows [][]string
	for i := len(list) - 1; i >= 0; i-- {
		r := &list[i]
		reverts := ""
		if r.Reverts != nil {
			reverts = r.Reverts.Commit
			if !r.Reverts.Exact {
				reverts += " in part"
			}
		}
		head := []string{r.ID, r.Began.UTC().Format(time.RFC3339), r.Host, r.Site, r.Verb, r.By, r.Outcome, r.Commit, r.Signer, r.Author, r.Reason, reverts}
		row := func(address, vmid, action, status, problem string, seconds float64) {
			tail := []string{address, vmid, action, status, problem, strconv.FormatFloat(seconds, 'f', 1, 64), r.Digest, r.Key}
			rows = append(rows, slices.Concat(head, tail))
		}
		for _, s := range r.Steps {
			vmid := ""
			if s.VMID != 0 {
				vmid = strconv.Itoa(s.VMID)
			}
			row(s.Address, vmid, s.Action, s.Status, s.Error, s.Seconds)
		}
		for _, c := range r.Checks {
			status, problem := "passed", ""
			if !c.OK {
				status, problem = "failed", c.Saw
			}
			row(c.Address, "", "check "+c.Check, status, problem, c.Seconds)
		}
		if len(r.Steps)+len(r.Checks) == 0 {
			row("", "", "", "", "", r.Seconds)
		}
	}
	return rows
}

// ReceiptsCSV writes receipts for a spreadsheet. A cell that it would take for a formula begins with an apostrophe.
func ReceiptsCSV(list []ledger.Receipt) string {
	var b strings.Builder
	for _, row := range append([][]string{receiptColumns()}, receiptRows(list)...) {
		for i, cell := range row {
			if i > 0 {
				b.WriteByte(',')
			}
			if cell = clean(cell); cell != "" && strings.ContainsRune("=+-@", rune(cell[0])) {
				cell = "'" + cell
			}
			b.WriteString(`"` + strings.ReplaceAll(cell, `"`, `""`) + `"`)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// ReceiptsMarkdown writes receipts as a table, without the columns that only programs read.
func ReceiptsMarkdown(list []ledger.Receipt) string {
	var b strings.Builder
	columns := receiptColumns()
	columns = columns[:len(columns)-2]
	escape := strings.NewReplacer("|", `\|`, "[", `\[`, "<", "&lt;", "`", "'", "\\", `\\`)
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, row := range receiptRows(list) {
		for _, cell := range row[:len(columns)] {
			b.WriteString("| " + escape.Replace(clean(cell)) + " ")
		}
		b.WriteString("|\n")
	}
	return b.String()
}

// clean makes one line of a text, without control characters.
func clean(text string) string { return diag.Line(strings.Join(strings.Fields(text), " ")) }
