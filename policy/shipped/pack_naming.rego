# METADATA
# title: Names of nodes
# description: Names are lower-case words joined by hyphens, and none is reserved.
# scope: package
# schemas:
#   - input: schema.pass
# custom:
#   settings:
#     reserved: names that no node may have
package homestak.packs.naming

import data.homestak.packs

# METADATA
# title: A name has the form that every registry accepts
# scope: rule
deny contains {
	"rule": "naming-form",
	"message": sprintf("the name %s is not made of lower-case words joined by hyphens", [name]),
	"address": packs.address(name),
	"fix": "Rename the node, such as to web-1; a moved block keeps its guest.",
} if {
	packs.on("naming", "naming-form")
	some name, _ in input.site.nodes
	not regex.match(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`, name)
}

# METADATA
# title: No node has a reserved name
# scope: rule
deny contains {
	"rule": "naming-reserved",
	"message": sprintf("the name %s is reserved", [name]),
	"address": packs.address(name),
	"fix": "Rename the node; a moved block keeps its guest.",
} if {
	packs.on("naming", "naming-reserved")
	reserved := packs.words(packs.settings.naming.reserved)
	some name, _ in input.site.nodes
	name in reserved
}
