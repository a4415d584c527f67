package replay_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// comparison holds an answer against the recorded one, by the rules of the
// recordings' README.
type comparison struct {
	story *story
	ids   *identifiers
	found []string // What differs.
	notes []string // What is beyond the recorded answer, which is no failure.
}

func (c *comparison) differ(path, format string, args ...any) {
	c.found = append(c.found, path+": "+fmt.Sprintf(format, args...))
}

// Values that depend on the machine and on time. Those of the second kind do not
// change while a guest is stopped. total and used_fraction are not in the
// README's list, but are the recording machine's disk like avail.
var (
	alwaysFree = []string{
		"pid", "pstart", "starttime", "endtime", "ctime", "snaptime", "used", "avail", "total", "used_fraction",
		"running-qemu", "running-machine", "version", "repoid",
		"cgroup-mode", // The recorded hosts had the first, real ones have the second.
	}
	freeWhileRunning = []string{
		"cpu", "mem", "memhost", "disk", "netin", "netout", "diskread", "diskwrite", "uptime", "swap", "freemem",
	}
	opaque = []string{"blockstat", "nics", "ballooninfo", "proxmox-support"}
)

// value compares two decoded JSON values. In is the object around them.
func (c *comparison) value(path string, want, got any) {
	if kind(want) != kind(got) {
		c.differ(path, "want %s, got %s", show(want), show(got))
		return
	}
	switch want := want.(type) {
	case map[string]any:
		c.object(path, want, got.(map[string]any))
	case []any:
		c.list(path, want, got.([]any))
	case string:
		c.text(path, want, got.(string))
	default:
		if fmt.Sprint(want) != fmt.Sprint(got) {
			c.differ(path, "want %s, got %s", show(want), show(got))
		}
	}
}

func (c *comparison) object(path string, want, got map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		member, ok := got[name]
		at := path + "." + name
		switch {
		case !ok:
			c.differ(at, "missing, want %s", show(want[name]))
		case slices.Contains(opaque, name), slices.Contains(alwaysFree, name),
			slices.Contains(freeWhileRunning, name) && want["status"] != "stopped":
			if kind(want[name]) != kind(member) {
				c.differ(at, "want %s, got %s", show(want[name]), show(member))
			}
		case name == "content" && isList(want[name]) && isList(member):
			// A storage's content comes in the order of a Perl hash.
			c.text(at, sortedList(want[name]), sortedList(member))
		default:
			c.value(at, want[name], member)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			c.notes = append(c.notes, fmt.Sprintf("%s.%s: beyond the recording: %s", path, name, show(got[name])))
		}
	}
}

func isList(value any) bool {
	text, ok := value.(string)
	return ok && strings.Contains(text, ",")
}

