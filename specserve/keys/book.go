package keys

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// The files of a book in the folder of a server, mode 0600. Minting and revoking tokens writes the first, the
// server the second.
const (
	issuedFile = "tokens.json"
	usedFile   = "tokens-used.json"
)

// stride is the distance between the numbers of minted tokens. Those between are of tokens that follow upon one.
const stride = 1000

// lapse is the time after its end in which the newest token of a node can still be replaced: a node that was off comes back with it.
const lapse = 30 * 24 * time.Hour

// overlap is the time for which a token for one use stays valid after its successor was used: requests may be under way.
const overlap = time.Minute

// Book knows which tokens of the nodes of a server count: not those that were revoked, not those for one use whose
// successor was used, and of those that have expired only the newest, for a while. Its methods may be called from any
// goroutine; those of a nil Book know nothing but when a token expires.
type Book struct {
	in Folder

	mutex   sync.Mutex // requests come from many goroutines, and a use changes what the next one gets
	issued  map[string]issue
	files   durable.Stamps // of issued, before it was read last
	revoked bool           // a token was, since Refresh was called last
	used    map[string]use
	changed bool // used is not as in its file
	clock   clock
}

// clock is the server's record of its own time. It is stored with the tokens in use.
type clock struct {
	Seen   time.Time `json:"seen,omitzero"`    // when it was asked last
	From   time.Time `json:"missed,omitzero"`  // when the last time began that it missed, since it was off or its clock was behind
	Until  time.Time `json:"resumed,omitzero"` // when that ended
	loaded bool      // Seen is of an earlier process, or none
	kept   time.Time // Seen in the file
}

// missing is the time that a server may miss without consequences. It is more than the time between two uses of a token that
// nodes renew.
const missing = TokenLifetime

// tick records how the clock advanced since the last call. ran is how long the process ran since then, by the
// monotonic clock.
func (c *clock) tick(now time.Time, ran time.Duration) {
	if c.loaded {
		ran = 0
	}
	switch missed := now.Round(0).Sub(c.Seen.Round(0)) - ran; {
	case now.Before(c.Until): // it was ahead then
		c.From, c.Until = time.Time{}, time.Time{}
	case !c.Seen.IsZero() && missed > missing:
		if c.Until.IsZero() || c.Seen.Sub(c.Until) > missing { // else the clock is put right in several steps
			c.From = c.Seen.Round(0)
		}
		c.Until = now.Round(0)
	}
	c.Seen, c.loaded = now, false // with the reading of the clock that cannot be set, from which Admit takes ran
}

// spared reports whether a token counts that has lapsed: it had not when the server began to miss time, and the nodes have
// had less than lapse since to renew theirs.
func (c *clock) spared(end, now time.Time) bool {
	return end.Add(lapse).After(c.From) && now.Before(c.Until.Add(lapse))
}

// Revocation says that all tokens of a node were revoked.
type Revocation struct {
	Node       string    `json:"node"`
	Generation int       `json:"generation"` // how often that was done
	At         time.Time `json:"at"`
	Minted     bool      `json:"minted"` // a token was minted for it here; of earlier versions that is not known
}

// issue is the record of minted and revoked tokens of a node.
type issue struct {
	Minted     int64     `json:"minted,omitempty"` // number of the last token that was minted
	Generation int       `json:"generation,omitempty"`
	Revoked    time.Time `json:"revoked,omitzero"`
	Joined     joining   `json:"joined,omitzero"`
	Barred     bool      `json:"barred,omitempty"` // a person revoked them, or the host left the site; joining ends that
}

// joining is the last token by which a host joined.
type joining struct {
	Number int64  `json:"number"`
	Key    string `json:"key"` // SHA-256 of the key of the machine, in hex
}

// use is the newest token that a node has shown.
type use struct {
	Number     int64     `json:"number"`
	Generation int       `json:"generation,omitempty"`
	Since      time.Time `json:"since"` // when it was shown first
}

// The files.
type (
	issuedDocument struct {
		Version int              `json:"version"`
		Nodes   map[string]issue `json:"nodes"`
	}
	usedDocument struct {
		Version int            `json:"version"`
		Nodes   map[string]use `json:"nodes"`
		Clock   clock          `json:"clock,omitzero"`
	}
)

