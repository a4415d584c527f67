package pvesim

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// status is what a node says about a storage. It is no sample: PVE asks the
// storage at each call.
func (s *store) status(node string) map[string]any {
	entry := map[string]any{
		"active": 0, "enabled": 0, "shared": boolInt(s.Shared), "type": s.Type, "content": strings.Join(s.Content, ","), "total": 0, "used": 0, "avail": 0,
	}
	if used := s.used(node); s.on(node) {
		entry["active"], entry["enabled"], entry["total"], entry["used"], entry["avail"] = 1, 1, s.Size, used, s.Size-used
	}
	return entry
}

// sees says whether a caller may know of a storage.
func (c *call) sees(storage string) bool {
	return c.can("/storage/"+storage, "Datastore.Audit") || c.can("/storage/"+storage, "Datastore.AllocateSpace")
}

// apiNodeStorages is GET /nodes/{node}/storage.
func apiNodeStorages(w *world, c *call) (any, error) {
	node, target, only := c.in["node"], c.in["target"], c.in["storage"]
	asked := func(s *store) bool {
		return !c.has("content") || s.on(node) && s.holdsAny(c.list("content"))
	}
	if s := w.stores[only]; only != "" && (s == nil || !asked(s)) {
		return nil, badParam("storage", "No such storage.")
	}
	list := []map[string]any{}
	for _, name := range w.storeNames() {
		s := w.stores[name]
		switch elsewhere := target != "" && target != node && target != "localhost"; {
		case !c.sees(name), only != "" && only != name, !asked(s), c.flag("enabled") && s.disabled():
			continue
		case elsewhere && (!s.Shared || !s.serves(node) || !s.serves(target)):
			continue
		}
		entry := s.status(node)
		entry["storage"] = name
		if s.on(node) {
			entry["used_fraction"] = float64(s.used(node)) / float64(s.Size)
		}
		list = append(list, entry)
	}
	return list, nil
}

// holdsAny says whether a storage may have one of several kinds of content;
// none are all.
func (s *store) holdsAny(contents []string) bool {
	return len(contents) == 0 || slices.ContainsFunc(contents, s.holds)
}

// apiStorageIndex is GET /nodes/{node}/storage/{storage}.
func apiStorageIndex(w *world, _ *call) (any, error) {
	names := []string{"content", "download-url", "file-restore", "import-metadata", "prunebackups", "rrd", "rrddata", "status", "upload"}
	if w.v9() {
		names = append(names, "oci-registry-pull")
	}
	if w.v92() {
		names = append(names, "identity")
	}
	return subdirs("subdir", names...), nil
}

// apiStorageIdentity is GET …/storage/{storage}/identity, since pve-storage 9.1.3: backup
// servers alone have one, and none of those is simulated.
func apiStorageIdentity(w *world, c *call) (any, error) {
	if _, err := w.store(c.in["storage"]); err != nil {
		return nil, err
	}
	return nil, fail("get_identity not implemented for this plugin at /usr/share/perl5/PVE/Storage/Plugin.pm line 2681.")
}

// apiStorageStatus is GET …/storage/{storage}/status.
func apiStorageStatus(w *world, c *call) (any, error) {
	s := w.stores[c.in["storage"]]
	if s == nil {
		return nil, badParam("storage", "No such storage.")
	}
	return s.status(c.in["node"]), nil
}

// apiListContent is GET …/storage/{storage}/content. A disk is listed for who
// may change it, all else for who may read it; the filter by guest keeps what
// belongs to none, but for ISO images.
func apiListContent(w *world, c *call) (any, error) {
	s, err := w.store(c.in["storage"])
	if err != nil {
		return nil, err
	}
	list := []map[string]any{}
	for _, v := range s.list(c.in["node"]) {
		content := w.contentOf(v)
		if want := c.in["content"]; want != "" && want != content {
			continue
		}
		if c.has("vmid") && v.vmid != atoi(c.in["vmid"]) && (v.vmid != 0 || content != "import") {
			continue
		}
		if _, err := c.mayReadVolume(0, s.Name+":"+v.name, ""); err != nil {
			continue
		}
		list = append(list, v.listed(s, content))
	}
	return list, nil
}

