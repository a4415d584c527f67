package pvesim

import (
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// Certificates of a node (PVE/API2/Certificates.pm, PVE/API2/ACME.pm): one of one's own
// is kept and shown; who connects still sees the one of the host.

// custom is the certificate that somebody put on a node; nil when there is none.
type custom struct{ cert *x509.Certificate }

// custom is that of the node of a call.
func (c *call) custom() *custom { return partOf[custom](&c.node().parts) }

// shownCertificate is what PVE says of a certificate (get_certificate_info in
// PVE/Certificate.pm).
func shownCertificate(file string, cert *x509.Certificate) map[string]any {
	kind, bits := "id-ecPublicKey", 256
	if key, ok := cert.PublicKey.(*rsa.PublicKey); ok {
		kind, bits = "rsaEncryption", key.N.BitLen()
	}
	return map[string]any{
		"filename": file, "fingerprint": colons(fmt.Sprintf("%x", sha256.Sum256(cert.Raw))),
		"subject": distinguished(cert.RawSubject), "issuer": distinguished(cert.RawIssuer),
		"notbefore": cert.NotBefore.Unix(), "notafter": cert.NotAfter.Unix(), "public-key-type": kind, "public-key-bits": bits,
		"san": otherNames(cert), "pem": asPEM(cert),
	}
}

// apiCertificates is GET /nodes/{node}/certificates/info: the authority, the one that answers,
// and the custom one.
func apiCertificates(w *world, c *call) (any, error) {
	list := []map[string]any{}
	if w.certificate != nil {
		list = append(list, shownCertificate("pve-root-ca.pem", w.authority), shownCertificate("pve-ssl.pem", w.certificate))
	}
	if custom := c.custom().cert; custom != nil {
		list = append(list, shownCertificate("pveproxy-ssl.pem", custom))
	}
	return list, nil
}

// apiSetCertificate is POST /nodes/{node}/certificates/custom.
func apiSetCertificate(_ *world, c *call) (any, error) {
	s := c.custom()
	block, _ := pem.Decode([]byte(c.in["certificates"]))
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, badParam("certificates", "invalid format - not a valid PEM-formatted string.\n")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	switch key, _ := pem.Decode([]byte(c.in["key"])); {
	case err != nil:
		return nil, fail("unable to parse certificate: %s", err)
	case c.in["key"] == "" && s.cert == nil:
		return nil, badParam("key", "Attempted to upload custom certificate without (existing) key.")
	case c.in["key"] != "" && (key == nil || !strings.HasSuffix(key.Type, "PRIVATE KEY")):
		return nil, badParam("key", "invalid format - not a valid PEM-formatted string.\n")
	case s.cert != nil && !c.flag("force"):
		return nil, fail("Custom certificate file exists but force flag is not set.")
	}
	s.cert = cert
	return shownCertificate("pveproxy-ssl.pem", cert), nil
}

// apiDropCertificate is DELETE of it: there may be none.
func apiDropCertificate(_ *world, c *call) (any, error) {
	c.custom().cert = nil
	return nil, nil
}

// acmeDomains are the domains of the configuration of a node (get_acme_conf in
// PVE/NodeConfig.pm).
func acmeDomains(conf config) []string {
	domains := strings.FieldsFunc(optionOf(conf["acme"], "domains"), func(r rune) bool { return r == ';' })
	for _, key := range indexedKeys(conf, "acmedomain") {
		domain, _, _ := strings.Cut(conf[key], ",")
		domains = append(domains, strings.TrimPrefix(domain, "domain="))
	}
	return domains
}

// apiAcmeCertificate is POST, PUT and DELETE /nodes/{node}/certificates/acme/certificate.
func apiAcmeCertificate(w *world, c *call) (any, error) {
	s, conf := c.custom(), c.node().conf
	order := c.req.method == "POST"
	switch soon := s.cert != nil && s.cert.NotAfter.Before(w.now.Add(30*24*time.Hour)); {
	case order && s.cert != nil && !c.flag("force"):
		return nil, badParam("force", "Custom certificate exists but 'force' is not set.")
	case c.req.method == "PUT" && s.cert == nil:
		return nil, fail("No current (custom) certificate found, please order a new certificate!")
	case c.req.method == "PUT" && !soon && !c.flag("force"):
		return nil, badParam("force", "Certificate does not expire within the next 30 days, and 'force' is not set.")
	}
	domains := acmeDomains(conf)
	if len(domains) == 0 {
		return nil, badRequest("ACME domain list in node configuration is missing!")
	}
	account := optionOf(conf["acme"], "account")
	if account == "" {
		account = "default"
	}
	kind := map[string]string{"POST": "acmenewcert", "PUT": "acmerenew", "DELETE": "acmerevoke"}[c.req.method]
	return w.fork(c, c.in["node"], job{kind: kind, end: func(t *task) error {
		if accountsOf(w)[account] == nil {
			return fail("ACME account config file '%s' does not exist.", account)
		}
		t.logf("Loading ACME account details")
		if kind == "acmerevoke" {
			t.logf("Revoking old certificate\nDeleting certificate files\nRestarting pveproxy to revert to self-signed certificates")
			s.cert = nil
			return nil
		}
		t.logf("Placing ACME order\nAll domains validated!\n\nCreating CSR\nChecking order status\nDownloading certificate\nSetting pveproxy certificate and key\nRestarting pveproxy")
		s.cert = newCertificate(domains[0], w.now).parsed
		return nil
	}}), nil
}

func certificateCalls() []pastCall {
	const at = "/nodes/{node}/certificates/"
	modify := allOf("/nodes/{node}", "Sys.Modify")
	null, word, list := &pveapi.Value{Type: "null"}, &pveapi.Value{Type: "string"}, &pveapi.Value{Type: "array"}
	return []pastCall{
		{
			name: "POST " + at + "custom", perm: modify, params: "certificates: string needed\nkey: string\nforce: boolean\nrestart: boolean",
			returns: &pveapi.Value{Type: "object"}, handle: apiSetCertificate,
		},
		{name: "DELETE " + at + "custom", perm: modify, params: "restart: boolean", returns: null, handle: apiDropCertificate},
		{name: "GET " + at + "acme", returns: list, handle: index{"name", "certificate"}.handler},
		{name: "POST " + at + "acme/certificate", perm: modify, params: "force: boolean", returns: word, handle: apiAcmeCertificate},
		{name: "PUT " + at + "acme/certificate", perm: modify, params: "force: boolean", returns: word, handle: apiAcmeCertificate},
		{name: "DELETE " + at + "acme/certificate", perm: modify, returns: word, handle: apiAcmeCertificate},
	}
}
