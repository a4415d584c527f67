package service

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// The agent of a child opens its host by what only its machine knows, and makes its own key once.
func TestLocalHost(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), mode))
	}
	write("agent.hcl", "identity = \"inner\"\ndata_dir = \"data\"\nparent {\n  url = \"https://192.0.2.10:44443\"\n  pins = [\"sha256:"+strings.Repeat("0a", 32)+"\"]\n  token_file = \"parent.token\"\n}\napi {\n  token_file = \"api.token\"\n  ca_file = \"ca.pem\"\n}\n", 0o644)
	write("api.token", "homestak@pve!agent=canary\n", 0o600)
	write("ca.pem", "-----BEGIN CERTIFICATE-----", 0o644)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "data"), 0o700))
	c, found := ReadConfig(Flags{File: filepath.Join(dir, "agent.hcl")}, func(string) string { return "" })
	require.Empty(t, found)
	made := 0
	start := func() *Service {
		s := &Service{o: Options{Config: c, Log: slog.New(slog.DiscardHandler), NewKey: func(comment string) (string, string, error) {
			made++
			return "private", "ssh-ed25519 AAAA " + comment, nil
		}}}
		require.NoError(t, s.openKey())
		return s
	}
	start()
	s := start()
	require.Equal(t, 1, made, "it is made at the first start")
	l, found := s.local()
	require.Empty(t, found)
	want := &model.LocalHost{Identity: "inner", APIToken: "homestak@pve!agent=canary", CAPEM: []byte("-----BEGIN CERTIFICATE-----"), Key: "private", PublicKey: "ssh-ed25519 AAAA homestak-gitops agent of inner"}
	require.Equal(t, want, l)

	load := func(l *model.LocalHost) *model.Site {
		site, found := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte("site \"home\" {}\nhost \"father\" {\n  api = \"https://192.0.2.10:8006\"\n}\n")}}, hcl.Options{Local: l})
		require.Empty(t, found)
		m := &model.Manifest{Name: "tree", Host: "father"}
		m.Nodes = []*model.Node{{Name: "inner", Type: model.PVEType, Manifest: m}}
		site.Manifests["tree"] = m
		return site
	}
	h := load(l).HostFor("inner")
	require.Equal(t, "homestak@pve!agent=canary", h.APIToken)
	require.False(t, h.TokenMissing)
	require.Equal(t, "private", h.SSH.Key)
	require.Equal(t, want.PublicKey, h.PublicKey)
	require.True(t, load(nil).HostFor("inner").TokenMissing, "nobody else knows it")
	father := load(l).HostFor("father")
	require.True(t, father.TokenMissing)
	require.Empty(t, father.SSH.Key)

	// The agent of a host may have its token in a file, too; its key is the site's.
	l.Identity = "father"
	father = load(l).HostFor("father")
	require.Equal(t, "homestak@pve!agent=canary", father.APIToken)
	require.Empty(t, father.SSH.Key)

	// A key that is there is never replaced.
	require.NoError(t, os.Remove(filepath.Join(dir, "data", "ssh_key.pub")))
	s = &Service{o: s.o}
	require.ErrorContains(t, s.openKey(), "ssh-keygen -y -f "+filepath.Join(dir, "data", "ssh_key"))
	kept, err := os.ReadFile(filepath.Join(dir, "data", "ssh_key"))
	require.NoError(t, err)
	require.Equal(t, "private", string(kept))

	// One beside agent.hcl outlives the data folder.
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "data")))
	write("ssh_key", "beside", 0o600)
	write("ssh_key.pub", "ssh-ed25519 BBBB beside\n", 0o644)
	s = start()
	require.Equal(t, 1, made)
	l, found = s.local()
	require.Empty(t, found)
	require.Equal(t, []string{"beside", "ssh-ed25519 BBBB beside"}, []string{l.Key, l.PublicKey})

	// Others could read the token, or it is not there: an error that names the file, and no token.
	require.NoError(t, os.Chmod(filepath.Join(dir, "api.token"), 0o644))
	l, found = s.local()
	require.Empty(t, l.APIToken)
	require.Contains(t, found.Sorted()[0].String()+found[0].Detail, "api.token_file cannot be read")
	require.Contains(t, found[0].Detail, "chmod 600 "+filepath.Join(dir, "api.token"))
	require.NoError(t, os.Remove(filepath.Join(dir, "api.token")))
	_, found = s.local()
	require.True(t, found.HasErrors())
}
