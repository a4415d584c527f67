# Rules about a plan. They are evaluated before its first step; after a denial nothing is
# done.
package homestak.plan

# METADATA
# title: New guests get VMIDs of the site's ranges
# description: |
#   The rule is about what the plan creates. A guest that exists outside of the ranges keeps
#   its VMID, and a template has the declared one: ranges are for nodes. The rule does not
#   apply to a site without ranges.
# scope: rule
deny contains {
	"rule": "vmid-range",
	"message": sprintf("%s would be created with VMID %d, outside of the site's ranges", [step.address, step.vmid]),
	"address": step.address,
	"fix": "Give the node a vmid or a vmid_range of the site.",
} if {
	count(input.site.vmid_range) > 0
	some step in input.plan.steps
	step.action == "create"
	is_number(step.vmid)
	not startswith(step.address, "template.")
	not in_range(step.vmid)
}

in_range(vmid) if {
	some limits in input.site.vmid_range
	limits.from <= vmid
	vmid <= limits.to
}
