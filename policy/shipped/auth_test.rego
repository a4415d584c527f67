package homestak.auth_test

import data.homestak.auth

request(method, kind, valid, of) := {
	"version": 1,
	"method": "GET",
	"path": "/spec/web-1",
	"identity": "web-1",
	"remote": "10.0.12.5",
	"posture": {"name": "p", "auth": {"method": method, "networks": []}},
	"credential": {"kind": kind, "valid": valid, "identity": of},
}

none(method) := request(method, "none", false, null)

with_path(r, path) := object.union(r, {"path": path})

from(r, remote) := object.union(r, {"remote": remote})

networks(r, list) := json.patch(r, [{"op": "replace", "path": "/posture/auth/networks", "value": list}])

allowed(r) if {
	auth.allow with input as r
	codes(auth.deny) == set() with input as r
}

# A site may have rules of its own in this package, which say what they like of the
# documents here: looked at is what shipped ones deny. What a site allows counts.
codes(denied) := {d.code |
	some d in denied
	d.rule in {"credential-invalid", "credential-of-another"}
}

test_allowed[note] if {
	some note, r in {
		"network: from a private network": none("network"),
		"network: IPv6": from(none("network"), "fd00::5"),
		"network: a named network": networks(from(none("network"), "203.0.113.9"), ["203.0.113.0/24"]),
		"network: list of specs": with_path(none("network"), "/specs"),
		"network: site token from elsewhere": from(request("network", "site_token", true, null), "203.0.113.9"),
		"network: node token from elsewhere": from(request("network", "node_token", true, "web-1"), "203.0.113.9"),
		"site_token": request("site_token", "site_token", true, null),
		"node_token": request("node_token", "node_token", true, "web-1"),
		"provisioning under network": request("network", "provisioning", true, "web-1"),
		"provisioning under site_token": request("site_token", "provisioning", true, "web-1"),
		"provisioning under node_token": request("node_token", "provisioning", true, "web-1"),
		"provisioning for the bundle": with_path(request("site_token", "provisioning", true, "web-1"), "/config/web-1"),
		"provisioning for the program": with_path(request("network", "provisioning", true, "web-1"), "/agent/linux-amd64"),
		"provisioning for the repository": with_path(request("network", "provisioning", true, "web-1"), "/site.git/info/refs"),
		"provisioning without a posture": object.union(request("network", "provisioning", true, "web-1"), {"posture": null}),
	}
	allowed(r)
}

test_refused[note] if {
	some note, r in {
		"network: from elsewhere": from(none("network"), "203.0.113.9"),
		"network: from nowhere": from(none("network"), null),
		"network: not one of the named": networks(none("network"), ["203.0.113.0/24"]),
		"network: the bundle": with_path(none("network"), "/config/web-1"),
		"network: a report": with_path(none("network"), "/report/web-1"),
		"network: the program": with_path(none("network"), "/agent/linux-amd64"),
		"network: the repository": with_path(none("network"), "/site.git/info/refs"),
		"network: to wait": with_path(none("network"), "/wait/web-1"),
		"network: no posture": object.union(none("network"), {"posture": null}),
		"site_token: nothing shown": none("site_token"),
		"site_token: a node token": request("site_token", "node_token", true, "web-1"),
		"site_token: a report": with_path(request("site_token", "site_token", true, null), "/report/web-1"),
		"site_token: the bundle": with_path(request("site_token", "site_token", true, null), "/config/web-1"),
		"node_token: nothing shown": none("node_token"),
		"node_token: the site's": request("node_token", "site_token", true, null),
		"unknown method": none("whatever"),
		"unknown kind": request("network", "cookie", true, "web-1"),
		"of no node, for no node": object.union(request("network", "provisioning", true, ""), {"identity": ""}),
		"without an identity, for none": object.union(request("network", "provisioning", true, null), {"identity": null}),
	}
	not allowed(r)
}

test_invalid_credentials[kind] if {
	some kind in ["site_token", "node_token", "provisioning"]
	r := request("network", kind, false, "web-1")
	not allowed(r)
	codes(auth.deny) == {401} with input as r
}

test_credentials_of_another[kind] if {
	some kind in ["node_token", "provisioning"]
	r := request("network", kind, true, "web-2")
	not allowed(r)
	codes(auth.deny) == {403} with input as r
}

test_who_shows_nothing_is_not_denied_but_not_allowed if {
	codes(auth.deny) == set() with input as none("node_token")
	not auth.allow with input as none("node_token")
}

# The whole table: the status for each credential, under each method, from a network of
# the posture and from another one. The server's own test has the same one.
shown := {
	"none": {"kind": "none", "valid": false, "identity": null},
	"wrong, tampered, expired or of an old key": {"kind": "provisioning", "valid": false, "identity": null},
	"site token": {"kind": "site_token", "valid": true, "identity": null},
	"site token, wrong": {"kind": "site_token", "valid": false, "identity": null},
	"own token": {"kind": "node_token", "valid": true, "identity": "web-1"},
	"own token, wrong": {"kind": "node_token", "valid": false, "identity": "web-1"},
	"another's token": {"kind": "node_token", "valid": true, "identity": "web-2"},
	"provisioning": {"kind": "provisioning", "valid": true, "identity": "web-1"},
	"provisioning of another": {"kind": "provisioning", "valid": true, "identity": "web-2"},
}

expected := {
	"none": {"network": [200, 401], "site_token": [401, 401], "node_token": [401, 401]},
	"wrong, tampered, expired or of an old key": {"network": [401, 401], "site_token": [401, 401], "node_token": [401, 401]},
	"site token": {"network": [200, 200], "site_token": [200, 200], "node_token": [403, 403]},
	"site token, wrong": {"network": [401, 401], "site_token": [401, 401], "node_token": [401, 401]},
	"own token": {"network": [200, 200], "site_token": [403, 403], "node_token": [200, 200]},
	"own token, wrong": {"network": [401, 401], "site_token": [401, 401], "node_token": [401, 401]},
	"another's token": {"network": [403, 403], "site_token": [403, 403], "node_token": [403, 403]},
	"provisioning": {"network": [200, 200], "site_token": [200, 200], "node_token": [200, 200]},
	"provisioning of another": {"network": [403, 403], "site_token": [403, 403], "node_token": [403, 403]},
}

status(r) := 200 if allowed(r)

status(r) := 401 if {
	not allowed(r)
	401 in codes(auth.deny) with input as r
}

status(r) := 401 if {
	not allowed(r)
	codes(auth.deny) == set() with input as r
	r.credential.kind == "none"
}

status(r) := 403 if {
	not allowed(r)
	codes(auth.deny) == {403} with input as r
}

status(r) := 403 if {
	not allowed(r)
	codes(auth.deny) == set() with input as r
	r.credential.kind != "none"
}

test_table[note] if {
	some name, by_method in expected
	some method, by_network in by_method
	some i, remote in ["10.0.12.5", "203.0.113.9"]
	note := sprintf("%s, method %s, from %s", [name, method, remote])
	r := object.union(from(none(method), remote), {"credential": shown[name]})
	status(r) == by_network[i]
}
