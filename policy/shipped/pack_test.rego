# Each rule of the packs: what it lets pass, what it denies, and that it denies nothing where its pack is off.
package homestak.packs_test

import data.homestak.packs
import data.homestak.planpacks

node := {
	"type": "vm", "host": "father", "vmid": null, "vmid_range": "infra", "role": "dns", "owner": "ana", "purpose": "names",
	"review_by": "2026-06-30", "storage_tier": "tank", "backup": {"schedule": "daily"},
	"attributes": {
		"cores": 2, "memory": 2048, "protection": true,
		"nic": {"lan": {"ip": "192.0.2.5/24"}},
		"disk": {"root": {"size": 20, "storage": null}},
	},
	"spec": {"access": {"posture": {"name": "prod"}}},
}

with_value(path, value) := json.patch(node, [{"op": "add", "path": path, "value": value}])

doc(pack, settings, nodes) := {
	"version": 1,
	"now": "2026-06-30T12:00:00Z",
	"unattended": true,
	"commit": {"signer": "SHA256:ana", "author": {"email": "ana@home.example"}},
	"site": {
		"name": "home",
		"packs": {pack: {"settings": settings}},
		"vmid_range": {"infra": {"from": 100, "to": 199}},
		"nodes": nodes,
		"images": {
			"debian": {"url": "https://example.org/debian.img", "checksum": "sha256:00"},
			"own": {"url": null, "checksum": null},
		},
	},
	"plan": {"host": "father", "steps": [
		{"address": "vm.web-1", "node": "web-1", "action": "create", "vmid": 100, "place": "n1"},
		{"address": "image.debian", "node": "", "action": "create", "vmid": null, "place": null},
	]},
}

on(pack, settings, n) := doc(pack, settings, {"web-1": n})

plan_step(d, path, value) := json.patch(d, [{"op": "add", "path": sprintf("/plan/steps/0/%s", [path]), "value": value}])

rules(pack) := {d.rule | some d in packs[pack].deny}

plan_rules(pack) := {d.rule | some d in planpacks[pack].deny}

# cases are documents with the rules that deny them, by pack and note.
cases := {
	"naming": {
		"good": {"doc": on("naming", {"reserved": "gateway"}, node), "want": set()},
		"upper case": {"doc": doc("naming", {}, {"Web": node}), "want": {"naming-form"}},
		"two hyphens": {"doc": doc("naming", {}, {"web--1": node}), "want": {"naming-form"}},
		"reserved": {"doc": doc("naming", {"reserved": "proxy gateway"}, {"gateway": node}), "want": {"naming-reserved"}},
	},
	"vmids": {
		"by its range": {"doc": on("vmids", {"dns": "infra"}, node), "want": set()},
		"by its VMID": {"doc": on("vmids", {"dns": "infra"}, object.union(node, {"vmid": 150, "vmid_range": null})), "want": set()},
		"another role": {"doc": on("vmids", {"web": "infra"}, node), "want": set()},
		"another range": {"doc": on("vmids", {"dns": "other"}, node), "want": {"vmid-role"}},
		"outside": {"doc": on("vmids", {"dns": "infra"}, object.union(node, {"vmid": 200})), "want": {"vmid-role"}},
	},
	"addresses": {
		"good": {"doc": on("addresses", {"subnets": "198.51.100.0/24 192.0.2.0/24", "dhcp": "no"}, node), "want": set()},
		"elsewhere": {"doc": on("addresses", {"subnets": "198.51.100.0/24"}, node), "want": {"address-subnet"}},
		"dhcp": {"doc": on("addresses", {"dhcp": "no"}, with_value("/attributes/nic/lan/ip", "dhcp")), "want": {"address-dhcp"}},
		"none": {"doc": on("addresses", {"subnets": "192.0.2.0/24", "dhcp": "no"}, with_value("/attributes/nic/lan/ip", null)), "want": {"address-dhcp"}},
		"elsewhere by IPv6": {"doc": on("addresses", {"subnets": "192.0.2.0/24"}, with_value("/attributes/nic/lan/ip6", "2001:db8::5/64")), "want": {"address-subnet"}},
		"dhcp is allowed": {"doc": on("addresses", {}, with_value("/attributes/nic/lan/ip", "dhcp")), "want": set()},
	},
	"sizes": {
		"good": {"doc": on("sizes", {"cores": "2", "memory": "2048", "disk": "20"}, node), "want": set()},
		"cores": {"doc": on("sizes", {"cores": "1"}, node), "want": {"size-limit"}},
		"memory": {"doc": on("sizes", {"memory": "2047"}, node), "want": {"size-limit"}},
		"disk": {"doc": on("sizes", {"disk": "19"}, node), "want": {"size-limit"}},
	},
	"storage": {
		"good": {"doc": on("storage", {"tank": "tank"}, with_value("/attributes/disk/data", {"storage": "tank"})), "want": set()},
		"boot only": {"doc": on("storage", {"tank": ""}, node), "want": set()},
		"no disk allowed": {"doc": on("storage", {"tank": ""}, with_value("/attributes/disk/data", {"storage": "tank"})), "want": {"storage-disk"}},
		"default storage": {"doc": on("storage", {"tank": "tank"}, with_value("/attributes/disk/data", {"storage": null})), "want": {"storage-disk"}},
		"unknown tier": {"doc": on("storage", {"nfs": "nas"}, node), "want": {"storage-tier"}},
		"no tier": {"doc": on("storage", {"tank": "tank"}, with_value("/storage_tier", null)), "want": {"storage-tier"}},
	},
	"postures": {
		"good": {"doc": on("postures", {"allowed": "stage prod"}, node), "want": set()},
		"no spec": {"doc": on("postures", {"allowed": "prod"}, with_value("/spec", null)), "want": set()},
		"another": {"doc": on("postures", {"allowed": "stage"}, node), "want": {"posture-allowed"}},
		"none": {"doc": on("postures", {"allowed": "stage"}, with_value("/spec/access/posture", null)), "want": {"posture-allowed"}},
	},
	"backups": {
		"good": {"doc": on("backups", {}, node), "want": set()},
		"none": {"doc": on("backups", {}, with_value("/backup", null)), "want": {"backup-declared"}},
		"not needed": {"doc": on("backups", {"except": "dns"}, with_value("/backup", null)), "want": set()},
	},
	"protection": {
		"good": {"doc": on("protection", {"roles": "db dns"}, node), "want": set()},
		"another role": {"doc": on("protection", {"roles": "db"}, with_value("/attributes/protection", false)), "want": set()},
		"not protected": {"doc": on("protection", {"roles": "dns"}, with_value("/attributes/protection", false)), "want": {"protection-role"}},
	},
	"purpose": {
		"good": {"doc": on("purpose", {}, node), "want": set()},
		"neither": {"doc": on("purpose", {}, object.union(node, {"owner": null, "purpose": null})), "want": {"owner-missing", "purpose-missing"}},
	},
	"reviews": {
		"on the last day": {"doc": on("reviews", {}, node), "want": set()},
		"the day after": {"doc": on("reviews", {}, with_value("/review_by", "2026-06-29")), "want": {"review-overdue"}},
		"none": {"doc": on("reviews", {}, with_value("/review_by", null)), "want": {"review-missing"}},
	},
	"images": {
		"good": {"doc": on("images", {}, node), "want": set()},
		"not pinned": {
			"doc": json.patch(on("images", {}, node), [{"op": "replace", "path": "/site/images/debian/checksum", "value": null}]),
			"want": {"image-pinned"},
		},
	},
}

