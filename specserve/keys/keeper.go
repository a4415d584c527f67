package keys

import (
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// serverFile is the file of a server's own certificate, in its folder.
const serverFile = "server.pem"

// CertOptions say where a certificate is.
type CertOptions struct {
	Dir               string // of server.pem; it is made if it is not there
	CertFile, KeyFile string // an external pair, instead
	Log               *slog.Logger

	Names func() Names     // nil: HostNames
	Now   func() time.Time // nil: time.Now
}

// CertKeeper has the certificate of a server and keeps it up to date. Check is for one goroutine;
// everything else is for any.
type CertKeeper struct {
	o       CertOptions
	present atomic.Pointer[present]
	named   time.Time // when the names were compared last
}

// present is the current identity, its pins, and the files that it was read from.
type present struct {
	*identity
	announced []string
	files     [2]state
}

// state is the state of a file when it was read.
type state struct {
	size     int64
	modified time.Time
	file     fs.FileInfo
}

func (s state) same(o state) bool {
	return s.file != nil && o.file != nil && os.SameFile(s.file, o.file) && s.size == o.size && s.modified.Equal(o.modified)
}

// OpenCert reads the certificate of a server, and makes it if it has none.
func OpenCert(o CertOptions) (*CertKeeper, error) {
	if o.Names == nil {
		o.Names = HostNames
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, errors.New("a certificate is a pair of files\nname both: --cert FILE --key FILE")
	}
	k := &CertKeeper{o: o}
	if o.CertFile == "" {
		if err := os.MkdirAll(o.Dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the folder of the certificate: %w", err)
		}
		if err := durable.HandOver(filepath.Dir(o.Dir), o.Dir); err != nil {
			return nil, fmt.Errorf("make the folder of the certificate: %w", err)
		}
		if err := k.create(); err != nil {
			return nil, err
		}
	}
	_, err := k.Check()
	return k, err
}

// Pins are those of the present key and, if it is known, of the next one. The caller must not change them.
func (k *CertKeeper) Pins() []string { return k.present.Load().announced }

// Key is the private key of the server, which its pin names.
func (k *CertKeeper) Key() crypto.Signer {
	key, _ := k.present.Load().pair.PrivateKey.(crypto.Signer) // as for TLS (tls.Certificate)
	return key
}

// Expires is the end of the present certificate.
func (k *CertKeeper) Expires() time.Time { return k.present.Load().pair.Leaf.NotAfter }

// TLS is the configuration of a server with this certificate. A handshake gets the certificate that is current when
// it begins.
func (k *CertKeeper) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &k.present.Load().pair, nil },
	}
}

// Check reads files that changed, and renews the certificate if that is due. After an error what
// was in force stays in force.
func (k *CertKeeper) Check() (changed bool, err error) {
	if k.o.CertFile != "" {
		return k.reload([]string{k.o.CertFile, k.o.KeyFile}, readPair)
	}
	name := []string{filepath.Join(k.o.Dir, serverFile)}
	if changed, err = k.reload(name, readOwn); err != nil {
		return false, err
	}
	now := k.o.Now()
	if sinceNamed := now.Sub(k.named); sinceNamed >= 0 && sinceNamed < time.Hour && !changed {
		return false, nil
	}
	k.named = now
	if why, _ := k.present.Load().due(now, k.o.Names()); why == "" {
		return changed, nil
	}
	if err := k.renew(now); err != nil {
		return changed, fmt.Errorf("renew the certificate of the server: %w", err)
	}
	_, err = k.reload(name, readOwn)
	return true, err
}

// reload reads files again if one of them changed.
func (k *CertKeeper) reload(names []string, read func(names []string) (*identity, error)) (bool, error) {
	var files [2]state
	for i, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			return false, fmt.Errorf("read the certificate of the server: %w", err)
		}
		files[i] = state{info.Size(), info.ModTime(), info}
	}
	was := k.present.Load()
	if was != nil && files[0].same(was.files[0]) && (len(names) == 1 || files[1].same(was.files[1])) {
		return false, nil
	}
	id, err := read(names)
	if err != nil {
		return false, err
	}
	pins, err := id.pins()
	if err != nil {
		return false, err
	}
	k.present.Store(&present{id, pins, files})
	return true, nil
}

// readOwn reads server.pem.
func readOwn(names []string) (*identity, error) {
	text, err := durable.ReadPrivate(names[0])
	if err == nil {
		var id *identity
		if id, err = decode(text); err == nil {
			return id, nil
		}
	}
	return nil, fmt.Errorf("%s is not usable: %w\nrestore it from a backup; if you remove it, the server makes another one, and every node must be given its pin", names[0], err)
}

// readPair reads an external pair.
func readPair(names []string) (*identity, error) {
	if info, err := os.Stat(names[1]); err == nil && info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("every user of this machine can use the key %s\nchmod o= %[1]s", names[1])
	}
	pair, err := tls.LoadX509KeyPair(names[0], names[1])
	if err != nil {
		return nil, fmt.Errorf("%s and %s are not a certificate and its key: %w", names[0], names[1], err)
	}
	return &identity{pair: pair}, nil
}

// create makes server.pem unless it is there.
func (k *CertKeeper) create() error {
	name := filepath.Join(k.o.Dir, serverFile)
	err := durable.Exclusively(k.o.Dir, func() error {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		id, err := create(k.o.Now(), k.o.Names())
		if err != nil {
			return err
		}
		return k.write(id)
	})
	if err != nil {
		return fmt.Errorf("make the certificate of the server: %w", err)
	}
	return nil
}

// renew replaces server.pem, unless another process did.
func (k *CertKeeper) renew(now time.Time) error {
	return durable.Exclusively(k.o.Dir, func() error {
		was, err := readOwn([]string{filepath.Join(k.o.Dir, serverFile)})
		if err != nil {
			return err
		}
		names := k.o.Names()
		why, rotate := was.due(now, names)
		if why == "" {
			return nil
		}
		id, err := was.renewed(now, names, rotate)
		if err != nil {
			return err
		}
		if err := k.write(id); err != nil {
			return err
		}
		k.o.Log.Info("renewed the certificate of the server", "why", why, "new_key", rotate, "pin", wire.PinOf(id.pair.Leaf).String(), "expires", id.pair.Leaf.NotAfter)
		return nil
	})
}

func (k *CertKeeper) write(id *identity) error {
	text, err := id.encode()
	if err != nil {
		return err
	}
	return durable.ReplaceForOwner(filepath.Join(k.o.Dir, serverFile), text)
}
