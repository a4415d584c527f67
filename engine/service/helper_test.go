package service

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Files that decide what root does must not belong to the agent.
func TestTheHelperRefusesFilesOfTheAgent(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		require.NoError(t, os.Chmod(name, mode))
		return name
	}
	file := write("agent.hcl", "identity = \"father\"\nsecrets_file = \"secrets.yaml\"\nrepository {\n  url = \"https://git.example.org/site.git\"\n}\n", 0o644)
	write("secrets.yaml", "{}", 0o600)
	cfg, found := Flags{File: file}.ReadConfig(func(name string) string { return map[string]string{"HOME": dir}[name] })
	require.Empty(t, found)
	o := Helper{Config: cfg, UID: os.Getuid() + 1, Folder: filepath.Join(dir, "state"), Log: slog.New(slog.DiscardHandler)}
	_, err := newHelper(o)
	require.NoError(t, err)
	write("secrets.yaml", "{}", 0o620)
	_, err = newHelper(o)
	require.ErrorContains(t, err, "secrets_file: the agent or others may change "+filepath.Join(dir, "secrets.yaml")+", which decides what root does: chown root")
	write("secrets.yaml", "{}", 0o600)
	write("agent.hcl", "", 0o666)
	_, err = newHelper(o)
	require.ErrorContains(t, err, "agent.hcl: the agent or others may change")
	require.NoError(t, notOf(12345, ""))
	require.NoError(t, notOf(12345, filepath.Join(dir, "missing")))
	if os.Getuid() == 0 {
		name := write("key", "", 0o600)
		require.NoError(t, os.Chown(name, 12345, 0))
		require.ErrorContains(t, notOf(12345, name), "may change")
	}
}

// The token for the parent is the only thing that the helper takes from the agent's folder: the one that the agent's connection
// stored last, for the parent of agent.hcl. A link there leads nowhere.
func TestTheTokenOfTheAgent(t *testing.T) {
	parent := httptest.NewUnstartedServer(nil)
	parent.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	given := wire.Parent{Identity: "inner", Token: "first"}
	parent.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != wire.ConfigPath.Of("inner") {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Etag", `"1"`)
		_, _ = fmt.Fprintf(w, `{"version":1,"identity":"inner","commit":"%040d","pins":[%q],"token":"renewed"}`, 1, given.Pins[0])
	})
	parent.StartTLS()
	defer parent.Close()
	given.Server, given.Pins = parent.URL, []wire.Pin{wire.PinOf(parent.Certificate())}

	name := filepath.Join(t.TempDir(), parentFile)
	got, err := helpersParent(name, os.Getuid(), given)
	require.NoError(t, err)
	require.Equal(t, given, got, "the agent has not asked its parent yet")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	up, err := client.OpenUplink(client.UplinkOptions{
		Given: given, File: name, Every: time.Minute, Log: slog.New(slog.DiscardHandler), Check: stop, // the first answer is stored
		Report: func() ([]byte, error) { return []byte("{}"), nil },
	})
	require.NoError(t, err)
	up.Run(ctx)

	got, err = helpersParent(name, os.Getuid(), given)
	require.NoError(t, err)
	require.Equal(t, "renewed", got.Token)
	got.Token = given.Token
	require.Equal(t, given, got)
	_, err = helpersParent(name, os.Getuid()+1, given)
	require.ErrorContains(t, err, "is not a file of the agent")
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(name, link))
	_, err = helpersParent(link, os.Getuid(), given)
	require.Error(t, err)

	text, err := os.ReadFile(name)
	require.NoError(t, err)
	moved := strings.Replace(string(text), `"token":`, `"server":"https://192.0.2.20:44443","token":`, 1)
	require.NoError(t, os.WriteFile(name, []byte(moved), 0o600))
	_, err = helpersParent(name, os.Getuid(), given)
	require.ErrorContains(t, err, "the agent has the parent https://192.0.2.20:44443 now, and agent.hcl names "+given.Server)
	require.NoError(t, os.WriteFile(name, []byte("{"), 0o600))
	_, err = helpersParent(name, os.Getuid(), given)
	require.ErrorContains(t, err, "this program did not write it")
}

