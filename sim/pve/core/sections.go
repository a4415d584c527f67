package core

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// SectionFile describes one of the files of sections that the API table knows nothing
// of, and the five calls on it (PVE/SectionConfig.pm): the parameters of those that
// write follow from the properties and from what each type of section may have.
type SectionFile struct {
	Name string // Below /etc/pve, without its ending: the key in world.sections.
	Path string // Of the API.
	Key  string // The parameter that names a section.
	ID   string // Its format.

	// kinds are the types of sections, each with its options: those with ? may be
	// missing, those with ! cannot be changed. only is the type where calls name none.
	Kinds map[string]string
	Only  string
	// typeKey is the parameter with the type, if not "type".
	TypeKey string
	Props   string // The options, see Props.
	Extra   string // Parameters of calls that write which no section keeps.
	Since   string

	Read, Write, Change *pveapi.Rule // change is for existing entries; nil is write.
	ReadsWritten        bool         // GET of one section has no pending and running, and ignores them.
	Open                bool         // Any user may read, and the handlers check further.
	// guard is a check of PVE's code on one section; nil lets pass what the
	// rules let pass. It also picks what a list shows.
	Guard func(c *Call, id string, conf map[string]any, write bool) error

	// domain is that of the lock since PVE 9, if the file has none of its own then; the
	// quorum is checked before it.
	Domain string
	After  func(w *World) // Called after a section was deleted.

	// twice, missing and gone tell of a section that is there already, is not there, or
	// is not there for a change (empty: as missing); failed begins each failure of a
	// call that writes ("%s" is what it does), lock is that of the file.
	Twice, Missing, Gone, Failed, Lock string
	// undeletable is the error of deleting a section that does not exist, if that
	// is something else again.
	Undeletable   string
	Flat          bool // Exceptions become text without a text before them.
	Early         bool // Options are checked before the file is locked.
	Whole         bool // A change has to bring what a new section needs.
	PostBelow     bool // A new one is made at its own path.
	Plain         bool // A single one is shown without its name.
	MissingIsGone bool // Deleting a missing one succeeds.
	Untyped       bool // No call names the type, though there is but one.
	Secret        []string
	Family        string // Common prefix of the names of files that are one for PVE.

	Verbs map[string]string // Verbs of error messages, if not create, update and delete.

	IDOf  func(w *World, c *Call) string // The id of a new section, if it is not what key has; at is that of one that is there.
	At    func(c *Call) string
	Check func(w *World, c *Call, id string, conf, old perl.Config) error
	Drop  func(w *World, c *Call, id string) error
	Show  func(w *World, c *Call, id string, entry map[string]any)
	View  func(w *World, f *SectionFile, c *Call) map[string]map[string]any
	Query string // Further parameters of readings.
}

// Options takes those of one type apart: whether each may be missing or is fixed.
func (f *SectionFile) Options(kind string) map[string]string {
	all := map[string]string{}
	for word := range strings.FieldsSeq(f.Kinds[kind]) {
		name := strings.TrimRight(word, "?!")
		all[name] = strings.TrimPrefix(word, name)
	}
	return all
}

// methods are the five calls, with the parameters of createSchema and updateSchema.
func (f *SectionFile) methods() []extraMethod {
	known := Props(f.Props)
	name := &pveapi.Value{Type: "string", Format: f.ID}
	create, update := Props(f.Extra), Props(f.Extra)
	for option, v := range known {
		required, changes := true, false
		for kind := range f.Kinds {
			flags, there := f.Options(kind)[option]
			required = required && there && !strings.Contains(flags, "?")
			changes = changes || there && !strings.Contains(flags, "!")
		}
		own := *v
		own.Optional = !required
		create[option] = &own
		if changes {
			own := *v
			own.Optional = !f.Whole || !required
			update[option] = &own
		}
	}
	create[f.Key], update[f.Key] = name, name
	kinds := &pveapi.Value{Type: "string", Enum: slices.Sorted(maps.Keys(f.Kinds))}
	if f.Only != "" {
		kinds.Optional = true
	}
	if !f.Untyped {
		create[f.TypeName()] = kinds
	}
	if f.TypeKey != "" {
		update[f.TypeKey] = kinds
	}
	update["digest"] = describe("string <=64")
	update["delete"] = describe("string pve-configid-list <=4096")
	reading, remove := Props(f.Query), Props(f.Extra)
	reading[f.Key], remove[f.Key] = name, name
	listing := Props(f.Query)
	if f.Only == "" && f.TypeKey == "" && f.Query != "" {
		listing["type"] = &pveapi.Value{Type: "string", Enum: kinds.Enum, Optional: true}
	}
	shown := maps.Clone(known)
	shown[f.TypeName()], shown["digest"], shown[f.Key] = describe("string"), describe("string"), describe("string")
	for name, v := range shown {
		if v.Type == "array" {
			shown[name] = &pveapi.Value{Type: "array"}
		}
	}
	below, at := f.Path+"/{"+f.Key+"}", f.Path
	if f.PostBelow {
		at = below
	}
	read, change := pveapi.Perm{Check: f.Read}, f.Change
	if f.Open {
		read = pveapi.Perm{User: "all"}
	}
	if change == nil {
		change = f.Write
	}
	permit := func(r *pveapi.Rule) pveapi.Perm {
		if r == nil {
			return pveapi.Perm{User: "all"}
		}
		return pveapi.Perm{Check: r}
	}
	one := read
	if f.Read != nil {
		one = pveapi.Perm{Check: f.Read}
	}
	none := &pveapi.Value{Type: "null"}
	return []extraMethod{
		extra(&pveapi.Method{Verb: "GET", Path: f.Path, Perm: read, Params: listing, Returns: listOf(shown), Since: f.Since}, f.APIList),
		extra(&pveapi.Method{Verb: "GET", Path: below, Perm: one, Params: reading, Returns: objectOf(shown), Since: f.Since}, f.APIRead),
		extra(&pveapi.Method{Verb: "POST", Path: at, Perm: permit(f.Write), Params: create, Returns: none, Protected: true, Since: f.Since}, f.APICreate),
		extra(&pveapi.Method{Verb: "PUT", Path: below, Perm: permit(change), Params: update, Returns: none, Protected: true, Since: f.Since}, f.APIUpdate),
		extra(&pveapi.Method{Verb: "DELETE", Path: below, Perm: permit(change), Params: remove, Returns: none, Protected: true, Since: f.Since}, f.APIDelete),
	}
}

