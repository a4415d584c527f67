package hcl

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	hclv2 "github.com/hashicorp/hcl/v2"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// What a check has unless it says otherwise, and its limits: nobody's host is to be
// asked without a pause, and a step does not wait for days.
const (
	checkTimeout  = 5 * time.Minute
	checkInterval = 5 * time.Second
	checkLeast    = 100 * time.Millisecond
	checkMost     = 24 * time.Hour
)

// endpoint makes a rule of a reader of endpoints.
func endpoint(read func(string) (model.Endpoint, error)) func(string) string {
	return func(s string) string {
		if _, err := read(s); err != nil {
			return err.Error()
		}
		return ""
	}
}

// checkBlock holds an inner block as a whole against what its attributes mean together.
func (d *decoding) checkBlock(p part, at hclv2.Range) {
	c, ok := reflect.TypeAssert[*model.Check](p.value.Addr())
	if !ok {
		return
	}
	c.At = place(at)
	var set []string
	ways := []string{model.WayHTTP, model.WayTCP, model.WaySSH, model.WayAgent, model.WayCommand}
	for _, way := range ways {
		i := p.byName[way]
		_, declared := d.placed(p.prefix + way)
		secret := declared && slices.Contains(d.sensitive, p.prefix+way) // its value may be unknown here
		if !p.value.Field(p.attrs[i].Index).IsZero() || secret {
			set = append(set, way)
		}
	}
	if d.bad {
		return
	}
	timeout, interval := c.Timeout, c.Interval
	if timeout == 0 {
		timeout = checkTimeout
	}
	switch {
	case len(set) != 1:
		d.bad = true
		d.errorf(at, d.what+" does not say what to try", "Exactly one of %s must be set; here it is %s.", strings.Join(ways, ", "), orNone(set))
	case c.Expect != "" && (c.SSH || c.Agent):
		d.bad = true
		where, _ := d.placed(p.prefix + "expect")
		d.errorAt(where, "expect has no meaning in "+d.what, "What %s answers is not compared with a text: remove expect.", set[0])
	case interval > timeout:
		d.bad = true
		where, _ := d.placed(p.prefix + "interval")
		d.errorAt(where, fmt.Sprintf("interval = %q is longer than the timeout of %s", shortDuration(interval), shortDuration(timeout)), "There would never be a second try.")
	}
}

// placed tells where an attribute was declared, if it was.
func (d *decoding) placed(path string) (diag.Range, bool) {
	for _, p := range d.places {
		if p.Path == path {
			return p.At, true
		}
	}
	return diag.Range{}, false
}

// markSecretChecks notes which checks of a spec were made from secrets.
func markSecretChecks(s *model.Spec) {
	for i := range s.Checks {
		prefix := "check." + s.Checks[i].Name + "."
		s.Checks[i].Sensitive = slices.ContainsFunc(s.Sensitive, func(path string) bool { return strings.HasPrefix(path, prefix) })
	}
}

// checkChecks finds checks that a node can never pass: those by a guest agent that it
// does not have.
func (l *load) checkChecks(n *model.Node) {
	if l.bad[n.Resource.Addr.String()] || n.Resource.Spec == nil {
		return
	}
	without := ""
	switch {
	case n.Type == "ct":
		without = "Containers have no guest agent, and the API of PVE runs no commands in them: try a port with tcp or http instead."
	case !agentExpected(n.Resource.Spec):
		without = "It has agent = false: remove that, where the guest has an agent, or try a port with tcp or http instead."
	default:
		return
	}
	for _, c := range l.site.Checks(n) {
		if c.Inside() {
			l.errorAt(c.At, fmt.Sprintf("check %s cannot be made for node %s", quote(c.Name), quote(n.Name)), "It is made by the guest agent. %s", without)
		}
	}
}

// agentExpected reports whether a kind's spec says that there is a guest agent; of a
// kind that does not know the word nothing is said.
func agentExpected(spec any) bool {
	for _, a := range model.Attrs(spec) {
		if a.Path == "agent" {
			return a.Value != false
		}
	}
	return true
}