func sortedList(value any) string {
	parts := strings.Split(value.(string), ",")
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// list compares lists: objects by what identifies them, other elements in order.
func (c *comparison) list(path string, want, got []any) {
	got = slices.DeleteFunc(slices.Clone(got), c.story.leftOut)
	shifted := false // Others took the places of tasks that are not known here.
	if c.story.partial {
		all := len(want)
		want, got = c.startedHere(want, got)
		shifted = len(want) < all
	}
	if len(want) > 0 && kind(want[0]) != "object" || len(want) == 0 && len(got) > 0 && kind(got[0]) != "object" {
		if len(want) != len(got) {
			c.differ(path, "want %s, got %s", show(want), show(got))
			return
		}
		for i := range want {
			c.value(fmt.Sprintf("%s[%d]", path, i), want[i], got[i])
		}
		return
	}
	by := identifying(want)
	for i := range want {
		label, _ := labelBy(want[i], by)
		at := fmt.Sprintf("%s[%s]", path, label)
		j := c.partner(want[i], got, by)
		if j < 0 {
			c.differ(at, "missing")
			continue
		}
		c.value(at, want[i], got[j])
		got = slices.Delete(got, j, j+1)
	}
	for _, extra := range got {
		if object, ok := extra.(map[string]any); ok && object["subdir"] != nil && len(object) == 1 {
			c.notes = append(c.notes, fmt.Sprintf("%s: beyond the recording: %s", path, show(extra)))
			continue
		}
		if _, isTask := labelBy(extra, []string{"upid"}); isTask && shifted {
			continue
		}
		c.differ(path, "too much: %s", show(extra))
	}
}

// startedHere leaves those tasks out of two lists that no recorded call started, or
// only one here.
func (c *comparison) startedHere(want, got []any) (wants, gots []any) {
	unmet := func(ids map[string]string) func(any) bool {
		return func(element any) bool {
			label, ok := labelBy(element, []string{"upid"})
			return ok && slices.ContainsFunc(identify(label), func(id identified) bool { return ids[id.value] == "" })
		}
	}
	return slices.DeleteFunc(slices.Clone(want), unmet(c.ids.actual)), slices.DeleteFunc(got, unmet(c.ids.recorded))
}

// identifying are the members by which the elements of a list are told apart.
func identifying(elements []any) []string {
	for _, by := range [][]string{
		{"vmid"},
		{"volid"},
		{"upid"},
		{"key"},
		{"name"},
		{"userid"},
		{"roleid"},
		{"poolid"},
		{"tokenid"},
		{"storage"},
		{"subdir"},
		{"iface"},
		{"realm"},
		{"filename"},
		{"time"},
		{"id"},
		{"n"},
		{"node"},
		{"path", "ugid", "roleid"},
		{"id", "type"},
	} {
		seen := map[string]bool{}
		for _, element := range elements {
			if label, ok := labelBy(element, by); ok {
				seen[label] = true
			}
		}
		if len(seen) == len(elements) {
			return by
		}
	}
	return nil
}

func labelBy(element any, by []string) (string, bool) {
	object, ok := element.(map[string]any)
	if !ok {
		return "", false
	}
	var parts []string
	for _, name := range by {
		value, ok := object[name]
		if !ok {
			return "", false
		}
		parts = append(parts, fmt.Sprint(value))
	}
	return strings.Join(parts, " "), true
}

// partner finds the element that a recorded one has to be compared with: the one
// with the same label, else (for labels that are invented) the one that differs
// least.
func (c *comparison) partner(want any, got []any, by []string) int {
	label, _ := labelBy(want, by)
	ids := identify(label)
	met := !slices.ContainsFunc(ids, func(id identified) bool { return c.ids.actual[id.value] == "" })
	for j := range got {
		if other, ok := labelBy(got[j], by); ok && met && c.ids.same(label, other) {
			return j
		}
	}
	if by != nil && met {
		return -1
	}
	best, least := -1, 0
	for j := range got {
		trial := &comparison{story: c.story, ids: c.ids.clone()}
		trial.value("", want, got[j])
		if best < 0 || len(trial.found) < least {
			best, least = j, len(trial.found)
		}
	}
	return best
}

// leftOut says whether an element of a listing was there before the story, or
// came from elsewhere: the recordings leave such elements out.
func (s *story) leftOut(element any) bool {
	if s.partial {
		return false
	}
	object, ok := element.(map[string]any)
	if !ok {
		return false
	}
	name := func(key string) string {
		text, _ := object[key].(string)
		return text
	}
	if number, ok := object["vmid"].(json.Number); ok {
		id, err := number.Int64()
		return err != nil || id < int64(s.Start.GuestRange[0]) || id > int64(s.Start.GuestRange[1])
	}
	if id := name("volid"); id != "" {
		_, file, _ := strings.Cut(id[strings.Index(id, ":")+1:], "/")
		return !strings.HasPrefix(file, "st-") && !strings.HasPrefix(file, "st_")
	}
	switch {
	case name("upid") != "":
		return false
	case name("type") == "storage":
		// The recorded /cluster/resources have neither storages nor zones, not even
		// for a token that sees the storage elsewhere.
		return true
	case name("schedule") != "":
		return false // A job, which names a storage of its own.
	case name("storage") != "":
		return name("storage") != s.Start.Storage
	case name("ugid") != "":
		return !strings.HasPrefix(name("ugid"), "st-")
	case name("userid") != "":
		return !strings.HasPrefix(name("userid"), "st-")
	case name("poolid") != "":
		return !strings.HasPrefix(name("poolid"), "st-")
	case name("roleid") != "":
		return !strings.HasPrefix(name("roleid"), "St")
	case name("type") == "pool":
		return !strings.HasPrefix(name("pool"), "st-")
	case name("type") == "sdn":
		return true
	default:
		return false
	}
}

// log compares the log of a task: the last line, and of the first one the first
// words. What a wait for a file lock left at the head is chance.
func (c *comparison) log(want, got []any) {
	want, got = withoutLock(want), withoutLock(got)
	line := func(lines []any, i int) string {
		object, _ := lines[i].(map[string]any)
		text, _ := object["t"].(string)
		return text
	}
	if len(want) == 0 || len(got) == 0 {
		if len(want) != len(got) {
			c.differ("log", "want %d lines, got %d", len(want), len(got))
		}
		return
	}
	c.text("log, last line", line(want, len(want)-1), line(got, len(got)-1))
	if len(want) > 1 {
		c.text("log, first line", firstWords(line(want, 0)), firstWords(line(got, 0)))
	}
}

func withoutLock(lines []any) []any {
	for len(lines) > 1 {
		object, ok := lines[0].(map[string]any)
		if !ok || object["t"] != "trying to acquire lock..." && object["t"] != " OK" {
			break
		}
		lines = lines[1:]
	}
	return lines
}

func firstWords(text string) string {
	words := strings.Fields(text)
	return strings.Join(words[:min(2, len(words))], " ")
}

// kind is the JSON type of a decoded value.
func kind(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case json.Number:
		return "number"
	case []any:
		return "array"
	default:
		return "object"
	}
}

func show(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	if len(text) > 200 {
		return string(text[:200]) + "…"
	}
	return string(text)
}
