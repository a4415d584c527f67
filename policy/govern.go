package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Packages of the shipped packs begin so. Those that need a plan are asked about plans, the others about sites.
const (
	sitePacks = "homestak.packs."
	planPacks = "homestak.planpacks."
)

// isPack reports whether a package is a shipped pack. Its denials are refusals, like those of guards: the site has no error.
func isPack(pkg string) bool {
	return strings.HasPrefix(pkg, sitePacks) || strings.HasPrefix(pkg, planPacks)
}

// on lists those of the packages with a prefix whose packs a site has switched on.
func (s *Set) on(prefix string, site *model.Site) []string {
	if !s.works() || site == nil || len(site.Packs) == 0 {
		return nil
	}
	return slices.DeleteFunc(s.packs(prefix), func(pkg string) bool {
		return !slices.ContainsFunc(site.Packs, func(p model.Pack) bool { return prefix+p.Name == pkg })
	})
}

// packs lists the packages with a prefix.
func (rs *ruleset) packs(prefix string) []string {
	var out []string
	for _, r := range rs.rules {
		if strings.HasPrefix(r.pkg, prefix) {
			out = append(out, r.pkg)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// packNames are the names of all packs, without duplicates.
func (rs *ruleset) packNames() []string {
	var out []string
	for _, pkg := range slices.Concat(rs.packs(sitePacks), rs.packs(planPacks)) {
		out = append(out, packName(pkg))
	}
	return out
}

// packName is the name of the pack in a package.
func packName(pkg string) string { return pkg[strings.LastIndexByte(pkg, '.')+1:] }

// governed applies the waivers of a site to findings. With declared it also reports what is wrong with waivers and packs, which
// is once for each site: not again for each plan.
func (s *Set) governed(site *model.Site, declared bool, now time.Time, found diag.List, rules plan.Rules) (diag.List, plan.Rules) {
	if !site.Governed() {
		return found, rules
	}
	w := waivers{set: s, now: now, used: map[string]bool{}}
	for i := range site.Waivers {
		found = w.apply(&site.Waivers[i], found)
	}
	waived := waivedRules(found)
	rules.Denied, rules.Warning = rules.Denied-waived, rules.Warning+waived
	rules.OK -= s.leftOut(site, declared)
	if !declared {
		return found, rules
	}
	for i := range site.Waivers {
		found = append(found, w.problems(site, &site.Waivers[i])...)
	}
	for i := range site.Packs {
		found = append(found, s.packProblems(&site.Packs[i])...)
	}
	return found, rules
}

// packProblems lists what a pack block names and its pack does not have.
func (s *Set) packProblems(p *model.Pack) diag.List {
	var found diag.List
	problem := func(summary, fix string) {
		found = append(found, diag.Errorf(p.At, summary, "%s", fix))
	}
	name := diag.Line(p.Name)
	if names := s.packNames(); !slices.Contains(names, p.Name) {
		fix := diag.DidYouMean(p.Name, names)
		for _, r := range s.rules {
			if isPack(r.pkg) && (r.label == p.Name || strings.HasPrefix(r.label, p.Name+"-")) {
				fix = fmt.Sprintf("the rule %s is in pack %s", r.label, packName(r.pkg))
			}
		}
		problem("unknown pack "+name, fix)
		return found
	}
	rules := s.rulesOfPack(p.Name)
	for _, rule := range p.Rules {
		if !slices.Contains(rules, rule) {
			problem(fmt.Sprintf("pack %s has no rule %s", name, diag.Line(rule)), diag.DidYouMean(rule, rules))
		}
	}
	known, others := s.settingsOf(p.Name)
	for _, key := range sortedKeys(p.Settings) {
		if others || slices.Contains(known, key) {
			continue
		}
		fix := diag.DidYouMean(key, known)
		if len(known) == 0 {
			fix = fmt.Sprintf("it has none; rules = [%q] selects rules of it", rules[0])
		}
		problem(fmt.Sprintf("pack %s has no setting %s", name, diag.Line(key)), fix)
	}
	return found
}

// rulesOfPack are the names of the rules of a pack.
func (rs *ruleset) rulesOfPack(name string) []string {
	var out []string
	for _, r := range rs.rules {
		if r.label != "" && (r.pkg == sitePacks+name || r.pkg == planPacks+name) {
			out = append(out, r.label)
		}
	}
	return out
}

// settingsOf lists the settings of a pack. Others reports whether it has others as well: a name in capitals stands for them, such as
// ROLE for each role of the site.
func (s *Set) settingsOf(name string) (known []string, others bool) {
	for _, m := range s.compiler.Modules {
		if pkg := packageOf(m); pkg == sitePacks+name || pkg == planPacks+name {
			for _, a := range m.Annotations {
				settings, _ := a.Custom["settings"].(map[string]any)
				known = append(known, sortedKeys(settings)...)
			}
		}
	}
	slices.Sort(known)
	return known, slices.ContainsFunc(known, func(k string) bool { return k == strings.ToUpper(k) })
}

// leftOut counts the rules that pack blocks do not select: those of sites, or those of plans.
func (s *Set) leftOut(site *model.Site, ofSites bool) int {
	n, prefix := 0, planPacks
	if ofSites {
		prefix = sitePacks
	}
	for _, r := range s.rules {
		if r.label != "" && slices.ContainsFunc(site.Packs, func(p model.Pack) bool {
			return prefix+p.Name == r.pkg && len(p.Rules) > 0 && !slices.Contains(p.Rules, r.label)
		}) {
			n++
		}
	}
	return n
}

// waivers are those of a site on one evaluation.
type waivers struct {
	set  *Set
	now  time.Time
	used map[string]bool
}

// apply makes warnings of the denials that a waiver permits, and says of those that it no longer permits that it has expired.
func (w *waivers) apply(v *model.Waiver, found diag.List) diag.List {
	found = slices.Clone(found)
	for i := range found {
		f := &found[i]
		_, node, _ := strings.Cut(f.Address, ".")
		switch {
		case f.Severity != diag.Error || f.Rule == "" || f.Rule != v.Rule || node == "" || node != v.Node || !w.waivable(v.Rule):
		case v.Expired(w.now):
			w.used[v.Name] = true
			f.Source = diag.FromGuard
			f.Detail = strings.TrimPrefix(f.Detail+"\n", "\n") + fmt.Sprintf("Waiver %s by %s expired on %s: do what the rule wants, or commit a waiver with a later date.", v.Name, diag.Line(v.Owner), v.Expires)
		default:
			w.used[v.Name] = true
			f.Severity, f.Waiver = diag.Warning, v.Name
			f.Summary = "waived until " + v.Expires + ": " + f.Summary
			f.Detail = strings.TrimPrefix(f.Detail+"\n", "\n") + fmt.Sprintf("Waiver %s by %s: %s", v.Name, diag.Line(v.Owner), diag.Line(v.Reason))
		}
	}
	return found
}

// waivedRules counts the rules all of whose denials were waived.
func waivedRules(found diag.List) int {
	waived := map[string]bool{}
	for _, f := range found {
		if f.Waiver != "" {
			waived[f.Rule] = true
		}
	}
	for _, f := range found {
		if f.Severity == diag.Error {
			delete(waived, f.Rule)
		}
	}
	return len(waived)
}

// waivable reports whether a rule permits waivers. Of a rule that does not write out its name it is not known.
func (w *waivers) waivable(label string) bool {
	return !w.strict(label) && slices.ContainsFunc(w.set.rules, func(r rule) bool { return r.label == label })
}

func (w *waivers) strict(label string) bool {
	return slices.ContainsFunc(w.set.rules, func(r rule) bool { return r.label == label && r.strict })
}

// problems lists what is wrong with a waiver itself.
func (w *waivers) problems(site *model.Site, v *model.Waiver) diag.List {
	name := "waiver " + diag.Line(v.Name)
	_, err := time.Parse(time.DateOnly, v.Expires)
	judges, elsewhere := false, v.Rule == model.RuleSkipped // rules of that name, of sites and of plans
	var labels []string
	for _, r := range w.set.rules {
		site := r.pkg == sitePackage || strings.HasPrefix(r.pkg, sitePacks)
		judges, elsewhere = judges || r.label == v.Rule && site, elsewhere || r.label == v.Rule && !site
		if r.label != "" {
			labels = append(labels, r.label)
		}
	}
	refuse := func(summary, fix string) diag.List {
		f := denial(diag.FromGuard, summary, fix)
		f.At, f.Rule = v.At, v.Rule
		return diag.List{f}
	}
	switch {
	case err != nil:
		return refuse(name+" has no valid last day", fmt.Sprintf("expires is %q: write a date such as 2027-03-31.", v.Expires))
	case strings.TrimSpace(v.Reason) == "" || strings.TrimSpace(v.Owner) == "":
		return refuse(name+" has no reason or no owner", "Say why it is needed, and who answers for it.")
	case v.Node == "":
		return refuse(name+" has no node", "Name the node, or the object, that the finding is about.")
	case w.strict(v.Rule):
		return refuse(fmt.Sprintf("%s: rule %s cannot be waived", name, v.Rule), "Remove the waiver, and do what the rule wants.")
	case w.used[v.Name]:
		return nil
	case !judges && !elsewhere:
		return diag.List{diag.Warnf(v.At, fmt.Sprintf("%s: unknown rule %q", name, diag.Line(v.Rule)), "There is no rule of that name in a string literal. %s",
			diag.DidYouMean(v.Rule, slices.Compact(slices.Sorted(slices.Values(labels)))))}
	}
	if problem := unknownNode(site, v.Node, judges); problem != "" {
		return diag.List{diag.Warnf(v.At, fmt.Sprintf("%s: unknown node %q", name, diag.Line(v.Node)), "%s", problem)}
	}
	if !judges {
		return nil // only a plan shows whether it is needed
	}
	return diag.List{diag.Warnf(v.At, name+" is not needed", "Remove it: nothing that rule %s denies is about %s.", v.Rule, v.Node)}
}

// unknownNode says what to write for a name that nothing of the site has; "" if something has it. A rule of plans alone may be about
// a node that left the site.
func unknownNode(site *model.Site, name string, judgesSite bool) string {
	known := slices.Concat([]string{site.Name}, sortedKeys(site.Hosts), sortedKeys(site.Presets), sortedKeys(site.Postures), sortedKeys(site.Specs), sortedKeys(site.Manifests))
	for addr := range site.Objects {
		known = append(known, addr.Name)
	}
	var instances []string
	for _, m := range site.Manifests {
		for _, n := range m.Nodes {
			known = append(known, n.Name)
			if n.Block == name && n.Name != name {
				instances = append(instances, n.Name)
			}
		}
	}
	slices.Sort(known)
	slices.SortFunc(instances, model.CompareNames)
	_, bare, addressed := strings.Cut(name, ".")
	switch {
	case len(instances) > 0:
		return fmt.Sprintf("A waiver is for one node: write one for each that needs it, such as node = %q.", instances[0])
	case slices.Contains(known, name):
		return ""
	case addressed && slices.Contains(known, bare):
		return fmt.Sprintf("Write the name alone: node = %q.", bare)
	case !judgesSite:
		return ""
	default:
		return diag.DidYouMean(name, slices.Compact(known))
	}
}
