package specserve_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/keys"
)

// signature is the HMAC-SHA256 of a text, in hex.
func signature(secret []byte, text string) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

const push = `{"ref":"refs/heads/main"}`

func TestHook(t *testing.T) {
	s := start(t)
	secret := s.access.Hook
	at := strconv.FormatInt(s.now.Load(), 10)
	late := strconv.FormatInt(s.now.Load()-301, 10)
	for _, c := range []struct {
		name, path, body string
		headers          []string
		status           int
		answer           string // its status, or its code
		checks           bool
	}{
		{"github", "/hook/github", push, []string{"X-Hub-Signature-256", "sha256=" + signature(secret("github"), push), "X-Github-Event", "push", "X-Github-Delivery", "1"}, 202, "checking", true},
		{"github again", "/hook/github", push, []string{"X-Hub-Signature-256", "sha256=" + signature(secret("github"), push), "X-Github-Event", "push", "X-Github-Delivery", "1"}, 200, "was here before", false},
		{"github ping", "/hook/github", "{}", []string{"X-Hub-Signature-256", "sha256=" + signature(secret("github"), "{}"), "X-Github-Event", "ping"}, 200, "not about a push", false},
		{"gitea", "/hook/gitea", push, []string{"X-Gitea-Signature", signature(secret("gitea"), push), "X-Gitea-Event", "push"}, 202, "checking", true},
		{"forgejo", "/hook/forgejo", push, []string{"X-Forgejo-Signature", signature(secret("forgejo"), push)}, 202, "checking", true},
		{"gitlab", "/hook/gitlab", push, []string{"X-Gitlab-Token", string(secret("gitlab")), "X-Gitlab-Event", "Push Hook"}, 202, "checking", true},
		{"generic", "/hook/generic", push, []string{"X-Homestak-Timestamp", at, "X-Homestak-Signature", signature(secret("generic"), at+"."+push)}, 202, "checking", true},
		{"too late", "/hook/generic", push, []string{"X-Homestak-Timestamp", late, "X-Homestak-Signature", signature(secret("generic"), late+"."+push)}, 401, "E303", false},
		{"not signed", "/hook/github", push, nil, 401, "E300", false},
		{"not signed, gitlab", "/hook/gitlab", push, nil, 401, "E300", false},
		{"of another body", "/hook/github", push + " ", []string{"X-Hub-Signature-256", "sha256=" + signature(secret("github"), push)}, 401, "E301", false},
		{"by another secret", "/hook/gitea", push, []string{"X-Gitea-Signature", signature([]byte("canary"), push)}, 401, "E301", false},
		{"a token of nobody", "/hook/gitlab", push, []string{"X-Gitlab-Token", "canary"}, 401, "E301", false},
		{"the operator key", "/hook/github", push, bearer(string(s.access.Operator)), 401, "E300", false},
		{"unknown", "/hook/bitbucket", push, nil, 404, "E100", false},
		{"none", "/hook/", push, nil, 404, "E100", false},
		{"below", "/hook/github/x", push, nil, 404, "E100", false},
	} {
		got := s.send("POST", c.path, strings.NewReader(c.body), c.headers...)
		require.Equal(t, c.status, got.status, c.name)
		if c.status < 300 {
			require.Equal(t, `{"status":"`+c.answer+`"}`+"\n", got.body, c.name)
		} else {
			require.Equal(t, c.answer, got.code(), c.name)
		}
		require.Equal(t, c.checks, len(s.asked) == 1, c.name)
		if c.checks {
			<-s.asked
		}
	}
	for _, provider := range keys.HookProviders() {
		got := s.ask("GET", "/hook/"+provider)
		require.Equal(t, 405, got.status)
		require.Equal(t, "POST", got.header.Get("Allow"))
	}
}

