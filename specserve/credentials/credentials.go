// Package credentials has all that a server for nodes is recognised by and recognises others by: its
// certificate, its signing keys, and the keys of those who are no nodes. The first start makes them;
// later changes of their files are noticed while the server runs.
package credentials

import (
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/specserve/cert"
	"github.com/homestak/homestak-gitops/specserve/hook"
	"github.com/homestak/homestak-gitops/specserve/keys"
)

// Options say where the files are.
type Options struct {
	Access            keys.Files // Access.Dir is the folder of signing keys and certificate, too
	CertFile, KeyFile string     // a certificate that somebody else keeps; "" for one of its own
	Log               *slog.Logger
}

// Keeper has the credentials, and reads again what changes. It is for one goroutine; what it returns
// may be used by any.
type Keeper struct {
	o           Options
	certificate *cert.Keeper
	ring        keys.Ring
	access      keys.Access
	book        *keys.Book
	problems    Problems
	files       durable.Stamps // of the keys, before they were read last
	kept        time.Time      // when the tokens in use were kept last
}

// Open reads the credentials, and makes those that are missing.
func Open(o Options) (*Keeper, error) {
	k := &Keeper{o: o, problems: Problems{}}
	var err error
	if k.ring, err = keys.Ensure(o.Access.Dir, time.Now()); err != nil {
		return nil, err
	}
	if k.access, err = keys.EnsureAccess(o.Access, hook.Providers()); err != nil {
		return nil, err
	}
	if k.book, err = keys.OpenBook(o.Access.Dir); err != nil {
		return nil, err
	}
	k.certificate, err = cert.Open(cert.Options{Dir: o.Access.Dir, CertFile: o.CertFile, KeyFile: o.KeyFile, Log: o.Log})
	return k, err
}

// Certificate is how the server is recognised.
func (k *Keeper) Certificate() *cert.Keeper { return k.certificate }

// Ring is the signing keys.
func (k *Keeper) Ring() keys.Ring { return k.ring }

// Access is the keys of those who are no nodes.
func (k *Keeper) Access() keys.Access { return k.access }

// Book knows which tokens of nodes count.
func (k *Keeper) Book() *keys.Book { return k.book }

// Close keeps what is known of the tokens for the next start.
func (k *Keeper) Close() { k.report("tokens in use", k.book.Save()) }

// keepEvery is how often it is written which tokens are in use. What changed since is lost with a crash, until the nodes
// show their tokens again.
const keepEvery = 50 * time.Second // a server checks once in a minute

// Check reads files that changed, renews the certificate if that is due, and reports whether anything
// is new. What cannot be read changes nothing, and is logged.
func (k *Keeper) Check() (changed bool) {
	changed, err := k.certificate.Check()
	k.report("certificate", err)
	if time.Since(k.kept) >= keepEvery {
		k.kept = time.Now()
		k.report("tokens in use", k.book.Save())
	}
	revoked, err := k.book.Refresh()
	k.report("revoked tokens", err)
	changed = changed || revoked // nodes that wait learn it
	files := durable.StampsOf(k.o.Access.All(hook.Providers())...)
	if files.Same(k.files) {
		return changed
	}
	k.files = files
	ring, err := keys.Read(k.o.Access.Dir)
	k.report("keys", err)
	if err == nil && !slices.EqualFunc(ring, k.ring, func(a, b keys.Entry) bool { return a.Key == b.Key }) {
		k.ring, changed = ring, true
		k.o.Log.Info("signing keys changed", "kid", ring[0].ID, "valid", len(ring))
	}
	access, errAccess := keys.ReadAccess(k.o.Access, hook.Providers())
	if err != nil || errAccess != nil {
		k.files = durable.Stamps{} // they may become readable without being written
	}
	err = errAccess
	k.report("other keys", err)
	if err == nil && !access.Equal(k.access) {
		k.access, changed = access, true
		k.o.Log.Info("keys of readers, operators or hooks changed")
	}
	return changed
}

// Folders are those of all files that Check reads.
func (k *Keeper) Folders() []string {
	var out []string
	for _, name := range append(k.o.Access.All(hook.Providers()), k.o.CertFile, k.o.KeyFile) {
		if folder := filepath.Dir(name); name != "" && !slices.Contains(out, folder) {
			out = append(out, folder)
		}
	}
	return out
}

// report logs a problem, once as long as it stays the same.
func (k *Keeper) report(about string, err error) {
	if k.problems.News(about, err) {
		k.o.Log.Error("a change is not served: what was good stays in force", "of", about, "error", err)
	}
}

// Problems are those that were reported last, by what they are about.
type Problems map[string]string

// News reports whether this is a problem, and another one than at the last time. Nil ends it.
func (p Problems) News(about string, err error) bool {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if p[about] == text {
		return false
	}
	p[about] = text
	return err != nil
}
