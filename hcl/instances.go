package hcl

import (
	"fmt"
	"strconv"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/homestak/homestak-gitops/hcl/lang"
)

// expand computes the instances of a node block. The caller reports its problem.
func (l *load) expand(d *nodeDecl) (problem string, at hclv2.Range) {
	count, each := d.body.Attributes["count"], d.body.Attributes["for_each"]
	switch {
	case count != nil && each != nil:
		return "count and for_each on one node", each.NameRange
	case count == nil && each == nil:
		d.instances = []instance{{name: d.name}}
	default:
		a := count
		if each != nil {
			a = each
		}
		v, ok := l.Evaluate(a.Expr, l.Base)
		switch {
		case !ok:
			d.invalid = true
			return "", at
		case !v.IsKnown():
			return a.Name + " is not known without the values of secrets", a.Expr.Range()
		case v.IsMarked():
			return a.Name + " must not come from a secret", a.Expr.Range()
		case v.IsNull():
			return a.Name + " is null", a.Expr.Range()
		}
		d.many = true
		if each != nil {
			problem = l.expandEach(d, v)
		} else {
			problem = d.expandCount(v)
		}
		at = a.Expr.Range()
	}
	if problem == "" {
		problem = l.checkInstances(d)
		if problem != "" && at.Empty() {
			at = d.at
		}
	}
	if problem != "" {
		d.instances = nil
	}
	return problem, at
}

func (l *load) checkInstances(d *nodeDecl) string {
	if l.total += len(d.instances); l.total > maxNodes {
		l.total -= len(d.instances)
		return fmt.Sprintf("more than %d nodes in one site", maxNodes)
	}
	for _, i := range d.instances {
		if !lang.ValidName(i.name) {
			return fmt.Sprintf("%s gives the name %s, which is not valid", d.name, lang.Quote(i.name))
		}
	}
	return ""
}

func (d *nodeDecl) expandCount(v cty.Value) string {
	n, err := convert.Convert(v, cty.Number)
	if err != nil {
		return "count " + lang.WrongType("a whole number", v)
	}
	f := n.AsBigFloat()
	i, _ := f.Int64()
	switch {
	case !f.IsInt() || i < 0:
		return "count must be a whole number, 0 or more"
	case i > maxInstances:
		return fmt.Sprintf("count is over the limit of %d nodes in one block", maxInstances)
	}
	d.instances = make([]instance, i)
	for k := range d.instances {
		d.instances[k] = instance{
			name:   d.name + "-" + strconv.Itoa(k+1),
			values: map[string]cty.Value{"count": cty.ObjectVal(map[string]cty.Value{"index": cty.NumberIntVal(int64(k))})},
		}
	}
	return ""
}

func (l *load) expandEach(d *nodeDecl, v cty.Value) string {
	t := v.Type()
	isMap := t.IsMapType() || t.IsObjectType()
	if !isMap && !t.IsSetType() && !t.IsListType() && !t.IsTupleType() {
		return "for_each " + lang.WrongType("a map or a list of strings", v)
	}
	if v.LengthInt() > maxInstances {
		return fmt.Sprintf("for_each is over the limit of %d nodes in one block", maxInstances)
	}
	seen := map[string]bool{}
	for it := v.ElementIterator(); it.Next(); {
		k, e := it.Element()
		if !isMap {
			if e.IsMarked() || !e.IsKnown() || e.IsNull() || e.Type() != cty.String {
				return "for_each must be a map or a list of strings that are not secrets"
			}
			k = e
		}
		key := l.Intern(k.AsString())
		if seen[key] {
			return "for_each names " + lang.Quote(key) + " twice"
		}
		seen[key] = true
		d.instances = append(d.instances, instance{
			name:   d.name + "-" + key,
			values: map[string]cty.Value{"each": cty.ObjectVal(map[string]cty.Value{"key": k, "value": e})},
		})
	}
	return ""
}
