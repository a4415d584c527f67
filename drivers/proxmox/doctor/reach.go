package doctor

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
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

// endpoint is the host and port of the API; ok is false for what is no https URL.
func (e *exam) endpoint() (host, port string, ok bool) {
	u, err := url.Parse(e.host.API)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" {
		return "", "", false
	}
	return u.Hostname(), cmp.Or(u.Port(), "443"), true
}

func (e *exam) address(ctx context.Context) {
	host, _, ok := e.endpoint()
	switch {
	case e.Transport != nil:
		e.ok("address", "a simulator within this program")
	case !ok:
		e.fail("address", fmt.Sprintf("api = %q is no https URL", e.host.API), "nothing can be reached without it"+e.at(), `api = "https://192.0.2.10:8006"`)
	case net.ParseIP(host) != nil:
		e.ok("address", "%s", host)
	default:
		found, err := new(net.Resolver).LookupHost(ctx, host)
		if err != nil {
			e.fail("address", fmt.Sprintf("the name %s does not resolve: %s", host, resolving(err)), "the API is reached by this name"+e.at(),
				"getent hosts "+host, `or write the address itself: api = "https://192.0.2.10:8006"`)
			return
		}
		e.ok("address", "%s is %s", host, strings.Join(found, ", "))
	}
}

// resolving is why a name has no address, without which server said so.
func resolving(err error) string {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return dns.Err
	}
	return err.Error()
}

func (e *exam) connection(ctx context.Context) {
	if e.Transport != nil {
		e.skip("connection", "a simulator within this program has none")
		return
	}
	host, port, _ := e.endpoint()
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	if err == nil {
		_ = conn.Close()
		e.ok("connection", "port %s of %s accepts", port, host)
		return
	}
	fix := []string{"is it on, and is the address in api right? ping " + host, "does a firewall let port " + port + " through? on the host: pve-firewall status"}
	if errors.Is(err, syscall.ECONNREFUSED) {
		fix = []string{"does the API run? on the host: systemctl status pveproxy", "is the port right? PVE listens on 8006 unless that was changed: api = \"https://" + net.JoinHostPort(host, "8006") + `"`}
	}
	e.fail("connection", err.Error(), "every request to the host takes this way"+e.at(), fix...)
}

// certificate shakes hands without any check first, so that what is wrong with the
// certificate can be told apart, and then judges it as the driver will.
func (e *exam) certificate(ctx context.Context) {
	if e.Transport != nil {
		e.skip("certificate", "a simulator within this program has none")
		return
	}
	host, port, _ := e.endpoint()
	dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host, InsecureSkipVerify: true}} //nolint:gosec // nothing is sent; the certificate is judged below
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		e.fail("certificate", "no TLS: "+err.Error(), "the API is spoken to over TLS only"+e.at(), "is this the port of pveproxy (8006)? on the host: ss -ltnp | grep pveproxy")
		return
	}
	defer func() { _ = conn.Close() }()
	chain := conn.(*tls.Conn).ConnectionState().PeerCertificates
	sum := sha256.Sum256(chain[0].Raw)
	shown := "sha256:" + hex.EncodeToString(sum[:])
	if e.judgeCertificate(chain, host, shown) {
		e.expiry(chain[0])
	}
}

