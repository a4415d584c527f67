package host

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/content"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// status is the state of a storage on a node. It is not a sample: PVE queries the storage at each call.
func status(s *core.Store, node string) map[string]any {
	entry := map[string]any{
		"active": 0, "enabled": 0, "shared": perl.BoolInt(s.Shared), "type": s.Type, "content": strings.Join(s.Content, ","), "total": 0, "used": 0, "avail": 0,
	}
	if used := s.Used(node); s.On(node) {
		entry["active"], entry["enabled"], entry["total"], entry["used"], entry["avail"] = 1, 1, s.Size, used, s.Size-used
	}
	return entry
}

// Sees says whether a caller may know of a storage.
func Sees(c *core.Call, storage string) bool {
	return c.Can("/storage/"+storage, "Datastore.Audit") || c.Can("/storage/"+storage, "Datastore.AllocateSpace")
}

// apiNodeStorages is GET /nodes/{node}/storage.
func apiNodeStorages(w *core.World, c *core.Call) (any, error) {
	node, target, only := c.In["node"], c.In["target"], c.In["storage"]
	asked := func(s *core.Store) bool {
		return !c.Has("content") || s.On(node) && holdsAny(s, c.List("content"))
	}
	if s := w.Stores[only]; only != "" && (s == nil || !asked(s)) {
		return nil, perl.BadParam("storage", "No such storage.")
	}
	list := []map[string]any{}
	for _, name := range w.StoreNames() {
		s := w.Stores[name]
		switch elsewhere := target != "" && target != node && target != "localhost"; {
		case !Sees(c, name), only != "" && only != name, !asked(s), c.Flag("enabled") && s.Disabled():
			continue
		case elsewhere && (!s.Shared || !s.Serves(node) || !s.Serves(target)):
			continue
		}
		entry := status(s, node)
		entry["storage"] = name
		if s.On(node) {
			entry["used_fraction"] = float64(s.Used(node)) / float64(s.Size)
		}
		list = append(list, entry)
	}
	return list, nil
}

// holdsAny says whether a storage may have one of several kinds of content;
// none are all.
func holdsAny(s *core.Store, contents []string) bool {
	return len(contents) == 0 || slices.ContainsFunc(contents, s.Holds)
}

// apiStorageStatus is GET …/storage/{storage}/status.
func apiStorageStatus(w *core.World, c *core.Call) (any, error) {
	s := w.Stores[c.In["storage"]]
	if s == nil {
		return nil, perl.BadParam("storage", "No such storage.")
	}
	return status(s, c.In["node"]), nil
}

// apiListContent is GET …/storage/{storage}/content. A disk is listed for who
// may change it, all else for who may read it; the filter by guest keeps what
// belongs to none, but for ISO images.
func apiListContent(w *core.World, c *core.Call, s *core.Store) (any, error) {
	list := []map[string]any{}
	for _, v := range s.List(c.In["node"]) {
		content := contentOf(w, v)
		if want := c.In["content"]; want != "" && want != content {
			continue
		}
		if c.Has("vmid") && v.Vmid != perl.Atoi(c.In["vmid"]) && (v.Vmid != 0 || content != "import") {
			continue
		}
		if _, err := guests.MayReadVolume(c, 0, s.Name+":"+v.Name, ""); err != nil {
			continue
		}
		list = append(list, listed(w, v, s, content))
	}
	return list, nil
}

// listed is a volume as a listing shows it.
func listed(w *core.World, v *core.Volume, s *core.Store, content string) map[string]any {
	entry := map[string]any{"volid": s.Name + ":" + v.Name, "content": content, "format": v.Format, "ctime": v.Ctime, "size": v.Size}
	if v.Content == "images" {
		if g := w.Guests[v.Vmid]; s.Files() && g != nil && g.Run != nil {
			entry["ctime"] = w.Now.Unix() // when its inode changed, which each write does
		} else if !s.Files() && s.Type != "lvm" && s.Type != "lvmthin" {
			delete(entry, "ctime") // list_images in PVE/Storage/ZFSPoolPlugin.pm and others
		}
		entry["vmid"], entry["parent"] = v.Vmid, nil
		if s.Files() {
			entry["used"] = v.Used
		}
		if v.Parent != "" {
			entry["parent"] = v.Parent
			if s.Files() {
				own := strings.Split(v.Parent, "/")
				entry["parent"] = "../" + strings.Join(own[max(len(own)-2, 0):], "/")
			}
		}
		return entry
	}
	entry["size"] = v.Length
	if v.Notes != "" {
		entry["notes"], _, _ = strings.Cut(v.Notes, "\n") // get_subdir_files in PVE/Storage/Plugin.pm
	}
	if kind := core.BackupKind(v.Name); v.Content == "backup" && kind != "" {
		entry["vmid"], entry["subtype"] = v.Vmid, kind
		if v.Protected {
			entry["protected"] = 1
		}
		if v.Verified != "" {
			entry["verification"] = map[string]any{"state": v.Verified, "upid": "UPID:vault:0000029A:0000029A:00000001:6927B0C0:verificationjob:" + s.Name + ":root@pam:"}
		}
		if v.Encrypted != "" {
			entry["encrypted"] = v.Encrypted
		}
	}
	return entry
}

