package pveapi

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Formats of names PVE gives to things: pve-common (PVE/JSONSchema.pm),
// pve-access-control (PVE/AccessControl.pm, Auth/Plugin.pm), pve-storage
// (Storage/Plugin.pm).

const (
	simpleID = `(?i:[a-z][a-z0-9\-_.]*[a-z0-9])`
	realm    = `[A-Za-z][A-Za-z0-9.\-_]+`
	user     = `[^\s:/]+@` + realm
)

var (
	isUser        = expression(user)
	isContentType = expression(`(?:images|rootdir|vztmpl|iso|backup|snippets|import|none)`)
	isLowercase   = expression(`[a-z]+`)
	isPathInside  = expression(`[^.]*(?:\.?[^.]+)+`) // No two dots in a row.
	isPair        = expression(`[^:]+:[^:]+`)
)

func idShapes() map[string]shape {
	return map[string]shape{
		"pve-configid":        {expression(`(?i:[a-z][a-z0-9_-]+)`), "invalid configuration ID '%s'"},
		"pve-node":            {expression(dnsLabel), "value does not look like a valid node name"},
		"pve-realm":           {expression(realm), "value does not look like a valid realm"},
		"pve-tokenid":         {expression(user + `!` + realm), "value '%s' does not look like a valid token ID"},
		"pve-groupid":         {expression(`[A-Za-z0-9.\-_]+`), "group name '%s' contains invalid characters"},
		"pve-roleid":          {expression(`[A-Za-z0-9.\-_]+`), "role name '%s' contains invalid characters"},
		"ldap-simple-attr":    {expression(`[a-zA-Z0-9]+`), "value '%s' does not look like a simple ldap attribute name"},
		"pve-storage-path":    {expression(`/[^;()]+[\s\S]*`), "value does not look like a valid absolute path"},
		"pve-storage-vgname":  {expression(`(?i:[a-z0-9][a-z0-9\-_.]*[a-z0-9])`), "lvm name '%s' contains illegal characters"},
		"pve-storage-options": {expression(`\S+`), "invalid options '%s'"},
		"pve-storage-content": {isContentType, "invalid content type '%s'"},
	}
}

func idFormats() map[string]func(word string) error {
	return map[string]func(word string) error{
		"string":           func(string) error { return nil },
		"pve-userid":       checkUserID,
		"pve-dir-override": checkDirOverride,
		"pve-poolid":       checkPoolID,
	}
}

// checkUserID: name@realm, 3 to 64 characters.
func checkUserID(word string) error {
	switch length := utf8.RuneCountInString(word); {
	case length < 3:
		return refuse("user name '%s' is too short", word)
	case length > 64:
		return refuse(fmt.Sprintf("user name '%%s' is too long (%d > 64)", length), word)
	case !isUser(word):
		return refuse("value '%s' does not look like a valid user name", word)
	default:
		return nil
	}
}

// checkDirOverride: "content=relative/path", without a part of two dots.
func checkDirOverride(word string) error {
	content, path, ok := strings.Cut(word, "=")
	if !ok || !isLowercase(content) || !isPathInside(path) {
		return refuse("invalid override '%s'", word)
	}
	if !isContentType(content) {
		return refuse("invalid content type '%s'", content)
	}
	if len(path) >= 1023 || slices.ContainsFunc(strings.Split(path, "/"), func(s string) bool { return len(s) >= 255 }) {
		return refuse("invalid override '%s'", word)
	}
	return nil
}

var isPoolID = expression(`[A-Za-z0-9.\-_]+(?:/[A-Za-z0-9.\-_]+){0,2}`)

// checkPoolID: up to three names, one inside the other. The names are counted before their
// characters are looked at (verify_poolname in PVE/AccessControl.pm).
func checkPoolID(word string) error {
	switch {
	case strings.Count(strings.TrimRight(word, "/"), "/") > 2:
		return refuse("pool name '%s' nested too deeply (max levels = 3)", word)
	case !isPoolID(word):
		return refuse("pool name '%s' contains invalid characters", word)
	default:
		return nil
	}
}

