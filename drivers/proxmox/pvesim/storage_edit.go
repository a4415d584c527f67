package pvesim

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// needed are the options without which an entry of storage.cfg makes no sense.
var needed = map[string][]string{
	"dir": {"path"}, "btrfs": {"path"}, "nfs": {"server", "export"}, "cifs": {"server", "share"}, "lvm": {"vgname"},
	"lvmthin": {"vgname", "thinpool"}, "zfspool": {"pool"}, "zfs": {"pool", "portal", "target", "iscsiprovider"}, "iscsi": {"portal", "target"},
}

// defaultContent is what a new storage may hold when nothing is said.
func defaultContent(kind string) []string {
	switch kind {
	case "iscsi", "cifs", "nfs":
		return []string{"images"}
	case "cephfs":
		return []string{"backup"}
	default:
		return []string{"images", "rootdir"}
	}
}

// apiCreateStorage is POST /storage. Nothing is mounted: the new storage is there,
// and empty.
func apiCreateStorage(w *world, c *call) (any, error) {
	name, kind := c.in["storage"], c.in["type"]
	if _, ok := storageTypes[kind]; !ok {
		return nil, c.unimplemented("a storage of type " + kind)
	}
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	if err := c.foreignOption(kind); err != nil {
		return nil, err
	}
	for _, option := range needed[kind] {
		if c.in[option] == "" {
			return nil, fail("missing value for required option '%s'", option)
		}
	}
	if w.stores[name] != nil {
		return nil, fail("create storage failed: storage ID '%s' already defined", name)
	}
	s := newStore(Storage{Name: name, Type: kind, Path: c.in["path"], Content: defaultContent(kind), Size: cmp.Or(w.cfg.StorageSize, 1<<40), Shared: storageTypes[kind].shared})
	if s.Path == "" && s.files() {
		s.Path = "/mnt/pve/" + name
	}
	s.extra = config{}
	if err := c.setStorage(s); err != nil {
		return nil, err
	}
	w.stores[name] = s
	w.writeStorages()
	return map[string]any{"storage": name, "type": kind}, nil
}

// setStorage takes over the options of a call.
func (c *call) setStorage(s *store) error {
	if c.has("content") {
		list := c.list("content")
		for _, content := range list {
			if !s.mayHold(content) {
				return badParam("content", "invalid format - storage does not support content type '"+content+"'\n")
			}
		}
		s.Content = slices.DeleteFunc(list, func(content string) bool { return content == "none" })
	}
	if c.has("shared") {
		s.Shared = c.flag("shared")
	}
	c.section(s.extra, "storage", "type", "content", "shared", "password", "path")
	return nil
}

// dirOptions are those that an entry of type dir may have (options in
// PVE/Storage/DirPlugin.pm).
var dirOptions = strings.Fields("storage type path content-dirs nodes shared disable maxfiles prune-backups max-protected-backups content format mkdir " +
	"create-base-path create-subdirs is_mountpoint bwlimit preallocation snapshot-as-volume-chain digest delete")

// foreignOption fails for an option that the type of a storage does not know. Of the
// other types all are taken.
func (c *call) foreignOption(kind string) error {
	for _, option := range slices.Sorted(maps.Keys(c.in)) {
		if kind == "dir" && !slices.Contains(dirOptions, option) {
			return fail("unexpected property '%s'", option)
		}
	}
	return nil
}

// mayHold says whether a type of storage can have a kind of content at all.
func (s *store) mayHold(content string) bool {
	switch content {
	case "images", "rootdir", "none":
		return true
	default:
		return s.files()
	}
}

// apiUpdateStorage is PUT /storage/{storage}.
func apiUpdateStorage(w *world, c *call) (any, error) {
	s := w.stores[c.in["storage"]]
	if s == nil {
		return nil, fail("update storage failed: storage '%s' does not exist", c.in["storage"])
	}
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	if err := c.mayUpdateStorage(s); err != nil {
		return nil, fail("update storage failed: %s", taskText(err))
	}
	if s.extra == nil {
		s.extra = config{}
	}
	if err := c.setStorage(s); err != nil {
		return nil, err
	}
	w.writeStorages()
	return map[string]any{"storage": s.Name, "type": s.Type}, nil
}

// writeStorages writes storage.cfg, and with it what was only assumed before; a
// priority is no option that is written.
func (w *world) writeStorages() {
	for _, s := range w.stores {
		if s.assumed {
			s.assumed = false
			delete(s.extra, "priority")
		}
	}
}

// mayUpdateStorage checks a change of an entry, what it takes away above all.
func (c *call) mayUpdateStorage(s *store) error {
	if err := c.modified(c.w.storageDigest()); err != nil {
		return err
	}
	if err := c.foreignOption(s.Type); err != nil {
		return err
	}
	for _, option := range c.list("delete") {
		_, known := method("POST /storage").Param(option)
		switch {
		case !known, s.Type == "dir" && !slices.Contains(dirOptions, option), slices.Contains([]string{"storage", "type"}, option):
			return fail("no such option '%s'", option)
		case slices.Contains(needed[s.Type], option):
			return fail("unable to delete required option '%s'", option)
		case c.has(option):
			return fail("cannot set and delete property '%s' at the same time!", option)
		case option == "content":
			s.Content = defaultContent(s.Type)
		case option == "shared":
			s.Shared = storageTypes[s.Type].shared
		}
	}
	return nil
}

// apiDeleteStorage is DELETE /storage/{storage}: the entry goes, what lies there
// does not matter.
func apiDeleteStorage(w *world, c *call) (any, error) {
	name := c.in["storage"]
	if w.stores[name] == nil {
		return nil, fail("delete storage failed: storage '%s' does not exist", name)
	}
	if err := w.needQuorum(); err != nil {
		return nil, err
	}
	gone := w.stores[name]
	delete(w.stores, name)
	w.writeStorages()
	if name == "local" { // What lies in its folder is there again.
		w.assumeLocal().volumes = gone.volumes
	}
	delete(w.access.acl, "/storage/"+name)
	for _, p := range w.pools {
		delete(p.storages, name)
	}
	w.access.changed()
	return nil, nil
}

// text is the entry of storage.cfg, for the digest.
func (s *store) text() string {
	var b strings.Builder
	b.WriteString(s.Type + ": " + s.Name + "\n\tcontent " + strings.Join(s.Content, ",") + "\n\tpath " + s.Path + "\n")
	writeSection(&b, s.extra, true)
	return b.String()
}
