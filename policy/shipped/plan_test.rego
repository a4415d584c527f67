package homestak.plan_test

import data.homestak.plan

doc(action, vmid) := {
	"version": 1,
	"site": {"vmid_range": {"guests": {"from": 10000, "to": 10999}}},
	"plan": {"steps": [{"address": "vm.web", "action": action, "vmid": vmid}]},
}

# A site may have rules of its own in this package, which say what they like of the
# documents here: looked at is what the shipped rule says.
shipped(denied) := {d | some d in denied; d.rule == "vmid-range"}

test_vmids[note] if {
	some note, case in {
		"created inside": {"doc": doc("create", 10000), "want": 0},
		"created outside": {"doc": doc("create", 100), "want": 1},
		"changed outside": {"doc": doc("update", 100), "want": 0},
		"removed outside": {"doc": doc("delete", 100), "want": 0},
		"no guest": {"doc": doc("create", null), "want": 0},
	}
	denied := plan.deny with input as case.doc
	count(shipped(denied)) == case.want
}

test_vmids_are_free_without_ranges if {
	free := json.patch(doc("create", 100), [{"op": "replace", "path": "/site/vmid_range", "value": {}}])
	shipped(plan.deny) == set() with input as free
}

test_a_template_has_the_vmid_that_is_declared if {
	golden := json.patch(doc("create", 9000), [{"op": "replace", "path": "/plan/steps/0/address", "value": "template.golden"}])
	shipped(plan.deny) == set() with input as golden
}

test_a_finding_names_its_step if {
	denied := plan.deny with input as doc("create", 100)
	{[d.rule, d.address] | some d in shipped(denied)} == {["vmid-range", "vm.web"]}
}
