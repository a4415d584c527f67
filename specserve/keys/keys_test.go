package keys

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

func ensure(t *testing.T, dir string) Ring {
	t.Helper()
	r, err := Folder(dir).Ensure(now)
	require.NoError(t, err)
	return r
}

// However many servers start first, there is one key, and it stays.
func TestFirstStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "server")
	_, err := Folder(dir).Read()
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "there is no signing key")
	_, err = Folder(dir).Rotate(now)
	require.ErrorIs(t, err, os.ErrNotExist, "only a server makes the first key")

	rings := make([]Ring, 8)
	var all sync.WaitGroup
	for i := range rings {
		all.Go(func() {
			var err error
			if rings[i], err = Folder(dir).Ensure(now.Add(time.Duration(i) * time.Hour)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, r := range rings {
		require.Len(t, r, 1)
		require.Equal(t, rings[0], r)
	}
	require.Equal(t, rings[0], ensure(t, dir))
	info, err := os.Stat(filepath.Join(dir, signingFile))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	info, err = os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

// A token of the older key is accepted until the key is dropped, and is to be renewed.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	first := ensure(t, dir)
	minted, err := first[0].MintToken(Claims{Node: "web-1", Spec: "base", Issued: now.Unix()})
	require.NoError(t, err)
	accepted := func(r Ring) wire.Code {
		t.Helper()
		read, err := Folder(dir).Read()
		require.NoError(t, err)
		require.Equal(t, r, read)
		c, err := r.Tokens().Verify(minted, "web-1", now)
		if err != nil {
			return wire.CodeOf(err)
		}
		require.Equal(t, r[0].ID != first[0].ID, r.Tokens().Due(c, now))
		return ""
	}
	require.Empty(t, accepted(first))

	second, err := Folder(dir).Rotate(now.Add(time.Hour))
	require.NoError(t, err)
	require.Equal(t, first[0], second[1])
	require.NotEqual(t, first[0].ID, second[0].ID)
	require.Empty(t, accepted(second))

	third, err := Folder(dir).Rotate(now.Add(2 * time.Hour))
	require.NoError(t, err)
	require.Equal(t, second[0], third[1])
	require.Len(t, third, 2)
	require.Equal(t, wire.CodeRefused, accepted(third))

	alone, err := Folder(dir).DropOld()
	require.NoError(t, err)
	require.Equal(t, third[:1], alone)
	require.Equal(t, wire.CodeRefused, accepted(alone))
}

// A file that cannot be used is never replaced: every token would be lost.
func TestUnusableFile(t *testing.T) {
	for content, why := range map[string]string{
		"":                          "not a JSON document",
		`{"version":2}`:             "version 2",
		`{"version":1,"keys":[]}`:   "it has 0 keys",
		`{"version":1,"keys":[{}]}`: "64 hexadecimal digits",
	} {
		dir := t.TempDir()
		name := filepath.Join(dir, signingFile)
		require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
		for _, read := range []func() (Ring, error){
			func() (Ring, error) { return Folder(dir).Read() },
			func() (Ring, error) { return Folder(dir).Ensure(now) },
			func() (Ring, error) { return Folder(dir).Rotate(now) },
			func() (Ring, error) { return Folder(dir).DropOld() },
		} {
			_, err := read()
			require.ErrorContains(t, err, why)
			require.ErrorContains(t, err, "restore it from a backup")
		}
		kept, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, content, string(kept))
	}
	dir := t.TempDir()
	ring := ensure(t, dir)
	name := filepath.Join(dir, signingFile)
	require.NoError(t, os.WriteFile(name, []byte(`{"version":1,"keys":[{"key":"`+ring[0].Text()+`x"}]}`), 0o600))
	_, err := Folder(dir).Read()
	require.ErrorContains(t, err, "not usable")
	require.NotContains(t, err.Error(), ring[0].Text())
	require.NoError(t, os.Chmod(name, 0o640))
	_, err = Folder(dir).Read()
	require.ErrorContains(t, err, "chmod 600")
}

func TestAccess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "server")
	_, err := Folder(dir).Ensure(time.Now())
	require.NoError(t, err)
	providers := []Provider{Generic, "github", "gitlab"}
	_, err = (Files{Dir: dir}).ReadAccess(providers)
	require.ErrorIs(t, err, os.ErrNotExist)

	first, err := (Files{Dir: dir}).EnsureAccess(providers)
	require.NoError(t, err)
	seen := map[string]bool{}
	for name, key := range map[string][]byte{readFile: first.Read, operatorFile: first.Operator, repositoryFile: first.Repository, hookFile: first.Hook("generic"), "hook-github.key": first.Hook("github"), "hook-gitlab.key": first.Hook("gitlab")} {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
		require.Regexp(t, `^[0-9a-f]{64}$`, string(key))
		seen[string(key)] = true
	}
	require.Len(t, seen, 6, "each key is another one")

	again, err := (Files{Dir: dir}).EnsureAccess(providers)
	require.NoError(t, err)
	require.True(t, again.Equal(first))

	// The administrator may write one.
	own := filepath.Join(dir, Provider("github").File())
	require.NoError(t, os.WriteFile(own, []byte("a secret of sixteen or more \n"), 0o600))
	with, err := (Files{Dir: dir}).ReadAccess(providers)
	require.NoError(t, err)
	require.Equal(t, "a secret of sixteen or more", string(with.Hook("github")))
	require.Equal(t, first.Hook("gitlab"), with.Hook("gitlab"))
	require.False(t, with.Equal(first))
	require.False(t, first.Equal(with))

	// A file may be missing, as after its secret was moved to the file of another provider.
	require.NoError(t, os.Rename(filepath.Join(dir, hookFile), own))
	moved, err := (Files{Dir: dir}).ReadAccess(providers)
	require.NoError(t, err)
	require.Nil(t, moved.Hook("generic"))
	require.Equal(t, first.Hook("generic"), moved.Hook("github"))
	require.False(t, moved.Equal(with))
}