// CallVolume reads the volume of a call, which may come without its storage
// (real_volume_id in PVE/API2/Storage/Content.pm).
func CallVolume(c *core.Call) (n core.Named, err error) {
	n.Volume = c.In["volume"]
	if storage, rest, full := core.VolumeID(n.Volume); full {
		if storage != c.In["storage"] {
			return n, perl.BadParam("volume", "storage ID mismatch ("+storage+" != "+c.In["storage"]+")\n")
		}
		n.Volume = rest
	}
	if n.Store, err = c.Store(); err == nil {
		n.Parsed, err = n.ParseName(n.Volume)
	}
	return n, err
}

// apiGetVolume is GET …/content/{volume}.
func apiGetVolume(_ *core.World, c *core.Call, n core.Named) (any, error) {
	s, name := n.Store, n.Volume
	if _, err := guests.MayReadVolume(c, 0, s.Name+":"+name, ""); err != nil {
		return nil, err
	}
	v := s.Find(c.In["node"], name)
	if v == nil {
		return nil, perl.Fail("volume_size_info on '%s:%s' failed - no format", s.Name, name)
	}
	format := v.Format
	if v.Content == "iso" || v.Content == "vztmpl" || v.Content == "backup" {
		format = "raw"
	}
	if v.Size == 0 && format != "subvol" {
		return nil, perl.Fail("volume '%s:%s' has size zero", s.Name, name)
	}
	size := v.Size
	if format == "raw" && s.Files() {
		size = content.Sectors(size)
	}
	entry := map[string]any{"path": s.FilePath(name), "format": format, "size": size, "used": v.Used}
	if v.Content == "backup" { // A backup returns both, even if they were never set (get_volume_attribute in PVE/Storage/DirPlugin.pm).
		entry["notes"], entry["protected"] = v.Notes, perl.BoolInt(v.Protected)
	}
	return entry, nil
}

// apiDeleteVolume is DELETE …/content/{volume}. It does not check whether a guest still needs it, and a missing one
// can be deleted too.
func apiDeleteVolume(w *core.World, c *core.Call, n core.Named) (any, error) {
	s, name, parsed := n.Store, n.Volume, n.Parsed
	if c.Req.Forked != nil {
		return c.Await("")
	}
	volid := s.Name + ":" + name
	err := c.Need("/storage/"+s.Name, "Datastore.Allocate")
	if parsed.Content == "backup" && parsed.Vmid != 0 {
		err = cmp.Or(c.Need("/storage/"+s.Name, "Datastore.AllocateSpace"), c.Need(core.VMPath(parsed.Vmid), "VM.Backup"))
	}
	if err != nil {
		return nil, err
	}
	id := s.Name
	if parsed.Vmid != 0 {
		id = perl.Itoa(parsed.Vmid) + "@" + s.Name
	}
	node := c.In["node"]
	upid := w.Fork(c, node, core.Job{Kind: "imgdel", ID: id, Begin: func(*core.Task) error {
		if s.InUse(node, name) {
			return perl.Fail("base volume '%s' is still in use by linked clones", name)
		}
		return nil
	}, End: func(t *core.Task) error {
		if v := s.Find(node, name); v != nil && v.Protected {
			return perl.Fail("cannot remove protected volume '%s' on '%s'", name, s.Name)
		} else if v == nil && s.Files() {
			t.Logf("disk image '%s' does not exist", s.FilePath(name))
		}
		if err := core.Free(w, node, volid); err != nil {
			return err
		}
		t.Logf("Removed volume '%s'", volid)
		return nil
	}})
	if !c.Has("delay") {
		return upid, nil
	}
	c.Req.Forked = w.Tasks.ByID[upid]
	return c.Await("")
}

