# METADATA
# title: Sizes of nodes
# description: No node is larger than the site allows.
# scope: package
# schemas:
#   - input: schema.pass
# custom:
#   settings:
#     cores: most cores of a node
#     memory: most memory of a node, in MiB
#     disk: most of its root disk, in GiB
package homestak.packs.sizes

import data.homestak.packs

# METADATA
# title: A node is within the largest size
# scope: rule
deny contains {
	"rule": "size-limit",
	"message": sprintf("%s of %s is %d, and at most %d is allowed", [what, name, size, limit]),
	"address": packs.address(name),
	"fix": "Make it smaller, name a smaller preset, or ask for a waiver.",
} if {
	packs.on("sizes", "size-limit")
	some what in ["cores", "memory", "disk"]
	limit := to_number(packs.settings.sizes[what])
	some name, node in input.site.nodes
	size := size_of(node.attributes, what)
	size > limit
}

size_of(attributes, what) := attributes[what] if what != "disk"

size_of(attributes, "disk") := attributes.disk.root.size
