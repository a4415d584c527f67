package ui

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Retired has the verbs, scenarios and flags of the predecessor that do not exist here, with the command, flag or page
// that replaces each. TestRetired checks that the verbs and flags named there exist.
func Retired() map[string]string {
	return map[string]string{
		"vm-constructor":            "homestak-gitops test -M n1-push --keep",
		"vm-destructor":             "homestak-gitops destroy -M n1-push",
		"vm-roundtrip":              "homestak-gitops test -M n1-push",
		"nested-pve-constructor":    "homestak-gitops test -M n2-push --keep",
		"nested-pve-destructor":     "homestak-gitops destroy -M n2-push",
		"nested-pve-roundtrip":      "homestak-gitops test -M n2-push",
		"recursive-pve-constructor": "homestak-gitops test -M MANIFEST --keep",
		"recursive-pve-destructor":  "homestak-gitops destroy -M MANIFEST",
		"recursive-pve-roundtrip":   "homestak-gitops test -M MANIFEST",
		"push-vm-roundtrip":         "homestak-gitops test -M n1-push",
		"pull-vm-roundtrip":         "homestak-gitops test -M n1-pull",
		"vm-config":                 "homestak-gitops config apply",
		"pve-setup":                 "homestak-gitops setup",
		"pve-install":               "homestak-gitops setup",
		"user-setup":                "a user block in a spec",
		"user":                      "a user block in a spec",
		"manifest":                  "homestak-gitops apply -M MANIFEST, and destroy, test and validate",
		"scenario":                  "homestak-gitops test -M MANIFEST",
		"create":                    "homestak-gitops apply -M MANIFEST",
		"server":                    "homestak-gitops serve",
		"spec":                      "homestak-gitops config fetch",
		"site-init":                 "homestak-gitops init",
		"install":                   "homestak-gitops setup",
		"update":                    "docs/howto/upgrade.md",
		"preflight":                 "homestak-gitops doctor",
		"images":                    "an image block in the site",
		"secrets":                   "docs/howto/secrets-in-git.md",

		"--json-output":     "--json",
		"--dry-run":         "homestak-gitops plan",
		"--preflight":       "homestak-gitops doctor",
		"--keep-on-failure": "cleanup_on_failure = false in settings of the manifest, or test --keep",
		"--on-error":        "on_error in the manifest",
		"--manifest-file":   "-M MANIFEST; homestak-gitops convert reads YAML",
		"--manifest-json":   "-M MANIFEST; homestak-gitops convert reads YAML",
		"--packer-release":  "url of the image block",
		"--vm-id":           "vmid of the node",
		"--list-scenarios":  "homestak-gitops --help",
		"--repo-token":      "homestak-gitops token mint",
		"--foreground":      "homestak-gitops serve, which stays in the foreground",
	}
}

// replacement is a line that says what replaces a word of the predecessor; "" for other words.
func replacement(word string) string {
	if now := Retired()[word]; now != "" {
		return "the predecessor's " + word + " is now: " + now
	}
	return ""
}

// ExplainFlag adds to the error of a wrong flag what replaces it, and where the flags are listed.
func ExplainFlag(c *cobra.Command, err error) error {
	word, _ := strings.CutPrefix(err.Error(), "unknown flag: ")
	if hint := replacement(word); hint != "" {
		err = fmt.Errorf("%w\n%s", err, hint)
	}
	return fmt.Errorf("%w\nsee: %s --help", err, c.CommandPath())
}
