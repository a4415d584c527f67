package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
)

// Class is the class of an error, for the driver. Only this file derives it from PVE's status and
// texts.
type Class int

// The classes.
const (
	Other          Class = iota
	NotFound             // the object does not exist (or, with privileges on a pool only, is hidden)
	Exists               // the id or name is taken
	Busy                 // locked by another task; later it may work
	Changed              // the configuration changed since its digest was read
	Denied               // this token may not
	NoLogin              // no valid token
	OutcomeUnknown       // no answer, an answer of a proxy, or a task that did not start: the outcome of a write is unknown
	Invalid              // a parameter is wrong
)

// Error is an answer that is not a success. Message is PVE's own text; it
// never has anything of the request's body.
type Error struct {
	Method, Path string // Path without the prefix /api2/json
	Status       int
	Message      string
	Params       map[string]string // what is wrong with which parameter, on a 400
	Token        string            // that made the request: user@realm!name; "" where it is not known
}

// failedParams is PVE's message about every parameter that it refuses (pve-common, PVE/Exception.pm, raise_param_exc).
const failedParams = "Parameter verification failed."

// Error says what was attempted and what PVE answered.
func (e *Error) Error() string {
	text := cmp.Or(e.Message, http.StatusText(e.Status))
	if len(e.Params) > 0 && strings.HasPrefix(text, failedParams) {
		text = strings.TrimSpace(strings.TrimPrefix(text, failedParams)) // they say more
	}
	for _, k := range slices.Sorted(maps.Keys(e.Params)) {
		text += fmt.Sprintf("; %s: %s", k, strings.TrimSpace(e.Params[k]))
	}
	text = strings.TrimPrefix(text, "; ")
	if hint := e.hint(); hint != "" {
		text += " (" + hint + ")"
	}
	return fmt.Sprintf("%s %s: %d %s", e.Method, e.Path, e.Status, text)
}

// Temporary reports that nothing was done and a retry may succeed: another task has a lock.
func (e *Error) Temporary() bool { return e.Class() == Busy }

// OutcomeUnknown reports that only observing the host shows whether it was done; see
// apply.Repeat.
func (e *Error) OutcomeUnknown() bool { return e.Class() == OutcomeUnknown }

// noWorker are the texts of fork_worker (pve-common, PVE/RESTEnvironment.pm) when the
// process of a task does not start, as happens to about 1 in 100 parallel writes. The work
// of the task itself has not begun then: the process waits for its parent to agree. But
// what comes before the task may be done: a creation has written a configuration that
// has nothing but its lock, and a copy of a container has locked what it copies.
var noWorker = []string{"start worker failed", "starting worker failed", "unable to fork worker", "unable to read process start time"}

func (e *Error) hint() string {
	switch e.Class() {
	case NoLogin:
		user, _, _ := strings.Cut(e.Token, "!")
		return fmt.Sprintf("the API token is wrong, expired or unknown to the host: compare `%s` with secret.api_tokens", strings.TrimSpace("pveum user token list "+user))
	case Denied:
		return "`homestak-gitops doctor` prints the commands that grant the missing privilege" + strings.TrimSuffix(" to "+e.Token, " to ")
	case Invalid, NotFound, Other:
		if m := noBridge.FindStringSubmatch(e.Message + fmt.Sprint(e.Params)); m != nil {
			return fmt.Sprintf("make bridge %s on the node, in System → Network, or name another one in the nic", m[1])
		}
		return ""
	case OutcomeUnknown:
		switch {
		case e.noWorker():
			return "PVE could not start the process of the task"
		case e.Status >= 595:
			return "pveproxy got no answer from the node: is it online?"
		}
		return "answered by a proxy in between, not by PVE"
	default:
		return ""
	}
}

// Denied reports that a privilege is missing.
func (e *Error) Denied() bool { return e.Class() == Denied }

// contains reports whether PVE's text has any of these.
func (e *Error) contains(parts ...string) bool {
	return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(e.Message, p) })
}

// noWorker reports whether PVE failed to start the process of a task.
func (e *Error) noWorker() bool {
	return e.Status == http.StatusInternalServerError && e.contains(noWorker...)
}

