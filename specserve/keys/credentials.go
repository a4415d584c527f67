package keys

// The credentials of a server: its certificate, its signing keys, and the keys of clients that are not nodes. The
// first start creates them; later changes of their files are noticed while the server runs.

import (
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
)

// CredentialsOptions say where the files are.
type CredentialsOptions struct {
	Access            Files  // Access.Dir is the folder of signing keys and certificate, too
	CertFile, KeyFile string // an external certificate; "" for one of its own
	Log               *slog.Logger
}

// CredentialsKeeper has the credentials, and reads again what changes. It is for one goroutine; what it returns
// may be used by any.
type CredentialsKeeper struct {
	o           CredentialsOptions
	certificate *CertKeeper
	ring        Ring
	access      Access
	book        *Book
	problems    CredentialProblems
	files       durable.Stamps // of the keys, before they were read last
	kept        time.Time      // when the tokens in use were kept last
}

// OpenCredentials reads the credentials, and makes those that are missing.
func OpenCredentials(o CredentialsOptions) (*CredentialsKeeper, error) {
	k := &CredentialsKeeper{o: o, problems: CredentialProblems{}}
	var err error
	if k.ring, err = Ensure(o.Access.Dir, time.Now()); err != nil {
		return nil, err
	}
	if k.access, err = EnsureAccess(o.Access, HookProviders()); err != nil {
		return nil, err
	}
	if k.book, err = OpenBook(o.Access.Dir); err != nil {
		return nil, err
	}
	k.certificate, err = OpenCert(CertOptions{Dir: o.Access.Dir, CertFile: o.CertFile, KeyFile: o.KeyFile, Log: o.Log})
	return k, err
}

// Certificate is the certificate of the server.
func (k *CredentialsKeeper) Certificate() *CertKeeper { return k.certificate }

// Ring is the signing keys.
func (k *CredentialsKeeper) Ring() Ring { return k.ring }

// Access is the keys of clients that are not nodes.
func (k *CredentialsKeeper) Access() Access { return k.access }

// Book knows which tokens of nodes count.
func (k *CredentialsKeeper) Book() *Book { return k.book }

// Close keeps what is known of the tokens for the next start.
func (k *CredentialsKeeper) Close() { k.report("tokens in use", k.book.Save()) }

// keepEvery is the interval at which the tokens in use are written. Later changes are lost with a crash, until the nodes show
// their tokens again.
const keepEvery = 50 * time.Second // a server checks once in a minute

// Check reads files that changed, renews the certificate if that is due, and reports whether anything is new.
// Unreadable files change nothing, and are logged.
func (k *CredentialsKeeper) Check() (changed bool) {
	changed, err := k.certificate.Check()
	k.report("certificate", err)
	if time.Since(k.kept) >= keepEvery {
		k.kept = time.Now()
		k.report("tokens in use", k.book.Save())
	}
	revoked, err := k.book.Refresh()
	k.report("revoked tokens", err)
	changed = changed || revoked // nodes that wait learn it
	files := durable.StampsOf(k.o.Access.All(HookProviders())...)
	if files.Same(k.files) {
		return changed
	}
	k.files = files
	ring, err := Read(k.o.Access.Dir)
	k.report("keys", err)
	if err == nil && !slices.EqualFunc(ring, k.ring, func(a, b entry) bool { return a.Key == b.Key }) {
		k.ring, changed = ring, true
		k.o.Log.Info("signing keys changed", "kid", ring[0].ID, "valid", len(ring))
	}
	access, errAccess := ReadAccess(k.o.Access, HookProviders())
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
func (k *CredentialsKeeper) Folders() []string {
	var out []string
	for _, name := range append(k.o.Access.All(HookProviders()), k.o.CertFile, k.o.KeyFile) {
		if folder := filepath.Dir(name); name != "" && !slices.Contains(out, folder) {
			out = append(out, folder)
		}
	}
	return out
}

// report logs a problem, once as long as it stays the same.
func (k *CredentialsKeeper) report(about string, err error) {
	if k.problems.News(about, err) {
		k.o.Log.Error("a change is not served: the last good version stays in force", "of", about, "error", err)
	}
}

// CredentialProblems are those that were reported last, by what they are about.
type CredentialProblems map[string]string

// News reports whether this is a problem, and another one than at the last time. Nil ends it.
func (p CredentialProblems) News(about string, err error) bool {
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