test_site_packs[sprintf("%s: %s", [pack, note])] if {
	some pack, by_note in cases
	some note, case in by_note
	found := rules(pack) with input as case.doc
	found == case.want
}

test_a_pack_that_is_off_denies_nothing[sprintf("%s: %s", [pack, note])] if {
	some pack, by_note in cases
	some note, case in by_note
	found := rules(pack) with input as json.patch(case.doc, [{"op": "replace", "path": "/site/packs", "value": {}}])
	found == set()
}

select(doc, pack, rules) := json.patch(doc, [{"op": "add", "path": sprintf("/site/packs/%s/rules", [pack]), "value": rules}])

test_a_pack_with_rules_has_only_these[sprintf("%s: %s, %s", [pack, note, rule])] if {
	some pack, by_note in object.union(cases, plan_cases)
	some note, case in by_note
	some rule in case.want
	only := said(pack) with input as select(case.doc, pack, [rule])
	others := said(pack) with input as select(case.doc, pack, ["other"])
	[only, others] == [{rule}, set()]
}

said(pack) := rules(pack) | plan_rules(pack)

ours := {"signers": "SHA256:ana", "removers": "ana@home.example"}

plan_cases := {
	"placement": {
		"good": {"doc": on("placement", {"dns": "n1 n2"}, node), "want": set()},
		"another role": {"doc": on("placement", {"web": "n2"}, node), "want": set()},
		"elsewhere": {"doc": on("placement", {"dns": "n2"}, node), "want": {"placement-role"}},
		"a host without choice": {"doc": plan_step(on("placement", {"dns": "father"}, node), "place", null), "want": set()},
		"it stays": {"doc": plan_step(on("placement", {"dns": "n2"}, node), "action", "update"), "want": set()},
	},
	"changes": {
		"removal by hand": {
			"doc": json.patch(plan_step(on("changes", {"removers": "bob@home.example"}, node), "action", "delete"), [{"op": "replace", "path": "/unattended", "value": false}]),
			"want": set(),
		},
		"good": {"doc": on("changes", ours, node), "want": set()},
		"a removal": {"doc": plan_step(on("changes", ours, node), "action", "delete"), "want": set()},
		"unsigned": {"doc": json.patch(on("changes", ours, node), [{"op": "replace", "path": "/commit/signer", "value": null}]), "want": {"change-signed"}},
		"by hand": {
			"doc": json.patch(on("changes", ours, node), [
				{"op": "replace", "path": "/commit/signer", "value": null},
				{"op": "replace", "path": "/unattended", "value": false},
			]),
			"want": set(),
		},
		"removal by another": {
			"doc": plan_step(on("changes", {"removers": "bob@home.example"}, node), "action", "replace"),
			"want": {"change-remover"},
		},
	},
}

test_plan_packs[sprintf("%s: %s", [pack, note])] if {
	some pack, by_note in plan_cases
	some note, case in by_note
	found := plan_rules(pack) with input as case.doc
	found == case.want
}

test_every_pack_has_cases if {
	object.keys(cases) == {pack | some pack, _ in packs; packs[pack].deny}
	object.keys(plan_cases) == {pack | some pack, _ in planpacks}
}

test_a_finding_says_where_and_what_to_do if {
	some d in packs.reviews.deny with input as on("reviews", {}, with_value("/review_by", "2026-01-01"))
	d == {
		"rule": "review-overdue",
		"message": "the review of node web-1 was due on 2026-01-01",
		"address": "vm.web-1",
		"fix": "Review what the files say of it, and commit a later review_by.",
	}
}