func (e *exam) judgeCertificate(chain []*x509.Certificate, host, shown string) bool {
	const compare = "compare it on the host first: pvenode cert info"
	pin := []string{compare, fmt.Sprintf("fingerprint = %q", shown)}
	h := e.host
	switch {
	case h.Fingerprint != "":
		want, err := api.ParseFingerprint(h.Fingerprint)
		switch {
		case err != nil:
			e.fail("certificate", err.Error(), "the host is recognised by it"+e.at(), pin...)
		case "sha256:"+hex.EncodeToString(want) != shown:
			e.fail("certificate", "its fingerprint is "+shown+", the site expects sha256:"+hex.EncodeToString(want),
				"another host answers there, or the certificate was renewed"+e.at(), pin...)
		default:
			e.ok("certificate", "the fingerprint is the one in the site")
			return true
		}
		return false
	case len(h.CAPEM) == 0 && h.InsecureTLS:
		e.warn("certificate", "insecure_tls: any certificate is accepted", "a man in the middle can read the token and answer instead of the host"+e.at(),
			compare, fmt.Sprintf("fingerprint = %q    # instead of insecure_tls", shown))
		return true
	}
	cfg, err := api.TLSConfig(h)
	if err != nil {
		e.fail("certificate", err.Error(), "the host is recognised by it"+e.at(), "on the host: cat /etc/pve/pve-root-ca.pem")
		return false
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err = chain[0].Verify(x509.VerifyOptions{Roots: cfg.RootCAs, Intermediates: between, DNSName: host, CurrentTime: e.Now()})
	if err == nil {
		e.ok("certificate", "signed by %s, for %s", cmp.Or(chain[0].Issuer.CommonName, "a trusted authority"), host)
		return true
	}
	why := "the host must prove who it is before it gets the token" + e.at()
	if name, ok := errors.AsType[x509.HostnameError](err); ok {
		e.fail("certificate", fmt.Sprintf("it is for other names than %s: %v", host, name), why,
			append([]string{"use one of its names in api, or recognise it by its fingerprint:"}, pin...)...)
		return false
	}
	e.fail("certificate", err.Error(), why, pin...)
	return false
}

func (e *exam) expiry(c *x509.Certificate) {
	left := c.NotAfter.Sub(e.Now())
	renew := []string{"on the host: pvecm updatecerts --force && systemctl restart pveproxy", "then compare `pvenode cert info` with fingerprint in the host block"}
	switch {
	case left < 0:
		e.warn("certificate", "it ended on "+c.NotAfter.Format(time.DateOnly), "browsers and tools that do not go by the fingerprint refuse it", renew...)
	case left < certificateSoon:
		e.warn("certificate", fmt.Sprintf("it ends in %s, on %s", days(left), c.NotAfter.Format(time.DateOnly)),
			"its renewal changes the fingerprint, and from then on every run refuses until the site says the new one", renew...)
	}
}

// signIn asks for the version, the cheapest thing that needs a login: one answer
// tells whether the token is good, which PVE this is, and what time it is there.
func (e *exam) signIn(ctx context.Context) {
	const why = "every request carries the token"
	if e.d == nil {
		e.Add(Check{
			Name: "login", Result: Failed, Seen: e.login.Error(), Why: why, Denied: true,
			Fix: []string{"on the host: pveum user token add homestak@pve gitops --privsep 0", fmt.Sprintf("into secrets.yaml, under api_tokens: %s: \"homestak@pve!gitops=SECRET\"", e.host.Name)},
		})
		return
	}
	status, reason, version, err := e.probe(ctx)
	user := e.d.Client().User()
	switch {
	case err != nil:
		e.fail("login", err.Error(), why, "is this a PVE host? curl -k "+e.host.API+"/api2/json/version")
	case status == http.StatusUnauthorized:
		name, token, _ := strings.Cut(user, "!")
		e.Add(Check{
			Name: "login", Result: Failed, Denied: true, Seen: fmt.Sprintf("the host refuses token %s: 401 %s", user, reason),
			Why: "the token does not exist there, its secret is another, or it expired; PVE does not tell which",
			Fix: []string{
				"on the host, is it there and not expired? pveum user token list " + name,
				fmt.Sprintf("a new secret: pveum user token remove %s %s && pveum user token add %s %s --privsep 0", name, token, name, token),
				fmt.Sprintf("into secrets.yaml, under api_tokens: %s: \"%s=SECRET\"; what was granted to the token itself is to be granted again", e.host.Name, user),
			},
		})
	case status != http.StatusOK || version == "":
		e.fail("login", fmt.Sprintf("GET /version: %d %s", status, reason), "this is no answer of PVE", "is api the URL of a PVE host, without a path? curl -k "+e.host.API+"/api2/json/version")
	default:
		e.major, _ = strconv.Atoi(strings.SplitN(version, ".", 2)[0])
		e.pve = version
		e.ok("login", "token %s", user)
	}
}

// probe sends GET /version past all that the driver does with answers, and notes
// how far the clocks are apart. A Date names whole seconds, and the answer to a
// wrong token comes 3 s late: what fits between sending and receiving is no skew.
func (e *exam) probe(ctx context.Context) (status int, reason, version string, err error) {
	inner := e.Transport
	if inner == nil {
		if inner, err = api.NewTLSTransport(e.host, 1); err != nil {
			return 0, "", "", err
		}
	}
	req, err := e.d.Client().NewRequest(ctx, http.MethodGet, "/version", http.NoBody)
	if err != nil {
		return 0, "", "", err
	}
	sent := e.Now()
	res, err := inner.RoundTrip(req)
	if err != nil {
		return 0, "", "", api.Explain(err)
	}
	defer res.Body.Close()
	received := e.Now()
	if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		switch {
		case date.Before(sent.Add(-time.Second)):
			e.skew = new(date.Sub(sent.Add(-time.Second)))
		case date.After(received):
			e.skew = new(date.Sub(received))
		default:
			e.skew = new(time.Duration)
		}
	}
	var doc struct {
		Data struct{ Version string }
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<16))
	if err == nil && res.StatusCode == http.StatusOK {
		err = json.Unmarshal(body, &doc)
	}
	_, reason, _ = strings.Cut(res.Status, " ")
	return res.StatusCode, strings.TrimSpace(reason), doc.Data.Version, err
}

