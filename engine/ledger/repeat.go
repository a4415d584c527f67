package ledger

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// VerbVerify is the verb of receipts for checks that a person had run.
const VerbVerify = "verify"

// repeats reports whether a pass failed exactly as the one before it did, or checks ended as before: the same steps of the same commit, with the
// same results and errors. Words with digits in an error count nothing, such as times, and names of tasks.
func (r *Receipt) repeats(before *Receipt) bool {
	failed := r.Verb == VerbVerify || slices.ContainsFunc(r.Steps, func(s Step) bool { return s.Error != "" })
	if !failed || len(r.Steps) != len(before.Steps) || r.identity() != before.identity() {
		return false
	}
	for i := range r.Steps {
		if !maps.Equal(r.Steps[i].comparable(), before.Steps[i].comparable()) {
			return false
		}
	}
	return true
}

// identity is the subject of a pass, and its result.
func (r *Receipt) identity() [7]string {
	drift := ""
	if r.Drift {
		drift = "drift"
	}
	return [7]string{r.Verb, r.By, r.Host, r.Site, r.Commit, r.Outcome, drift}
}

// comparable is a step without what differs each time that it is tried.
func (s Step) comparable() map[string]string {
	out := map[string]string{
		"address": s.Address, "action": s.Action, "class": s.Class, "reason": s.Reason, "status": s.Status,
		"error": strings.Join(slices.DeleteFunc(strings.Fields(s.Error), func(word string) bool { return strings.ContainsAny(word, "0123456789") }), " "),
	}
	for _, c := range s.Changes {
		value, err := json.Marshal(c) // as it is in the file
		out["change "+c.Path] = string(value)
		if err != nil {
			out["change "+c.Path] = err.Error()
		}
	}
	return out
}
