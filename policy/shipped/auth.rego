# Who may fetch what from the server of a parent. Evaluated for every request that is
# about a node. A request is allowed if any allow holds and no deny does; so a site can
# add both, and no rule of a site can undo a deny.
#
# The server has checked the credential before: valid says that it is genuine and not
# expired, identity whose it is. These rules decide what it opens.
package homestak.auth

# METADATA
# title: A provisioning token opens everything of its own node
# description: The node got it when it was created, and every method accepts it.
# scope: rule
allow if {
	input.credential.kind == "provisioning"
	own
}

# METADATA
# title: A node token opens everything of its own node
# description: Under the method node_token, and wherever less would be enough.
# scope: rule
allow if {
	input.credential.kind == "node_token"
	own
	input.posture.auth.method in {"node_token", "network"}
}

# METADATA
# title: The site's token opens specs
# description: All nodes share it, so it opens nothing that is meant for one of them alone.
# scope: rule
allow if {
	input.credential.kind == "site_token"
	input.credential.valid == true
	input.posture.auth.method in {"site_token", "network"}
	spec_path
}

# METADATA
# title: Under the method network, the address of a request is enough
# description: |
#   From the networks of the posture, the private ones unless it names others, and for
#   specs alone. A request without an address is in no network.
# scope: rule
allow if {
	input.credential.kind == "none"
	input.posture.auth.method == "network"
	is_string(input.remote)
	some network in networks
	net.cidr_contains(network, input.remote)
	spec_path
}

# METADATA
# title: A credential in a request must be valid
# description: Also where none is needed, so that a stale token is noticed.
# scope: rule
deny contains {"rule": "credential-invalid", "message": "the credential is not valid", "code": 401} if {
	input.credential.kind != "none"
	not input.credential.valid == true
}

# METADATA
# title: A credential opens only its own node
# scope: rule
deny contains {"rule": "credential-of-another", "message": "the credential belongs to another node", "code": 403} if {
	input.credential.kind in {"node_token", "provisioning"}
	input.credential.valid == true
	not own
}

own if {
	input.credential.valid == true
	is_string(input.credential.identity)
	input.credential.identity != ""
	input.credential.identity == input.identity
}

spec_path if input.path == "/specs"

spec_path if startswith(input.path, "/spec/")

networks := input.posture.auth.networks if {
	count(input.posture.auth.networks) > 0
} else := ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"]
