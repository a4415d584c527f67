# Rules of this site. validate, plan, apply and the agent evaluate every file here; a deny
# stops them, a warn is only reported. `homestak-gitops policy test` runs the tests
# beside them, `homestak-gitops policy input` prints what rules can read.
package homestak.site

# METADATA
# title: Nodes do not need more memory than their host has
# description: |
#   Applies to hosts with a hardware block in hosts/*.hcl, with all nodes deployed on
#   them. 8 GiB are reserved for the host itself.
# scope: rule
deny contains {
	"rule": "memory-promised",
	"message": sprintf("the nodes on %s need %d MiB of memory, and %d MiB are available", [name, wanted[name], there[name]]),
	"address": sprintf("host.%s", [name]),
	"fix": "Make nodes smaller, or move some to another host.",
} if {
	some name, _ in input.site.hosts
	wanted[name] > there[name]
}

# METADATA
# title: A warning before the memory of a host runs out
# scope: rule
warn contains {
	"rule": "memory-nearly-gone",
	"message": sprintf("the nodes on %s need %d of %d MiB of memory that are available", [name, wanted[name], there[name]]),
	"address": sprintf("host.%s", [name]),
} if {
	some name, _ in input.site.hosts
	wanted[name] <= there[name]
	wanted[name] > there[name] * 0.9
}

# The memory that nodes need, by host. Children of a node use the memory of that node.
wanted[name] := sum([mib |
	some node in input.site.nodes
	node.host == name
	node.parent == null
	mib := node.attributes.memory
]) if {
	some name, _ in input.site.hosts
}

# A host without a hardware block is not in here, so no rule applies to it.
there[name] := (host.hardware.memory_gb - 8) * 1024 if {
	some name, host in input.site.hosts
	is_number(host.hardware.memory_gb)
}
