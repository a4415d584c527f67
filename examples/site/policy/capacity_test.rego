# A package of its own: its names cannot collide with those of other tests.
package capacity_test

import data.homestak.site

# A site with one host of so many GiB, and nodes of so much memory on it.
doc(gib, nodes) := {"site": {
	"postures": {},
	"hosts": {"father": {"hardware": {"memory_gb": gib}}},
	"nodes": {name: node |
		some i, mib in nodes
		name := sprintf("n%d", [i])
		node := {"type": "vm", "host": "father", "parent": null, "attributes": {"memory": mib}}
	},
}}

# What the rules here say; the others of the package are asked, too.
said(entries) := {e.rule | some e in entries; startswith(e.rule, "memory-")}

test_memory[note] if {
	some note, case in {
		"enough": {"doc": doc(16, [2048, 2048]), "deny": set(), "warn": set()},
		"all of it": {"doc": doc(16, [4096, 4096]), "deny": set(), "warn": {"memory-nearly-gone"}},
		"too much": {"doc": doc(16, [4096, 4097]), "deny": {"memory-promised"}, "warn": set()},
		"a host that does not tell": {"doc": doc(null, [900000]), "deny": set(), "warn": set()},
		"children live in their parents": {
			"doc": json.patch(doc(16, [8000, 8000]), [{"op": "replace", "path": "/site/nodes/n1/parent", "value": "n0"}]),
			"deny": set(), "warn": {"memory-nearly-gone"},
		},
	}
	denied := site.deny with input as case.doc
	warned := site.warn with input as case.doc
	said(denied) == case.deny
	said(warned) == case.warn
}