// An existing key is never replaced automatically, and no error contains it.
func TestAccessRefused(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		mode    os.FileMode
	}{
		"short":     {"canary\n", 0o600},
		"empty":     {"", 0o600},
		"two lines": {"canary-canary-canary\ncanary-canary-canary\n", 0o600},
		"readable":  {"canary-canary-canary\n", 0o644},
	} {
		for _, file := range []string{readFile, operatorFile, repositoryFile, hookFile, Provider("gitea").File()} {
			t.Run(name+" "+file, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "server")
				_, err := Folder(dir).Ensure(time.Now())
				require.NoError(t, err)
				path := filepath.Join(dir, file)
				require.NoError(t, os.WriteFile(path, []byte(c.content), 0o600))
				require.NoError(t, os.Chmod(path, c.mode))
				_, err = (Files{Dir: dir}).EnsureAccess([]Provider{"generic", "gitea"})
				require.ErrorContains(t, err, path)
				require.NotContains(t, err.Error(), "canary")
				after, err := os.ReadFile(path)
				require.NoError(t, err)
				require.Equal(t, c.content, string(after))
			})
		}
	}
}

// Each file may be elsewhere, as agent.hcl names it; the others stay in the folder.
func TestFilesElsewhere(t *testing.T) {
	dir, elsewhere := filepath.Join(t.TempDir(), "server"), filepath.Join(t.TempDir(), "read")
	_, err := Folder(dir).Ensure(time.Now())
	require.NoError(t, err)
	made, err := (Files{Dir: dir, Read: elsewhere}).EnsureAccess(nil)
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(dir, readFile))
	require.FileExists(t, filepath.Join(dir, operatorFile))
	text, err := os.ReadFile(elsewhere)
	require.NoError(t, err)
	require.Equal(t, string(made.Read)+"\n", string(text))
}

// desk is a server with a book, whose nodes show tokens.
type desk struct {
	t    *testing.T
	dir  string
	ring Ring
	book *Book
	now  time.Time
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{t: t, dir: t.TempDir(), now: now}
	d.ring = ensure(t, d.dir)
	d.restart()
	return d
}

func (d *desk) restart() {
	d.t.Helper()
	var err error
	d.book, err = Folder(d.dir).OpenBook()
	require.NoError(d.t, err)
}

// mint is the verb, which runs in another process.
func (d *desk) mint(life time.Duration) string {
	d.t.Helper()
	m, err := Folder(d.dir).Mint("web-1", "base", life, d.now)
	require.NoError(d.t, err)
	return m.Token
}

// show shows a token, and gets the next one if it is due; a code if it is refused.
func (d *desk) show(text string) (next string, code wire.Code) {
	d.t.Helper()
	c, err := d.ring.Tokens().VerifyBy(d.book, text, "web-1", d.now)
	if err != nil {
		return "", wire.CodeOf(err)
	}
	d.book.Use(c, d.now)
	if !d.ring.Tokens().Due(c, d.now) {
		return "", ""
	}
	claims := Claims{Node: "web-1", Spec: "base", Issued: d.now.Unix(), Number: c.Number}
	if life := c.Life(); life != 0 {
		claims.Expires = d.now.Add(life).Unix()
	}
	next, err = d.ring[0].MintToken(d.book.Next(claims))
	require.NoError(d.t, err)
	return next, ""
}

func (d *desk) code(text string) wire.Code {
	d.t.Helper()
	_, code := d.show(text)
	return code
}

// A token that was minted is good until its successor was used, and for no longer than requests may be under way.
func TestS8MintedTokensAreUsedOnce(t *testing.T) {
	d := newDesk(t)
	first := d.mint(TokenLifetime)
	lost, _ := d.show(first) // the answer is lost
	require.NotEmpty(t, lost)
	next, _ := d.show(first)
	require.NotEmpty(t, next)
	require.Empty(t, d.code(first), "the next one is not used yet")
	renewed, code := d.show(next)
	require.Empty(t, code)
	require.Empty(t, renewed, "it is good for a day")
	d.now = d.now.Add(overlap)
	require.Empty(t, d.code(first))
	d.now = d.now.Add(1)
	require.Equal(t, wire.CodeRefused, d.code(first))
	require.NoError(t, d.book.Save())
	d.restart()
	require.Equal(t, wire.CodeRefused, d.code(first), "also after a restart")
	require.Empty(t, d.code(next))

	// Where the file lacks the newest uses, a token that is minted counts nevertheless.
	again := d.mint(TokenLifetime)
	next, _ = d.show(again)
	require.Empty(t, d.code(next))
	again = d.mint(TokenLifetime)
	d.now = d.now.Add(time.Hour)
	require.Empty(t, d.code(again))

	forever := d.mint(0)
	for range 3 {
		next, code = d.show(forever)
		require.Empty(t, code)
		require.Empty(t, next, "who asked for one that never ends keeps it")
		d.now = d.now.AddDate(1, 0, 0)
	}
}

