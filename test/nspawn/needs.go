// Package nspawn boots a real Debian with systemd in a test: from a folder made by debootstrap, by systemd-nspawn.
//
// machine.go is such a guest, rootfs.go the folder it boots from. A test waits for events, never for time to pass.
// All processes are children of the test in namespaces of their own, and end with it, even if it is killed.
package nspawn

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// mode is what the environment variable HOMESTAK_GUEST asks for: "require" makes what
// is missing here a failure, "off" skips all that needs a guest.
const mode = "HOMESTAK_GUEST"

// Need skips a test where no guest can be booted, and says why.
func Need(t testing.TB) {
	t.Helper()
	if os.Getenv(mode) == "off" {
		t.Skip(mode + "=off")
	}
	if testing.Short() {
		t.Skip("boots a guest, and -short was asked for")
	}
	if lacks := Missing(); lacks != "" {
		Without(t, lacks)
	}
}

// Missing says what a guest needs and this machine lacks; "" if nothing.
func Missing() string {
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root")
	}
	tools := []string{"systemd-nspawn", "nsenter"}
	if os.Getenv("HOMESTAK_GUEST_ROOTFS") == "" {
		tools = append(tools, "debootstrap")
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, tool)
		}
	}
	if len(missing) == 0 {
		return ""
	}
	return "a guest needs " + strings.Join(missing, ", ") + " (Debian: apt-get install systemd-container debootstrap)"
}

// Without ends a test for want of something: it skips, unless all must be there.
func Without(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(mode) == "require" {
		t.Fatal(why)
	}
	t.Skip(why)
}
