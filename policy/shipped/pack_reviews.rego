# METADATA
# title: Reviews
# description: Every node has a date of its next review, and that has not passed.
# scope: package
# schemas:
#   - input: schema.pass
package homestak.packs.reviews

import data.homestak.packs

# METADATA
# title: A node has a date of review
# scope: rule
deny contains {
	"rule": "review-missing",
	"message": sprintf("node %s has no date of its next review", [name]),
	"address": packs.address(name),
	"fix": "Write review_by into the node, its manifest or the site.",
} if {
	packs.on("reviews", "review-missing")
	some name, node in input.site.nodes
	object.get(node, "review_by", null) == null
}

# METADATA
# title: The date of review has not passed
# scope: rule
deny contains {
	"rule": "review-overdue",
	"message": sprintf("the review of node %s was due on %s", [name, node.review_by]),
	"address": packs.address(name),
	"fix": "Review what the files say of it, and commit a later review_by.",
} if {
	packs.on("reviews", "review-overdue")
	some name, node in input.site.nodes
	is_string(node.review_by)
	node.review_by < substring(input.now, 0, 10)
}
