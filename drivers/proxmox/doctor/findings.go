package doctor

import (
	"errors"
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

// Result is the result of a check.
type Result string

// The results of a check. NotChecked means that a check that it depends on failed, or that it
// cannot be checked from here.
const (
	OK         Result = "ok"
	Warning    Result = "warning"
	Failed     Result = "fail"
	NotChecked Result = "not checked"
)

// Check is one thing that the doctor checked.
type Check struct {
	Name   string   `json:"name"`
	Result Result   `json:"result"`
	Seen   string   `json:"seen"`
	Why    string   `json:"why,omitempty"` // why it matters, or who needs it
	Fix    []string `json:"fix,omitempty"` // lines to run, or to write

	Denied bool `json:"denied,omitempty"` // it failed because a login or a privilege is missing
}

// findings has the results so far. One goroutine owns it.
type findings struct {
	checks []Check
	bad    map[string]string // areas that failed, and so what depends on them is not checked
}

// failed reports whether an area failed or, because of another one, was not checked.
func (f *findings) failed(area string) bool { return f.bad[area] != "" }

func (f *findings) add(c Check) { f.checks = append(f.checks, c) }

func (f *findings) ok(name, seen string, args ...any) {
	f.add(Check{Name: name, Result: OK, Seen: fmt.Sprintf(seen, args...)})
}

func (f *findings) skip(name, why string, args ...any) {
	f.add(Check{Name: name, Result: NotChecked, Seen: fmt.Sprintf(why, args...)})
}

func (f *findings) warn(name, seen, why string, fix ...string) {
	f.add(Check{Name: name, Result: Warning, Seen: seen, Why: why, Fix: fix})
}

func (f *findings) fail(name, seen, why string, fix ...string) {
	f.add(Check{Name: name, Result: Failed, Seen: seen, Why: why, Fix: fix})
}

// unread records that a request of a check failed, so its result is unknown.
func (f *findings) unread(name string, err error) {
	if api.ClassOf(err) == api.Denied {
		f.skip(name, "the token may not see it: %s", messageOf(err))
		return
	}
	f.add(Check{Name: name, Result: Failed, Seen: err.Error(), Why: "unreadable objects cannot be checked", Denied: api.IsDenied(err), Fix: []string{"read the log of the host: journalctl -u pveproxy -u pvedaemon -n 50"}})
}

// messageOf is PVE's text of an error, without the hint, because the doctor has a better one.
func messageOf(err error) string {
	if refused, ok := errors.AsType[*api.Error](err); ok {
		return strings.TrimSpace(refused.Message)
	}
	return err.Error()
}
