package host

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// needed are the options without which an entry of storage.cfg makes no sense.
var needed = map[string][]string{
	"dir": {"path"}, "btrfs": {"path"}, "nfs": {"server", "export"}, "cifs": {"server", "share"}, "lvm": {"vgname"},
	"lvmthin": {"vgname", "thinpool"}, "zfspool": {"pool"}, "zfs": {"pool", "portal", "target", "iscsiprovider"}, "iscsi": {"portal", "target"},
	"pbs": {"server", "datastore"},
}

// defaultContent returns the content of a new storage unless the call sets it.
func defaultContent(kind string) []string {
	switch kind {
	case "iscsi", "cifs", "nfs":
		return []string{"images"}
	case "cephfs", "pbs":
		return []string{"backup"}
	default:
		return []string{"images", "rootdir"}
	}
}

// apiCreateStorage is POST /storage. Nothing is mounted: the new storage is there,
// and empty.
func apiCreateStorage(w *core.World, c *core.Call) (any, error) {
	name, kind := c.In["storage"], c.In["type"]
	if _, ok := core.StorageTypes[kind]; !ok {
		return nil, c.Unimplemented("a storage of type " + kind)
	}
	if err := cmp.Or(w.NeedQuorum(), unknownOption(c, kind)); err != nil {
		return nil, err
	}
	for _, option := range needed[kind] {
		if c.In[option] == "" {
			return nil, perl.Fail("missing value for required option '%s'", option)
		}
	}
	if w.Stores[name] != nil {
		return nil, perl.Fail("create storage failed: storage ID '%s' already defined", name)
	}
	s := core.NewStore(core.Storage{Name: name, Type: kind, Path: c.In["path"], Content: defaultContent(kind), Size: cmp.Or(w.Cfg.StorageSize, 1<<40), Shared: core.StorageTypes[kind].Shared})
	if s.Path == "" && s.Files() {
		s.Path = "/mnt/pve/" + name
	}
	s.Extra = perl.Config{}
	if err := setStorage(c, s); err != nil {
		return nil, err
	}
	w.Stores[name] = s
	writeStorages(w)
	return map[string]any{"storage": name, "type": kind}, nil
}

// setStorage takes over the options of a call.
func setStorage(c *core.Call, s *core.Store) error {
	if c.Has("content") {
		list := c.List("content")
		for _, content := range list {
			if !mayHold(s, content) {
				return perl.BadParam("content", "invalid format - storage does not support content type '"+content+"'\n")
			}
		}
		s.Content = slices.DeleteFunc(list, func(content string) bool { return content == "none" })
	}
	if c.Has("shared") {
		s.Shared = c.Flag("shared")
	}
	c.Section(s.Extra, "storage", "type", "content", "shared", "password", "path")
	return nil
}

// dirOptions are those that an entry of type dir may have (options in
// PVE/Storage/DirPlugin.pm).
var dirOptions = strings.Fields("storage type path content-dirs nodes shared disable maxfiles prune-backups max-protected-backups content format mkdir " +
	"create-base-path create-subdirs is_mountpoint bwlimit preallocation snapshot-as-volume-chain digest delete")

// unknownOption fails for an option that the type of a storage does not know. Of the
// other types all are taken.
func unknownOption(c *core.Call, kind string) error {
	for _, option := range slices.Sorted(maps.Keys(c.In)) {
		if kind == "dir" && !slices.Contains(dirOptions, option) {
			return perl.Fail("unexpected property '%s'", option)
		}
	}
	return nil
}

// mayHold says whether a type of storage can have a kind of content at all.
func mayHold(s *core.Store, content string) bool {
	switch content {
	case "none":
		return true
	case "images", "rootdir":
		return s.Type != "pbs"
	case "backup":
		return s.Files() || s.Type == "pbs"
	default:
		return s.Files()
	}
}

// apiUpdateStorage is PUT /storage/{storage}.
func apiUpdateStorage(w *core.World, c *core.Call) (any, error) {
	s := w.Stores[c.In["storage"]]
	if s == nil {
		return nil, perl.Fail("update storage failed: storage '%s' does not exist", c.In["storage"])
	}
	if err := w.NeedQuorum(); err != nil {
		return nil, err
	}
	if err := mayUpdateStorage(c, s); err != nil {
		return nil, perl.Fail("update storage failed: %s", core.TaskText(err))
	}
	if s.Extra == nil {
		s.Extra = perl.Config{}
	}
	if err := setStorage(c, s); err != nil {
		return nil, err
	}
	writeStorages(w)
	return map[string]any{"storage": s.Name, "type": s.Type}, nil
}

// writeStorages writes storage.cfg, including formerly assumed storages; a priority is not written.
func writeStorages(w *core.World) {
	for _, s := range w.Stores {
		if s.Assumed {
			s.Assumed = false
			delete(s.Extra, "priority")
		}
	}
}

// mayUpdateStorage checks a change of an entry, what it takes away above all.
func mayUpdateStorage(c *core.Call, s *core.Store) error {
	if err := cmp.Or(c.Modified(storageDigest(c.W)), unknownOption(c, s.Type)); err != nil {
		return err
	}
	for _, option := range c.List("delete") {
		_, known := perl.Method("POST /storage").Param(option)
		switch {
		case !known, s.Type == "dir" && !slices.Contains(dirOptions, option), slices.Contains([]string{"storage", "type"}, option):
			return perl.Fail("no such option '%s'", option)
		case slices.Contains(needed[s.Type], option):
			return perl.Fail("unable to delete required option '%s'", option)
		case c.Has(option):
			return perl.Fail("cannot set and delete property '%s' at the same time!", option)
		case option == "content":
			s.Content = defaultContent(s.Type)
		case option == "shared":
			s.Shared = core.StorageTypes[s.Type].Shared
		}
	}
	return nil
}

// apiDeleteStorage is DELETE /storage/{storage}: the entry goes, its volumes
// does not matter.
func apiDeleteStorage(w *core.World, c *core.Call) (any, error) {
	name := c.In["storage"]
	if w.Stores[name] == nil {
		return nil, perl.Fail("delete storage failed: storage '%s' does not exist", name)
	}
	if err := w.NeedQuorum(); err != nil {
		return nil, err
	}
	gone := w.Stores[name]
	delete(w.Stores, name)
	writeStorages(w)
	if name == "local" { // The content of its folder is visible again.
		w.AssumeLocal().Volumes = gone.Volumes
	}
	delete(w.Access.ACL, "/storage/"+name)
	for _, p := range w.Access.Pools {
		delete(p.Storages, name)
	}
	w.Access.Changed()
	return nil, nil
}

// text is the entry of storage.cfg, for the digest.
func text(s *core.Store) string {
	var b strings.Builder
	b.WriteString(s.Type + ": " + s.Name + "\n\tcontent " + strings.Join(s.Content, ",") + "\n\tpath " + s.Path + "\n")
	s.Extra.Write(&b, true)
	return b.String()
}