// TypeName is the parameter that names the type of a section.
func (f *SectionFile) TypeName() string { return cmp.Or(f.TypeKey, "type") }

// section is the id of the section of a call.
func (f *SectionFile) section(c *Call) string {
	if f.At != nil {
		return f.At(c)
	}
	return c.In[f.Key]
}

// Typed shows a section with the types of its properties, but for what is secret.
func (f *SectionFile) Typed(conf perl.Config) map[string]any {
	entry, known := map[string]any{}, Props(f.Props)
	for option, value := range conf {
		if option == "type" {
			entry[f.TypeName()] = value
			continue
		}
		entry[option] = value
		switch v := known[option]; {
		case slices.Contains(f.Secret, option):
			delete(entry, option)
		case v == nil:
		case v.Type == "integer" || v.Type == "boolean":
			entry[option] = perl.Atoi(value)
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

// Sections is the sections of a file.
func (f *SectionFile) Sections(w *World) map[string]perl.Config {
	if w.Sections[f.Name] == nil {
		w.Sections[f.Name] = map[string]perl.Config{}
	}
	return w.Sections[f.Name]
}

// Digest is the digest of a file, of all its parts together.
func (f *SectionFile) Digest(w *World) string {
	if f.Family == "" {
		return perl.DigestOf(f.Sections(w))
	}
	all := map[string]perl.Config{}
	for name, sections := range w.Sections {
		for id, conf := range sections {
			if strings.HasPrefix(name, f.Family) {
				all[name+"/"+id] = conf
			}
		}
	}
	return perl.DigestOf(all)
}

// Entries are the sections as a reading shows them.
func (f *SectionFile) Entries(w *World, c *Call) map[string]map[string]any {
	all := map[string]map[string]any{}
	if f.View != nil {
		all = f.View(w, f, c)
	} else {
		for id, conf := range f.Sections(w) {
			all[id] = f.Typed(conf)
		}
	}
	for id, entry := range all {
		if f.Show != nil {
			f.Show(w, c, id, entry)
		}
	}
	return all
}

// APIList is GET of all sections.
func (f *SectionFile) APIList(w *World, c *Call) (any, error) {
	list, all := []map[string]any{}, f.Entries(w, c)
	for id, entry := range perl.Sorted(all) {
		if f.Guard != nil && f.Guard(c, id, entry, false) != nil || c.Has("type") && entry["type"] != c.In["type"] {
			continue
		}
		if entry["digest"] = f.Digest(w); entry[f.Key] == nil {
			entry[f.Key] = id
		}
		list = append(list, entry)
	}
	return list, nil
}

// APIRead is GET of one section.
func (f *SectionFile) APIRead(w *World, c *Call) (any, error) {
	id := f.section(c)
	if f.ReadsWritten {
		delete(c.In, "pending")
		delete(c.In, "running")
	}
	entry, ok := f.Entries(w, c)[id]
	if !ok {
		return nil, absent(f.Missing, id)
	}
	if f.Guard != nil {
		if err := f.Guard(c, id, entry, false); err != nil {
			return nil, err
		}
	}
	entry["digest"] = f.Digest(w)
	if !f.Plain && entry[f.Key] == nil {
		entry[f.Key] = id
	}
	return entry, nil
}

// absent is the failure of a section that is not there. A text that begins with 404
// has that status (the sections that PVE keeps in Rust).
func absent(text, id string) error {
	if rest, ok := strings.CutPrefix(text, "404 "); ok {
		return &perl.APIError{Status: http.StatusNotFound, Message: fmt.Sprintf(rest, id)}
	}
	return perl.Fail(text, id)
}
