package daemon

// The credentials of a server: its certificate, its signing keys, and the keys of clients that are not nodes. The
// first start creates them; later changes of their files are noticed while the server runs.

import (
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/specserve/keys"
)

// credentialsOptions say where the files are.
type credentialsOptions struct {
	Access            keys.Files // Access.Dir is the folder of signing keys and certificate, too
	CertFile, KeyFile string     // an external certificate; "" for one of its own
	Log               *slog.Logger
}

// credentialsKeeper has the credentials, and reads again what changes. It is for one goroutine; what it returns
// may be used by any.
type credentialsKeeper struct {
	o           credentialsOptions
	certificate *keys.CertKeeper
	ring        keys.Ring
	access      keys.Access
	book        *keys.Book
	problems    reported
	files       durable.Stamps // of the keys, before they were read last
	kept        time.Time      // when the tokens in use were kept last
}

// openCredentials reads the credentials, and makes those that are missing.
func openCredentials(o credentialsOptions) (*credentialsKeeper, error) {
	k := &credentialsKeeper{o: o, problems: reported{}}
	var err error
	if k.ring, err = keys.Folder(o.Access.Dir).Ensure(time.Now()); err != nil {
		return nil, err
	}
	if k.access, err = o.Access.EnsureAccess(keys.HookProviders()); err != nil {
		return nil, err
	}
	if k.book, err = keys.Folder(o.Access.Dir).OpenBook(); err != nil {
		return nil, err
	}
	k.certificate, err = keys.OpenCert(keys.CertOptions{Dir: o.Access.Dir, CertFile: o.CertFile, KeyFile: o.KeyFile, Log: o.Log})
	return k, err
}

// Certificate is the certificate of the server.
func (k *credentialsKeeper) Certificate() *keys.CertKeeper { return k.certificate }

// Ring is the signing keys.
func (k *credentialsKeeper) Ring() keys.Ring { return k.ring }

// Access is the keys of clients that are not nodes.
func (k *credentialsKeeper) Access() keys.Access { return k.access }

// Book knows which tokens of nodes count.
func (k *credentialsKeeper) Book() *keys.Book { return k.book }

// Close keeps what is known of the tokens for the next start.
func (k *credentialsKeeper) Close() { k.report("tokens in use", k.book.Save()) }

// saveEvery is the interval at which the tokens in use are written. Later changes are lost with a crash, until the nodes show
// their tokens again.
const saveEvery = 50 * time.Second // a server checks once in a minute

// Check reads files that changed, renews the certificate if that is due, and reports whether anything is new.
// Unreadable files change nothing, and are logged.
func (k *credentialsKeeper) Check() (changed bool) {
	changed, err := k.certificate.Check()
	k.report("certificate", err)
	if time.Since(k.kept) >= saveEvery {
		k.kept = time.Now()
		k.report("tokens in use", k.book.Save())
	}
	revoked, err := k.book.Refresh()
	k.report("revoked tokens", err)
	changed = changed || revoked // nodes that wait learn it
	files := durable.StampsOf(k.o.Access.All(keys.HookProviders())...)
	if files.Same(k.files) {
		return changed
	}
	k.files = files
	ring, err := keys.Folder(k.o.Access.Dir).Read()
	k.report("keys", err)
	if err == nil && !slices.Equal(ring.Tokens(), k.ring.Tokens()) {
		k.ring, changed = ring, true
		k.o.Log.Info("signing keys changed", "kid", ring[0].ID, "valid", len(ring))
	}
	access, errAccess := k.o.Access.ReadAccess(keys.HookProviders())
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
func (k *credentialsKeeper) Folders() []string {
	var out []string
	for _, name := range append(k.o.Access.All(keys.HookProviders()), k.o.CertFile, k.o.KeyFile) {
		if folder := filepath.Dir(name); name != "" && !slices.Contains(out, folder) {
			out = append(out, folder)
		}
	}
	return out
}

// report logs a problem, once as long as it stays the same.
func (k *credentialsKeeper) report(about string, err error) {
	if k.problems.News(about, err) {
		k.o.Log.Error("a change is not served: the last good version stays in force", "of", about, "error", err)
	}
}

// reported are the problems that were logged last, by what they are about.
type reported map[string]string

// News reports whether this is a problem, and another one than at the last time. Nil ends it.
func (p reported) News(about string, err error) bool {
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
