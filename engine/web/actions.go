package web

import (
	"cmp"
	"crypto/hmac"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/ledger"
)

// act does what a button says, and leads back to the page that it was on.
func (x *request) act(do func(x *request) error) {
	switch {
	case !x.who.Operator:
		x.fail(http.StatusForbidden, errNotOperator)
		return
	case !hmac.Equal([]byte(x.PostFormValue("csrf")), []byte(x.who.CSRF)):
		x.fail(http.StatusForbidden, errForm)
		return
	}
	if err := do(x); err != nil {
		x.fail(statusOf(err), err)
		return
	}
	back := x.PostFormValue("back")
	if !local(back) {
		back = "/"
	}
	http.Redirect(x.w, x.Request, back, http.StatusSeeOther)
}

// reconcile asks the agent for a check, or a node below.
func reconcile(x *request) error {
	if node := x.PostFormValue("node"); node != "" {
		_, err := x.o.Source.CheckNode(x.Context(), node)
		return err
	}
	return x.o.Source.CheckNow(x.Context())
}

// suspend suspends everything, or a manifest.
func suspend(x *request) error {
	var span time.Duration
	if text := x.PostFormValue("for"); text != "" {
		var err error
		if span, err = time.ParseDuration(text); err != nil || span <= 0 {
			return &control.ProblemError{Status: http.StatusBadRequest, Message: fmt.Sprintf("%.40q is not a time such as 2h", text)}
		}
	}
	reason := strings.TrimSpace(x.PostFormValue("reason"))
	_, err := x.o.Source.Suspend(x.Context(), ledger.Suspension{Manifest: strings.TrimSpace(x.PostFormValue("manifest")), Reason: cmp.Or(reason, "by the page")}, span)
	return err
}

// resume ends a suspension.
func resume(x *request) error { return x.o.Source.Resume(x.Context(), x.PostFormValue("manifest")) }