// noBridge is PVE's message about a NIC whose bridge does not exist (qemu-server, API2/Qemu.pm and QemuServer.pm; pve-common,
// PVE/Network.pm).
var noBridge = regexp.MustCompile(`bridge '([\w.-]+)' does not exist`)

// Class reads PVE's texts; each is a die() of PVE's own code (qemu-server
// API2/Qemu.pm, pve-guest-common AbstractConfig.pm, pve-cluster).
func (e *Error) Class() Class {
	has := e.contains
	switch {
	case e.Status == http.StatusUnauthorized:
		return NoLogin
	case e.Status == http.StatusForbidden:
		return Denied
	case e.Status >= 595 || e.Status == http.StatusBadGateway || e.Status == http.StatusServiceUnavailable || e.Status == http.StatusGatewayTimeout:
		return OutcomeUnknown
	case e.noWorker():
		return OutcomeUnknown
	case has("already exists", "create error: (17) File exists"): // the second is of rbd (pve-storage, RBDPlugin.pm, run_rbd_command)
		return Exists
	case has("does not exist", "unable to find configuration file"):
		return NotFound
	case has("failed - got timeout"): // QEMU or the guest did not respond in time; there is no lock
		return Other
	case has("is locked", "can't lock file", "got timeout"):
		return Busy
	case has("checksum mismatch", "checksum missmatch", "detected modified configuration"):
		return Changed
	case e.Status == http.StatusNotFound:
		return NotFound
	case e.Status == http.StatusBadRequest:
		return Invalid
	default:
		return Other
	}
}

// ClassOf returns the class of any error of this package. An error that is not an answer of PVE
// came from the network: its outcome is unknown.
func ClassOf(err error) Class {
	if api, ok := errors.AsType[*Error](err); ok {
		return api.Class()
	}
	if task, ok := errors.AsType[*TaskError](err); ok {
		return task.Class()
	}
	if _, ok := errors.AsType[*loginError](err); ok {
		return NoLogin
	}
	if _, ok := errors.AsType[*NetError](err); ok {
		return OutcomeUnknown
	}
	return Other
}

// EndsPass reports whether further requests are useless after an error: none will succeed, or the
// caller is gone. Any other error only concerns its request.
func EndsPass(ctx context.Context, err error) bool {
	return err != nil && (ClassOf(err) == NoLogin || ctx.Err() != nil)
}

// tokenProblem describes what is wrong with a token without repeating it.
func tokenProblem(h *model.Host, token string) error {
	switch {
	case token == "" && h.Local:
		what := "node"
		if h.Parent != "" {
			what = "host"
		}
		return &loginError{fmt.Sprintf("no API token for %s %s: only its own agent has one, so run this on %[2]s, where the agent plans and applies, or add --sim for a simulated one. If this is %[2]s, Proxmox VE was not there when it joined: run join again once it is", what, h.Name)}
	case token == "":
		return &loginError{fmt.Sprintf("no API token for host %s: put api_tokens.%s (user@realm!name=secret) into secrets.yaml, secrets.sops.yaml or the file named by --secrets", h.Name, h.Name)}
	}
	return &loginError{fmt.Sprintf("the API token for host %s is not of the form user@realm!name=secret", h.Name)}
}

// loginError is an unusable token, detected before any request.
type loginError struct{ text string }

// Error says what is missing.
func (e *loginError) Error() string { return e.text }

// NetError is the error of a request without an answer.
type NetError struct {
	Method, Path string
	Err          error
}

// Error says what was attempted and what happened instead of an answer.
func (e *NetError) Error() string { return fmt.Sprintf("%s %s: %v", e.Method, e.Path, e.Err) }

// OutcomeUnknown is true: the host may have done it; see apply.Repeat.
func (*NetError) OutcomeUnknown() bool { return true }

// Unwrap returns the network's own error.
func (e *NetError) Unwrap() error { return e.Err }

// IsDenied reports whether the host rejected the token or its privileges.
func IsDenied(err error) bool {
	c := ClassOf(err)
	return c == Denied || c == NoLogin
}