var isSimpleID = expression(simpleID)

// checkSimpleID is parse_id in PVE/JSONSchema.pm, of what a kind names; since
// libpve-common-perl 9.1.7 it says which ids are too short.
func checkSimpleID(kind string) func(version, word string) error {
	return func(version, word string) error {
		switch {
		case isSimpleID(word):
			return nil
		case utf8.RuneCountInString(word) < 2 && atLeast92(version):
			return refuse(kind+" ID '%s' cannot be shorter than 2 characters", word)
		default:
			return refuse(kind+" ID '%s' contains illegal characters", word)
		}
	}
}

// checkPair is an entry of a mapping, parse_idmap in PVE/JSONSchema.pm: "from:to",
// "to" for all, or "1" for each to itself.
func checkPair(id func(version, word string) error) func(version, word string) error {
	return func(version, word string) error {
		if word == "1" {
			return nil
		}
		parts := []string{word}
		if isPair(word) {
			parts = strings.Split(word, ":")
		}
		for _, part := range parts {
			if err := id(version, part); err != nil {
				return died(fmt.Sprintf("entry '%s' contains invalid ID - %v\n", word, err))
			}
		}
		return nil
	}
}

// checkPrivilege knows the privileges of a version (create_priv_groups in
// PVE/AccessControl.pm): PVE 9 split VM.Monitor up and added VM.Replicate.
func checkPrivilege(version, word string) error {
	old := before9(version)
	ok := false
	switch word {
	case "VM.Monitor":
		ok = old
	case "VM.Replicate", "VM.GuestAgent.Audit", "VM.GuestAgent.FileRead", "VM.GuestAgent.FileSystemMgmt",
		"VM.GuestAgent.FileWrite", "VM.GuestAgent.Unrestricted":
		ok = !old
	case "Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit",
		"Group.Allocate", "Mapping.Audit", "Mapping.Modify", "Mapping.Use", "Permissions.Modify", "Pool.Allocate",
		"Pool.Audit", "Realm.Allocate", "Realm.AllocateUser", "SDN.Allocate", "SDN.Audit", "SDN.Use",
		"Sys.AccessNetwork", "Sys.Audit", "Sys.Console", "Sys.Incoming", "Sys.Modify", "Sys.PowerMgmt", "Sys.Syslog",
		"User.Modify", "VM.Allocate", "VM.Audit", "VM.Backup", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU",
		"VM.Config.Cloudinit", "VM.Config.Disk", "VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network",
		"VM.Config.Options", "VM.Console", "VM.Migrate", "VM.PowerMgmt", "VM.Snapshot", "VM.Snapshot.Rollback":
		ok = true
	}
	if !ok {
		return refuse("invalid privilege '%s'", word)
	}
	return nil
}

// checkZFSBlockSize: a power of two from 512 bytes to 16 MiB (verify_zfs_blocksize in
// PVE/Storage/ZFSPoolPlugin.pm, since libpve-storage-perl 9.1.4: any text before).
func checkZFSBlockSize(version, word string) error {
	if word == "" || version != "" && compareVersions(version, "9.2") < 0 {
		return nil
	}
	digits := strings.TrimRight(word, "kKmM")
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || len(word)-len(digits) > 1 || strings.HasPrefix(digits, "0") {
		return refuse("invalid ZFS blocksize format '%s'. Use a positive number (no leading zeros) with an optional 'k' or 'm' suffix.", word)
	}
	switch strings.ToLower(word[len(digits):]) {
	case "k":
		n <<= 10
	case "m":
		n <<= 20
	}
	if n < 512 || n > 16<<20 || n&(n-1) != 0 {
		return refuse("value '%s' is not a valid ZFS blocksize. Must be a power of 2 between 512B and 16MiB (e.g., 4k, 8k, 16k, 64k, 1m).", word)
	}
	return nil
}
