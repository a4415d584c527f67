// Package guest_test runs the program as it is installed: on a real Debian with a real
// systemd, which systemd-nspawn boots from a folder that debootstrap made.
//
// machine_test.go is such a guest, rootfs_test.go the folder it is booted from,
// world_test.go what stands around the agent in it: a simulated Proxmox VE, a
// repository, and somebody who pushes. The other files are stories.
//
// A story waits for what it can see (a state of systemd, a guest on the simulated host)
// and never for time to pass. What it starts is a child of this process, in namespaces
// of its own, and gone when the story ends, also when this process is killed.
package guest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// mode is what the environment variable HOMESTAK_GUEST asks for: "require" makes what
// is missing here a failure, "off" skips all that needs a guest.
const mode = "HOMESTAK_GUEST"

// needGuest skips a test where no guest can be booted, and says why.
func needGuest(t *testing.T) {
	t.Helper()
	if os.Getenv(mode) == "off" {
		t.Skip(mode + "=off")
	}
	if testing.Short() {
		t.Skip("boots a guest, and -short was asked for")
	}
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root")
	}
	tools := []string{"systemd-nspawn", "nsenter"}
	if os.Getenv(readyRootfs) == "" {
		tools = append(tools, "debootstrap")
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, tool)
		}
	}
	if len(missing) > 0 {
		without(t, "a guest needs "+strings.Join(missing, ", ")+" (Debian: apt-get install systemd-container debootstrap)")
	}
}

// without ends a test for want of something: it skips, unless all must be there.
func without(t *testing.T, why string) {
	t.Helper()
	if os.Getenv(mode) == "require" {
		t.Fatal(why)
	}
	t.Skip(why)
}
