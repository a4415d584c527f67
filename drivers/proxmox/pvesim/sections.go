package pvesim

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// sectionFile describes one of the files of sections that the API table knows nothing
// of, and the five calls on it (PVE/SectionConfig.pm): the parameters of those that
// write follow from the properties and from what each type of section may have.
type sectionFile struct {
	name string // Below /etc/pve, without its ending: the key in world.sections.
	path string // Of the API.
	key  string // The parameter that names a section.
	id   string // Its format.

	// kinds are the types of sections, each with its options: those with ? may be
	// missing, those with ! cannot be changed. only is the type where calls name none.
	kinds map[string]string
	only  string
	// typeKey is what calls name the type by, if not "type".
	typeKey string
	props   string // What the options are, see props in past.go.
	extra   string // Parameters of calls that write which no section keeps.
	since   string

	read, write, change *pveapi.Rule // change is for what is there already; nil is write.
	open                bool         // Whoever is logged in may read and the handlers look closer.
	// guard is what a code check of PVE asks about one section; nil lets pass what the
	// rules let pass. It also picks what a list shows.
	guard func(c *call, id string, conf map[string]any, write bool) error

	// domain is that of the lock since PVE 9, if the file has none of its own then; the
	// quorum is looked at before it.
	domain string
	after  func(w *world) // What happens after a section was deleted.

	// twice, missing and gone tell of a section that is there already, is not there, or
	// is not there for a change (empty: as missing); failed begins each failure of a
	// call that writes ("%s" is what it does), lock is that of the file.
	twice, missing, gone, failed, lock string
	// undeletable is what is said of one that is to be deleted and is not there, if that
	// is something else again.
	undeletable   string
	flat          bool // Exceptions become text though nothing is said before them.
	early         bool // Options are checked before the file is locked.
	whole         bool // A change has to bring what a new section needs.
	postBelow     bool // A new one is made at its own path.
	plain         bool // A single one is shown without its name.
	missingIsGone bool // What is not there can be deleted.
	untyped       bool // No call names the type, though there is but one.
	secret        []string
	family        string // What the names of all files begin with that are one for PVE.

	verbs map[string]string // What failed says of each doing, if not create, update and delete.

	idOf  func(w *world, c *call) string // The id of a new section, if it is not what key has; at is that of one that is there.
	at    func(c *call) string
	check func(w *world, c *call, id string, conf, old config) error
	drop  func(w *world, c *call, id string) error
	show  func(w *world, c *call, id string, entry map[string]any)
	view  func(w *world, f *sectionFile, c *call) map[string]map[string]any
	query string // Further parameters of readings.
}

// options takes those of one type apart: whether each may be missing or is fixed.
func (f *sectionFile) options(kind string) map[string]string {
	all := map[string]string{}
	for word := range strings.FieldsSeq(f.kinds[kind]) {
		name := strings.TrimRight(word, "?!")
		all[name] = strings.TrimPrefix(word, name)
	}
	return all
}

// methods are the five calls, with the parameters of createSchema and updateSchema.
func (f *sectionFile) methods() []pastMethod {
	known := props(f.props)
	name := &pveapi.Value{Type: "string", Format: f.id}
	create, update := props(f.extra), props(f.extra)
	for option, v := range known {
		required, changes := true, false
		for kind := range f.kinds {
			marks, there := f.options(kind)[option]
			required = required && there && !strings.Contains(marks, "?")
			changes = changes || there && !strings.Contains(marks, "!")
		}
		own := *v
		own.Optional = !required
		create[option] = &own
		if changes {
			own := *v
			own.Optional = !f.whole || !required
			update[option] = &own
		}
	}
	create[f.key], update[f.key] = name, name
	kinds := &pveapi.Value{Type: "string", Enum: slices.Sorted(maps.Keys(f.kinds))}
	if f.only != "" {
		kinds.Optional = true
	}
	if !f.untyped {
		create[f.typeName()] = kinds
	}
	if f.typeKey != "" {
		update[f.typeKey] = kinds
	}
	update["digest"] = describe("string <=64")
	update["delete"] = describe("string pve-configid-list <=4096")
	reading, remove := props(f.query), props(f.extra)
	reading[f.key], remove[f.key] = name, name
	listing := props(f.query)
	if f.only == "" && f.typeKey == "" && f.query != "" {
		listing["type"] = &pveapi.Value{Type: "string", Enum: kinds.Enum, Optional: true}
	}
	shown := maps.Clone(known)
	shown[f.typeName()], shown["digest"], shown[f.key] = describe("string"), describe("string"), describe("string")
	for name, v := range shown {
		if v.Type == "array" {
			shown[name] = &pveapi.Value{Type: "array"}
		}
	}
	below, at := f.path+"/{"+f.key+"}", f.path
	if f.postBelow {
		at = below
	}
	read, change := pveapi.Perm{Check: f.read}, f.change
	if f.open {
		read = pveapi.Perm{User: "all"}
	}
	if change == nil {
		change = f.write
	}
	permit := func(r *pveapi.Rule) pveapi.Perm {
		if r == nil {
			return pveapi.Perm{User: "all"}
		}
		return pveapi.Perm{Check: r}
	}
	one := read
	if f.read != nil {
		one = pveapi.Perm{Check: f.read}
	}
	none := &pveapi.Value{Type: "null"}
	return []pastMethod{
		past(&pveapi.Method{Verb: "GET", Path: f.path, Perm: read, Params: listing, Returns: listOf(shown), Since: f.since}, f.apiList),
		past(&pveapi.Method{Verb: "GET", Path: below, Perm: one, Params: reading, Returns: objectOf(shown), Since: f.since}, f.apiRead),
		past(&pveapi.Method{Verb: "POST", Path: at, Perm: permit(f.write), Params: create, Returns: none, Protected: true, Since: f.since}, f.apiCreate),
		past(&pveapi.Method{Verb: "PUT", Path: below, Perm: permit(change), Params: update, Returns: none, Protected: true, Since: f.since}, f.apiUpdate),
		past(&pveapi.Method{Verb: "DELETE", Path: below, Perm: permit(change), Params: remove, Returns: none, Protected: true, Since: f.since}, f.apiDelete),
	}
}

