# METADATA
# title: Protected nodes
# description: Nodes of the named roles are protected against removal.
# scope: package
# schemas:
#   - input: schema.pass
# custom:
#   settings:
#     roles: roles whose nodes have protection = true
package homestak.packs.protection

import data.homestak.packs

# METADATA
# title: A node of a protected role has protection
# scope: rule
deny contains {
	"rule": "protection-role",
	"message": sprintf("node %s of role %s is not protected", [name, node.role]),
	"address": packs.address(name),
	"fix": "Write protection = true into the node.",
} if {
	packs.on("protection", "protection-role")
	roles := packs.words(packs.settings.protection.roles)
	some name, node in input.site.nodes
	packs.role(node) in roles
	not node.attributes.protection == true
}
