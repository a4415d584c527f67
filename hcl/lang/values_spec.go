package lang

import (
	"regexp"
	"slices"
	"strings"
)

var (
	optionText = regexp.MustCompile(`^[A-Za-z0-9._=:/+-]+$`)
	bridgeText = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_]{0,9}$`)
)

// systemFolders hide the system itself when something is mounted there.
var systemFolders = []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var", "/var/lib"}

func mountPath(s string) string {
	switch {
	case filePath(s) != "":
		return "must be an absolute path without .., such as /srv/data"
	case strings.ContainsAny(s, " \t\\#,'\""):
		return "must not contain spaces, commas, quotes, # or \\, because /etc/fstab and systemd read it"
	case slices.Contains(systemFolders, s) || strings.HasPrefix(s, "/proc/") || strings.HasPrefix(s, "/sys/") || strings.HasPrefix(s, "/dev/") || strings.HasPrefix(s, "/run/"):
		return "must not be a system folder"
	}
	return ""
}

func mountOption(s string) string {
	return matches(optionText, "must be one mount option, such as noatime")(s)
}

// bridgeName checks the name of a bridge by PVE's rules (pve-common, PVE/JSONSchema.pm, pve-iface, and the web
// interface, which allows ten characters).
func bridgeName(s string) string {
	return matches(bridgeText, "must be a name such as vmbr0, of at most 10 letters, digits and _")(s)
}
