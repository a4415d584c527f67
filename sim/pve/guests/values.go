package guests

import (
	"cmp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Tags of guests, and what datacenter.cfg says of them (PVE/GuestHelpers.pm).

// tagOption is a member of one of the two options of tags that have members.
func tagOption(w *core.World, option, member string) string {
	parts, _ := perl.Parted("PUT /cluster/options", option, w.Options[option]).(map[string]any)
	if parts[member] == nil {
		return ""
	}
	return perl.Text(parts[member])
}

// registeredTags are those that only who may modify the cluster sets.
func registeredTags(w *core.World) map[string]bool {
	tags := map[string]bool{}
	for _, tag := range perl.SplitList(w.Options["registered-tags"]) {
		tags[tag] = true
	}
	return tags
}

// freeTags says what a user may tag guests with: anything (free), what there is on
// guests that he sees (existing), a list, or nothing.
func freeTags(w *core.World) string {
	return cmp.Or(tagOption(w, "user-tag-access", "user-allow"), "free")
}

// AllowedTags are those that the caller may use, of those that are there
// (get_allowed_tags).
func AllowedTags(c *core.Call) map[string]bool {
	w, privileged := c.W, c.Can("/", "Sys.Modify")
	tags, registered, rule := map[string]bool{}, registeredTags(w), freeTags(w)
	if rule != "none" || privileged {
		for _, tag := range perl.SplitList(tagOption(w, "user-tag-access", "user-allow-list")) {
			tags[tag] = true
		}
	}
	if rule == "free" || rule == "existing" || privileged {
		for vmid, g := range w.Guests {
			if privileged || c.Can(core.VMPath(vmid), "VM.Audit") {
				for _, tag := range perl.SplitList(g.Conf["tags"]) {
					tags[tag] = true
				}
			}
		}
	}
	for tag := range registered {
		if tags[tag] = privileged; !privileged {
			delete(tags, tag)
		}
	}
	return tags
}

// MayTag checks the right to change the tags of a guest from one text to another (assert_tag_permissions). If
// several tags are refused, PVE names any of them. The pool that a create names does not count: the guest is not in
// it yet.
func MayTag(c *core.Call, vmid int, before, after string) error {
	if err := c.NeedVM(vmid, "", "VM.Config.Options"); err != nil || c.Can("/", "Sys.Modify") {
		return err
	}
	had, has := perl.SplitList(before), perl.SplitList(after)
	for _, tag := range slices.Concat(had, has) {
		if slices.Contains(had, tag) == slices.Contains(has, tag) {
			continue
		}
		if registeredTags(c.W)[tag] || freeTags(c.W) != "free" && !AllowedTags(c)[tag] {
			return perl.Forbidden("/, Sys.Modify for modifying tag '" + tag + "'")
		}
	}
	return nil
}

// UniqueTags sorts tags and drops doubles, as tag-style has it (get_unique_tags).
func UniqueTags(w *core.World, value string) string {
	exact := tagOption(w, "tag-style", "case-sensitive") == "1"
	if !exact {
		value = strings.ToLower(value)
	}
	tags := perl.SplitList(value)
	if tagOption(w, "tag-style", "ordering") != "config" {
		slices.Sort(tags)
	}
	var unique []string
	for _, tag := range tags {
		if !slices.Contains(unique, tag) {
			unique = append(unique, tag)
		}
	}
	return strings.Join(unique, ";")
}

// ceil divides and rounds up.
func ceil(n, by int64) int64 { return (n + by - 1) / by }
