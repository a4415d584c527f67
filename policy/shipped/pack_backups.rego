# METADATA
# title: Backups of nodes
# description: Every node has a backup, of its own or of its manifest or the site, but those of named roles.
# scope: package
# schemas:
#   - input: schema.pass
# custom:
#   settings:
#     except: roles that need none
package homestak.packs.backups

import data.homestak.packs

# METADATA
# title: A node has a backup
# scope: rule
deny contains {
	"rule": "backup-declared",
	"message": sprintf("node %s has no backup", [name]),
	"address": packs.address(name),
	"fix": "Write a backup block into the node, its manifest or the site.",
} if {
	packs.on("backups", "backup-declared")
	except := object.get(packs.settings.backups, "except", "")
	some name, node in input.site.nodes
	not packs.role(node) in packs.words(except)
	object.get(node, "backup", null) == null
}
