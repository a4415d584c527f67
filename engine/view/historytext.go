package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// History draws receipts as a table.
func (p Paint) History(list []ledger.Receipt, address string) string {
	rows := [][]string{{"WHEN", "COMMIT", "BY", "OUTCOME", "TOOK", "WHAT"}}
	for _, r := range list {
		rows = append(rows, ReceiptCells(r, address))
	}
	var b strings.Builder
	table(&b, rows, func(row, column int, text string) string {
		switch {
		case row == 0:
			return p.as(dim, text)
		case column == 3 && text == "done":
			return p.as(good, text)
		case column == 3:
			return p.as(bad, text)
		default:
			return text
		}
	})
	return b.String()
}

// ReceiptCells are when a pass began, its commit, by whom, its outcome, how long it took, and what it did: to all, or to one address.
func ReceiptCells(r ledger.Receipt, address string) []string {
	by := r.By
	if r.Verb != "agent" {
		by += " " + r.Verb
	}
	return []string{When(r.Began), Short(r.Commit), oneLine(by), r.Outcome, span(time.Duration(r.Seconds * float64(time.Second))), oneLine(receiptLine(r, address))}
}

// receiptLine says what a pass did: to all, or to one address.
func receiptLine(r ledger.Receipt, address string) string {
	var s plan.Summary
	var one, editors []string
	for _, st := range r.Steps {
		editors = append(editors, st.EditedBy...)
		s.Count(st.Action)
		if model.Means(address, st.Address) {
			one = append(one, st.Action+" "+st.Status)
		}
	}
	text := summaryLine(s)
	if r.Verb == ledger.VerbVerify {
		text = verifiedLine(r)
	}
	if address != "" {
		text = strings.Join(one, ", ")
	}
	if r.Drift {
		text += " (drift reverted" + by(editors) + ")"
	}
	if r.Reverts != nil {
		text += " (reverts " + Short(r.Reverts.Commit) + ")"
	}
	if r.Passes > 1 && r.First != nil {
		text += fmt.Sprintf(" (the last of %d such passes since %s)", r.Passes, When(*r.First))
	}
	if r.Subject != "" {
		text += "  “" + r.Subject + "”"
	}
	if r.Author != "" {
		text += " (" + r.Author + ")"
	}
	return text
}

// verifiedLine counts the checks of a receipt by their ends.
func verifiedLine(r ledger.Receipt) string {
	n := map[string]int{}
	for _, st := range r.Steps {
		n[st.Status]++
	}
	parts := []string{diag.Count(len(r.Steps), "check")}
	for _, end := range []engine.RunEnd{engine.RunFailed, engine.RunSkipped} {
		if n[string(end)] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[string(end)], end))
		}
	}
	return strings.Join(parts, ", ")
}

// by names users, each once.
func by(users []string) string {
	slices.Sort(users)
	if users = slices.Compact(users); len(users) == 0 {
		return ""
	}
	return ", last logged change by " + strings.Join(users, ", ")
}
