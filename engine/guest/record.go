package guest

// The file owned.json on a machine records what a spec put there. It decides what is withdrawn when the spec
// drops an item, and to which state.

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sort"
)

// RecordFolder is the machine's folder for the record and what belongs to it. It is root's alone: what root restores, and the
// scripts that do that, must not be in the data folder of an agent that runs on the same machine.
const RecordFolder = "/var/lib/homestak-gitops-spec"

// earlierFolder had it all in earlier versions.
const earlierFolder = "/var/lib/homestak-gitops"

// MoveRecord moves the record of an earlier version to its folder. Files that are not root's stay behind. The earlier folder may
// be an agent's, which can swap its files at any time: so the owner of the copy counts, which the agent cannot reach.
const MoveRecord = `_old=` + earlierFolder + ` _new=` + RecordFolder + `
if [ ! -e "$_new" ] && [ ! -L "$_old/owned.json" ] && [ "$(stat -c %u "$_old/owned.json" 2>/dev/null)" = 0 ]; then
  rm -rf "$_new.new" && mkdir -m 0700 "$_new.new" && cp -a "$_old/owned.json" "$_new.new/owned.json" && _copied=1 || _copied=
  if [ ! -L "$_old/found" ] && [ "$(stat -c %u "$_old/found" 2>/dev/null)" = 0 ]; then cp -a "$_old/found" "$_new.new/found" || _copied=; fi
  for _f in "$_new.new/owned.json" "$_new.new/found"; do
    if [ -L "$_f" ] || [ -e "$_f" ] && [ -n "$(find "$_f" ! -user 0)" ]; then rm -rf "$_f"; fi
  done
  if [ -n "$_copied" ] && [ -f "$_new.new/owned.json" ]; then
    chmod 0755 "$_new.new" && mv -T "$_new.new" "$_new" && rm -rf "$_old/owned.json" "$_old/found"
  else
    rm -rf "$_new.new"
  fi
fi
`

// RecordFile is the record.
const RecordFile = RecordFolder + "/owned.json"

// version is the version of the file. A program refuses a newer one.
const version = 1

// Record is everything that we put on one machine. The zero value is that of a machine
// that nothing was put on.
type Record struct {
	Version int           `json:"version"`
	Entries []RecordEntry `json:"entries"` // sorted by aspect and item, each once
}

// RecordKey names an entry.
type RecordKey struct{ Aspect, Item string }

// RecordEntry is one thing. It is written before the thing is made.
type RecordEntry struct {
	Aspect string `json:"aspect"`
	Item   string `json:"item"` // a package, a user, a path, …
	// Identity says how the thing is recognised as the one that we put there: "name" for a
	// file whose name only we use, "key", "package", "uid 1001".
	Identity string `json:"identity"`
	// Found is the state before us; nil: the thing did not exist.
	Found map[string]string `json:"found,omitempty"`
	// Put is what of it we put there, if the item does not say so.
	Put map[string]string `json:"put,omitempty"`
}

// Key is the name of the entry.
func (e RecordEntry) Key() RecordKey { return RecordKey{e.Aspect, e.Item} }

func (e RecordEntry) same(o RecordEntry) bool {
	return e.Key() == o.Key() && e.Identity == o.Identity && (e.Found == nil) == (o.Found == nil) &&
		maps.Equal(e.Found, o.Found) && maps.Equal(e.Put, o.Put)
}

// ReadRecord takes a record from its file; an empty text is the zero record.
func ReadRecord(text string) (*Record, error) {
	r := &Record{}
	if text == "" {
		return r, nil
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	if err := d.Decode(r); err != nil {
		return nil, fmt.Errorf("%s is damaged, so it is unknown what may be removed: restore it from a backup, or delete it; everything on this machine then counts as unmanaged: %w", RecordFile, err)
	}
	if r.Version != version {
		return nil, fmt.Errorf("%s has version %d, this program reads %d: use a newer program", RecordFile, r.Version, version)
	}
	r.sort()
	return r, nil
}

// Text is the content of the file; empty for the zero record, which has no file.
func (r *Record) Text() string {
	if len(r.Entries) == 0 && r.Version == 0 {
		return ""
	}
	w := *r
	w.Version = version
	if w.Entries == nil {
		w.Entries = []RecordEntry{}
	}
	b, err := json.MarshalIndent(w, "", "  ")
	if err != nil {
		panic(err) // strings and maps of strings always encode
	}
	return string(b) + "\n"
}

// ContentSum is the SHA-256 of a text in hex, "" for an empty one: what a script compares.
func ContentSum(text string) string {
	if text == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// Get finds an entry; nil if there is none.
func (r *Record) Get(aspect, item string) *RecordEntry {
	i := slices.IndexFunc(r.Entries, func(e RecordEntry) bool { return e.Aspect == aspect && e.Item == item })
	if i < 0 {
		return nil
	}
	return &r.Entries[i]
}

// Items lists what of an aspect is recorded.
func (r *Record) Items(aspect string) []string {
	var out []string
	for _, e := range r.Entries {
		if e.Aspect == aspect {
			out = append(out, e.Item)
		}
	}
	return out
}

// With returns a record that also has these entries. Existing entries stay: only the first entry of a thing has the
// state of the machine before us.
func (r *Record) With(entries []RecordEntry) *Record {
	out := &Record{Version: r.Version, Entries: slices.Clone(r.Entries)}
	for _, e := range entries {
		old := out.Get(e.Aspect, e.Item)
		switch {
		case old == nil:
			out.Entries = append(out.Entries, e)
			out.Version = version
		case !old.same(e):
			e.Found = old.Found
			*old = e
		}
	}
	out.sort()
	return out
}

// Without returns a record that lacks these entries.
func (r *Record) Without(keys []RecordKey) *Record {
	out := &Record{Version: r.Version}
	for _, e := range r.Entries {
		if !slices.Contains(keys, e.Key()) {
			out.Entries = append(out.Entries, e)
		}
	}
	return out
}

func (r *Record) sort() {
	sort.Slice(r.Entries, func(i, j int) bool {
		return cmp.Or(cmp.Compare(r.Entries[i].Aspect, r.Entries[j].Aspect), cmp.Compare(r.Entries[i].Item, r.Entries[j].Item)) < 0
	})
}
