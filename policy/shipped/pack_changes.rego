# METADATA
# title: Who may change what
# description: |
#   Commits that an agent applies are signed with a known SSH key, and removals are of named authors. An apply by hand
#   is not a commit: access to the API decides who may do that. The author is that of the newest commit, and only a
#   signature proves it.
# scope: package
# schemas:
#   - input: schema.pass
# custom:
#   settings:
#     signers: fingerprints of SSH keys, as ssh-keygen -l prints them
#     removers: e-mail addresses of the authors whose commits may remove or replace guests
package homestak.planpacks.changes

import data.homestak.packs

# METADATA
# title: An applied commit is signed with a known key
# scope: rule
# custom:
#   waivable: false
deny contains {
	"rule": "change-signed",
	"message": "the commit has no signature by a key that may sign for this site",
	"fix": "Sign it: git commit --amend -S, with gpg.format ssh and a key among signers.",
} if {
	packs.on("changes", "change-signed")
	signers := packs.words(packs.settings.changes.signers)
	input.unattended
	count(input.plan.steps) > 0
	not input.commit.signer in signers
}

# METADATA
# title: A removal is of an author who may remove
# scope: rule
# custom:
#   waivable: false
deny contains {
	"rule": "change-remover",
	"message": sprintf("the commit would %s %s, and its author %v may not remove guests", [step.action, step.address, input.commit.author.email]),
	"address": step.address,
	"fix": "Let one of the removers commit it.",
} if {
	packs.on("changes", "change-remover")
	removers := packs.words(packs.settings.changes.removers)
	input.unattended
	some step in input.plan.steps
	step.action in {"delete", "replace"}
	step.vmid != null
	not input.commit.author.email in removers
}