// What one provider signs is a notification of that provider alone: each has its own secret, and the one in hook.key, which once
// was for all, is only the generic one's.
func TestS7EachProviderHasASecretOfItsOwn(t *testing.T) {
	s := serve(t, unlimited())
	s.publish("3f2c1a9", site())
	n := 0
	send := func(provider string, secret []byte) answer {
		n++ // each body is another one, so that none is a repetition
		body, at := fmt.Sprintf(`{"n":%d}`, n), strconv.FormatInt(s.now.Load(), 10)
		return s.send("POST", "/hook/"+provider, strings.NewReader(body), map[string][]string{
			"github": {"X-Hub-Signature-256", "sha256=" + signature(secret, body)}, "gitea": {"X-Gitea-Signature", signature(secret, body)},
			"forgejo": {"X-Forgejo-Signature", signature(secret, body)}, "gitlab": {"X-Gitlab-Token", string(secret)},
			"generic": {"X-Homestak-Timestamp", at, "X-Homestak-Signature", signature(secret, at+"."+body)},
		}[provider]...)
	}
	for _, of := range keys.HookProviders() {
		for _, provider := range keys.HookProviders() {
			got := send(provider, s.access.Hook(of))
			if of == provider {
				require.Equal(t, 202, got.status, provider)
				continue
			}
			require.Equal(t, "E301", got.code(), "the secret of %s at %s", of, provider)
			require.Contains(t, got.body, keys.HookFileOf(provider))
		}
	}
	// What the generic scheme signs is no body that GitHub's accepts.
	body, at := push, strconv.FormatInt(s.now.Load(), 10)
	got := s.send("POST", "/hook/github", strings.NewReader(at+"."+body), "X-Hub-Signature-256", "sha256="+signature(s.access.Hook("generic"), at+"."+body))
	require.Equal(t, "E301", got.code())

	// A secret that two providers have counts for neither, and the answer says so.
	before := s.access
	common, err := os.ReadFile(filepath.Join(s.dir, keys.HookFile))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, keys.HookFileOf("github")), common, 0o600))
	s.access, err = keys.ReadAccess(keys.Files{Dir: s.dir}, keys.HookProviders())
	require.NoError(t, err)
	s.publish("3f2c1a9", site())
	for _, provider := range []string{"github", "generic"} {
		got := send(provider, bytes.TrimSpace(common))
		require.Equal(t, "E301", got.code(), provider)
		require.Contains(t, got.body, "counts for neither")
	}
	require.Equal(t, 202, send("gitea", s.access.Hook("gitea")).status)
	s.access = before
}

// Who asks the server of an agent for a check may wait for the end of the pass: for longer than any other request
// may take, and not beyond the end of the server.
func TestReconcileMayWait(t *testing.T) {
	t.Parallel()
	folder := start(t)
	require.Equal(t, 202, folder.ask("POST", "/reconcile?wait", bearer(string(folder.access.Operator))...).status, "there are no passes")
	l := unlimited()
	// A handshake takes a second on a machine that is busy enough.
	l.Read, l.Write, l.Wait, l.Streams = 3*time.Second, 3*time.Second, 4*time.Second, 1
	asked, pass := make(chan struct{}), make(chan error)
	s := serveOptions(t, l, nil, func(o *specserve.Options) {
		o.Identity = "father"
		o.Reconcile = func(ctx context.Context) (any, error) {
			asked <- struct{}{}
			select {
			case err := <-pass:
				return map[string]int{"made": 1}, err
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	})
	s.publish("3f2c1a9", site())
	key := bearer(string(s.access.Operator))
	ask := func(path string) chan answer {
		got := make(chan answer, 1)
		go func() {
			defer close(got) // also if the request fails
			got <- s.ask("POST", path, key...)
		}()
		select {
		case <-asked:
		case a := <-got:
			t.Fatalf("POST %s asks for no pass: %d %s", path, a.status, a.body)
		}
		return got
	}
	for _, path := range []string{"/reconcile?wait", "/reconcile/father?wait"} {
		got := ask(path)
		require.Equal(t, 429, s.ask("POST", "/reconcile?wait", key...).status, "they are bounded")
		require.Equal(t, 204, s.ask("GET", "/wait/own", bearer(ownToken)...).status, "which takes longer than other requests may")
		require.Empty(t, got)
		pass <- nil
		answer := <-got
		require.Equal(t, 200, answer.status)
		require.JSONEq(t, `{"made":1}`, answer.body)
	}
	require.Equal(t, 401, s.ask("POST", "/reconcile?wait", bearer(string(s.access.Read))...).status)
	require.Empty(t, s.asked, "the pass is the check")
	require.Equal(t, 202, s.ask("POST", "/reconcile", key...).status)
	<-s.asked
	got := ask("/reconcile?wait")
	require.NoError(t, s.stop())
	require.Equal(t, "E500", (<-got).code())
}
