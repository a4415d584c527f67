package pvesim

import (
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"

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

func certificateCalls() []pastCall {
	const at = "/nodes/{node}/certificates/"
	modify := allOf("/nodes/{node}", "Sys.Modify")
	null := &pveapi.Value{Type: "null"}
	return []pastCall{
		{
			name: "POST " + at + "custom", perm: modify, params: "certificates: string needed\nkey: string\nforce: boolean\nrestart: boolean",
			returns: &pveapi.Value{Type: "object"}, handle: apiSetCertificate,
		},
		{name: "DELETE " + at + "custom", perm: modify, params: "restart: boolean", returns: null, handle: apiDropCertificate},
	}
}
