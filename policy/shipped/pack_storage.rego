# METADATA
# title: Storage tiers
# description: Every node says which tier of storage it needs, and its disks are on storages of that tier.
# scope: package
# schemas:
#   - input: schema.pass
# custom:
#   settings:
#     TIER: storages of the tier; empty where its nodes have no disk but the root disk
package homestak.packs.storage

import data.homestak.packs

# METADATA
# title: A node has a tier of the site
# scope: rule
deny contains {
	"rule": "storage-tier",
	"message": sprintf("node %s has no storage tier of this site", [name]),
	"address": packs.address(name),
	"fix": sprintf("Write storage_tier = one of %s.", [concat(", ", [tier | some tier, _ in tiers])]),
} if {
	packs.on("storage", "storage-tier")
	some name, node in input.site.nodes
	not tiers[object.get(node, "storage_tier", null)]
}

# METADATA
# title: Data disks are on storages of the tier
# scope: rule
deny contains {
	"rule": "storage-disk",
	"message": sprintf("disk %s of %s is on %s, which does not belong to the tier %s", [disk, name, on(spec), node.storage_tier]),
	"address": packs.address(name),
	"fix": "Name a storage of its tier in the disk block, or give the node another tier.",
} if {
	packs.on("storage", "storage-disk")
	some name, node in input.site.nodes
	storages := tiers[node.storage_tier]
	some disk, spec in node.attributes.disk
	disk != "root"
	not on(spec) in storages
}

tiers[tier] := packs.words(text) if some tier, text in packs.settings.storage

on(spec) := spec.storage if {
	is_string(spec.storage)
} else := "the host's default storage"