// A node that runs renews its token every twelve hours. One that was off comes back within thirty days, by its newest token
// only: a copy of an older one opens nothing.
func TestS8LifeOfTokens(t *testing.T) {
	d := newDesk(t)
	all := []string{d.mint(TokenLifetime)}
	for range 10 {
		next, code := d.show(all[len(all)-1])
		require.Empty(t, code)
		require.NotEmpty(t, next)
		all = append(all, next)
		require.Empty(t, d.code(next))
		d.now = d.now.Add(TokenLifetime / 2)
	}
	newest := all[len(all)-1]
	require.Equal(t, wire.CodeExpired, d.code(all[len(all)-3]))
	off := d.now
	d.now = off.AddDate(0, 0, 7)
	require.Equal(t, wire.CodeExpired, d.code(all[len(all)-2]))
	next, code := d.show(newest)
	require.Empty(t, code)
	require.NotEmpty(t, next)
	require.Empty(t, d.code(newest), "the answer may be lost")
	require.Empty(t, d.code(next))
	require.Equal(t, wire.CodeExpired, d.code(newest), "now it is an older one")
	d.now = d.now.Add(TokenLifetime + lapse - time.Second)
	require.Empty(t, d.code(next))
	d.now = d.now.Add(time.Second)
	require.Equal(t, wire.CodeExpired, d.code(next))
}

// A clock that is wrong by a year, either way, and then right again locks no node out, and leaves no token that is good for
// longer than others. The server is restarted meanwhile, as machines are whose clock is put right.
func TestS7ClockOfAParent(t *testing.T) {
	for name, years := range map[string]int{"ahead": 1, "behind": -1} {
		for _, running := range []bool{true, false} { // nodes that have a token already, or get their first meanwhile
			t.Run(fmt.Sprintf("%s %t", name, running), func(t *testing.T) {
				d := newDesk(t)
				right := d.now
				set := func(at time.Time) {
					require.NoError(t, d.book.Save())
					d.now = at
					d.restart()
				}
				renew := func(text string) string {
					t.Helper()
					next, code := d.show(text)
					require.Empty(t, code)
					if next == "" {
						return text
					}
					require.Empty(t, d.code(next))
					return next
				}
				var text string
				if running {
					text = renew(d.mint(TokenLifetime))
				}
				set(right.AddDate(years, 0, 0))
				if !running {
					text = d.mint(TokenLifetime)
				}
				wrong := renew(text)
				for range 5 {
					d.now = d.now.Add(TokenLifetime / 2)
					wrong = renew(wrong)
				}
				set(right.Add(3 * TokenLifetime))
				next := renew(wrong)
				require.NotEqual(t, wrong, next, "it is replaced at once")
				c, err := InspectToken(next)
				require.NoError(t, err)
				require.Equal(t, d.now.Add(TokenLifetime).Unix(), c.Expires)
				d.now = d.now.Add(2 * overlap)
				require.NotEmpty(t, d.code(wrong), "a copy of it is worth nothing now")
				require.Empty(t, d.code(next))
				d.now = d.now.Add(TokenLifetime + lapse)
				require.Equal(t, wire.CodeExpired, d.code(next))
			})
		}
	}
}

// A server that was off for longer than its nodes have to renew their tokens.
func TestS7ClockOfAServerThatWasOff(t *testing.T) {
	d := newDesk(t)
	first, _ := d.show(d.mint(TokenLifetime))
	require.Empty(t, d.code(first))
	require.NoError(t, d.book.Save())
	d.now = d.now.AddDate(0, 6, 0)
	d.restart()
	next, code := d.show(first)
	require.Empty(t, code)
	require.Empty(t, d.code(next))
	require.Equal(t, wire.CodeExpired, d.code(first))
}

// Tokens of earlier versions are good for a year. They are replaced at once, and end with that.
func TestS8TokensOfEarlierVersions(t *testing.T) {
	d := newDesk(t)
	old, err := d.ring[0].MintToken(Claims{Node: "web-1", Spec: "base", Issued: d.now.Unix(), Expires: d.now.AddDate(1, 0, 0).Unix()})
	require.NoError(t, err)
	next, code := d.show(old)
	require.Empty(t, code)
	c, err := InspectToken(next)
	require.NoError(t, err)
	require.Equal(t, int64(24*3600), c.Expires-c.Issued)
	require.Empty(t, d.code(next))
	d.now = d.now.Add(2 * overlap)
	require.Equal(t, wire.CodeRefused, d.code(old))
}