// listed is a volume as a listing shows it.
func (v *volume) listed(s *store, content string) map[string]any {
	entry := map[string]any{"volid": s.Name + ":" + v.name, "content": content, "format": v.format, "ctime": v.ctime, "size": v.size}
	if v.content == "images" {
		entry["vmid"], entry["parent"] = v.vmid, nil
		if s.files() {
			entry["used"] = v.used
		}
		if v.parent != "" {
			entry["parent"] = v.parent
			if s.files() {
				own := strings.Split(v.parent, "/")
				entry["parent"] = "../" + strings.Join(own[max(len(own)-2, 0):], "/")
			}
		}
		return entry
	}
	entry["size"] = v.length
	if v.notes != "" {
		entry["notes"], _, _ = strings.Cut(v.notes, "\n") // get_subdir_files in PVE/Storage/Plugin.pm
	}
	if m := backupName.FindStringSubmatch(strings.TrimPrefix(v.name, "backup/")); v.content == "backup" && m != nil {
		entry["vmid"], entry["subtype"] = v.vmid, strings.Split(v.name, "-")[1]
		if v.protected {
			entry["protected"] = 1
		}
	}
	return entry
}

// callVolume reads the volume of a call, which may come without its storage
// (real_volume_id in PVE/API2/Storage/Content.pm).
func (c *call) callVolume() (s *store, name string, err error) {
	name = c.in["volume"]
	storage, rest, full := volumeID(name)
	if full {
		if storage != c.in["storage"] {
			return nil, "", badParam("volume", "storage ID mismatch ("+storage+" != "+c.in["storage"]+")\n")
		}
		name = rest
	}
	if s, err = c.w.store(c.in["storage"]); err != nil {
		return nil, "", err
	}
	_, err = s.parseName(name)
	return s, name, err
}

// apiGetVolume is GET …/content/{volume}.
func apiGetVolume(_ *world, c *call) (any, error) {
	s, name, err := c.callVolume()
	if err != nil {
		return nil, err
	}
	if _, err := c.mayReadVolume(0, s.Name+":"+name, ""); err != nil {
		return nil, err
	}
	v := s.find(c.in["node"], name)
	if v == nil {
		return nil, fail("volume_size_info on '%s:%s' failed - no format", s.Name, name)
	}
	format := v.format
	if v.content == "iso" || v.content == "vztmpl" || v.content == "backup" {
		format = "raw"
	}
	if v.size == 0 && format != "subvol" {
		return nil, fail("volume '%s:%s' has size zero", s.Name, name)
	}
	size := v.size
	if format == "raw" && s.files() {
		size = sectors(size)
	}
	entry := map[string]any{"path": s.path(name), "format": format, "size": size, "used": v.used}
	if v.content == "backup" { // Of a backup both are told, also when nobody set them (get_volume_attribute in PVE/Storage/DirPlugin.pm).
		entry["notes"], entry["protected"] = v.notes, boolInt(v.protected)
	}
	return entry, nil
}

// apiDeleteVolume is DELETE …/content/{volume}. Nobody asks whether a guest
// still needs it, and one that is not there can be deleted too.
func apiDeleteVolume(w *world, c *call) (any, error) {
	s, name, err := c.callVolume()
	if err != nil {
		return nil, err
	}
	parsed, err := s.parseName(name)
	if err != nil {
		return nil, err
	}
	if c.req.forked != nil {
		return c.await("")
	}
	volid := s.Name + ":" + name
	if parsed.content == "backup" && parsed.vmid != 0 {
		if err = c.need("/storage/"+s.Name, "Datastore.AllocateSpace"); err == nil {
			err = c.need(vmPath(parsed.vmid), "VM.Backup")
		}
	} else {
		err = c.need("/storage/"+s.Name, "Datastore.Allocate")
	}
	if err != nil {
		return nil, err
	}
	id := s.Name
	if parsed.vmid != 0 {
		id = itoa(parsed.vmid) + "@" + s.Name
	}
	node := c.in["node"]
	upid := w.fork(c, node, job{kind: "imgdel", id: id, begin: func(*task) error {
		if s.inUse(node, name) {
			return fail("base volume '%s' is still in use by linked clones", name)
		}
		return nil
	}, end: func(t *task) error {
		if v := s.find(node, name); v != nil && v.protected {
			return fail("cannot remove protected volume '%s' on '%s'", name, s.Name)
		} else if v == nil && s.files() {
			t.logf("disk image '%s' does not exist", s.path(name))
		}
		if err := w.free(node, volid); err != nil {
			return err
		}
		t.logf("Removed volume '%s'", volid)
		return nil
	}})
	if !c.has("delay") {
		return upid, nil
	}
	c.req.forked = w.tasks.byID[upid]
	return c.await("")
}

