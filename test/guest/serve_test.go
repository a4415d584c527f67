package guest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// reached is the address of the guest beside its loopback, as a PVE host has one on its bridge.
const reached = "192.0.2.10"

// A node in mode pull reaches the agent at the address of the host's API, which is one of this machine. The
// installed unit must permit to list those, or no such node is created.
func TestR8TheInstalledUnitServesNodesThatPull(t *testing.T) {
	w := begin(t)
	w.Write("/etc/systemd/network/lo.network", 0o644, "[Match]\nName=lo\n[Network]\nAddress="+reached+"/32\n")
	w.Run("systemctl", "start", "systemd-networkd.service")
	w.Write("/run/systemd/system/pveproxy.socket.d/reached.conf", 0o644, "[Socket]\nFreeBind=yes\nListenStream="+reached+":8006\n")
	w.Run("systemctl", "daemon-reload")
	w.Run("systemctl", "stop", "pveproxy.socket", "pveproxy.service")
	w.Run("systemctl", "start", "pveproxy.socket")

	host, err := os.ReadFile(filepath.Join(w.site, "host.hcl"))
	require.NoError(t, err)
	w.push("host.hcl", strings.Replace(string(host), "127.0.0.1", reached, 1))
	w.push("specs.hcl", "spec \"base\" {\n  config {\n    timezone = \"UTC\"\n  }\n}\n")
	w.push("web.hcl", strings.Replace(node("web-1"), "    image", "    spec   = spec.base\n    execution {\n      mode = \"pull\"\n    }\n    image", 1))
	w.Run("systemctl", "start", service)
	w.has("web-1")

	key, pin := "/var/lib/homestak-gitops/server/read.key", ""
	w.Until("the server for nodes shows its pin", func() bool {
		said, _ := w.Try("homestak-gitops", "status")
		_, after, found := strings.Cut(said, "sha256:")
		pin, _, _ = strings.Cut("sha256:"+after, "\n")
		pin = strings.Fields(pin)[0]
		return found
	})
	said, code := w.Try("homestak-gitops", "tree", "--server", fmt.Sprintf("https://%s:44443", reached), "--pin", pin, "--key-file", key)
	require.Zero(t, code, said)
	require.Contains(t, said, "father")
	for _, e := range w.journal(service) {
		require.NotContains(t, e.Message, "it is not known where nodes reach")
	}
}
