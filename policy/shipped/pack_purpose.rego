# METADATA
# title: Purpose and owner
# description: Every node says what it is for, and who answers for it.
# scope: package
# schemas:
#   - input: schema.pass
package homestak.packs.purpose

import data.homestak.packs

# METADATA
# title: A node has a purpose
# scope: rule
deny contains {
	"rule": "purpose-missing",
	"message": sprintf("node %s has no purpose", [name]),
	"address": packs.address(name),
	"fix": "Write purpose into the node, its manifest or the site.",
} if {
	packs.on("purpose", "purpose-missing")
	some name, node in input.site.nodes
	object.get(node, "purpose", null) == null
}

# METADATA
# title: A node has an owner
# scope: rule
deny contains {
	"rule": "owner-missing",
	"message": sprintf("node %s has no owner", [name]),
	"address": packs.address(name),
	"fix": "Write owner into the node, its manifest or the site.",
} if {
	packs.on("purpose", "owner-missing")
	some name, node in input.site.nodes
	object.get(node, "owner", null) == null
}
