package homestak.site_test

import data.homestak.site

strict := {
	"name": "prod",
	"auth": {"method": "node_token"},
	"ssh": {"port": 22, "permit_root_login": "no", "password_authentication": "no"},
}

lax := {
	"name": "dev",
	"auth": {"method": "network"},
	"ssh": {"port": 22, "permit_root_login": "yes", "password_authentication": "yes"},
}

postures(p) := {"version": 1, "site": {"name": "home", "postures": p, "nodes": {}, "vmid_range": {}, "naming": null}}

nodes(n) := {"version": 1, "site": {
	"name": "home",
	"postures": {},
	"nodes": n,
	"vmid_range": {"guests": {"from": 10000, "to": 10999}, "test": {"from": 99000, "to": 99999}},
	"naming": {"pattern": "[a-z][a-z0-9-]*"},
}}

# A site may have rules of its own in this package, which say what they like of the
# documents here: looked at is what shipped rules say.
ours := {"prod-no-password", "prod-no-network-auth", "node-name", "vmid-range"}

shipped(denied) := {d | some d in denied; d.rule in ours}

rules(denied) := {d.rule | some d in shipped(denied)}

test_a_strict_production_posture_is_fine if {
	rules(site.deny) == set() with input as postures({"prod": strict, "prod-db": strict})
}

test_a_lax_posture_of_another_name_is_fine if {
	rules(site.deny) == set() with input as postures({"dev": lax, "production": lax, "product": lax})
}

test_production_refuses_passwords_and_network if {
	denied := site.deny with input as postures({"prod": lax})
	rules(denied) == {"prod-no-password", "prod-no-network-auth"}
	{d.address | some d in shipped(denied)} == {"posture.prod"}
}

test_production_is_also_what_begins_with_it if {
	denied := site.deny with input as postures({"prod-db": lax})
	{d.address | some d in shipped(denied)} == {"posture.prod-db"}
}

test_what_is_not_known_to_be_closed_is_open if {
	denied := site.deny with input as postures({"prod": {"name": "prod", "auth": null, "ssh": null}})
	rules(denied) == {"prod-no-password", "prod-no-network-auth"}
}

test_a_site_token_will_do_in_production if {
	posture := object.union(strict, {"auth": {"method": "site_token"}})
	rules(site.deny) == set() with input as postures({"prod": posture})
}

test_names[name] if {
	some name, expected in {
		"web-1": set(),
		"w": set(),
		"Web": {"node-name"},
		"web.1": {"node-name"},
		"1web": {"node-name"},
		"web 1": {"node-name"},
		"": {"node-name"},
	}
	denied := site.deny with input as nodes({name: {"type": "vm", "vmid": null, "vmid_range": null}})
	rules(denied) == expected
}

test_names_are_free_without_a_pattern if {
	free := json.patch(nodes({"Web": {"type": "vm", "vmid": null, "vmid_range": null}}), [{"op": "replace", "path": "/site/naming", "value": null}])
	rules(site.deny) == set() with input as free
}

test_vmids[note] if {
	some note, case in {
		"first of a range": {"vmid": 10000, "range": null, "want": set()},
		"last of a range": {"vmid": 10999, "range": null, "want": set()},
		"of any range": {"vmid": 99000, "range": null, "want": set()},
		"of its range": {"vmid": 99000, "range": "test", "want": set()},
		"of another range": {"vmid": 99000, "range": "guests", "want": {"vmid-range"}},
		"one before": {"vmid": 9999, "range": null, "want": {"vmid-range"}},
		"one behind": {"vmid": 11000, "range": null, "want": {"vmid-range"}},
		"unknown range": {"vmid": 10000, "range": "nosuch", "want": {"vmid-range"}},
		"to be chosen": {"vmid": null, "range": "test", "want": set()},
	}
	denied := site.deny with input as nodes({"web": {"type": "vm", "vmid": case.vmid, "vmid_range": case.range}})
	rules(denied) == case.want
}

test_vmids_are_free_without_ranges if {
	free := json.patch(nodes({"web": {"type": "vm", "vmid": 1, "vmid_range": null}}), [{"op": "replace", "path": "/site/vmid_range", "value": {}}])
	rules(site.deny) == set() with input as free
}

test_adopted_guests_keep_their_vmids if {
	rules(site.deny) == set() with input as nodes({"web": {"type": "vm", "vmid": 104, "vmid_range": null, "adopt": "1bae9530-15f1-4d8a-8b09-1412c51fdb8d"}})
}

test_a_finding_names_its_node if {
	denied := site.deny with input as nodes({"web": {"type": "ct", "vmid": 5, "vmid_range": null}})
	shipped(denied) == {{
		"rule": "vmid-range",
		"message": "VMID 5 of web is outside of the site's ranges",
		"address": "ct.web",
		"fix": "Allowed: guests from 10000 to 10999, test from 99000 to 99999.",
	}}
}
