# Rules about what is going to be done. They are asked about a plan before the first of
# its steps; a denial means that nothing of it is carried out.
package homestak.plan

# METADATA
# title: New guests get VMIDs of the site's ranges
# description: |
#   Judged is what the plan creates. A guest that exists outside of the ranges keeps its
#   VMID, and so has a template the one that is declared for it: ranges say where nodes
#   are put. A site without ranges has no rule.
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
