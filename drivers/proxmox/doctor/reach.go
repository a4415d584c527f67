package doctor

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
)

const (
	certificateSoon = 30 * 24 * time.Hour // before its end a certificate is worth a word
	skewWarning     = 5 * time.Second
	skewFailure     = 60 * time.Second
)

// reach checks the connection to the host's API: address, port and certificate.
type reach struct {
	*subject
	transport http.RoundTripper // a simulator's; nil where there is a network
	now       func() time.Time
}

// endpoint is the host and port of the API; ok is false for what is not an https URL.
func (r *reach) endpoint() (host, port string, ok bool) {
	u, err := url.Parse(r.host.API)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" {
		return "", "", false
	}
	return u.Hostname(), cmp.Or(u.Port(), "443"), true
}

func (r *reach) address(ctx context.Context) {
	host, _, ok := r.endpoint()
	switch {
	case r.transport != nil:
		r.ok("address", "a simulator in this program")
	case !ok:
		r.fail("address", fmt.Sprintf("api = %q is not an https URL", r.host.API), "nothing can be reached without it"+r.at(), `api = "https://192.0.2.10:8006"`)
	case net.ParseIP(host) != nil:
		r.ok("address", "%s", host)
	default:
		found, err := new(net.Resolver).LookupHost(ctx, host)
		if err != nil {
			r.fail("address", fmt.Sprintf("the name %s does not resolve: %s", host, resolving(err)), "the API is reached by this name"+r.at(),
				"getent hosts "+host, `or write the address itself: api = "https://192.0.2.10:8006"`)
			return
		}
		r.ok("address", "%s is %s", host, strings.Join(found, ", "))
	}
}

// resolving is the reason why a name does not resolve, without the name server.
func resolving(err error) string {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return dns.Err
	}
	return err.Error()
}

func (r *reach) connection(ctx context.Context) {
	if r.transport != nil {
		r.skip("connection", "a simulator in this program has none")
		return
	}
	host, port, _ := r.endpoint()
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	if err == nil {
		_ = conn.Close()
		r.ok("connection", "port %s of %s accepts", port, host)
		return
	}
	fix := []string{"is it on, and is the address in api right? ping " + host, "does a firewall let port " + port + " through? on the host: pve-firewall status"}
	if errors.Is(err, syscall.ECONNREFUSED) {
		fix = []string{"does the API run? on the host: systemctl status pveproxy", "is the port right? PVE listens on 8006 unless that was changed: api = \"https://" + net.JoinHostPort(host, "8006") + `"`}
	}
	r.fail("connection", err.Error(), "every request to the host needs this connection"+r.at(), fix...)
}

// certificate first makes a TLS handshake without verification, to distinguish problems of the
// certificate, and then verifies it as the driver does.
func (r *reach) certificate(ctx context.Context) {
	if r.transport != nil {
		r.skip("certificate", "a simulator in this program has none")
		return
	}
	host, port, _ := r.endpoint()
	dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host, InsecureSkipVerify: true}} //nolint:gosec // nothing is sent; the certificate is verified below
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		r.fail("certificate", "no TLS: "+err.Error(), "the API is used over TLS only"+r.at(), "is this the port of pveproxy (8006)? on the host: ss -ltnp | grep pveproxy")
		return
	}
	defer func() { _ = conn.Close() }()
	chain := conn.(*tls.Conn).ConnectionState().PeerCertificates
	sum := sha256.Sum256(chain[0].Raw)
	shown := "sha256:" + hex.EncodeToString(sum[:])
	if r.trusted(chain, host, shown) {
		r.expiry(chain[0])
	}
}

func (r *reach) trusted(chain []*x509.Certificate, host, shown string) bool {
	const compare = "compare it on the host first: pvenode cert info"
	pin := []string{compare, fmt.Sprintf("fingerprint = %q", shown)}
	h := r.host
	switch {
	case h.Fingerprint != "":
		want, err := api.ParseFingerprint(h.Fingerprint)
		switch {
		case err != nil:
			r.fail("certificate", err.Error(), "the host is identified by it"+r.at(), pin...)
		case "sha256:"+hex.EncodeToString(want) != shown:
			r.fail("certificate", "its fingerprint is "+shown+", the site expects sha256:"+hex.EncodeToString(want),
				"another host answers there, or the certificate was renewed"+r.at(), pin...)
		default:
			r.ok("certificate", "the fingerprint is the one in the site")
			return true
		}
		return false
	case len(h.CAPEM) == 0 && h.InsecureTLS:
		r.warn("certificate", "insecure_tls: any certificate is accepted", "an attacker on the network can read the token and impersonate the host"+r.at(),
			compare, fmt.Sprintf("fingerprint = %q    # instead of insecure_tls", shown))
		return true
	}
	cfg, err := api.TLSConfig(h)
	if err != nil {
		r.fail("certificate", err.Error(), "the host is identified by it"+r.at(), "on the host: cat /etc/pve/pve-root-ca.pem")
		return false
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err = chain[0].Verify(x509.VerifyOptions{Roots: cfg.RootCAs, Intermediates: between, DNSName: host, CurrentTime: r.now()})
	if err == nil {
		r.ok("certificate", "signed by %s, for %s", cmp.Or(chain[0].Issuer.CommonName, "a trusted authority"), host)
		return true
	}
	why := "the token is sent to a verified host only" + r.at()
	if name, ok := errors.AsType[x509.HostnameError](err); ok {
		r.fail("certificate", fmt.Sprintf("it is for other names than %s: %v", host, name), why,
			append([]string{"use one of its names in api, or identify it by its fingerprint:"}, pin...)...)
		return false
	}
	r.fail("certificate", err.Error(), why, pin...)
	return false
}

func (r *reach) expiry(c *x509.Certificate) {
	left := c.NotAfter.Sub(r.now())
	renew := []string{"on the host: pvecm updatecerts --force && systemctl restart pveproxy", "then compare `pvenode cert info` with fingerprint in the host block"}
	switch {
	case left < 0:
		r.warn("certificate", "it ended on "+c.NotAfter.Format(time.DateOnly), "browsers and tools that do not use the fingerprint reject it", renew...)
	case left < certificateSoon:
		r.warn("certificate", fmt.Sprintf("it ends in %s, on %s", days(left), c.NotAfter.Format(time.DateOnly)),
			"its renewal changes the fingerprint, and then every run fails until the site has the new one", renew...)
	}
}

// days is a duration in whole days, for a sentence.
func days(d time.Duration) string {
	if n := int(d.Hours() / 24); n != 1 {
		return fmt.Sprintf("%d days", n)
	}
	return "1 day"
}