// A revocation counts for a server that runs at once, over restarts, and for every token of that node until then.
func TestS8Revoke(t *testing.T) {
	d := newDesk(t)
	_, err := Folder(t.TempDir()).Revoke("web-1", now)
	require.ErrorIs(t, err, os.ErrNotExist, "there is no server")

	minted, unused, forever := d.mint(TokenLifetime), d.mint(TokenLifetime), d.mint(0)
	renewed, _ := d.show(minted)
	require.Empty(t, d.code(renewed))
	require.Empty(t, d.book.Revoked())
	r, err := Folder(d.dir).Revoke("web-1", d.now)
	require.NoError(t, err)
	require.Equal(t, Revocation{Node: "web-1", Generation: 1, At: now.Truncate(time.Second), Minted: true}, r)
	for range 2 {
		for _, text := range []string{minted, unused, forever, renewed} {
			require.Equal(t, wire.CodeRefused, d.code(text))
		}
		require.Equal(t, map[string]time.Time{"web-1": r.At}, d.book.Revoked())
		d.restart()
	}
	m, err := Folder(d.dir).Mint("web-2", "base", time.Hour, d.now)
	require.NoError(t, err)
	_, err = d.ring.Tokens().VerifyBy(d.book, m.Token, "web-2", d.now)
	require.NoError(t, err, "others are not concerned")

	fresh := d.mint(TokenLifetime)
	require.Empty(t, d.code(fresh))
	require.Empty(t, d.book.Revoked(), "it has a new one")
	_, err = Folder(d.dir).Revoke("web-1", d.now)
	require.NoError(t, err)
	require.Equal(t, wire.CodeRefused, d.code(fresh), "once more")
}

// A file that cannot be used is no reason to accept what was revoked.
func TestS8UnusableBook(t *testing.T) {
	for _, file := range []string{issuedFile, usedFile} {
		d := newDesk(t)
		text := d.mint(TokenLifetime)
		_, err := Folder(d.dir).Revoke("web-1", d.now)
		require.NoError(t, err)
		require.Equal(t, wire.CodeRefused, d.code(text))
		require.NoError(t, os.WriteFile(filepath.Join(d.dir, file), []byte("{"), 0o600))
		require.Equal(t, wire.CodeRefused, d.code(text), "what was known counts")
		_, err = Folder(d.dir).OpenBook()
		require.ErrorContains(t, err, file+" is not usable")
		if file == issuedFile {
			_, err = d.book.Refresh()
			require.ErrorContains(t, err, file+" is not usable")
			_, err = Folder(d.dir).Revoke("web-1", d.now)
			require.ErrorContains(t, err, file+" is not usable")
		}
	}
}

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
func deliveries(at time.Time) map[Provider]http.Header {
	hexed := hex.EncodeToString(mac(secret, body))
	stamp := strconv.FormatInt(at.Unix(), 10)
	return map[Provider]http.Header{
		"github":  header("X-GitHub-Event", "push", "X-GitHub-Delivery", "1", "X-Hub-Signature-256", "sha256="+hexed),
		"gitea":   header("X-Gitea-Event", "push", "X-Gitea-Delivery", "1", "X-Gitea-Signature", hexed),
		"forgejo": header("X-Forgejo-Event", "push", "X-Forgejo-Delivery", "1", "X-Forgejo-Signature", hexed, "X-Gitea-Signature", "00"),
		"gitlab":  header("X-Gitlab-Event", "Push Hook", "X-Gitlab-Token", string(secret), "Idempotency-Key", "1"),
		"generic": header("X-Homestak-Timestamp", stamp, "X-Homestak-Signature", "sha256="+hex.EncodeToString(mac(secret, stamp+"."+body))),
	}
}

func hookAt(now time.Time) *HookChecker {
	return NewHookChecker(func() time.Time { return now })
}

// GitHub publishes this example, so the header is not only what we think it is
// (docs.github.com, "Validating webhook deliveries").
func TestTheExampleOfGitHub(t *testing.T) {
	h := header("X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17")
	v, err := hookAt(noon).Check("github", []byte("It's a Secret to Everybody"), h, strings.NewReader("Hello, World!"))
	require.NoError(t, err)
	require.Equal(t, HookPushed, v)
}

func TestEachProvider(t *testing.T) {
	require.Len(t, deliveries(noon), len(HookProviders()))
	for name, h := range deliveries(noon) {
		t.Run(string(name), func(t *testing.T) {
			c := hookAt(noon)
			v, err := c.Check(name, secret, h, strings.NewReader(body))
			require.NoError(t, err)
			require.Equal(t, HookPushed, v)
			v, err = c.Check(name, secret, h, strings.NewReader(body))
			require.NoError(t, err)
			require.Equal(t, HookRepeated, v)

			_, err = hookAt(noon).Check(name, []byte("wrong"), h, strings.NewReader(body))
			require.ErrorIs(t, err, ErrHookInvalid)
			require.NotContains(t, err.Error(), string(secret))
			_, err = hookAt(noon).Check(name, nil, h, strings.NewReader(body))
			require.ErrorIs(t, err, ErrHookNoSecret)
			_, err = hookAt(noon).Check(name, secret, http.Header{}, strings.NewReader(body))
			require.ErrorIs(t, err, ErrHookMissing)
			if name != "gitlab" { // whose token says nothing of the body
				_, err = hookAt(noon).Check(name, secret, h, strings.NewReader(body+" "))
				require.ErrorIs(t, err, ErrHookInvalid)
			}
			for other := range deliveries(noon) {
				if other == name || name == "gitea" || other == "gitea" { // forgejo signs for gitea's sake, too
					continue
				}
				_, err = hookAt(noon).Check(other, secret, h, strings.NewReader(body))
				require.ErrorIs(t, err, ErrHookMissing, other)
			}
		})
	}
	_, err := hookAt(noon).Check("gerrit", secret, http.Header{}, http.NoBody)
	require.ErrorIs(t, err, errProvider)
	require.ErrorContains(t, err, "forgejo, generic, gitea, github, gitlab")
}

