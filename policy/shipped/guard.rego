# Rules against accidents: commits that remove more than was meant. The input is that of
# the plan. A denial ends the pass with exit 4, nothing is carried out, and the finding
# says what to do next.
#
# Guests that a plan deletes or replaces count, since their data are lost. Images, pools
# and the like can be made again and do not count. If the commit is known that the agent
# converged to before, the nodes that the whole site lost since then count as well: all
# agents of a tree decide the same, and none of them removes a part.
package homestak.guard

# METADATA
# title: A protected guest is not deleted
# description: |
#   Protection is a flag on the guest itself (protection = true), so it holds also when
#   the files that declared it are gone, and for an explicit destroy. A guest counts as
#   protected if it is not known whether it has the flag.
# scope: rule
# custom:
#   waivable: false
deny contains {
	"rule": "protected",
	"message": sprintf("%s is protected, and the plan would %s it", [step.address, step.action]),
	"address": step.address,
	"fix": "Keep the node in the files, with protection = false, until that has been applied. Remove or replace it with a later commit.",
} if {
	some step in removals
	not step.protected == false
}

# METADATA
# title: One pass removes a few guests at most
# description: |
#   At most max_deletes of the site block, 3 unless set; never more than half of the
#   guests that we own on the host, or of the nodes that the site had before if these are
#   more. One is always allowed by that half. An explicit destroy says what it means and is
#   not capped.
# scope: rule
# custom:
#   waivable: false
deny contains {
	"rule": "deletion-cap",
	"message": message,
	"fix": way_on,
} if {
	unasked
	count(removals) + count(postponed) > 0
	count(counted) > cap
}

# METADATA
# title: An empty site removes nothing
# description: |
#   A site without any deployed node, over guests that we own, is a wrong branch, a wrong
#   folder or a bad merge more often than it is meant.
# scope: rule
# custom:
#   waivable: false
deny contains {
	"rule": "empty-site",
	"message": sprintf("the site declares no node at all, and the plan removes %d of %d owned guests", [count(removals) + count(postponed), owned]),
	"fix": concat(" ", ["Check branch and path.", way_on]),
} if {
	unasked
	count(removals) + count(postponed) > 0
	owned > 0
	count(object.keys(input.site.nodes)) == 0
}

removals contains step if {
	some step in input.plan.steps
	step.action in {"delete", "replace"}
	step.vmid != null
}

# The removals were not requested: neither by destroy, nor by a grant of their number.
unasked if {
	not input.destroy
	not granted
}

granted if {
	count(removals) <= input.allow_deletes
	count(lost) <= max([input.allow_deletes, object.get(before, "granted", 0)])
}

before := input.before if {
	is_object(input.before)
} else := {}

# Children that a later pass removes, when nothing is left in them: all in them goes before.
postponed contains d.address if {
	some d in object.get(input.plan, "deferred", [])
	d.postponed == true
}

# Nodes that the whole site lost: their guests go here, or on another host of the tree.
lost := {address | some address in object.get(before, "lost", [])}

counted := {step.address | some step in removals} | lost

total := max([owned, object.get(before, "nodes", 0)])

message := sprintf("the plan removes %d of %d owned guests, at most %d in one pass", [count(removals), owned, cap]) if {
	count(counted) == count(removals)
	total == owned
} else := sprintf(
	"the site loses %d of %d guests, %d of them by this plan, at most %d at once",
	[count(counted), total, count(removals), cap],
)

cap := min([limit, max([1, floor(total / 2)])])

limit := input.site.max_deletes if {
	is_number(input.site.max_deletes)
} else := 3

# What could not be counted is nothing, which allows the least.
owned := input.owned.count if {
	is_number(input.owned.count)
} else := 0

way_on := sprintf(
	"If this is intended: apply --allow-deletes %d. A trailer of a commit has no effect here yet: no commit is known that this host converged to.",
	[count(counted)],
) if {
	input.trailers_grant == false
} else := sprintf(
	"If this is intended: a commit with the trailer \"Allow-Deletes: %d\", or apply --allow-deletes %d.",
	[count(counted), count(counted)],
)
