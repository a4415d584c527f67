# Rules of this site. Every file here is asked by validate, plan, apply and the agent; a
# deny stops them, a warn is only told. `homestak-gitops policy test` runs the tests
# beside them, `homestak-gitops policy input` prints what rules can read.
package homestak.site

# METADATA
# title: A host is not promised more memory than it has
# description: |
#   Judged are hosts that say what they have (hardware in hosts/*.hcl), with all nodes
#   deployed on them. 8 GiB are left to the host itself.
# scope: rule
deny contains {
	"rule": "memory-promised",
	"message": sprintf("the nodes on %s want %d MiB of memory, and %d MiB are there for them", [name, wanted[name], there[name]]),
	"address": sprintf("host.%s", [name]),
	"fix": "Make nodes smaller, or move some to another host.",
} if {
	some name, _ in input.site.hosts
	wanted[name] > there[name]
}

# METADATA
# title: It is told in time that memory runs short
# scope: rule
warn contains {
	"rule": "memory-nearly-gone",
	"message": sprintf("the nodes on %s want %d of the %d MiB that are there for them", [name, wanted[name], there[name]]),
	"address": sprintf("host.%s", [name]),
} if {
	some name, _ in input.site.hosts
	wanted[name] <= there[name]
	wanted[name] > there[name] * 0.9
}

# What nodes want, by host. Children of a node live in the memory of that node.
wanted[name] := sum([mib |
	some node in input.site.nodes
	node.host == name
	node.parent == null
	mib := node.attributes.memory
]) if {
	some name, _ in input.site.hosts
}

# A host that does not say what it has is not judged: it is not in here.
there[name] := (host.hardware.memory_gb - 8) * 1024 if {
	some name, host in input.site.hosts
	is_number(host.hardware.memory_gb)
}
