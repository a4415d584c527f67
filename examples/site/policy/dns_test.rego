package dns_test

import data.homestak.guard

server := {"manifest": "dns", "host": "father"}

step(name, action, class) := {"address": concat(".", ["vm", name]), "node": name, "vmid": 1, "action": action, "class": class, "protected": false}

servers(steps) := {
	"site": {"max_deletes": null, "nodes": {"ns-a": server, "ns-b": server, "web": {"manifest": "web", "host": "father"}}},
	"plan": {"host": "father", "steps": steps},
	"owned": {"count": 12},
	"destroy": false,
	"allow_deletes": 0,
}

said(denied) := {d.rule | some d in denied; d.rule == "name-servers-in-turn"}

test_name_servers[note] if {
	some note, case in {
		"nothing to do": {"steps": [], "want": set()},
		"one": {"steps": [step("ns-a", "update", "restart")], "want": set()},
		"both": {"steps": [step("ns-a", "update", "restart"), step("ns-b", "replace", "data-loss")], "want": {"name-servers-in-turn"}},
		"both, without downtime": {"steps": [step("ns-a", "update", "none"), step("ns-b", "update", "hot")], "want": set()},
		"both are new": {"steps": [step("ns-a", "create", "none"), step("ns-b", "create", "none")], "want": set()},
		"another": {"steps": [step("ns-a", "update", "restart"), step("web", "update", "restart")], "want": set()},
	}
	denied := guard.deny with input as servers(case.steps)
	said(denied) == case.want
}

test_a_destroy_is_meant if {
	both := servers([step("ns-a", "delete", "data-loss"), step("ns-b", "delete", "data-loss")])
	asked := json.patch(both, [{"op": "replace", "path": "/destroy", "value": true}])
	said(guard.deny) == set() with input as asked
}
