package homestak.guard_test

import data.homestak.guard

step(i, action, protected) := {
	"address": sprintf("vm.web-%d", [i]),
	"action": action,
	"vmid": 10000 + i,
	"protected": protected,
}

deletions(n) := [step(i, "delete", false) | some i in numbers.range(1, 100); i <= n]

# A plan of these steps on a host with so many owned guests, from a site with a node.
doc(steps, owned) := {
	"version": 1,
	"site": {"name": "home", "max_deletes": null, "nodes": {"db": {"type": "vm"}}},
	"plan": {"steps": steps},
	"owned": {"count": owned},
	"destroy": false,
	"allow_deletes": 0,
}

max_deletes(d, n) := json.patch(d, [{"op": "replace", "path": "/site/max_deletes", "value": n}])

granted(d, n) := json.patch(d, [{"op": "replace", "path": "/allow_deletes", "value": n}])

destroyed(d) := json.patch(d, [{"op": "replace", "path": "/destroy", "value": true}])

emptied(d) := json.patch(d, [{"op": "replace", "path": "/site/nodes", "value": {}}])

# A site may have rules of its own in this package, which say what they like of the
# documents here: looked at is what shipped rules say.
ours := {"protected", "deletion-cap", "empty-site"}

shipped(denied) := {d | some d in denied; d.rule in ours}

rules(denied) := {d.rule | some d in shipped(denied)}

test_caps[note] if {
	some note, case in {
		"nothing": {"doc": doc([], 12), "want": set()},
		"three of many": {"doc": doc(deletions(3), 12), "want": set()},
		"four of many": {"doc": doc(deletions(4), 12), "want": {"deletion-cap"}},
		"half of four": {"doc": doc(deletions(2), 4), "want": set()},
		"more than half of four": {"doc": doc(deletions(3), 4), "want": {"deletion-cap"}},
		"half of three, rounded down": {"doc": doc(deletions(2), 3), "want": {"deletion-cap"}},
		"one of two": {"doc": doc(deletions(1), 2), "want": set()},
		"the only one": {"doc": doc(deletions(1), 1), "want": set()},
		"two of two": {"doc": doc(deletions(2), 2), "want": {"deletion-cap"}},
		"one of uncounted": {"doc": doc(deletions(1), null), "want": set()},
		"two of uncounted": {"doc": doc(deletions(2), null), "want": {"deletion-cap"}},
		"as many as the site allows": {"doc": max_deletes(doc(deletions(10), 40), 10), "want": set()},
		"more than the site allows": {"doc": max_deletes(doc(deletions(11), 40), 10), "want": {"deletion-cap"}},
		"half, whatever the site allows": {"doc": max_deletes(doc(deletions(7), 12), 100), "want": {"deletion-cap"}},
		"a site that allows none": {"doc": max_deletes(doc(deletions(1), 12), 0), "want": {"deletion-cap"}},
		"as many as granted": {"doc": granted(doc(deletions(9), 10), 9), "want": set()},
		"fewer granted": {"doc": granted(doc(deletions(9), 10), 8), "want": {"deletion-cap"}},
		"asked for": {"doc": destroyed(doc(deletions(10), 10)), "want": set()},
	}
	denied := guard.deny with input as case.doc
	rules(denied) == case.want
}

# The site had so many nodes before, and lost these.
since(d, nodes, lost) := json.patch(d, [{"op": "add", "path": "/before", "value": {"nodes": nodes, "lost": lost, "granted": 0}}])

leaving(d, postponed) := json.patch(d, [{"op": "add", "path": "/plan/deferred", "value": [{"address": "pve.inner", "why": "", "postponed": postponed}]}])

web(n) := [sprintf("vm.web-%d", [i]) | some i in numbers.range(1, 100); i <= n]

