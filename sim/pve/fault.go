package pve

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Fault is one rule of when to fail, as text:
//
//	METHOD PATH-PATTERN [nth=N] status=S [apply]
//	METHOD PATH-PATTERN [nth=N] no-worker
//
// METHOD may be *; the pattern is matched against the path without /api2/json,
// segment by segment: * is any one segment, ** all that is left. nth picks the
// N-th request that matches (from 1; without it every one). status is what is
// answered, -1 drops the connection. With apply the request takes effect first.
// With no-worker the process of the task does not start; see [core.NoWorker].
type Fault struct {
	Method   string
	Pattern  string
	Nth      int
	Status   int
	Apply    bool
	NoWorker bool
}

// ParseFault reads the text form of a rule.
func ParseFault(s string) (Fault, error) {
	fields := strings.Fields(s)
	if len(fields) < 3 {
		return Fault{}, fmt.Errorf("fault %q: want METHOD PATH-PATTERN [nth=N] status=S [apply], or no-worker in place of status=S", s)
	}
	f := Fault{Method: strings.ToUpper(fields[0]), Pattern: fields[1]}
	if !strings.HasPrefix(f.Pattern, "/") {
		return Fault{}, fmt.Errorf("fault %q: pattern %q does not start with /", s, f.Pattern)
	}
	for _, field := range fields[2:] {
		key, value, _ := strings.Cut(field, "=")
		n, err := strconv.Atoi(value)
		switch {
		case field == "apply":
			f.Apply = true
		case field == "no-worker":
			f.NoWorker = true
		case key == "nth" && err == nil && n > 0:
			f.Nth = n
		case key == "status" && err == nil && (n == -1 || n >= 300 && n <= 599):
			f.Status = n
		default:
			return Fault{}, fmt.Errorf("fault %q: %q is none of nth=N, status=S (300 to 599, or -1), apply, no-worker", s, field)
		}
	}
	switch {
	case f.NoWorker && (f.Status != 0 || f.Apply):
		return Fault{}, fmt.Errorf("fault %q: no-worker stands alone, without status and apply", s)
	case f.NoWorker:
		f.Status = core.NoWorker
	case f.Status == 0:
		return Fault{}, fmt.Errorf("fault %q: status is missing", s)
	}
	return f, nil
}

// Faults makes a Config.Fault of rules; the first that matches decides. Each
// call counts its nth from the start.
func Faults(rules ...Fault) func(*http.Request) (status int, apply bool) {
	seen := make([]atomic.Int64, len(rules)) // Requests come in on many goroutines.
	return func(r *http.Request) (int, bool) {
		status, apply := 0, false
		for i, f := range rules {
			if !f.matches(r) {
				continue
			}
			n := seen[i].Add(1)
			if status == 0 && (f.Nth == 0 || int64(f.Nth) == n) {
				status, apply = f.Status, f.Apply
			}
		}
		return status, apply
	}
}

func (f Fault) matches(r *http.Request) bool {
	if f.Method != "*" && f.Method != r.Method {
		return false
	}
	_, rest := core.APIPath(r.URL.EscapedPath())
	path := perl.Segments(rest)
	pattern := perl.Segments(f.Pattern)
	for i, want := range pattern {
		switch {
		case want == "**":
			return true
		case i >= len(path), want != "*" && want != path[i]:
			return false
		}
	}
	return len(path) == len(pattern)
}
