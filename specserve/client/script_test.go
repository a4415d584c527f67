package client_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// The script runs here with another root; test/machines runs it on a real machine.
func TestScript(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	const secret = "canary-token"
	good := "#!/bin/sh\necho \"ran $*\"\n"
	for _, c := range []struct {
		name     string
		program  string // that is served
		sum      string // that the spec names
		status   int
		otherPin bool
		says     string
		asked    []string
		there    bool // the program is in its folder afterwards
		gone     bool // unit and script are
	}{
		{name: "good", program: good, says: "ran config apply --fetch", asked: []string{"/spec/edge", "/agent/linux-" + runtime.GOARCH}, there: true, gone: true},
		{name: "it fails", program: "#!/bin/sh\nexit 5\n", says: "the spec is not applied yet", asked: []string{"/spec/edge", "/agent/linux-" + runtime.GOARCH}, there: true},
		{name: "another key", program: good, otherPin: true, says: "none of the pinned ones: nothing was sent to it"},
		{name: "another checksum", program: good, sum: strings.Repeat("0a", 32), says: "another checksum", asked: []string{"/spec/edge", "/agent/linux-" + runtime.GOARCH}},
		{name: "no program for this system", program: good, sum: "none", says: "has no program for linux-", asked: []string{"/spec/edge"}},
		{name: "refused", status: http.StatusUnauthorized, says: "/spec/edge: the server answered 401", asked: []string{"/spec/edge"}},
		{name: "redirected", status: http.StatusFound, says: "answered 302", asked: []string{"/spec/edge"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked []string
			s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = append(asked, r.URL.Path)
				sum := sha256.Sum256([]byte(c.program))
				agent := fmt.Sprintf(`{"linux-%s":%q}`, runtime.GOARCH, hex.EncodeToString(sum[:]))
				if c.sum == "none" {
					agent = "{}"
				} else if c.sum != "" {
					agent = fmt.Sprintf(`{"linux-%s":%q}`, runtime.GOARCH, c.sum)
				}
				switch {
				case r.Header.Get("Authorization") != "Bearer "+secret:
					w.WriteHeader(http.StatusTeapot)
				case c.status != 0:
					w.Header().Set("Location", "/elsewhere")
					w.WriteHeader(c.status)
				case r.URL.Path == "/spec/edge":
					fmt.Fprintf(w, `{"agent":%s}`, agent)
				default:
					_, _ = w.Write([]byte(c.program))
				}
			}))
			defer s.Close()
			p := wire.Parent{Identity: "edge", Server: s.URL, Pins: []wire.Pin{wire.PinOf(s.Certificate())}, Token: secret}
			if c.otherPin {
				p.Pins = []wire.Pin{{1}}
			}
			text, err := client.FirstBootUserData(p, "")
			require.NoError(t, err)
			root := t.TempDir()
			for _, f := range read(t, text).WriteFiles {
				name := filepath.Join(root, f.Path)
				require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
				content := strings.NewReplacer(`"/etc/`, `"`+root+`/etc/`, `"/usr/local/`, `"`+root+`/usr/local/`).Replace(f.Content)
				require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
			}
			bin := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(bin, "systemctl"), []byte("#!/bin/sh\n"), 0o700))

			cmd := exec.Command(python, filepath.Join(root, "var/lib/homestak-gitops/firstboot.py"))
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
			said, err := cmd.CombinedOutput()
			require.Equal(t, c.gone, err == nil, "%s", said)
			require.Contains(t, string(said), c.says)
			require.NotContains(t, string(said), secret)
			require.NotContains(t, string(said), "Traceback")
			require.Equal(t, c.asked, asked)
			left, err := filepath.Glob(filepath.Join(root, "usr/local/bin/.*"))
			require.NoError(t, err)
			require.Empty(t, left, "half a program")
			exists := func(name string) bool {
				_, err := os.Stat(filepath.Join(root, name))
				return err == nil
			}
			require.Equal(t, c.there, exists("usr/local/bin/homestak-gitops"))
			require.Equal(t, !c.gone, exists("etc/systemd/system/homestak-gitops-firstboot.service"))
			require.Equal(t, !c.gone, exists("var/lib/homestak-gitops/firstboot.py"))
			require.True(t, exists("etc/homestak-gitops/node.json"))
		})
	}
}
