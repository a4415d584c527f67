package pveapi

import (
	"cmp"
	"strconv"
	"strings"
)

// Versions are dotted numbers as GET /version tells them ("8.4.21"); the empty
// one means the newest that the table knows.

// In says whether a host of that version has the method.
func (m *Method) In(version string) bool { return within(version, m.Since, "") }

// PermFor returns the permission check of a host of that version.
func (m *Method) PermFor(version string) Perm {
	perm := m.Perm
	if m.check84 != nil && before9(version) {
		perm.Check = m.check84
	}
	return perm
}

// within says whether a version has what came with since and went after until.
func within(version, since, until string) bool {
	if version != "" && since != "" && compareVersions(version, since) < 0 {
		return false
	}
	return until == "" || before9(version)
}

// before9 says whether a version is older than PVE 9, where most of what differs
// changed.
func before9(version string) bool { return version != "" && compareVersions(version, "9") < 0 }

// atLeast92 says whether a version is 9.2 or newer.
func atLeast92(version string) bool { return version == "" || compareVersions(version, "9.2") >= 0 }

// compareVersions compares dotted numbers, up to the first part that is not a number.
func compareVersions(a, b string) int {
	for a != "" || b != "" {
		var partA, partB string
		partA, a, _ = strings.Cut(a, ".")
		partB, b, _ = strings.Cut(b, ".")
		numberA, _ := strconv.Atoi(partA) // A missing or odd part counts as 0.
		numberB, _ := strconv.Atoi(partB)
		if c := cmp.Compare(numberA, numberB); c != 0 {
			return c
		}
	}
	return 0
}