// Each byte of a signature counts.
func TestTamperedSignatures(t *testing.T) {
	for name, field := range map[Provider]string{"github": "X-Hub-Signature-256", "gitea": "X-Gitea-Signature", "generic": "X-Homestak-Signature", "gitlab": "X-Gitlab-Token"} {
		good := deliveries(noon)[name]
		value := good.Get(field)
		for i := range len(value) {
			changed := []byte(value)
			changed[i] ^= 1
			h := good.Clone()
			h.Set(field, string(changed))
			_, err := hookAt(noon).Check(name, secret, h, strings.NewReader(body))
			require.ErrorIs(t, err, ErrHookInvalid, "%s: byte %d", name, i)
		}
	}
}

// A header that Forgejo signed itself is not replaced by the one for Gitea's sake.
func TestTheOwnHeaderCounts(t *testing.T) {
	good := hex.EncodeToString(mac(secret, body))
	_, err := hookAt(noon).Check("forgejo", secret, header("X-Forgejo-Signature", "00", "X-Gitea-Signature", good), strings.NewReader(body))
	require.ErrorIs(t, err, ErrHookInvalid)
	v, err := hookAt(noon).Check("forgejo", secret, header("X-Gitea-Signature", good), strings.NewReader(body))
	require.NoError(t, err)
	require.Equal(t, HookPushed, v)
}

