# Rules about the site as it is declared and resolved. They are evaluated whenever a
# site is loaded: by validate, by plan, in every pass. A commit that they deny is not
# applied.
#
# A site adds rules of its own in policy/*.rego, in this same package: every deny and
# warn of it counts, wherever it stands.
package homestak.site

# METADATA
# title: No password opens production
# description: |
#   A posture is one of production if its name is prod or begins with prod-. If it is not
#   known whether passwords are accepted, they are.
# scope: rule
deny contains {
	"rule": "prod-no-password",
	"message": sprintf("posture %s lets users log in with a password", [name]),
	"address": sprintf("posture.%s", [name]),
	"fix": "Write password_authentication = \"no\" in its ssh block, or give the posture a name that does not begin with prod.",
} if {
	some name, posture in input.site.postures
	production(name)
	not posture.ssh.password_authentication == "no"
}

# METADATA
# title: In production a network proves nothing
# description: A node of a production posture shows a token before it is given its spec.
# scope: rule
deny contains {
	"rule": "prod-no-network-auth",
	"message": sprintf("posture %s accepts the network as identity", [name]),
	"address": sprintf("posture.%s", [name]),
	"fix": "Write method = \"node_token\" (or \"site_token\") in its auth block, or give the posture a name that does not begin with prod.",
} if {
	some name, posture in input.site.postures
	production(name)
	not by_token(posture)
}

# METADATA
# title: Names of nodes match the site's pattern
# description: The pattern is that of the naming block, and a whole name must match it.
# scope: rule
deny contains {
	"rule": "node-name",
	"message": sprintf("name %s breaks the site's naming rule %s", [name, input.site.naming.pattern]),
	"address": sprintf("%s.%s", [node.type, name]),
	"fix": "Rename the node, or change naming in the site block.",
} if {
	is_string(input.site.naming.pattern)
	some name, node in input.site.nodes
	not regex.match(sprintf("^(?:%s)$", [input.site.naming.pattern]), name)
}

# METADATA
# title: Declared VMIDs lie in the site's ranges
# description: |
#   A VMID counts as inside if it lies in the range that the node names with vmid_range,
#   or, where it names none, in any range of the site. A site without ranges has no rule,
#   nor has a guest that is adopted: it has its VMID already.
# scope: rule
deny contains {
	"rule": "vmid-range",
	"message": sprintf("VMID %d of %s is outside of the site's ranges", [node.vmid, name]),
	"address": sprintf("%s.%s", [node.type, name]),
	"fix": sprintf("Allowed: %s.", [concat(", ", [text |
		some range, limits in input.site.vmid_range
		text := sprintf("%s from %d to %d", [range, limits.from, limits.to])
	])]),
} if {
	count(input.site.vmid_range) > 0
	some name, node in input.site.nodes
	is_number(node.vmid)
	object.get(node, "adopt", null) == null
	not in_range(name)
}

production(name) if name == "prod"

production(name) if startswith(name, "prod-")

# What is negated above is a rule of its own each time: in a negated call a field that
# is not there would make the condition undefined instead of true.
by_token(posture) if posture.auth.method in {"node_token", "site_token"}

in_range(name) if {
	node := input.site.nodes[name]
	some range, limits in input.site.vmid_range
	node.vmid_range in {null, range}
	limits.from <= node.vmid
	node.vmid <= limits.to
}
