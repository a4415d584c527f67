package core

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

var (
	diskPart  = regexp.MustCompile(`^(?:vm|base|subvol|basevol)-(\d+)-disk-(\d+)`)
	fileDisk  = regexp.MustCompile(`^(?:(\d+)/(\S+)/)?(\d+)/(\S+)$`)
	blockDisk = regexp.MustCompile(`^(?:((?:base|basevol)-\d+-\S+)/)?((?:vm|base|subvol|basevol)-(\d+)-\S+)$`)
	// backupName matches the beginning of a backup's name, backupForm its end.
	backupName = regexp.MustCompile(`^vzdump-(?:qemu|lxc|openvz)-(\d+)-`)
	backupForm = regexp.MustCompile(`\.((?:vma|tar|tgz)(?:\.(?:gz|lzo|zst|bz2))?)$`)
	// onPBS is the name of a backup on a Proxmox Backup Server (parse_volname in PVE/Storage/PBSPlugin.pm).
	onPBS     = regexp.MustCompile(`^backup/([^\s_]+)/([^\s_]+)/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$`)
	fileOther = regexp.MustCompile(`^(iso|vztmpl|backup|snippets|import)/([^/]+)$`)
)

// ParsedName has the parts of the name of a volume.
type ParsedName struct {
	Content string
	Vmid    int
	Format  string
	Base    bool
}

// Named is a volume as its id names it, whether it is there or not.
type Named struct {
	*Store
	Volume string // Its name on the storage.
	Parsed ParsedName
}

// Locate finds the storage that the id of a volume names, and reads the name there.
func Locate(w *World, volid string) (n Named, err error) {
	storage, name, ok := VolumeID(volid)
	if !ok {
		return n, perl.Fail("unable to parse volume ID '%s'", volid)
	}
	n.Volume = name
	if n.Store, err = w.Store(storage); err == nil {
		n.Parsed, err = n.ParseName(name)
	}
	return n, err
}

// QemuFormat is the format of a volume for QEMU: raw unless it is a disk.
func (p ParsedName) QemuFormat() string {
	if p.Content == "images" || p.Content == "import" {
		return p.Format
	}
	return "raw"
}

// ParseName reads the name of a volume, or fails as the storage plugin does
// (parse_volname).
func (s *Store) ParseName(name string) (ParsedName, error) {
	if s.Type == "pbs" {
		m := onPBS.FindStringSubmatch(name)
		if m == nil {
			return ParsedName{}, perl.Fail("unable to parse PBS volume name '%s'", name)
		}
		parsed := ParsedName{Content: "backup", Format: "pbs-" + m[1]}
		if BackupKind(name) != "" {
			parsed.Vmid = perl.Atoi(m[2])
		}
		return parsed, nil
	}
	if s.Files() {
		if m := fileOther.FindStringSubmatch(name); m != nil && ExtensionFits(m[1], m[2]) {
			parsed := ParsedName{Content: m[1], Format: FileFormat(m[1], m[2])}
			if owner := backupName.FindStringSubmatch(m[2]); owner != nil && m[1] == "backup" {
				parsed.Vmid = perl.Atoi(owner[1])
			}
			return parsed, nil
		}
		// A backup, ISO or template may be named by its file alone only where
		// the caller says what it is, so a bare name does not parse.
		if m := fileDisk.FindStringSubmatch(name); m != nil {
			for _, file := range []string{m[2], m[4]} { // parse_name_dir, of a base first.
				if file != "" && !AnyFile.MatchString(file) {
					return ParsedName{}, perl.Fail("unable to parse volume filename '%s'", file)
				}
			}
			return ParsedName{Content: "images", Vmid: perl.Atoi(m[3]), Format: AnyFile.FindStringSubmatch(m[4])[1], Base: strings.HasPrefix(m[4], "base-")}, nil
		}
		return ParsedName{}, perl.Fail("unable to parse directory volume name '%s'", name)
	}
	if m := blockDisk.FindStringSubmatch(name); m != nil {
		return ParsedName{Content: "images", Vmid: perl.Atoi(m[3]), Format: "raw", Base: strings.HasPrefix(m[2], "base")}, nil
	}
	kind := map[string]string{"lvmthin": "lvm", "zfspool": "zfs"}[s.Type]
	kind = cmp.Or(kind, s.Type)
	return ParsedName{}, perl.Fail("unable to parse %s volume name '%s'", kind, name)
}

// BackupKind is the kind of the guest in a backup, by its name; "" for another file.
func BackupKind(name string) string {
	for prefix, kind := range map[string]string{"vm/": "qemu", "ct/": "lxc", "vzdump-qemu-": "qemu", "vzdump-lxc-": "lxc", "vzdump-openvz-": "openvz"} {
		if strings.HasPrefix(name, "backup/"+prefix) {
			return kind
		}
	}
	return ""
}

// ExtensionFits says whether a file of that name can be of that content.
func ExtensionFits(content, file string) bool {
	lower := strings.ToLower(file)
	switch content {
	case "iso":
		return isoName.MatchString(lower)
	case "vztmpl":
		return templateName.MatchString(lower)
	case "import":
		return slices.Contains([]string{".qcow2", ".raw", ".vmdk", ".ova", ".ovf"}, path.Ext(lower))
	case "backup":
		return backupForm.MatchString(file)
	default:
		return true
	}
}

// FileFormat is the format that a listing shows for a file.
func FileFormat(content, file string) string {
	ext := strings.TrimPrefix(path.Ext(file), ".")
	switch content {
	case "iso":
		return "iso"
	case "vztmpl":
		switch ext {
		case "gz":
			return "tgz"
		case "xz":
			return "txz"
		case "zst":
			return "tzst"
		}
		return ext
	case "snippets":
		return "snippet"
	case "backup":
		if m := backupForm.FindStringSubmatch(file); m != nil {
			return m[1]
		}
		return ext
	default:
		return ext
	}
}

// AnyFile are the names of disks that are files; newFile those that PVE 9 still takes
// (parse_name_dir in PVE/Storage/Plugin.pm).
var AnyFile = regexp.MustCompile(`^(?:base-)?[^/\s]+\.(raw|qcow2|vmdk|subvol)$`)

// isoName and templateName are the names of files that PVE lists as such
// (ISO_EXT_RE_0, VZTMPL_EXT_RE_1 in PVE/Storage.pm); templates without compression are
// images of OCI, of PVE 9.
var isoName = regexp.MustCompile(`[^/]\.(?:iso|img)$`)

var templateName = regexp.MustCompile(`[^/]\.(?:tar|tar\.(?:gz|xz|zst|bz2))$`)

// DiskName is the name of the n-th disk of a guest on a storage.
func (s *Store) DiskName(vmid, n int, format string) string {
	name := fmt.Sprintf("vm-%d-disk-%d", vmid, n)
	if format == "subvol" {
		name = fmt.Sprintf("subvol-%d-disk-%d", vmid, n)
	}
	return s.NameOf(vmid, name, format)
}

// NameOf is the name of a volume of a guest; a file is in the folder of the guest.
func (s *Store) NameOf(vmid int, name, format string) string {
	if s.Files() {
		return fmt.Sprintf("%d/%s.%s", vmid, name, format)
	}
	return name
}
