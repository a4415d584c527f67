package keys_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/keys"
)

const body = `{"ref":"refs/heads/main"}`

var (
	secret = []byte("correct horse")
	noon   = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
)

func mac(key []byte, text string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

// header makes a header of names and values in turn.
func header(of ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(of); i += 2 {
		h.Set(of[i], of[i+1])
	}
	return h
}

// deliveries are valid ones of each provider, signed at a time.
func deliveries(at time.Time) map[string]http.Header {
	hexed := hex.EncodeToString(mac(secret, body))
	stamp := strconv.FormatInt(at.Unix(), 10)
	return map[string]http.Header{
		"github":  header("X-GitHub-Event", "push", "X-GitHub-Delivery", "1", "X-Hub-Signature-256", "sha256="+hexed),
		"gitea":   header("X-Gitea-Event", "push", "X-Gitea-Delivery", "1", "X-Gitea-Signature", hexed),
		"forgejo": header("X-Forgejo-Event", "push", "X-Forgejo-Delivery", "1", "X-Forgejo-Signature", hexed, "X-Gitea-Signature", "00"),
		"gitlab":  header("X-Gitlab-Event", "Push Hook", "X-Gitlab-Token", string(secret), "Idempotency-Key", "1"),
		"generic": header("X-Homestak-Timestamp", stamp, "X-Homestak-Signature", "sha256="+hex.EncodeToString(mac(secret, stamp+"."+body))),
	}
}

func hookAt(now time.Time) *keys.HookChecker {
	return keys.NewHookChecker(func() time.Time { return now })
}

// GitHub publishes this example, so the header is not only what we think it is
// (docs.github.com, "Validating webhook deliveries").
func TestTheExampleOfGitHub(t *testing.T) {
	h := header("X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17")
	v, err := hookAt(noon).Check("github", []byte("It's a Secret to Everybody"), h, strings.NewReader("Hello, World!"))
	require.NoError(t, err)
	require.Equal(t, keys.HookPushed, v)
}

func TestEachProvider(t *testing.T) {
	require.Len(t, deliveries(noon), len(keys.HookProviders()))
	for name, h := range deliveries(noon) {
		t.Run(name, func(t *testing.T) {
			c := hookAt(noon)
			v, err := c.Check(name, secret, h, strings.NewReader(body))
			require.NoError(t, err)
			require.Equal(t, keys.HookPushed, v)
			v, err = c.Check(name, secret, h, strings.NewReader(body))
			require.NoError(t, err)
			require.Equal(t, keys.HookRepeated, v)

			_, err = hookAt(noon).Check(name, []byte("wrong"), h, strings.NewReader(body))
			require.ErrorIs(t, err, keys.ErrHookInvalid)
			require.NotContains(t, err.Error(), string(secret))
			_, err = hookAt(noon).Check(name, nil, h, strings.NewReader(body))
			require.ErrorIs(t, err, keys.ErrHookNoSecret)
			_, err = hookAt(noon).Check(name, secret, http.Header{}, strings.NewReader(body))
			require.ErrorIs(t, err, keys.ErrHookMissing)
			if name != "gitlab" { // whose token says nothing of the body
				_, err = hookAt(noon).Check(name, secret, h, strings.NewReader(body+" "))
				require.ErrorIs(t, err, keys.ErrHookInvalid)
			}
			for other := range deliveries(noon) {
				if other == name || name == "gitea" || other == "gitea" { // forgejo signs for gitea's sake, too
					continue
				}
				_, err = hookAt(noon).Check(other, secret, h, strings.NewReader(body))
				require.ErrorIs(t, err, keys.ErrHookMissing, other)
			}
		})
	}
	_, err := hookAt(noon).Check("gerrit", secret, http.Header{}, http.NoBody)
	require.ErrorIs(t, err, keys.ErrProvider)
	require.ErrorContains(t, err, "forgejo, generic, gitea, github, gitlab")
}

// Each byte of a signature counts.
func TestTamperedSignatures(t *testing.T) {
	for name, field := range map[string]string{"github": "X-Hub-Signature-256", "gitea": "X-Gitea-Signature", "generic": "X-Homestak-Signature", "gitlab": "X-Gitlab-Token"} {
		good := deliveries(noon)[name]
		value := good.Get(field)
		for i := range len(value) {
			changed := []byte(value)
			changed[i] ^= 1
			h := good.Clone()
			h.Set(field, string(changed))
			_, err := hookAt(noon).Check(name, secret, h, strings.NewReader(body))
			require.ErrorIs(t, err, keys.ErrHookInvalid, "%s: byte %d", name, i)
		}
	}
}

// A header that Forgejo signed itself is not replaced by the one for Gitea's sake.
func TestTheOwnHeaderCounts(t *testing.T) {
	good := hex.EncodeToString(mac(secret, body))
	_, err := hookAt(noon).Check("forgejo", secret, header("X-Forgejo-Signature", "00", "X-Gitea-Signature", good), strings.NewReader(body))
	require.ErrorIs(t, err, keys.ErrHookInvalid)
	v, err := hookAt(noon).Check("forgejo", secret, header("X-Gitea-Signature", good), strings.NewReader(body))
	require.NoError(t, err)
	require.Equal(t, keys.HookPushed, v)
}

// A test delivery of a new hook is accepted, and asks for nothing.
func TestOtherEvents(t *testing.T) {
	for name, event := range map[string][2]string{
		"github": {"X-GitHub-Event", "ping"}, "gitea": {"X-Gitea-Event", "issues"},
		"forgejo": {"X-Forgejo-Event", "release"}, "gitlab": {"X-Gitlab-Event", "Issue Hook"},
	} {
		h := deliveries(noon)[name]
		h.Set(event[0], event[1])
		v, err := hookAt(noon).Check(name, secret, h, strings.NewReader(body))
		require.NoError(t, err)
		require.Equal(t, keys.Other, v, name)
	}
}

// GitLab signs as Standard Webhooks says, with several signatures while a key is replaced.
func TestSignedByGitLab(t *testing.T) {
	key := []byte("0123456789abcdef0123456789abcdef")
	stamp := strconv.FormatInt(noon.Unix(), 10)
	good := "v1," + base64.StdEncoding.EncodeToString(mac(key, "msg_1."+stamp+"."+body))
	whsec := []byte("whsec_" + base64.StdEncoding.EncodeToString(key))
	h := header("X-Gitlab-Event", "Push Hook", "Webhook-Id", "msg_1", "Webhook-Timestamp", stamp, "Webhook-Signature", "v1a,AAAA v1,AAAA "+good)
	c := hookAt(noon)
	v, err := c.Check("gitlab", whsec, h, strings.NewReader(body))
	require.NoError(t, err)
	require.Equal(t, keys.HookPushed, v)
	v, err = c.Check("gitlab", whsec, h, strings.NewReader(body))
	require.NoError(t, err)
	require.Equal(t, keys.HookRepeated, v)

	h.Set("Webhook-Signature", "v1,AAAA")
	h.Set("X-Gitlab-Token", string(whsec)) // does not rescue a wrong signature
	_, err = hookAt(noon).Check("gitlab", whsec, h, strings.NewReader(body))
	require.ErrorIs(t, err, keys.ErrHookInvalid)
	h.Set("Webhook-Signature", good)
	_, err = hookAt(noon.Add(keys.Window+time.Second)).Check("gitlab", whsec, h, strings.NewReader(body))
	require.ErrorIs(t, err, keys.ErrHookTime)
	_, err = hookAt(noon).Check("gitlab", []byte("whsec_%%%"), h, strings.NewReader(body))
	require.ErrorIs(t, err, keys.ErrHookInvalid)
}

// A signed time is accepted within the window, and remembered as long as it is accepted.
func TestTheWindow(t *testing.T) {
	now := noon
	c := keys.NewHookChecker(func() time.Time { return now })
	ahead := deliveries(noon.Add(keys.Window))["generic"]
	v, err := c.Check("generic", secret, ahead, strings.NewReader(body))
	require.NoError(t, err)
	require.Equal(t, keys.HookPushed, v)
	now = noon.Add(2 * keys.Window) // the last moment at which it is valid
	v, err = c.Check("generic", secret, ahead, strings.NewReader(body))
	require.NoError(t, err)
	require.Equal(t, keys.HookRepeated, v)
	now = now.Add(time.Second)
	_, err = c.Check("generic", secret, ahead, strings.NewReader(body))
	require.ErrorIs(t, err, keys.ErrHookTime)
	require.ErrorContains(t, err, "2026-01-02T12:05:00Z")

	now = noon
	_, err = c.Check("generic", secret, deliveries(noon.Add(keys.Window + time.Second))["generic"], strings.NewReader(body))
	require.ErrorIs(t, err, keys.ErrHookTime)
	soon := "soon"
	_, err = c.Check("generic", secret, header("X-Homestak-Timestamp", soon, "X-Homestak-Signature", hex.EncodeToString(mac(secret, soon+"."+body))), strings.NewReader(body))
	require.ErrorIs(t, err, keys.ErrHookTime)
}

// What is remembered is bounded, and safe for requests side by side.
func TestManyDeliveries(t *testing.T) {
	c := hookAt(noon)
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := range 1000 {
				h := deliveries(noon)["github"]
				h.Set("X-GitHub-Delivery", fmt.Sprint(worker, i))
				if v, err := c.Check("github", secret, h, strings.NewReader(body)); err != nil || v != keys.HookPushed {
					t.Errorf("delivery %d of %d: %v, %v", i, worker, v, err)
				}
			}
		})
	}
	all.Wait()
	repeated := 0
	for worker := range 4 {
		for i := range 1000 {
			h := deliveries(noon)["github"]
			h.Set("X-GitHub-Delivery", fmt.Sprint(worker, i))
			if v, _ := c.Check("github", secret, h, strings.NewReader(body)); v == keys.HookRepeated {
				repeated++
			}
		}
	}
	require.Less(t, repeated, 1025)
}

// Whatever a request has in it, it is refused or valid, and never panics.
func FuzzCheck(f *testing.F) {
	f.Add("gitlab", "v1,AAAA", "1767355200", body)
	f.Add("generic", "sha256=00", "0", "")
	f.Fuzz(func(t *testing.T, provider, signature, stamp, body string) {
		h := header("X-Hub-Signature-256", signature, "X-Gitea-Signature", signature, "X-Gitlab-Token", signature,
			"Webhook-Signature", signature, "Webhook-Timestamp", stamp, "X-Homestak-Timestamp", stamp, "X-Homestak-Signature", signature)
		if _, err := hookAt(noon).Check(provider, secret, h, strings.NewReader(body)); err == nil {
			t.Fatalf("accepted %q of %q", signature, provider)
		}
	})
}
