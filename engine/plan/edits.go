package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// lastEdits returns for each attribute that differs the last edit of it, by the path of the attribute. edits are
// those of the resource, the newest first.
func lastEdits(edits []model.Edit, changes []Change) []model.Edit {
	var out []model.Edit
	for _, c := range changes {
		i := slices.IndexFunc(edits, func(e model.Edit) bool {
			return e.Path == "" || isWithin(c.Path, e.Path) || isWithin(e.Path, c.Path)
		})
		if i >= 0 && edits[i].User != "" {
			e := edits[i]
			e.Path = c.Path
			out = append(out, e)
		}
	}
	return out
}

// editsNote names who made the edits, each user and minute once.
func editsNote(edits []model.Edit) string {
	type edit struct{ user, at, task string }
	var order []edit
	of := map[edit][]Change{}
	for _, e := range edits {
		k := edit{e.User, e.At.UTC().Format("2006-01-02 15:04 MST"), e.Task}
		if of[k] == nil {
			order = append(order, k)
		}
		of[k] = append(of[k], Change{Path: e.Path})
	}
	var b strings.Builder
	for _, k := range order {
		fmt.Fprintf(&b, "; last logged change of %s: %s at %s", paths(of[k]), diag.Line(k.user), k.at)
		if k.task != "" {
			fmt.Fprintf(&b, " (%s)", diag.Line(k.task))
		}
	}
	return b.String()
}

// EditedBy are the users who made the edits, each once.
func (s *Step) EditedBy() []string {
	var out []string
	for _, e := range s.Edits {
		out = append(out, e.User)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
