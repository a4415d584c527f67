package service

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/web"
	"github.com/homestak/homestak-gitops/specserve/keys"
)

// pageAddress is where the page is served; "" for nowhere.
func (c *Config) pageAddress() string {
	if c.Web == nil || c.Web.Listen == noServer {
		return ""
	}
	return c.Web.Listen
}

// page finds what is wrong with the settings of the page: keys must not go over a network in clear text.
func (c *Config) page() diag.List {
	at := c.pageAddress()
	if at == "" {
		return nil
	}
	refuse := func(path, summary, detail string) diag.List {
		f := diag.Errorf(c.At(path), summary, "%s", detail)
		f.Address = path
		return diag.List{f}
	}
	host, _, err := net.SplitHostPort(at)
	ip, errIP := netip.ParseAddr(host)
	certificate := c.Web.CertificateFile != ""
	switch {
	case err != nil:
		return refuse("web.listen", "web.listen is not an address", "Write an address and a port, such as :44480 or 127.0.0.1:44480.")
	case certificate != (c.Web.PrivateKeyFile != ""):
		return refuse("web.certificate_file", "a certificate needs its private key", "Set both web.certificate_file and web.private_key_file, or neither.")
	case !certificate && (errIP != nil || !ip.IsLoopback()):
		return refuse("web.listen", "the page needs a certificate", "Keys would cross the network in clear text. Set web.certificate_file and web.private_key_file, or listen on 127.0.0.1 behind a proxy with a certificate.")
	}
	return nil
}

const (
	pageAgain = 10 * time.Second // between two tries to listen
	keysKept  = time.Second      // how long keys and certificate count before their files are read again
)

// servePage serves the page until ctx ends. While its address or its files cannot be used, it tries again.
func servePage(ctx context.Context, s *Service) {
	log, c := s.o.Log, s.o.Config
	try := func() error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // ends what Client serves
		if _, err := c.keyFiles().EnsureAccess(nil); err != nil {
			return err
		}
		var certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
		if c.Web.CertificateFile != "" {
			pair := &kept[tls.Certificate]{read: func() (tls.Certificate, error) {
				return tls.LoadX509KeyPair(c.Web.CertificateFile, c.Web.PrivateKeyFile)
			}}
			if _, err := pair.get(); err != nil {
				return err
			}
			certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				now, err := pair.get()
				return &now, err
			}
		}
		access := &kept[keys.Access]{read: func() (keys.Access, error) { return c.keyFiles().ReadAccess(nil) }}
		listen := new(net.ListenConfig).Listen
		if own := s.o.Network.Listen; own != nil {
			listen = func(ctx context.Context, _, address string) (net.Listener, error) { return own(ctx, address) }
		}
		ln, err := listen(ctx, "tcp", c.pageAddress())
		if err != nil {
			return err
		}
		log.Info("the page is served", "address", ln.Addr().String(), "tls", certificate != nil)
		handler := web.Handler(web.Options{Source: Client(ctx, s), Access: web.Access{Secure: true, Keys: func() (read, operator []byte) {
			now, err := access.get()
			if err != nil {
				log.Warn("the keys of the page cannot be read, so people cannot sign in", "error", err)
			}
			return now.Read, now.Operator
		}}})
		return web.Serve(ctx, ln, handler, certificate, log)
	}
	for ctx.Err() == nil {
		if err := try(); err != nil {
			log.Error("the page is not served", "address", c.pageAddress(), "error", err)
		}
		select {
		case <-time.After(pageAgain):
		case <-ctx.Done():
		}
	}
}

// kept is a value of files, read again after a while. Its lock is held while they are read.
type kept[T any] struct {
	read func() (T, error)

	mu    sync.Mutex
	value T
	err   error
	at    time.Time
}

// get gives the value; a value that cannot be read is none.
func (k *kept[T]) get() (T, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := time.Now(); now.Sub(k.at) > keysKept {
		k.at = now
		k.value, k.err = k.read()
	}
	return k.value, k.err
}
