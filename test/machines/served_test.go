package machines_test

import (
	"encoding/json"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/node"
	"github.com/homestak/homestak-gitops/specserve/wire"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

const servedSite = `site "home" {
  domain = "home.example"
}
host "father" {
  api = "https://192.0.2.10:8006"
}
image "debian" {
  url      = "https://images.example/debian.qcow2"
  checksum = "sha256:00000000000000000000000000000000000000000000000000000000000000aa"
}
posture "dev" {
  auth {
    method = "node_token"
  }
}
spec "base" {
  platform {
    packages = ["hs-tool"]
  }
  run {
    trigger  = "git"
    interval = "1h"
  }
}
manifest "m" {
  pattern = "flat"
  host    = host.father
  node "edge" {
    type   = "vm"
    cores  = 1
    memory = 512
    image  = image.debian
    spec   = spec.base
    execution {
      mode = "pull"
    }
  }
}
`

// The server and the node are those of the program: what the files of the site say reaches the
// machine, with a token that the server minted, and so does what they say next.
func TestST01ServedSpecReachesTheNode(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t, nspawn.Bind{From: program(t), To: "/usr/local/bin"})
	w.write("/srv/site/site.hcl", servedSite)
	w.Run0("systemd-run --quiet --unit=parent homestak-gitops serve --site /srv/site --data-dir /srv/parent --listen " + serverAddress + " --json")
	var served struct{ URL, Pin string }
	w.Until("the server serves", func() bool {
		line, _, _ := strings.Cut(w.Run0("journalctl -o cat -u parent | grep '^{' || :"), "\n")
		return json.Unmarshal([]byte(line), &served) == nil
	})
	own, err := wire.ParsePin(served.Pin)
	require.NoError(t, err)
	child := wire.Parent{Identity: "edge", Server: served.URL, Pins: []wire.Pin{own}}

	w.Write(wire.ParentFile, 0o600, string(child.Document()))
	said, code := w.Try("homestak-gitops", "config", "apply", "--fetch")
	require.Equal(t, 6, code, said)
	require.Contains(t, said, "E300")
	child.Token = w.Run0("homestak-gitops token mint edge --site /srv/site --data-dir /srv/parent 2>/dev/null")
	w.Write(wire.ParentFile, 0o600, string(child.Document()))
	w.Run0("homestak-gitops config apply --fetch 2>&1")
	require.Equal(t, "edge", config[node.Complete](w, "config-complete.json").Node)
	require.Equal(t, "edge.home.example", w.Run0("hostname -f"))
	require.True(t, w.has("hs-tool"))
	now, err := wire.ReadParent([]byte(w.Run0("cat " + wire.ParentFile)))
	require.NoError(t, err)
	require.Len(t, now.Pins, 2, "the server announces its next key")
	require.Contains(t, w.Run0("journalctl -o cat -u parent"), "endpoint=/report/{identity} status=202")
	w.touchedNothing(pullNow)
	w.keepsToItself(child.Token)

	w.write("/srv/site/site.hcl", strings.Replace(servedSite, `["hs-tool"]`, `["hs-other"]`, 1))
	w.Until("the node notices the next spec by itself", func() bool {
		return w.has("hs-other && systemctl show -p ActiveState homestak-gitops-pull.service | grep -q inactive")
	})
	require.False(t, w.has("command -v hs-tool"), "what left the spec is withdrawn")
	w.Run0("systemctl stop homestak-gitops-wait.service; ! systemctl is-failed --quiet homestak-gitops-wait.service")
}

// A new node gets the program from a real server: the one that the server runs. Its first boot waits
// until the server is there.
func TestST01ServedProgramReachesTheNewNode(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	server := filepath.Join(t.TempDir(), "server")
	_, err := keys.Ensure(server, time.Now())
	require.NoError(t, err)
	certificate, err := keys.OpenCert(keys.CertOptions{Dir: server, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	pins, err := wire.ParsePins(certificate.Pins())
	require.NoError(t, err)
	minted, err := keys.Mint(server, "edge", "base", time.Hour, time.Now())
	require.NoError(t, err)
	userData, err := client.FirstBootUserData(wire.Parent{Identity: "edge", Server: "https://" + serverAddress, Pins: pins, Token: minted.Token}, "")
	require.NoError(t, err)
	w := seeded(t, userData, nspawn.Bind{From: program(t), To: "/opt/parent"}, nspawn.Bind{From: filepath.Dir(server), To: "/opt/keys"})
	w.write("/srv/site/site.hcl", servedSite)
	w.Run0("cp -a /opt/keys /srv/parent")
	w.Run0("systemd-run --quiet --unit=parent /opt/parent/homestak-gitops serve --site /srv/site --data-dir /srv/parent --listen " + serverAddress)
	w.Until("the first boot is done", func() bool {
		return w.has("[ -e " + node.DefaultFolder + "/config-complete.json ] && [ ! -e " + firstUnit + " ]")
	})
	w.Run0("cmp /opt/parent/homestak-gitops /usr/local/bin/homestak-gitops")
	require.Equal(t, "1", w.Run0("journalctl -o cat -u parent | grep -c 'endpoint=/agent/.* status=200'"), "once")
	require.True(t, w.has("hs-tool"))
	w.Until("it has reported", func() bool {
		return w.has("journalctl -o cat -u parent | grep -q 'endpoint=/report/{identity} status=202'")
	})
	key := w.Run0("cat /srv/parent/server/read.key")
	var status struct {
		Nodes []struct {
			Identity, Agent, Error string
			Ready                  bool
		}
	}
	require.NoError(t, json.Unmarshal([]byte(w.Run0("python3 -c 'import ssl,urllib.request as u; c=ssl._create_unverified_context(); print(u.urlopen(u.Request(\"https://"+serverAddress+"/status\",headers={\"Authorization\":\"Bearer "+key+"\"}),context=c).read().decode())'")), &status))
	require.Len(t, status.Nodes, 1)
	require.Equal(t, "edge", status.Nodes[0].Identity)
	require.Empty(t, status.Nodes[0].Error)
	require.True(t, status.Nodes[0].Ready)
	w.keepsToItself(minted.Token)
}