func (f *sectionFile) typeName() string { return cmp.Or(f.typeKey, "type") }

// section is the id of the section of a call.
func (f *sectionFile) section(c *call) string {
	if f.at != nil {
		return f.at(c)
	}
	return c.in[f.key]
}

// typed shows a section with the types of its properties, but for what is secret.
func (f *sectionFile) typed(conf config) map[string]any {
	entry, known := map[string]any{}, props(f.props)
	for option, value := range conf {
		if option == "type" {
			entry[f.typeName()] = value
			continue
		}
		entry[option] = value
		switch v := known[option]; {
		case slices.Contains(f.secret, option):
			delete(entry, option)
		case v == nil:
		case v.Type == "integer" || v.Type == "boolean":
			entry[option] = atoi(value)
		case v.Type == "number":
			if n, err := strconv.ParseFloat(value, 64); err == nil {
				entry[option] = n
			}
		case v.Type == "array":
			entry[option] = strings.Split(value, "\n")
		}
	}
	return entry
}

// sections are those of a file.
func (w *world) sectionsOf(f *sectionFile) map[string]config {
	if w.sections[f.name] == nil {
		w.sections[f.name] = map[string]config{}
	}
	return w.sections[f.name]
}

// sectionDigest is the digest of a file, of all its parts together.
func (w *world) sectionDigest(f *sectionFile) string {
	if f.family == "" {
		return digestOf(w.sectionsOf(f))
	}
	all := map[string]config{}
	for name, sections := range w.sections {
		for id, conf := range sections {
			if strings.HasPrefix(name, f.family) {
				all[name+"/"+id] = conf
			}
		}
	}
	return digestOf(all)
}

// entries are the sections as a reading shows them.
func (f *sectionFile) entries(w *world, c *call) map[string]map[string]any {
	all := map[string]map[string]any{}
	if f.view != nil {
		all = f.view(w, f, c)
	} else {
		for id, conf := range w.sectionsOf(f) {
			all[id] = f.typed(conf)
		}
	}
	for id, entry := range all {
		if f.show != nil {
			f.show(w, c, id, entry)
		}
	}
	return all
}

func (f *sectionFile) apiList(w *world, c *call) (any, error) {
	list, all := []map[string]any{}, f.entries(w, c)
	for _, id := range slices.Sorted(maps.Keys(all)) {
		entry := all[id]
		if f.guard != nil && f.guard(c, id, entry, false) != nil || c.has("type") && entry["type"] != c.in["type"] {
			continue
		}
		if entry["digest"] = w.sectionDigest(f); entry[f.key] == nil {
			entry[f.key] = id
		}
		list = append(list, entry)
	}
	return list, nil
}

func (f *sectionFile) apiRead(w *world, c *call) (any, error) {
	id := f.section(c)
	entry, ok := f.entries(w, c)[id]
	if !ok {
		return nil, absent(f.missing, id)
	}
	if f.guard != nil {
		if err := f.guard(c, id, entry, false); err != nil {
			return nil, err
		}
	}
	entry["digest"] = w.sectionDigest(f)
	if !f.plain && entry[f.key] == nil {
		entry[f.key] = id
	}
	return entry, nil
}

// absent is the failure of a section that is not there. A text that begins with 404
// has that status (the sections that PVE keeps in Rust).
func absent(text, id string) error {
	if rest, ok := strings.CutPrefix(text, "404 "); ok {
		return &apiError{status: http.StatusNotFound, message: fmt.Sprintf(rest, id)}
	}
	return fail(text, id)
}
