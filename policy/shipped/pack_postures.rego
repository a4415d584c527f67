# METADATA
# title: Postures of nodes
# description: Every node with a spec has one of the postures that the site allows.
# scope: package
# schemas:
#   - input: schema.pass
# custom:
#   settings:
#     allowed: postures that nodes may have
package homestak.packs.postures

import data.homestak.packs

# METADATA
# title: A node has an allowed posture
# scope: rule
deny contains {
	"rule": "posture-allowed",
	"message": sprintf("node %s has the posture %s, and may have %s", [name, posture(node), allowed]),
	"address": packs.address(name),
	"fix": "Name an allowed posture in the access block of its spec.",
} if {
	packs.on("postures", "posture-allowed")
	allowed := packs.settings.postures.allowed
	some name, node in input.site.nodes
	is_object(node.spec)
	not posture(node) in packs.words(allowed)
}

posture(node) := node.spec.access.posture.name if {
	is_object(node.spec.access.posture)
} else := "none"
