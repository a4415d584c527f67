package notify

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
)

// mostDescription is the length of the description of a status, in bytes: that of GitHub.
const mostDescription = 140

// statusCall is the request that sets the status of a commit. The repository is named by its URL for browsers.
func statusCall(n *model.Notify, m message) (call, error) {
	if m.Kind != kindStatus {
		return call{}, &failure{err: errors.New("a forge takes statuses of commits only"), final: true}
	}
	u, err := url.Parse(n.To)
	if err != nil {
		return call{}, errors.New("the address is not a URL")
	}
	repository := strings.TrimSuffix(strings.Trim(u.Path, "/"), ".git")
	base := u.Scheme + "://" + u.Host
	text := m.Text
	if len(text) > mostDescription {
		text = strings.ToValidUTF8(text[:mostDescription-len("…")], "") + "…"
	}
	c := call{method: http.MethodPost, header: map[string]string{}}
	switch n.Type {
	case model.NotifyGitHub:
		api := base + "/api/v3"
		if u.Host == "github.com" {
			api = "https://api.github.com"
		}
		c.url, c.token = api+"/repos/"+repository+"/statuses/"+m.Commit, n.Secret
		c.header["Accept"] = "application/vnd.github+json"
		c.body = map[string]string{"state": m.State, "context": m.Context, "description": text}
	case model.NotifyGitea:
		c.url = base + "/api/v1/repos/" + repository + "/statuses/" + m.Commit
		c.header["Authorization"] = "token " + n.Secret
		c.body = map[string]string{"state": m.State, "context": m.Context, "description": text}
	case model.NotifyGitLab:
		c.url = base + "/api/v4/projects/" + url.PathEscape(repository) + "/statuses/" + m.Commit
		c.header["PRIVATE-TOKEN"] = n.Secret
		c.body = map[string]string{"state": map[string]string{statePending: "pending", stateSuccess: "success", stateFailure: "failed"}[m.State], "name": m.Context, "description": text}
	case model.NotifyBitbucket:
		api := base
		if u.Host == "bitbucket.org" {
			api = "https://api.bitbucket.org"
		}
		key := m.Context
		if len(key) > 40 { // its limit
			sum := sha256.Sum256([]byte(key))
			key = key[:31] + "-" + hex.EncodeToString(sum[:4])
		}
		c.url, c.token = api+"/2.0/repositories/"+repository+"/commit/"+m.Commit+"/statuses/build", n.Secret
		c.body = map[string]string{
			"state": map[string]string{statePending: "INPROGRESS", stateSuccess: "SUCCESSFUL", stateFailure: "FAILED"}[m.State],
			"key":   key, "name": m.Context, "description": text, "url": strings.TrimRight(n.To, "/") + "/commits/" + m.Commit,
		}
	default: // they send messages
	}
	return c, nil
}
