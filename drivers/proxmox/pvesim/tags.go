package pvesim

import (
	"cmp"
	"slices"
	"strings"
)

// Tags of guests, and what datacenter.cfg says of them (PVE/GuestHelpers.pm).

// tagOption is a member of one of the two options of tags that have members.
func (w *world) tagOption(option, member string) string {
	parts, _ := parted("PUT /cluster/options", option, w.options[option]).(map[string]any)
	if parts[member] == nil {
		return ""
	}
	return text(parts[member])
}

// registeredTags are those that only who may modify the cluster sets.
func (w *world) registeredTags() map[string]bool {
	tags := map[string]bool{}
	for _, tag := range splitList(w.options["registered-tags"]) {
		tags[tag] = true
	}
	return tags
}

// freeTags says what a user may tag guests with: anything (free), what there is on
// guests that he sees (existing), a list, or nothing.
func (w *world) freeTags() string {
	return cmp.Or(w.tagOption("user-tag-access", "user-allow"), "free")
}

// allowedTags are those that the caller may use, of those that are there
// (get_allowed_tags).
func (c *call) allowedTags() map[string]bool {
	w, privileged := c.w, c.can("/", "Sys.Modify")
	tags, registered, rule := map[string]bool{}, w.registeredTags(), w.freeTags()
	if rule != "none" || privileged {
		for _, tag := range splitList(w.tagOption("user-tag-access", "user-allow-list")) {
			tags[tag] = true
		}
	}
	if rule == "free" || rule == "existing" || privileged {
		for vmid, g := range w.guests {
			if privileged || c.can(vmPath(vmid), "VM.Audit") {
				for _, tag := range splitList(g.conf["tags"]) {
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

// mayTag checks the right to change the tags of a guest from one text to another
// (assert_tag_permissions). Where several tags are refused PVE names any of them. The
// pool that a create names does not count: the guest is not in it yet.
func (c *call) mayTag(vmid int, before, after string) error {
	if err := c.needVM(vmid, "", "VM.Config.Options"); err != nil || c.can("/", "Sys.Modify") {
		return err
	}
	had, has := splitList(before), splitList(after)
	for _, tag := range slices.Concat(had, has) {
		if slices.Contains(had, tag) == slices.Contains(has, tag) {
			continue
		}
		if c.w.registeredTags()[tag] || c.w.freeTags() != "free" && !c.allowedTags()[tag] {
			return forbidden("/, Sys.Modify for modifying tag '" + tag + "'")
		}
	}
	return nil
}

// uniqueTags sorts tags and drops doubles, as tag-style has it (get_unique_tags).
func (w *world) uniqueTags(value string) string {
	exact := w.tagOption("tag-style", "case-sensitive") == "1"
	if !exact {
		value = strings.ToLower(value)
	}
	tags := splitList(value)
	if w.tagOption("tag-style", "ordering") != "config" {
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