// The helper follows the keys of its parent: each is announced over a connection by the one before. A key that was never announced is
// not believed, whatever the agent says.
func TestTheHelperFollowsTheKeysOfTheParent(t *testing.T) {
	var certs []tls.Certificate
	var pins []wire.Pin
	for range 4 {
		c, pin := newCertificate(t)
		certs, pins = append(certs, c), append(pins, pin)
	}
	key := 0
	parent := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != wire.ConfigPath.Of("inner") {
			return
		}
		tag := fmt.Sprintf("%q", strconv.Itoa(key))
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("Etag", tag)
		_, _ = fmt.Fprintf(w, `{"version":1,"identity":"inner","commit":"%040d","pins":[%q,%q]}`, 1, pins[key], pins[(key+1)%len(pins)])
	}))
	parent.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	parent.Config.SetKeepAlivesEnabled(false)
	parent.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: certs[key : key+1]}, nil
	}}
	parent.StartTLS()
	t.Cleanup(parent.Close)
	dir := t.TempDir()
	token := filepath.Join(dir, "parent.token")
	require.NoError(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	c := &Config{}
	c.Identity, c.DataDir, c.Parent = "inner", dir, &model.AgentParent{URL: parent.URL, Pins: wire.PinTexts(pins[:2]), TokenFile: token}
	c.Repository = &model.AgentRepository{URL: parent.URL + "/site.git"}
	// ask is a request of a helper that starts.
	ask := func() error {
		way, err := helperTransport(Helper{Config: c, UID: os.Getuid(), Folder: dir, Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.Repository.URL, nil)
		require.NoError(t, err)
		res, err := way.RoundTrip(request)
		if err == nil {
			_ = res.Body.Close()
		}
		return err
	}
	for key = range 3 {
		require.NoError(t, ask(), "key %d", key)
		require.NoError(t, ask(), "nothing new")
	}
	key = 1
	require.ErrorContains(t, ask(), "run join on this machine", "a key that was replaced counts no more")
	c.Parent.Pins = wire.PinTexts(pins[1:2])
	require.NoError(t, ask(), "agent.hcl is root's, and counts")
	key = 3
	require.ErrorContains(t, ask(), "run join on this machine", "it was away for two rotations")
	require.NoError(t, os.WriteFile(filepath.Join(dir, pinsFile), []byte("{"), 0o600))
	key = 1
	require.NoError(t, ask(), "a damaged file counts as none")
}

// newCertificate makes a key and a certificate of it.
func newCertificate(t *testing.T) (tls.Certificate, wire.Pin) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, wire.PinOf(leaf)
}

// A commit that a host left says that it has no spec: what the last one configured is withdrawn.
func TestSpecOfAHost(t *testing.T) {
	sites := map[string]string{
		"with":    "site \"lab\" {}\nspec \"pve\" {\n  config {\n    timezone = \"Etc/UTC\"\n  }\n}\nhost \"hub\" {\n  api = \"https://192.0.2.10:8006\"\n  spec = spec.pve\n}\n",
		"without": "site \"lab\" {}\nhost \"hub\" {\n  api = \"https://192.0.2.10:8006\"\n}\n",
		"left":    "site \"lab\" {}\nhost \"other\" {\n  api = \"https://192.0.2.10:8006\"\n}\n",
		"invalid": "site \"lab\" {",
	}
	load := &site.Commits{
		Loader: site.NewLoader(nil), Notes: func(string) diag.List { return nil },
		Files: func(commit string) (fs.FS, error) {
			return fstest.MapFS{"site.hcl": {Data: []byte(sites[commit])}}, nil
		},
	}
	for commit, has := range map[string]bool{"with": true, "without": false, "left": false} {
		got, err := hostSpec(t.Context(), load, "hub", model.Commit{ID: commit})
		require.NoError(t, err, commit)
		require.Equal(t, has, got != nil, commit)
	}
	_, err := hostSpec(t.Context(), load, "hub", model.Commit{ID: "invalid"})
	require.ErrorContains(t, err, "commit invalid is not valid")
}
