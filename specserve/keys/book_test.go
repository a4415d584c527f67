package keys_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// desk is a server with a book, whose nodes show tokens.
type desk struct {
	t    *testing.T
	dir  string
	ring keys.Ring
	book *keys.Book
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
	d.book, err = keys.OpenBook(d.dir)
	require.NoError(d.t, err)
}

// mint is the verb, which runs in another process.
func (d *desk) mint(life time.Duration) string {
	d.t.Helper()
	m, err := keys.Mint(d.dir, "web-1", "base", life, d.now)
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
	claims := keys.Claims{Node: "web-1", Spec: "base", Issued: d.now.Unix(), Number: c.Number}
	if life := c.Life(); life != 0 {
		claims.Expires = d.now.Add(life).Unix()
	}
	next, err = keys.MintToken(d.ring[0].Key, d.book.Next(claims))
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
	first := d.mint(keys.TokenLifetime)
	lost, _ := d.show(first) // the answer is lost
	require.NotEmpty(t, lost)
	next, _ := d.show(first)
	require.NotEmpty(t, next)
	require.Empty(t, d.code(first), "nobody has used the next one")
	renewed, code := d.show(next)
	require.Empty(t, code)
	require.Empty(t, renewed, "it is good for a day")
	d.now = d.now.Add(keys.Overlap)
	require.Empty(t, d.code(first))
	d.now = d.now.Add(1)
	require.Equal(t, wire.CodeRefused, d.code(first))
	require.NoError(t, d.book.Save())
	d.restart()
	require.Equal(t, wire.CodeRefused, d.code(first), "also after a restart")
	require.Empty(t, d.code(next))

	// Where the file lacks the newest uses, a token that is minted counts nevertheless.
	again := d.mint(keys.TokenLifetime)
	next, _ = d.show(again)
	require.Empty(t, d.code(next))
	again = d.mint(keys.TokenLifetime)
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
	all := []string{d.mint(keys.TokenLifetime)}
	for range 10 {
		next, code := d.show(all[len(all)-1])
		require.Empty(t, code)
		require.NotEmpty(t, next)
		all = append(all, next)
		require.Empty(t, d.code(next))
		d.now = d.now.Add(keys.TokenLifetime / 2)
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
	d.now = d.now.Add(keys.TokenLifetime + keys.Lapse - time.Second)
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
					text = renew(d.mint(keys.TokenLifetime))
				}
				set(right.AddDate(years, 0, 0))
				if !running {
					text = d.mint(keys.TokenLifetime)
				}
				wrong := renew(text)
				for range 5 {
					d.now = d.now.Add(keys.TokenLifetime / 2)
					wrong = renew(wrong)
				}
				set(right.Add(3 * keys.TokenLifetime))
				next := renew(wrong)
				require.NotEqual(t, wrong, next, "it is replaced at once")
				c, err := keys.InspectToken(next)
				require.NoError(t, err)
				require.Equal(t, d.now.Add(keys.TokenLifetime).Unix(), c.Expires)
				d.now = d.now.Add(2 * keys.Overlap)
				require.NotEmpty(t, d.code(wrong), "a copy of it is worth nothing now")
				require.Empty(t, d.code(next))
				d.now = d.now.Add(keys.TokenLifetime + keys.Lapse)
				require.Equal(t, wire.CodeExpired, d.code(next))
			})
		}
	}
}

// A server that was off for longer than its nodes have to renew their tokens.
func TestS7ClockOfAServerThatWasOff(t *testing.T) {
	d := newDesk(t)
	first, _ := d.show(d.mint(keys.TokenLifetime))
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
	old, err := keys.MintToken(d.ring[0].Key, keys.Claims{Node: "web-1", Spec: "base", Issued: d.now.Unix(), Expires: d.now.AddDate(1, 0, 0).Unix()})
	require.NoError(t, err)
	next, code := d.show(old)
	require.Empty(t, code)
	c, err := keys.InspectToken(next)
	require.NoError(t, err)
	require.Equal(t, int64(24*3600), c.Expires-c.Issued)
	require.Empty(t, d.code(next))
	d.now = d.now.Add(2 * keys.Overlap)
	require.Equal(t, wire.CodeRefused, d.code(old))
}

// A revocation counts for a server that runs at once, over restarts, and for every token of that node until then.
func TestS8Revoke(t *testing.T) {
	d := newDesk(t)
	_, err := keys.Revoke(t.TempDir(), "web-1", now)
	require.ErrorIs(t, err, os.ErrNotExist, "there is no server")

	minted, unused, forever := d.mint(keys.TokenLifetime), d.mint(keys.TokenLifetime), d.mint(0)
	renewed, _ := d.show(minted)
	require.Empty(t, d.code(renewed))
	require.Empty(t, d.book.Revoked())
	r, err := keys.Revoke(d.dir, "web-1", d.now)
	require.NoError(t, err)
	require.Equal(t, keys.Revocation{Node: "web-1", Generation: 1, At: now.Truncate(time.Second), Minted: true}, r)
	for range 2 {
		for _, text := range []string{minted, unused, forever, renewed} {
			require.Equal(t, wire.CodeRefused, d.code(text))
		}
		require.Equal(t, map[string]time.Time{"web-1": r.At}, d.book.Revoked())
		d.restart()
	}
	m, err := keys.Mint(d.dir, "web-2", "base", time.Hour, d.now)
	require.NoError(t, err)
	_, err = d.ring.Tokens().VerifyBy(d.book, m.Token, "web-2", d.now)
	require.NoError(t, err, "others are not concerned")

	fresh := d.mint(keys.TokenLifetime)
	require.Empty(t, d.code(fresh))
	require.Empty(t, d.book.Revoked(), "it has a new one")
	_, err = keys.Revoke(d.dir, "web-1", d.now)
	require.NoError(t, err)
	require.Equal(t, wire.CodeRefused, d.code(fresh), "once more")
}

// A file that cannot be used is no reason to accept what was revoked.
func TestS8UnusableBook(t *testing.T) {
	for _, file := range []string{keys.IssuedFile, keys.UsedFile} {
		d := newDesk(t)
		text := d.mint(keys.TokenLifetime)
		_, err := keys.Revoke(d.dir, "web-1", d.now)
		require.NoError(t, err)
		require.Equal(t, wire.CodeRefused, d.code(text))
		require.NoError(t, os.WriteFile(filepath.Join(d.dir, file), []byte("{"), 0o600))
		require.Equal(t, wire.CodeRefused, d.code(text), "what was known counts")
		_, err = keys.OpenBook(d.dir)
		require.ErrorContains(t, err, file+" is not usable")
		if file == keys.IssuedFile {
			_, err = d.book.Refresh()
			require.ErrorContains(t, err, file+" is not usable")
			_, err = keys.Revoke(d.dir, "web-1", d.now)
			require.ErrorContains(t, err, file+" is not usable")
		}
	}
}
