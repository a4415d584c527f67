package specserve_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source"
	gitserve "github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

const repositoryKey = "6d0f8e2b4c-canary-key-of-the-repository"

// withRepository is a server that has all there is: a host of its own, inner, and the repository.
func withRepository(t *testing.T) *served {
	t.Helper()
	s := serve(t, unlimited())
	with := site()
	with.Manifests["web"].Nodes = append(with.Manifests["web"].Nodes, &model.Node{Name: "inner", Spec: "own", Type: "pve"})
	remote := sourcetest.New(t)
	id := remote.Commit(map[string]string{"site.hcl": "site {}\n", "sub/a.txt": "a\n"}, "one")
	repo, err := source.OpenRepository(source.Options{URL: remote.URL(), Dir: t.TempDir()})
	require.NoError(t, err)
	_, err = repo.Head(t.Context())
	require.NoError(t, err)
	snapshot, err := repo.Snapshot(gitserve.Content{Branch: "main", InForce: id, LastGood: id})
	require.NoError(t, err)
	made, found := specserve.MakeCatalog(specserve.CatalogInput{Site: with, Commit: id, Policies: s.set})
	require.Empty(t, found)
	s.Publish(specserve.View{Catalog: made, Keys: s.keys, Pins: s.pins, Repository: snapshot, Access: keys.Access{Repository: []byte(repositoryKey)}})
	return s
}

// sent is the answer to a request with a value of Authorization.
func (s *served) sent(method, path, authorization string) answer {
	s.t.Helper()
	header := ""
	if authorization != "" {
		header = "Authorization: " + authorization + "\r\n"
	}
	return s.raw(method + " " + path + " HTTP/1.1\r\nHost: x\r\n" + header + "Content-Length: 0\r\nConnection: close\r\n\r\n")
}

// Who gets what: the repository is for its key and for children, the program for all who have a
// credential that is good.
func TestWhoMayDownload(t *testing.T) {
	s := withRepository(t)
	basic := func(password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte("git:"+password))
	}
	const refs, raw = "/site.git/info/refs?service=git-upload-pack", "/site.git/raw/HEAD/sub/a.txt"
	other := "/agent/plan9-arm"
	for _, x := range []struct{ name, authorization, repository, agent string }{
		{"nothing", "", "401 E300", "401 E300"},
		{"malformed", "Bearer", "401 E300", "401 E300"},
		{"no password", basic(""), "401 E300", "401 E300"},
		{"a guess", "Bearer x", "401 E301", "401 E301"},
		{"a guessed password", basic("x"), "401 E301", "401 E300"},
		{"the key", "Bearer " + repositoryKey, "200 ", "401 E301"},
		{"the key as a password", basic(repositoryKey), "200 ", "401 E300"},
		{"almost the key", "Bearer " + repositoryKey[1:], "401 E301", "401 E301"},
		{"the token of a child", "Bearer " + s.mint(s.keys[0], "inner"), "200 ", "404 E200"},
		{"it as a password", basic(s.mint(s.keys[1], "inner")), "200 ", "401 E300"},
		{"the token of a VM", "Bearer " + s.mint(s.keys[0], "own"), "403 E302", "404 E200"},
		{"the token of a node that is not deployed", "Bearer " + s.mint(s.keys[0], "gone"), "403 E302", "404 E200"},
		{"the token of a suspended node", "Bearer " + s.mint(s.keys[0], "cold"), "403 E302", "404 E200"},
		{"the site's token for a VM", "Bearer " + ownToken, "403 E302", "404 E200"},
		{"the site's token", "Bearer " + siteToken, "403 E302", "404 E200"},
	} {
		for path, want := range map[string]string{refs: x.repository, raw: x.repository, other: x.agent} {
			got := s.sent(http.MethodGet, path, x.authorization)
			require.Equal(t, want, fmt.Sprint(got.status, " ", got.code()), "%s: %s: %s", x.name, path, got.body)
			if challenges := got.header.Values("WWW-Authenticate"); got.status == 401 && path != other {
				require.Len(t, challenges, 2)
				require.True(t, strings.HasPrefix(challenges[1], "Basic "), "or git does not ask for a password")
			}
		}
	}
	require.Equal(t, "a\n", s.sent(http.MethodGet, raw, basic(repositoryKey)).body)
	require.Equal(t, 404, s.sent(http.MethodGet, "/site.git/raw/HEAD/secrets.yaml", "Bearer "+repositoryKey).status)
	require.Equal(t, 415, s.sent(http.MethodPost, "/site.git/git-upload-pack", "Bearer "+repositoryKey).status)
	require.Equal(t, 405, s.sent(http.MethodPost, raw, "Bearer "+repositoryKey).status)
	require.Equal(t, 404, s.sent(http.MethodPost, "/site.git/git-receive-pack", "Bearer "+repositoryKey).status)
	require.Equal(t, 413, s.raw("POST /site.git/git-upload-pack HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n").status)
	require.Contains(t, s.log.String(), "credential="+"repository_key")
}

// A server without a repository says why, to those who may have it.
func TestNoRepository(t *testing.T) {
	s := start(t)
	s.publishWith(func(v *specserve.View) {
		v.NoRepository, v.Access.Repository = "the site folder is not a checkout of git", []byte(repositoryKey)
	})
	got := s.sent(http.MethodGet, "/site.git/info/refs?service=git-upload-pack", "Bearer "+repositoryKey)
	require.Equal(t, "404 E200", fmt.Sprint(got.status, " ", got.code()))
	require.Contains(t, got.body, "the repository is not served: the site folder is not a checkout of git")
	require.Equal(t, 401, s.sent(http.MethodGet, "/site.git/info/refs", "").status, "who may not have it does not learn that")
}

// publishWith publishes the usual site with something changed.
func (s *served) publishWith(change func(*specserve.View)) {
	s.t.Helper()
	c, found := specserve.MakeCatalog(specserve.CatalogInput{Site: site(), Commit: "3f2c1a9", Policies: s.set})
	require.Empty(s.t, found)
	v := specserve.View{Catalog: c, Keys: s.keys, Pins: s.pins}
	change(&v)
	s.Publish(v)
}

// The spec says which program to expect, and the server sends that one.
func TestProgram(t *testing.T) {
	name := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(name, []byte("the program"), 0o700))
	p, err := specserve.OpenProgram(name)
	require.NoError(t, err)
	s := serveProgram(t, unlimited(), p)
	s.publish("3f2c1a9", site())
	path := "/agent/" + specserve.ProgramSystem()
	bearer := "Bearer " + s.mint(s.keys[0], "own")
	got := s.sent(http.MethodGet, path, bearer)
	require.Equal(t, 200, got.status, got.body)
	require.Equal(t, "the program", got.body)
	var spec struct{ Agent map[string]string }
	require.NoError(t, json.Unmarshal([]byte(s.sent(http.MethodGet, wire.SpecPath("own"), bearer).body), &spec))
	require.Equal(t, `"`+spec.Agent[specserve.ProgramSystem()]+`"`, got.header.Get("ETag"))
	require.Empty(t, s.sent(http.MethodHead, path, bearer).body)
	for other, want := range map[string]int{"/agent/plan9-arm": 404, path + "/": 404, "/agent/../" + specserve.ProgramSystem(): 404, "/agent/": 404, "/agent": 404} {
		require.Equal(t, want, s.sent(http.MethodGet, other, bearer).status, other)
	}
}