// A test delivery of a new hook is accepted, and asks for nothing.
func TestOtherEvents(t *testing.T) {
	for name, event := range map[Provider][2]string{
		"github": {"X-GitHub-Event", "ping"}, "gitea": {"X-Gitea-Event", "issues"},
		"forgejo": {"X-Forgejo-Event", "release"}, "gitlab": {"X-Gitlab-Event", "Issue Hook"},
	} {
		h := deliveries(noon)[name]
		h.Set(event[0], event[1])
		v, err := hookAt(noon).Check(name, secret, h, strings.NewReader(body))
		require.NoError(t, err)
		require.Equal(t, Other, v, name)
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
	require.Equal(t, HookPushed, v)
	v, err = c.Check("gitlab", whsec, h, strings.NewReader(body))
	require.NoError(t, err)
	require.Equal(t, HookRepeated, v)

	h.Set("Webhook-Signature", "v1,AAAA")
	h.Set("X-Gitlab-Token", string(whsec)) // does not rescue a wrong signature
	_, err = hookAt(noon).Check("gitlab", whsec, h, strings.NewReader(body))
	require.ErrorIs(t, err, ErrHookInvalid)
	h.Set("Webhook-Signature", good)
	_, err = hookAt(noon.Add(window+time.Second)).Check("gitlab", whsec, h, strings.NewReader(body))
	require.ErrorIs(t, err, ErrHookTime)
	_, err = hookAt(noon).Check("gitlab", []byte("whsec_%%%"), h, strings.NewReader(body))
	require.ErrorIs(t, err, ErrHookInvalid)
}

// A signed time is accepted within the window, and remembered as long as it is accepted.
func TestTheWindow(t *testing.T) {
	now := noon
	c := NewHookChecker(func() time.Time { return now })
	ahead := deliveries(noon.Add(window))["generic"]
	v, err := c.Check("generic", secret, ahead, strings.NewReader(body))
	require.NoError(t, err)
	require.Equal(t, HookPushed, v)
	now = noon.Add(2 * window) // the last moment at which it is valid
	v, err = c.Check("generic", secret, ahead, strings.NewReader(body))
	require.NoError(t, err)
	require.Equal(t, HookRepeated, v)
	now = now.Add(time.Second)
	_, err = c.Check("generic", secret, ahead, strings.NewReader(body))
	require.ErrorIs(t, err, ErrHookTime)
	require.ErrorContains(t, err, "2026-01-02T12:05:00Z")

	now = noon
	_, err = c.Check("generic", secret, deliveries(noon.Add(window + time.Second))["generic"], strings.NewReader(body))
	require.ErrorIs(t, err, ErrHookTime)
	soon := "soon"
	_, err = c.Check("generic", secret, header("X-Homestak-Timestamp", soon, "X-Homestak-Signature", hex.EncodeToString(mac(secret, soon+"."+body))), strings.NewReader(body))
	require.ErrorIs(t, err, ErrHookTime)
}

// The remembered notifications are bounded, and safe for concurrent requests.
func TestManyDeliveries(t *testing.T) {
	c := hookAt(noon)
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := range 1000 {
				h := deliveries(noon)["github"]
				h.Set("X-GitHub-Delivery", fmt.Sprint(worker, i))
				if v, err := c.Check("github", secret, h, strings.NewReader(body)); err != nil || v != HookPushed {
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
			if v, _ := c.Check("github", secret, h, strings.NewReader(body)); v == HookRepeated {
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
		if _, err := hookAt(noon).Check(Provider(provider), secret, h, strings.NewReader(body)); err == nil {
			t.Fatalf("accepted %q of %q", signature, provider)
		}
	})
}

// at is when the tokens here are minted.
var at = time.Unix(1767225600, 0)

func key(t *testing.T, digit string) Key {
	t.Helper()
	k, err := ParseKey(strings.Repeat(digit, 64))
	require.NoError(t, err)
	return k
}

func mint(t *testing.T, k Key, c Claims) string {
	t.Helper()
	text, err := k.MintToken(c)
	require.NoError(t, err)
	return text
}

// The golden vectors, of the key aaaa….
const (
	vectorPredecessor = "eyJ2IjoxLCJuIjoiZWRnZSIsInMiOiJiYXNlIiwiaWF0IjoxNzY3MjI1NjAwfQ.6lYeuOaP1HxpGL92syVDVpbLd1ljUGiZSZ3vmZZ-qpk"
	vectorWhole       = "eyJ2IjoxLCJuIjoiZWRnZSIsInMiOiJiYXNlIiwiaWF0IjoxNzY3MjI1NjAwLCJleHAiOjE3NjczMTIwMDAsImtpZCI6IjA5YTJhNzc5In0.u8BSJPsD9--sV4JEBQ31ulS0uDSGimdSGYKvZ-BeBwA"
)

func code(err error) wire.Code {
	if err == nil {
		return ""
	}
	return wire.CodeOf(err)
}

// The vectors were made with another implementation (Python's hmac, json and base64).
func TestGoldenVectors(t *testing.T) {
	k := key(t, "a")
	require.Equal(t, "09a2a779", k.ID)
	for _, v := range []struct {
		name   string
		key    Key
		claims Claims
		want   string
	}{
		{"as the predecessor mints", k.Predecessor(), Claims{Node: "edge", Spec: "base", Issued: at.Unix()}, vectorPredecessor},
		{"with our keys", k, Claims{Node: "edge", Spec: "base", Issued: at.Unix(), Expires: at.Unix() + 86400}, vectorWhole},
	} {
		got := mint(t, v.key, v.claims)
		require.Equal(t, v.want, got, v.name)
		v.claims.Version, v.claims.Key = tokenVersion, v.key.ID
		c, err := Keys{v.key}.Verify(got, "edge", at)
		require.NoError(t, err, v.name)
		require.Equal(t, v.claims, c, v.name)
		c, err = InspectToken(got)
		require.NoError(t, err, v.name)
		require.Equal(t, v.claims, c, v.name)
	}
	require.Len(t, vectorPredecessor, 106)
}

// Every step of the verification, in its order: each token also has all that later steps refuse.
func TestOrderOfVerification(t *testing.T) {
	k, old, other := key(t, "a"), key(t, "b"), key(t, "c")
	signingKeys := Keys{k, old}
	signed := func(k Key, payload string) string {
		// Mint makes no wrong payload, so the signature is borrowed from the test's own HMAC.
		p := base64.RawURLEncoding.EncodeToString([]byte(payload))
		return p + "." + base64.RawURLEncoding.EncodeToString(signatureOf(t, k, p))
	}
	good := mint(t, k, Claims{Node: "edge", Spec: "base", Issued: at.Unix(), Expires: at.Unix() + 10})
	head, tail, _ := strings.Cut(good, ".")
	for _, c := range []struct {
		name, text string
		code       wire.Code
		says       string
	}{
		{"absent", "", wire.CodeNoCredential, "there is no token"},
		{"one segment", head, wire.CodeNoCredential, "two segments"},
		{"three segments", good + ".x", wire.CodeNoCredential, "two segments"},
		{"too long", strings.Repeat("a", 5000), wire.CodeNoCredential, "too long"},
		{"payload with padding", head + "=." + tail, wire.CodeNoCredential, "payload of the token is not base64url"},
		{"payload with a line break", head[:8] + "\n" + head[8:] + "." + tail, wire.CodeNoCredential, "payload of the token is not base64url"},
		{"signature with other letters", head + "." + tail[:42] + "+", wire.CodeNoCredential, "signature of the token is not base64url"},
		{"signature with stray bits", head + "." + tail[:42] + "_", wire.CodeNoCredential, "signature of the token is not base64url"},
		{"payload that is not JSON", "AAAA." + tail, wire.CodeNoCredential, "payload of the token is not valid"},
		{"payload that is a list", base64.RawURLEncoding.EncodeToString([]byte("[]")) + "." + tail, wire.CodeNoCredential, "payload of the token"},
		{"unknown key", mint(t, other, Claims{Node: "edge", Spec: "base"}), wire.CodeRefused, "a key that this server does not have"},
		{"key of the predecessor, without one", mint(t, k.Predecessor(), Claims{Node: "edge", Spec: "base"}), wire.CodeRefused, "a key that this server does not have"},
		{"empty signature", head + ".", wire.CodeRefused, "signature of the token is not valid"},
		{"kid of one key, signature of another", signed(old, `{"v":2,"kid":"`+k.ID+`"}`), wire.CodeRefused, "signature of the token is not valid"},
		{"version 2", signed(k, `{"v":2,"kid":"`+k.ID+`"}`), wire.CodeNoCredential, "version 2"},
		{"no node", signed(k, `{"v":1,"s":"base","exp":1,"kid":"`+k.ID+`"}`), wire.CodeNoCredential, "does not name a node"},
		{"no spec", signed(k, `{"v":1,"n":"web","exp":1,"kid":"`+k.ID+`"}`), wire.CodeNoCredential, "does not name a node"},
		{"expired", mint(t, k, Claims{Node: "web", Spec: "base", Expires: at.Unix()}), wire.CodeExpired, "2026-01-01T00:00:00Z"},
		{"of another node", mint(t, k, Claims{Node: "web", Spec: "base"}), wire.CodeNotYours, "another node"},
		{"good", good, "", ""},
		{"by the older key", mint(t, old, Claims{Node: "edge", Spec: "base"}), "", ""},
	} {
		got, err := signingKeys.Verify(c.text, "edge", at)
		require.Equal(t, c.code, code(err), "%s: %v", c.name, err)
		if err != nil {
			require.ErrorContains(t, err, c.says, c.name)
			require.Empty(t, got, c.name)
			if len(c.text) > 20 {
				require.NotContains(t, err.Error(), c.text[:20], c.name)
			}
		}
	}
	_, err := Keys(nil).Verify(good, "edge", at)
	require.Equal(t, wire.CodeRefused, code(err))
	_, err = Keys{{}}.Verify(mint(t, k.Predecessor(), Claims{Node: "edge", Spec: "base"}), "edge", at)
	require.Equal(t, wire.CodeRefused, code(err), "the zero key verifies nothing")
}

// No byte of a token can be another one.
func TestTamperedBytes(t *testing.T) {
	k := key(t, "a")
	good := mint(t, k, Claims{Node: "edge", Spec: "base", Issued: at.Unix()})
	for i := range good {
		for _, b := range []byte("Az09-_.=+ \n\x00") {
			if good[i] == b {
				continue
			}
			_, err := Keys{k}.Verify(good[:i]+string(b)+good[i+1:], "edge", at)
			require.Contains(t, []wire.Code{wire.CodeNoCredential, wire.CodeRefused}, code(err), "byte %d is %q", i, b)
		}
	}
}

func TestDue(t *testing.T) {
	k, old := key(t, "a"), key(t, "b")
	signingKeys := Keys{k, old}
	claims := Claims{Issued: at.Unix(), Expires: at.Unix() + 100, Key: k.ID}
	require.False(t, signingKeys.Due(claims, at.Add(49*time.Second)))
	require.True(t, signingKeys.Due(claims, at.Add(50*time.Second)))
	require.True(t, signingKeys.Due(Claims{Key: old.ID}, at), "the older key")
	require.True(t, signingKeys.Due(Claims{}, at), "the predecessor")
	require.False(t, signingKeys.Due(Claims{Key: k.ID}, at.Add(time.Hour)), "it never expires")
}

// A token from the future counts, since a clock that was set back must not lock nodes out. It is replaced at once, or one from a
// clock that was ahead by a year would be good for a year.
func TestS7ClockTokensFromTheFuture(t *testing.T) {
	k := key(t, "a")
	signingKeys := Keys{k}
	text := mint(t, k, Claims{Node: "inner", Spec: "base", Issued: at.Unix(), Expires: at.Add(TokenLifetime).Unix(), Number: 1})
	for back, due := range map[time.Duration]bool{
		0: false, time.Minute: false, tokenSkew: false, tokenSkew + time.Second: true, 24 * time.Hour: true, 20 * 365 * 24 * time.Hour: true,
	} {
		c, err := signingKeys.Verify(text, "inner", at.Add(-back))
		require.NoError(t, err, back)
		require.Equal(t, due, signingKeys.Due(c, at.Add(-back)), back)
	}
	require.False(t, signingKeys.Due(Claims{Issued: at.Unix(), Key: k.ID, Number: 1}, at.AddDate(-1, 0, 0)), "one without an end is never replaced")
}

func TestMintRefuses(t *testing.T) {
	k := key(t, "a")
	for _, c := range []struct {
		key    Key
		claims Claims
		says   string
	}{
		{Key{}, Claims{Node: "edge", Spec: "base"}, "no signing key"},
		{k, Claims{Spec: "base"}, "needs the names"},
		{k, Claims{Node: "edge"}, "needs the names"},
		{k, Claims{Node: strings.Repeat("n", 800), Spec: "base"}, "1024 are the most"},
	} {
		_, err := c.key.MintToken(c.claims)
		require.ErrorContains(t, err, c.says)
	}
}

// A key is 32 bytes, and nothing that prints one shows it.
func TestKeys(t *testing.T) {
	for _, bad := range []string{"", "abc", strings.Repeat("a", 62), strings.Repeat("a", 66), strings.Repeat("g", 64), strings.Repeat("0", 64)} {
		_, err := ParseKey(bad)
		require.Error(t, err, bad)
		if len(bad) > 3 {
			require.NotContains(t, err.Error(), bad)
		}
	}
	k := NewKey()
	require.NotEqual(t, k, NewKey())
	again, err := ParseKey(k.Text() + "\n")
	require.NoError(t, err)
	require.Equal(t, k, again)
	for _, shown := range []string{fmt.Sprint(k), fmt.Sprintf("%+v", k), fmt.Sprintf("%#v", k), fmt.Sprintf("%v", Keys{k}), fmt.Sprintf("%x", k)} {
		require.NotContains(t, shown, k.Text()[:8])
	}
}

// Whatever a request has, it is refused with a code of credentials, and only a signed one is not.
func FuzzVerify(f *testing.F) {
	k, err := ParseKey(strings.Repeat("a", 64))
	require.NoError(f, err)
	f.Add(vectorPredecessor)
	f.Add(vectorWhole)
	f.Add("a.b")
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(`{"v":1,"n":"edge","s":"base","kid":"09a2a779"}`)) + ".AAAA")
	keys := Keys{k, k.Predecessor()}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := keys.Verify(text, "edge", at)
		if err == nil {
			require.Contains(t, []string{vectorPredecessor, vectorWhole}, text, "a signature was forged")
			require.Equal(t, "edge", c.Node)
			return
		}
		require.Contains(t, []wire.Code{wire.CodeNoCredential, wire.CodeRefused, wire.CodeNotYours, wire.CodeExpired}, wire.CodeOf(err))
		require.Empty(t, c)
	})
}