// apiAllocate is POST …/content: an empty disk for a guest.
func apiAllocate(w *world, c *call) (any, error) {
	s, err := w.store(c.in["storage"])
	if err != nil {
		return nil, err
	}
	name, vmid, format := c.in["filename"], c.vmid(), c.in["format"]
	ext := strings.TrimPrefix(path.Ext(name), ".")
	if ext != "raw" && ext != "qcow2" && ext != "vmdk" {
		ext = ""
	}
	if format == "" {
		format = ext
	} else if ext != "" && ext != format {
		return nil, badParam("format", "different storage formats ("+format+" != "+ext+")")
	}
	if format == "" {
		format = "raw"
	}
	size, ok := parseSize(c.in["size"])
	if !ok {
		return nil, badParam("size", "value does not match the regex pattern")
	}
	if !strings.ContainsAny(c.in["size"], "KMGT") {
		size <<= 10 // A bare number is in KiB.
	}
	if name == "" {
		name = path.Base(s.freeDisk(c.in["node"], vmid, format))
	}
	if name, err = s.newName(name, vmid, format, w.v9()); err != nil {
		return nil, err
	}
	if format == "subvol" && size != 0 && s.files() {
		return nil, fail("storage does not support subvol quotas")
	}
	if s.find(c.in["node"], name) != nil {
		return nil, s.taken(name)
	}
	if _, err := w.allocateAs(c.in["node"], s, name, vmid, format, size, func(string, ...any) {}); err != nil {
		return nil, err
	}
	return s.Name + ":" + name, nil
}

// newName checks the name of a disk that is to be made (alloc_image of the storage
// plugins): a file may name any guest, in the folder of the one it is made for.
func (s *store) newName(name string, vmid int, format string, strict bool) (string, error) {
	if !s.files() {
		if parsed, err := s.parseName(name); err != nil {
			return "", err
		} else if parsed.vmid != vmid {
			return "", fail("illegal name '%s' - should be 'vm-%d-*'", name, vmid)
		}
		return name, nil
	}
	names := anyFile
	if strict {
		names = newFile
	}
	m := names.FindStringSubmatch(name)
	switch {
	case m == nil:
		return "", fail("unable to parse volume filename '%s'", name)
	case m[1] != format:
		return "", fail("illegal name '%s' - wrong extension for format ('%s != '%s')", name, m[1], format)
	}
	return itoa(vmid) + "/" + name, nil
}

var newFile = regexp.MustCompile(`^(?:vm-|base-|subvol-)\d+-[^/\s]+\.(raw|qcow2|vmdk|subvol)$`)

// apiStorageConfigs is GET /storage.
func apiStorageConfigs(w *world, c *call) (any, error) {
	list := []map[string]any{}
	for _, name := range w.storeNames() {
		if s := w.stores[name]; c.sees(name) && (c.in["type"] == "" || c.in["type"] == s.Type) {
			list = append(list, w.storageConfig(s))
		}
	}
	return list, nil
}

// apiStorageConfig is GET /storage/{storage}.
func apiStorageConfig(w *world, c *call) (any, error) {
	s := w.stores[c.in["storage"]]
	if s == nil {
		return nil, fail("storage '%s' does not exist", c.in["storage"])
	}
	return w.storageConfig(s), nil
}

// storageConfig is an entry of storage.cfg.
func (w *world) storageConfig(s *store) map[string]any {
	entry := map[string]any{"storage": s.Name, "type": s.Type, "content": strings.Join(s.Content, ","), "digest": w.storageDigest()}
	switch s.Type {
	case "lvmthin":
		entry["vgname"], entry["thinpool"] = "pve", "data"
	case "lvm":
		entry["vgname"] = "pve"
	case "zfspool", "rbd":
		entry["pool"] = s.Name
	default:
		entry["path"] = s.Path
	}
	for key, value := range s.extra {
		entry[key] = value
		if v, ok := method("POST /storage").Param(key); ok && (v.Type == "boolean" || v.Type == "integer") {
			entry[key] = atoi(value)
		}
		if key == "priority" {
			entry[key] = atoi(value)
		}
	}
	if s.Shared {
		entry["shared"] = 1
	}
	return entry
}

func (w *world) storageDigest() string {
	var b strings.Builder
	for _, name := range w.storeNames() {
		if !w.stores[name].assumed {
			b.WriteString(w.stores[name].text())
		}
	}
	return sumOf(b.String())
}
