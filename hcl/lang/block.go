package lang

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	hclv2 "github.com/hashicorp/hcl/v2"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Defaults and limits of a check: it must not query a host without a pause, and a step must not
// wait for days.
const (
	checkTimeout  = 5 * time.Minute
	checkInterval = 5 * time.Second
	checkLeast    = 100 * time.Millisecond
	checkMost     = 24 * time.Hour
)

// endpoint turns a parser of endpoints into a rule.
func endpoint(read func(string) (model.Endpoint, error)) func(string) string {
	return func(s string) string {
		if _, err := read(s); err != nil {
			return err.Error()
		}
		return ""
	}
}

// checkPeriod checks the attribute every of a check.
func checkPeriod(s string) string {
	if _, err := model.CheckPeriod(s); err != nil {
		return err.Error()
	}
	return ""
}

// checkBlock validates an inner block as a whole: the combination of its attributes.
func (d *Decoder) checkBlock(p Part, at hclv2.Range) {
	c, ok := reflect.TypeAssert[*model.Check](p.Value.Addr())
	if !ok {
		return
	}
	c.At = DiagRange(at)
	var set []string
	ways := words(model.WayHTTP, model.WayTCP, model.WaySSH, model.WayAgent, model.WayCommand)
	for _, way := range ways {
		i := p.ByName[way]
		_, declared := d.rangeOf(p.prefix + way)
		secret := declared && slices.Contains(d.Sensitive, p.prefix+way) // its value may be unknown here
		if !p.Value.Field(p.Attrs[i].Index).IsZero() || secret {
			set = append(set, way)
		}
	}
	if d.Invalid {
		return
	}
	timeout, interval := cmp.Or(c.Timeout, checkTimeout), c.Interval
	switch {
	case len(set) != 1:
		d.Invalid = true
		d.Errorf(at, d.What+" does not say what to check", "Exactly one of %s must be set; this block has %s.", strings.Join(ways, ", "), orNone(set))
	case c.Expect != "" && (c.SSH || c.Agent):
		d.Invalid = true
		where, _ := d.rangeOf(p.prefix + "expect")
		d.ErrorAt(where, "expect has no meaning in "+d.What, "A check with %s compares nothing with a string: remove expect.", set[0])
	case interval > timeout:
		d.Invalid = true
		where, _ := d.rangeOf(p.prefix + "interval")
		d.ErrorAt(where, fmt.Sprintf("interval = %q is longer than the timeout of %s", model.ShortDuration(interval), model.ShortDuration(timeout)), "The check would never run a second time.")
	}
}

// rangeOf finds where an attribute was declared, if it was.
func (d *Decoder) rangeOf(path string) (diag.Range, bool) {
	for _, p := range d.Ranges {
		if p.Path == path {
			return p.At, true
		}
	}
	return diag.Range{}, false
}