// raw is a key as bytes.
func raw(t *testing.T, k Key) []byte {
	t.Helper()
	b, err := hex.DecodeString(k.Text())
	require.NoError(t, err)
	return b
}

func signatureOf(t *testing.T, k Key, payload string) []byte {
	t.Helper()
	mac := hmac.New(sha256.New, raw(t, k))
	mac.Write([]byte(payload))
	return mac.Sum(nil)
}

func TestMintAndInspect(t *testing.T) {
	dir := t.TempDir()
	_, err := Folder(dir).Mint("web-1", "base", time.Hour, now)
	require.ErrorIs(t, err, os.ErrNotExist, "minting makes no key")
	require.NoFileExists(t, dir+"/"+signingFile)
	ring := ensure(t, dir)
	_, err = Folder(dir).Mint("web-1", "", time.Hour, now)
	require.ErrorContains(t, err, "has no spec")
	_, err = Folder(dir).Mint("web-1", "base", -time.Hour, now)
	require.ErrorContains(t, err, "at least a minute")

	m, err := Folder(dir).Mint("web-1", "base", time.Hour, now)
	require.NoError(t, err)
	require.Equal(t, "2026-01-02T04:04:05Z", m.Expires.Format(time.RFC3339))
	i, err := Inspect(m.Token + "\n")
	require.NoError(t, err)
	require.Equal(t, `node     "web-1"
spec     "base"
key      "`+ring[0].ID+`"
issued   2026-01-02T03:04:05Z
expires  2026-01-02T04:04:05Z
valid    not verified
`, i.Text())
	good, err := i.Verified(ring, nil, m.Token+"\n", now)
	require.NoError(t, err)
	require.True(t, *good.Valid)
	require.Contains(t, good.Text(), "\nvalid    yes\n")
	late, err := i.Verified(ring, nil, m.Token, now.Add(time.Hour))
	require.Equal(t, wire.CodeExpired, wire.CodeOf(err))
	require.False(t, *late.Valid)
	require.Contains(t, late.Text(), "valid    no: the token has expired at 2026-01-02T04:04:05Z")
	_, err = Inspect("x")
	require.Equal(t, wire.CodeNoCredential, wire.CodeOf(err))

	forever, err := Folder(dir).Mint("web-1", "base", 0, now)
	require.NoError(t, err)
	require.Nil(t, forever.Expires)
	i, err = Inspect(forever.Token)
	require.NoError(t, err)
	require.Contains(t, i.Text(), "expires  never")
}