// apiAllocate is POST …/content: an empty disk for a guest.
func apiAllocate(w *core.World, c *core.Call, s *core.Store) (any, error) {
	name, vmid, format := c.In["filename"], c.Vmid(), c.In["format"]
	ext := strings.TrimPrefix(path.Ext(name), ".")
	if ext != "raw" && ext != "qcow2" && ext != "vmdk" {
		ext = ""
	}
	if format == "" {
		format = ext
	} else if ext != "" && ext != format {
		return nil, perl.BadParam("format", "different storage formats ("+format+" != "+ext+")")
	}
	format = cmp.Or(format, "raw")
	size, ok := perl.ParseSize(c.In["size"])
	if !ok {
		return nil, perl.BadParam("size", "value does not match the regex pattern")
	}
	if !strings.ContainsAny(c.In["size"], "KMGT") {
		size <<= 10 // A bare number is in KiB.
	}
	if name == "" {
		name = path.Base(s.FreeDisk(c.In["node"], vmid, format))
	}
	name, err := newName(s, name, vmid, format, w.V9())
	if err != nil {
		return nil, err
	}
	if format == "subvol" && size != 0 && s.Files() {
		return nil, perl.Fail("storage does not support subvol quotas")
	}
	if s.Find(c.In["node"], name) != nil {
		return nil, s.Taken(name)
	}
	if _, err := s.AllocateAs(w, c.In["node"], name, vmid, format, size, func(string, ...any) {}); err != nil {
		return nil, err
	}
	return s.Name + ":" + name, nil
}

// newName checks the name of a disk that is to be made (alloc_image of the storage
// plugins): a file may name any guest, in the folder of the one it is made for.
func newName(s *core.Store, name string, vmid int, format string, strict bool) (string, error) {
	if !s.Files() {
		if parsed, err := s.ParseName(name); err != nil {
			return "", err
		} else if parsed.Vmid != vmid {
			return "", perl.Fail("illegal name '%s' - should be 'vm-%d-*'", name, vmid)
		}
		return name, nil
	}
	names := core.AnyFile
	if strict {
		names = newFile
	}
	m := names.FindStringSubmatch(name)
	switch {
	case m == nil:
		return "", perl.Fail("unable to parse volume filename '%s'", name)
	case m[1] != format:
		return "", perl.Fail("illegal name '%s' - wrong extension for format ('%s != '%s')", name, m[1], format)
	}
	return perl.Itoa(vmid) + "/" + name, nil
}

var newFile = regexp.MustCompile(`^(?:vm-|base-|subvol-)\d+-[^/\s]+\.(raw|qcow2|vmdk|subvol)$`)

// apiStorageConfigs is GET /storage.
func apiStorageConfigs(w *core.World, c *core.Call) (any, error) {
	list := []map[string]any{}
	for _, name := range w.StoreNames() {
		if s := w.Stores[name]; Sees(c, name) && (c.In["type"] == "" || c.In["type"] == s.Type) {
			list = append(list, storageConfig(w, s))
		}
	}
	return list, nil
}

// apiStorageConfig is GET /storage/{storage}.
func apiStorageConfig(w *core.World, c *core.Call) (any, error) {
	s := w.Stores[c.In["storage"]]
	if s == nil {
		return nil, perl.Fail("storage '%s' does not exist", c.In["storage"])
	}
	return storageConfig(w, s), nil
}

// storageConfig is an entry of storage.cfg.
func storageConfig(w *core.World, s *core.Store) map[string]any {
	entry := map[string]any{"storage": s.Name, "type": s.Type, "content": strings.Join(s.Content, ","), "digest": storageDigest(w)}
	switch s.Type {
	case "lvmthin":
		entry["vgname"], entry["thinpool"] = "pve", "data"
	case "lvm":
		entry["vgname"] = "pve"
	case "zfspool", "rbd":
		entry["pool"] = s.Name
	case "pbs": // its options are in Extra
	default:
		entry["path"] = s.Path
	}
	for key, value := range s.Extra {
		entry[key] = value
		if v, ok := perl.Method("POST /storage").Param(key); ok && (v.Type == "boolean" || v.Type == "integer") {
			entry[key] = perl.Atoi(value)
		}
		if key == "priority" {
			entry[key] = perl.Atoi(value)
		}
	}
	if s.Shared {
		entry["shared"] = 1
	}
	return entry
}

func storageDigest(w *core.World) string {
	var b strings.Builder
	for _, name := range w.StoreNames() {
		if !w.Stores[name].Assumed {
			b.WriteString(text(w.Stores[name]))
		}
	}
	return perl.SumOf(b.String())
}

// contentOf is the kind of content of a volume: a disk belongs to a VM or, as a
// rootdir, to a container.
func contentOf(w *core.World, v *core.Volume) string {
	if g := w.Guests[v.Vmid]; v.Content == "images" && g != nil && g.Kind == "lxc" {
		return "rootdir"
	}
	return v.Content
}