// OpenBook reads the book. Without files nothing was revoked or used.
func (f Folder) OpenBook() (*Book, error) {
	b := &Book{in: f}
	if _, err := b.Refresh(); err != nil {
		return nil, err
	}
	used := usedDocument{}
	if err := readDocument(filepath.Join(string(f), usedFile), &used, &used.Version); err != nil {
		return nil, err
	}
	if b.used = used.Nodes; b.used == nil {
		b.used = map[string]use{}
	}
	b.clock = used.Clock
	b.clock.loaded, b.clock.kept = true, used.Clock.Seen
	return b, nil
}

// readDocument reads a file; one that is not there is empty.
func readDocument(name string, to any, itsVersion *int) error {
	text, err := durable.ReadPrivate(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && (json.Unmarshal(text, to) != nil || *itsVersion != version) {
		err = errors.New("this program did not write it")
	}
	if err != nil {
		return fmt.Errorf("%s is not usable: %w\nrestore it from a backup; without it revoked tokens would be valid again, so revoke all of them with: homestak-gitops token rotate --drop-old", name, err)
	}
	return nil
}

func (f Folder) readIssued() (map[string]issue, error) {
	d := issuedDocument{}
	if err := readDocument(filepath.Join(string(f), issuedFile), &d, &d.Version); err != nil {
		return nil, err
	}
	if d.Nodes == nil {
		d.Nodes = map[string]issue{}
	}
	return d.Nodes, nil
}

// Refresh reads what was issued again if its file changed, and reports whether tokens were revoked since the last call. After
// an error what was known counts.
func (b *Book) Refresh() (revoked bool, err error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	err = b.refresh()
	revoked, b.revoked = b.revoked, false
	return revoked, err
}

func (b *Book) refresh() error {
	files := durable.StampsOf(filepath.Join(string(b.in), issuedFile))
	if files.Same(b.files) {
		return nil
	}
	issued, err := b.in.readIssued()
	if err != nil {
		return err
	}
	for node, i := range issued {
		b.revoked = b.revoked || b.issued != nil && i.Generation > b.issued[node].Generation
	}
	b.files, b.issued = files, issued
	return nil
}

// Revoke revokes all tokens of a node that were minted until now. A server on this folder refuses them with the next
// request.
func (f Folder) Revoke(node string, now time.Time) (Revocation, error) {
	if _, err := f.Read(); err != nil {
		return Revocation{}, err
	}
	var done issue
	err := f.changeIssued(node, func(i issue) issue {
		i.Generation++
		i.Revoked, i.Barred = now.UTC().Truncate(time.Second), true
		done = i
		return i
	})
	return Revocation{node, done.Generation, done.Revoked, done.Minted > 0}, err
}

// Join uses a token for joining, whose signature is valid: for one machine, which has a key. All tokens of an earlier machine
// of that name end with it. It returns once that is on the disk; the same machine may repeat it. The error is a *wire.Error, or that of the file.
func (b *Book) Join(c Claims, key string, now time.Time) error {
	hash := sha256.Sum256([]byte(key))
	sum := hex.EncodeToString(hash[:])
	var refused *wire.Error
	err := b.in.changeIssued(c.Node, func(i issue) issue {
		switch {
		case !i.Barred && c.Number == i.Joined.Number && subtle.ConstantTimeCompare([]byte(sum), []byte(i.Joined.Key)) == 1:
			return i
		case !i.Barred && c.Number <= i.Joined.Number:
			refused = &wire.Error{Code: wire.CodeRefused, Message: "the token was used to join by another machine", Hint: "mint another one: homestak-gitops token mint " + c.Node + " --join; if no machine of yours used it, run token revoke " + c.Node + " first"}
			return i
		case c.Generation < i.Generation: // also for the machine that joined by it
			refused = &wire.Error{Code: wire.CodeRefused, Message: "the token was revoked", Hint: "mint another one: homestak-gitops token mint " + c.Node + " --join"}
			return i
		}
		i.Joined, i.Barred = joining{c.Number, sum}, false
		i.Generation++
		i.Revoked = now.UTC().Truncate(time.Second)
		return i
	})
	if err == nil && refused != nil {
		return refused
	}
	return err
}

// changeIssued changes what was issued for a node.
func (f Folder) changeIssued(node string, next func(issue) issue) error {
	return durable.Exclusively(string(f), func() error {
		all, err := f.readIssued()
		if err != nil {
			return err
		}
		all[node] = next(all[node])
		return f.writeDocument(issuedFile, issuedDocument{version, all})
	})
}

func (f Folder) writeDocument(name string, d any) error {
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	name = filepath.Join(string(f), name)
	if err := durable.ReplaceForOwner(name, append(text, '\n')); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// Admit implements TokenBook.
func (b *Book) Admit(c Claims, now time.Time) error {
	if b == nil {
		return c.Expired(now)
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	_ = b.refresh() // callers of Refresh report its error
	if b.clock.tick(now, now.Sub(b.clock.Seen)); b.clock.Seen.Sub(b.clock.kept).Abs() > missing/2 {
		b.changed = true
	}
	newest := b.used[c.Node]
	older := c.Number < newest.Number
	single := c.Once || c.Expires != 0 && c.Early(now) || c.Number == 0 && c.Expires-c.Issued > int64(TokenLifetime/time.Second) // of an earlier version
	over := c.Expired(now)
	switch since := now.Sub(newest.Since); {
	case c.Generation < b.issued[c.Node].Generation:
		return &wire.Error{Code: wire.CodeRefused, Message: "the token was revoked", Hint: hintOfNew, Cause: wire.ErrReplaced}
	case single && older && (since < 0 || since > overlap):
		return &wire.Error{Code: wire.CodeRefused, Message: "the token was valid for one use, and the node has used the next one", Hint: hintOfNew, Cause: wire.ErrReplaced}
	case over != nil && (older || now.Unix() >= c.Expires+int64(lapse/time.Second) && !b.clock.spared(time.Unix(c.Expires, 0), now)):
		return over
	}
	return nil
}

const hintOfNew = "the next pass of the parent gives one to an agent, and to a container that the parent can enter by pct; for other nodes mint one: homestak-gitops token mint NODE"

// Use notices that a node has shown a token that counts.
func (b *Book) Use(c Claims, now time.Time) {
	if b == nil || c.Node == "" {
		return
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if newest := b.used[c.Node]; c.Number > newest.Number || c.Generation > newest.Generation {
		b.used[c.Node] = use{c.Number, c.Generation, now.UTC()}
		b.changed = true
	}
}

// Next makes claims those of the token that follows upon one with their number.
func (b *Book) Next(c Claims) Claims {
	if b == nil {
		return c
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	_ = b.refresh()
	c.Number = max(c.Number, b.used[c.Node].Number) + 1
	c.Generation = b.issued[c.Node].Generation
	return c
}

// Text shows it to people.
func (r Revocation) Text() string {
	return fmt.Sprintf("all tokens of node %s are revoked\n%s\n", r.Node, strings.TrimSuffix(hintOfNew, "NODE")+r.Node)
}

// Revoked says when the tokens of nodes were revoked that had one, and have not used a new one since.
func (b *Book) Revoked() map[string]time.Time {
	if b == nil {
		return nil
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	_ = b.refresh() // after an error what was known counts
	var out map[string]time.Time
	for node, i := range b.issued {
		if i.Minted > 0 && b.used[node].Generation < i.Generation {
			if out == nil {
				out = map[string]time.Time{}
			}
			out[node] = i.Revoked
		}
	}
	return out
}

// HasJoined reports whether a machine joined as this host by a token of this server.
func (b *Book) HasJoined(host string) bool {
	if b == nil {
		return false
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	_ = b.refresh() // callers of Refresh report its error
	return b.issued[host].Joined.Key != ""
}

// Barred reports whether the tokens of a node were revoked by a person, or since it left the site, and it has not shown a new
// one since.
func (b *Book) Barred(node string) bool {
	if b == nil {
		return false
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	_ = b.refresh() // callers of Refresh report its error
	i := b.issued[node]
	return i.Barred && b.used[node].Generation < i.Generation
}

// Save writes which tokens are in use, if that changed.
func (b *Book) Save() error {
	b.mutex.Lock()
	if !b.changed {
		b.mutex.Unlock()
		return nil
	}
	b.clock.kept = b.clock.Seen
	d := usedDocument{version, maps.Clone(b.used), b.clock}
	b.changed = false
	b.mutex.Unlock()
	err := durable.Exclusively(string(b.in), func() error { return b.in.writeDocument(usedFile, d) })
	if err != nil {
		b.mutex.Lock()
		defer b.mutex.Unlock()
		b.changed = true
	}
	return err
}
