# METADATA
# title: VMIDs by role
# description: Nodes of a role take their VMIDs from one range of the site.
# scope: package
# schemas:
#   - input: schema.pass
# custom:
#   settings:
#     ROLE: name of the vmid_range of its nodes
package homestak.packs.vmids

import data.homestak.packs

# METADATA
# title: A node has a VMID of the range of its role
# scope: rule
deny contains {
	"rule": "vmid-role",
	"message": sprintf("node %s of role %s does not take its VMID from the range %s", [name, node.role, range]),
	"address": packs.address(name),
	"fix": sprintf("Write vmid_range = \"%s\", or a vmid in that range.", [range]),
} if {
	packs.on("vmids", "vmid-role")
	some name, node in input.site.nodes
	range := packs.settings.vmids[packs.role(node)]
	not within(node, range)
}

within(node, range) if {
	node.vmid == null
	node.vmid_range == range
}

within(node, range) if {
	limits := input.site.vmid_range[range]
	limits.from <= node.vmid
	node.vmid <= limits.to
}