func (e *exam) clock(context.Context) {
	const why = "schedules, the age of tokens and certificates, and the order of events go by both clocks"
	fix := []string{"on the host: timedatectl status && systemctl restart chrony", "here: timedatectl status"}
	if e.skew == nil {
		e.skip("clock", "no answer told the time")
		return
	}
	skew, order := e.skew.Round(time.Second), "ahead of"
	if skew < 0 {
		skew, order = -skew, "behind"
	}
	seen := fmt.Sprintf("the host is %s %s this machine", skew, order)
	switch {
	case skew > skewFailure:
		e.fail("clock", seen, why, fix...)
	case skew > skewWarning:
		e.warn("clock", seen, why, fix...)
	default:
		e.ok("clock", "the host and this machine agree")
	}
}

var versionNumber = regexp.MustCompile(`^(\d+)\.(\d+)`)

func (e *exam) version(context.Context) {
	m := versionNumber.FindStringSubmatch(e.pve)
	if m == nil {
		e.warn("version", fmt.Sprintf("the host calls itself %q", e.pve), "this program is tried with Proxmox VE 8.4 to 9", "pveversion")
		return
	}
	minor, _ := strconv.Atoi(m[2])
	switch {
	case e.major < 8 || e.major == 8 && minor < 4:
		e.fail("version", "Proxmox VE "+e.pve+" is older than 8.4", "it has no import of disk images by the API, and other messages than those that are understood here",
			"upgrade the host: https://pve.proxmox.com/wiki/Upgrade_from_7_to_8, and then apt update && apt full-upgrade")
	case e.major > 9:
		e.warn("version", "Proxmox VE "+e.pve+" is newer than what this program is tried with (8.4 to 9)", "its privileges and messages may be others", "see whether there is a newer homestak-gitops")
	default:
		e.ok("version", "Proxmox VE %s", e.pve)
	}
}

// days is a duration in whole days, for a sentence.
func days(d time.Duration) string {
	if n := int(d.Hours() / 24); n != 1 {
		return fmt.Sprintf("%d days", n)
	}
	return "1 day"
}
