# At least one name server answers at any time.
package homestak.guard

# METADATA
# title: Name servers go down one after the other
# description: |
#   A plan that stops all name servers of a host at once is refused. In the package guard
#   a denial exits with 4: the site has no error, the plan only does too much at once.
# scope: rule
deny contains {
	"rule": "name-servers-in-turn",
	"message": sprintf("the plan would stop all %d name servers at once", [count(servers)]),
	"fix": "Do one first: homestak-gitops apply --target vm.NAME",
} if {
	count(servers) > 1
	every name in servers {
		name in stopped
	}
	not input.destroy
}

servers contains name if {
	some name, node in input.site.nodes
	node.manifest == "dns"
	node.host == input.plan.host
}

stopped contains step.node if {
	some step in input.plan.steps
	step.action in {"update", "replace", "delete"}
	step.class in {"restart", "migrate", "replace", "data-loss"}
}