test_the_whole_site_counts[note] if {
	some note, case in {
		"all of a child, few of the site": {"doc": since(doc(deletions(2), 2), 12, web(3)), "want": set()},
		"few of a child, many of the site": {"doc": since(doc(deletions(1), 20), 40, web(6)), "want": {"deletion-cap"}},
		"more than half of the site": {"doc": since(doc(deletions(1), 1), 5, web(3)), "want": {"deletion-cap"}},
		"replaced beside what the site lost": {"doc": since(doc([step(9, "replace", false)], 20), 40, web(3)), "want": {"deletion-cap"}},
		"nothing goes here": {"doc": since(doc([], 20), 40, web(30)), "want": set()},
		"a child that is emptied first": {"doc": leaving(since(doc([], 20), 40, web(30)), true), "want": {"deletion-cap"}},
		"a child that is emptied first, with few nodes": {"doc": leaving(since(doc([], 20), 40, web(3)), true), "want": set()},
		"something else that is deferred": {"doc": leaving(since(doc([], 20), 40, web(30)), false), "want": set()},
		"granted": {"doc": granted(since(doc(deletions(1), 20), 40, web(6)), 6), "want": set()},
		"granted for this host alone": {"doc": granted(since(doc(deletions(1), 20), 40, web(6)), 1), "want": {"deletion-cap"}},
		"granted, and some are done": {
			"doc": json.patch(granted(since(doc(deletions(1), 20), 40, web(6)), 2), [{"op": "replace", "path": "/before/granted", "value": 6}]),
			"want": set(),
		},
	}
	denied := guard.deny with input as case.doc
	rules(denied) == case.want
}

test_what_the_site_loses_is_said if {
	some d in shipped(guard.deny) with input as since(doc(deletions(1), 20), 40, web(6))
	d.message == "the site loses 6 of 40 guests, 1 of them by this plan, at most 3 at once"
	contains(d.fix, "Allow-Deletes: 6")
}

test_replaced_guests_count if {
	steps := [step(1, "replace", false), step(2, "replace", false), step(3, "delete", false), step(4, "replace", false)]
	denied := guard.deny with input as doc(steps, 12)
	rules(denied) == {"deletion-cap"}
}

test_what_stays_does_not_count if {
	steps := [step(i, action, false) | some i, action in ["create", "update", "update", "adopt", "delete"]]
	rules(guard.deny) == set() with input as doc(steps, 2)
}

test_what_is_no_guest_does_not_count if {
	steps := [{"address": sprintf("image.i%d", [i]), "action": "delete", "vmid": null, "protected": null} | some i in numbers.range(1, 9)]
	rules(guard.deny) == set() with input as doc(steps, 2)
}

# An agent that knows of no commit which its host converged to (it lost its data folder)
# takes no trailer for a grant, so none is offered.
test_no_trailer_is_offered_where_none_counts if {
	untraced := json.patch(doc(deletions(4), 20), [{"op": "add", "path": "/trailers_grant", "value": false}])
	some d in shipped(guard.deny) with input as untraced
	d.rule == "deletion-cap"
	not contains(d.fix, "a commit with the trailer")
	contains(d.fix, "apply --allow-deletes 4")
}

test_the_way_on_is_named if {
	denied := guard.deny with input as doc(deletions(4), 12)
	some d in shipped(denied)
	d.message == "the plan removes 4 of 12 owned guests, at most 3 in one pass"
	contains(d.fix, "Allow-Deletes: 4")
	contains(d.fix, "--allow-deletes 4")
}

test_emptied_sites[note] if {
	some note, case in {
		"the last guest": {"doc": emptied(doc(deletions(1), 1)), "want": {"empty-site"}},
		"one of several": {"doc": emptied(doc(deletions(1), 5)), "want": {"empty-site"}},
		"all": {"doc": emptied(doc(deletions(9), 9)), "want": {"empty-site", "deletion-cap"}},
		"nothing to remove": {"doc": emptied(doc([], 9)), "want": set()},
		"granted": {"doc": granted(emptied(doc(deletions(9), 9)), 9), "want": set()},
		"asked for": {"doc": destroyed(emptied(doc(deletions(9), 9))), "want": set()},
	}
	denied := guard.deny with input as case.doc
	rules(denied) == case.want
}

test_protection[note] if {
	some note, case in {
		"deleted": {"steps": [step(1, "delete", true)], "want": {"vm.web-1"}},
		"replaced": {"steps": [step(1, "replace", true)], "want": {"vm.web-1"}},
		"not known": {"steps": [step(1, "delete", null)], "want": {"vm.web-1"}},
		"changed": {"steps": [step(1, "update", true)], "want": set()},
		"one of two": {"steps": [step(1, "delete", false), step(2, "delete", true)], "want": {"vm.web-2"}},
	}
	denied := guard.deny with input as doc(case.steps, 12)
	{d.address | some d in shipped(denied); d.rule == "protected"} == case.want
}

test_protection_holds_for_what_was_asked_for_or_granted if {
	protected := doc([step(1, "delete", true)], 12)
	rules(guard.deny) == {"protected"} with input as destroyed(protected)
	rules(guard.deny) == {"protected"} with input as granted(protected, 9)
}