func TestDescribe(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir)
	ring, err := Folder(dir).Rotate(now.AddDate(0, 1, 0))
	require.NoError(t, err)
	require.Equal(t, "key "+ring[0].ID+" of 2026-02-02 signs\nkey "+ring[1].ID+" of 2026-01-02 is still accepted\n", ring.Describe())
	require.Len(t, ring.Document().Keys, 2)
	require.NotContains(t, ring.Describe(), ring[0].Text())
}

// A revocation also holds for the machine that joined by a token: it may have been stolen.
func TestRevokedAfterJoining(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir)
	b, err := Folder(dir).OpenBook()
	require.NoError(t, err)
	mint := func() Claims {
		m, err := Folder(dir).MintJoin("branch-7", time.Hour, now)
		require.NoError(t, err)
		c, err := InspectToken(m.Token)
		require.NoError(t, err)
		return c
	}
	first, unused := mint(), mint()
	require.NoError(t, b.Join(first, "thief", now))
	require.NoError(t, b.Join(first, "thief", now), "its answer was lost")
	require.ErrorContains(t, b.Join(first, "ours", now), "by another machine")
	require.False(t, b.Barred("branch-7"))
	_, err = Folder(dir).Revoke("branch-7", now)
	require.NoError(t, err)
	require.True(t, b.Barred("branch-7"))
	require.ErrorContains(t, b.Join(first, "thief", now), "was revoked")
	require.ErrorContains(t, b.Join(unused, "thief", now), "was revoked")
	require.NoError(t, b.Join(mint(), "ours", now))
	require.ErrorContains(t, b.Join(first, "thief", now), "by another machine")
	require.False(t, b.Barred("branch-7"))

	_, err = Folder(dir).Revoke("branch-7", now)
	require.NoError(t, err)
	b.Use(b.Next(Claims{Node: "branch-7"}), now)
	require.False(t, b.Barred("branch-7"), "a person gave it a new token")
}
