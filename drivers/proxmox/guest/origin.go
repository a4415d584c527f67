package guest

import (
	"fmt"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// asksToRecreate reports whether the files ask to recreate a guest: by another value of recreate than it was created
// with. A clone that is not complete keeps its value, and is completed first.
func asksToRecreate(want Target, have State) bool {
	w, m := want.Common().Recreate, have.Observed().Tag
	return w != "" && w != m.Recreate && !m.Provisional()
}

// remarkOrigin reports a guest that was made from an earlier content of its image or template. It stays as it is. Of a
// guest whose ownership tag is unproven, or does not have the content, nothing is known.
func remarkOrigin(want Target, have *model.Resource) diag.List {
	h := StateOf(have)
	was, now := h.Observed().Tag, want.Resolved().OwnerTag
	if have.Guest.Unproven.Why != "" || was.From != now.From || was.Content == "" || now.Content == "" || was.Content == now.Content || asksToRecreate(want, h) {
		return nil
	}
	return diag.List{warning(have.Addr, fmt.Sprintf("%s was made from an earlier %s (%s)", have.Addr, diag.Line(was.From), diag.Line(was.Content)),
		`it stays as it is; recreate = "…" on its node replaces it, and its data go with it`)}
}
