package keys

// Authentication of push notifications from the provider that hosts the repository. The body is not used; the
// repository is fetched instead.
//
// GitHub, Gitea and Forgejo sign the body, GitLab sends its token or signs by Standard Webhooks, and the generic
// form signs the time and the body. A signed time is accepted within window of now. A repeated delivery is
// recognized for as long; it is not an error, because providers retry.
//
// The body is hashed as it arrives and never stored, so a slow or unsigned sender takes no memory.

import (
	"container/list"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// window is the largest difference between the signed time of a delivery and this clock, and the time for which a delivery is
// remembered.
const window = 5 * time.Minute

// remembered is the number of deliveries that are kept to recognize a repetition. An attacker who has one delivery
// cannot push it out: only valid ones are kept.
const remembered = 1024

// Provider hosts repositories, and notifies of pushes.
type Provider string

// Generic is the form for a provider of any other kind.
const Generic Provider = "generic"

// HookError says why a delivery is not accepted.
type HookError string

// The reasons.
const (
	errProvider     HookError = "unknown provider"
	ErrHookMissing  HookError = "the delivery is not signed"
	ErrHookInvalid  HookError = "the signature is not valid"
	ErrHookNoSecret HookError = "the provider has no secret of its own"
	ErrHookTime     HookError = "the delivery was signed at another time"
	ErrHookBody     HookError = "the body of the delivery cannot be read" // and why
)

func (e HookError) Error() string { return string(e) }

// HookVerdict is the action for a valid delivery.
type HookVerdict int

// The verdicts.
const (
	HookPushed   HookVerdict = iota // the repository may have changed
	HookRepeated                    // it was here before
	Other                           // it is about something else, as the ping of a new hook
)

// scheme is the signature scheme of a provider.
type scheme struct {
	// check verifies a delivery, and returns its ID. It only reads the body of a delivery that has a signature, or
	// a token that is right.
	check func(d delivery) (id string, err error)
	// signed are the headers with the HMAC of a delivery.
	signed []string
	// event is the header that says what happened, and pushes are its values for a push.
	event  []string
	pushes []string
}

// delivery is one request.
type delivery struct {
	signed []string // headers, as in scheme
	header http.Header
	body   io.Reader
	secret []byte
	now    time.Time
}

func schemes() map[Provider]scheme {
	push := []string{"push"}
	return map[Provider]scheme{
		"github":  {check: signedBody, signed: []string{"X-Hub-Signature-256"}, event: []string{"X-Github-Event"}, pushes: push},
		"gitea":   {check: signedBody, signed: []string{"X-Gitea-Signature"}, event: []string{"X-Gitea-Event"}, pushes: push},
		"forgejo": {check: signedBody, signed: []string{"X-Forgejo-Signature", "X-Gitea-Signature"}, event: []string{"X-Forgejo-Event", "X-Gitea-Event"}, pushes: push},
		"gitlab":  {check: gitlab, signed: []string{"Webhook-Signature"}, event: []string{"X-Gitlab-Event"}, pushes: []string{"Push Hook", "Tag Push Hook", "System Hook"}},
		Generic:   {check: signedTime, signed: []string{"X-Homestak-Signature"}},
	}
}

// Signed reports whether a delivery of the provider has an HMAC, right or wrong: checking one does not help to guess a secret.
func (p Provider) Signed(header http.Header) bool {
	return slices.ContainsFunc(schemes()[p].signed, func(name string) bool { return header.Get(name) != "" })
}

// HookProviders lists the providers, sorted.
func HookProviders() []Provider { return slices.Sorted(maps.Keys(schemes())) }

// HookChecker checks deliveries. It may be used from several goroutines.
type HookChecker struct {
	now func() time.Time

	mu    sync.Mutex // for a moment only: requests come side by side, and each looks up who was here
	seen  map[[sha256.Size]byte]bool
	order *list.List // of delivered, the oldest first
}

// delivered is one valid delivery.
type delivered struct {
	id [sha256.Size]byte
	at time.Time
}

// NewHookChecker makes a Checker with a clock.
func NewHookChecker(now func() time.Time) *HookChecker {
	return &HookChecker{now: now, seen: map[[sha256.Size]byte]bool{}, order: list.New()}
}

// Check verifies a delivery by the secret of the provider, byte for byte as it came. The secret
// is compared in constant time. An empty secret accepts nothing. The body is read to its end if the
// delivery has what it needs to be valid, else not at all.
func (c *HookChecker) Check(provider Provider, secret []byte, header http.Header, body io.Reader) (HookVerdict, error) {
	s, known := schemes()[provider]
	if !known {
		var all []string
		for _, p := range HookProviders() {
			all = append(all, string(p))
		}
		return Other, fmt.Errorf("%w %q: %s are known", errProvider, provider, strings.Join(all, ", "))
	}
	if len(secret) == 0 {
		return Other, fmt.Errorf("%w: %s", ErrHookNoSecret, provider)
	}
	now := c.now()
	id, err := s.check(delivery{s.signed, header, body, secret, now})
	if err != nil {
		return Other, err
	}
	if c.repeated(sha256.Sum256([]byte(string(provider)+"\x00"+id)), now) {
		return HookRepeated, nil
	}
	for _, name := range s.event {
		if event := header.Get(name); event != "" && !slices.Contains(s.pushes, event) {
			return Other, nil
		}
	}
	return HookPushed, nil
}

// repeated reports whether a delivery was here within the window, and remembers it.
func (c *HookChecker) repeated(id [sha256.Size]byte, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for first := c.order.Front(); first != nil; first = c.order.Front() {
		d := first.Value.(delivered)
		// A signed time may be a window ahead, so that a delivery is valid for two.
		if c.order.Len() < remembered && now.Sub(d.at) <= 2*window {
			break
		}
		c.order.Remove(first)
		delete(c.seen, d.id)
	}
	if c.seen[id] {
		return true
	}
	c.seen[id] = true
	c.order.PushBack(delivered{id, now})
	return false
}

// signedBody is the scheme of a header with the HMAC-SHA256 of the body in hexadecimal, with or
// without sha256= before it. The first of the headers that is there counts.
func signedBody(d delivery) (string, error) {
	for _, name := range d.signed {
		text := d.header.Get(name)
		if text == "" {
			continue
		}
		given, err := d.verify(text, "")
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		return given + deliveryID(d.header), nil
	}
	return "", fmt.Errorf("%w: it has no %s", ErrHookMissing, strings.Join(d.signed, " and no "))
}

// verify compares a signature in hexadecimal with that of a text and the body.
func (d delivery) verify(text, before string) (given string, err error) {
	signature, err := hex.DecodeString(strings.TrimPrefix(text, "sha256="))
	if err != nil || len(signature) != sha256.Size {
		return "", fmt.Errorf("%w: it is not an HMAC-SHA256 in hexadecimal", ErrHookInvalid)
	}
	want, err := d.sign(d.secret, before)
	if err != nil {
		return "", err
	}
	if !hmac.Equal(signature, want) {
		return "", fmt.Errorf("%w: it was not made with the secret of this server", ErrHookInvalid)
	}
	return string(signature), nil
}

// deliveryID distinguishes two pushes that have the same body. It is not signed: a replay under another one only
// makes the server fetch the repository once more.
func deliveryID(h http.Header) string {
	for _, name := range []string{"X-Github-Delivery", "X-Gitea-Delivery", "X-Forgejo-Delivery", "X-Gitlab-Event-Uuid", "Idempotency-Key"} {
		if id := h.Get(name); id != "" {
			return id
		}
	}
	return ""
}

// signedTime is the scheme of the generic hook: the HMAC-SHA256 of the time in Unix seconds, a
// dot and the body.
func signedTime(d delivery) (string, error) {
	const stamp = "X-Homestak-Timestamp"
	at, text := d.header.Get(stamp), d.header.Get(d.signed[0])
	if at == "" || text == "" {
		return "", fmt.Errorf("%w: it needs %s and %s", ErrHookMissing, stamp, d.signed[0])
	}
	given, err := d.verify(text, at+".")
	if err != nil {
		return "", err
	}
	return given, inTime(at, d.now)
}

// gitlab has two schemes. The newer one signs as Standard Webhooks does (https://www.standardwebhooks.com); the
// older one sends the secret itself. If a delivery is signed, the signature counts.
func gitlab(d delivery) (string, error) {
	id, at, signatures := d.header.Get("Webhook-Id"), d.header.Get("Webhook-Timestamp"), d.header.Get("Webhook-Signature")
	token := d.header.Get("X-Gitlab-Token")
	switch {
	case signatures != "":
		key := d.secret
		if encoded, ok := strings.CutPrefix(string(d.secret), "whsec_"); ok {
			var err error
			if key, err = base64.StdEncoding.DecodeString(encoded); err != nil {
				return "", fmt.Errorf("%w: the secret of this server is not whsec_ and base64", ErrHookInvalid)
			}
		}
		want, err := d.sign(key, id+"."+at+".")
		if err != nil {
			return "", err
		}
		for text := range strings.FieldsSeq(signatures) { // several while a key is replaced
			given, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "v1,"))
			if strings.HasPrefix(text, "v1,") && err == nil && hmac.Equal(given, want) {
				return id, inTime(at, d.now)
			}
		}
		return "", fmt.Errorf("%w: Webhook-Signature does not match id, time and body with the secret of this server", ErrHookInvalid)
	case token == "":
		return "", fmt.Errorf("%w: it has no X-Gitlab-Token and no Webhook-Signature", ErrHookMissing)
	case subtle.ConstantTimeCompare([]byte(token), d.secret) != 1:
		return "", fmt.Errorf("%w: X-Gitlab-Token is not the secret of this server", ErrHookInvalid)
	default:
		sum := sha256.New()
		if _, err := io.Copy(sum, d.body); err != nil {
			return "", fmt.Errorf("%w: %w", ErrHookBody, err)
		}
		return string(sum.Sum(nil)) + deliveryID(d.header), nil
	}
}

// inTime checks a signed time.
func inTime(text string, now time.Time) error {
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: %q is not a time in Unix seconds", ErrHookTime, text)
	}
	at := time.Unix(seconds, 0)
	if away := now.Sub(at).Abs(); away > window {
		return fmt.Errorf("%w: %s, more than %s from the time here", ErrHookTime, at.UTC().Format(time.RFC3339), window)
	}
	return nil
}

// sign is the HMAC-SHA256 of a text and the body.
func (d delivery) sign(key []byte, before string) ([]byte, error) {
	mac := hmac.New(sha256.New, key)
	_, _ = io.WriteString(mac, before) // a hash takes everything
	if _, err := io.Copy(mac, d.body); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHookBody, err)
	}
	return mac.Sum(nil), nil
}
