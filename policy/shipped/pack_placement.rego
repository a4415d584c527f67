# METADATA
# title: Where nodes may live
# description: Guests of a role are created only on the PVE nodes that are named for it.
# scope: package
# schemas:
#   - input: schema.pass
# custom:
#   settings:
#     ROLE: hosts or PVE nodes where its nodes may be created
package homestak.planpacks.placement

import data.homestak.packs

# METADATA
# title: A new guest is created where its role may live
# scope: rule
deny contains {
	"rule": "placement-role",
	"message": sprintf("%s of role %s would be created on %s, and may be on %s", [step.address, role, place, allowed]),
	"address": step.address,
	"fix": "Name the PVE node with nodes, or move the manifest to another host.",
} if {
	packs.on("placement", "placement-role")
	some step in input.plan.steps
	step.action in {"create", "replace"}
	role := packs.role(input.site.nodes[step.node])
	allowed := packs.settings.placement[role]
	place := where(step)
	not place in packs.words(allowed)
}

where(step) := step.place if {
	is_string(step.place)
} else := input.plan.host
