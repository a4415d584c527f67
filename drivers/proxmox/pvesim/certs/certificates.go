package certs

import (
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Certificates of a node (PVE/API2/Certificates.pm, PVE/API2/ACME.pm): one of one's own
// is kept and shown; who connects still sees the one of the host.

// CustomCertificate is the certificate that somebody put on a node; nil when there is none.
type CustomCertificate struct{ Cert *x509.Certificate }

// Custom is that of the node of a call.
func Custom(c *core.Call) *CustomCertificate { return core.PartOf[CustomCertificate](&c.Node().Parts) }

// shownCertificate is what PVE says of a certificate (get_certificate_info in
// PVE/Certificate.pm).
func shownCertificate(file string, cert *x509.Certificate) map[string]any {
	kind, bits := "id-ecPublicKey", 256
	if key, ok := cert.PublicKey.(*rsa.PublicKey); ok {
		kind, bits = "rsaEncryption", key.N.BitLen()
	}
	return map[string]any{
		"filename": file, "fingerprint": perl.Colons(fmt.Sprintf("%x", sha256.Sum256(cert.Raw))),
		"subject": distinguished(cert.RawSubject), "issuer": distinguished(cert.RawIssuer),
		"notbefore": cert.NotBefore.Unix(), "notafter": cert.NotAfter.Unix(), "public-key-type": kind, "public-key-bits": bits,
		"san": otherNames(cert), "pem": AsPEM(cert),
	}
}

// apiCertificates is GET /nodes/{node}/certificates/info: the authority, the one that answers,
// and the custom one.
func apiCertificates(w *core.World, c *core.Call) (any, error) {
	list := []map[string]any{}
	if w.Certificate != nil {
		list = append(list, shownCertificate("pve-root-ca.pem", w.Authority), shownCertificate("pve-ssl.pem", w.Certificate))
	}
	if custom := Custom(c).Cert; custom != nil {
		list = append(list, shownCertificate("pveproxy-ssl.pem", custom))
	}
	return list, nil
}

// apiSetCertificate is POST /nodes/{node}/certificates/custom.
func apiSetCertificate(_ *core.World, c *core.Call) (any, error) {
	s := Custom(c)
	block, _ := pem.Decode([]byte(c.In["certificates"]))
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, perl.BadParam("certificates", "invalid format - not a valid PEM-formatted string.\n")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	switch key, _ := pem.Decode([]byte(c.In["key"])); {
	case err != nil:
		return nil, perl.Fail("unable to parse certificate: %s", err)
	case c.In["key"] == "" && s.Cert == nil:
		return nil, perl.BadParam("key", "Attempted to upload custom certificate without (existing) key.")
	case c.In["key"] != "" && (key == nil || !strings.HasSuffix(key.Type, "PRIVATE KEY")):
		return nil, perl.BadParam("key", "invalid format - not a valid PEM-formatted string.\n")
	case s.Cert != nil && !c.Flag("force"):
		return nil, perl.Fail("Custom certificate file exists but force flag is not set.")
	}
	s.Cert = cert
	return shownCertificate("pveproxy-ssl.pem", cert), nil
}

// apiDropCertificate is DELETE of it: there may be none.
func apiDropCertificate(_ *core.World, c *core.Call) (any, error) {
	Custom(c).Cert = nil
	return nil, nil
}

func certificateCalls() []sections.PastCall {
	const at = "/nodes/{node}/certificates/"
	modify := sections.AllOf("/nodes/{node}", "Sys.Modify")
	null := &pveapi.Value{Type: "null"}
	return []sections.PastCall{
		{
			Name: "POST " + at + "custom", Perm: modify, Params: "certificates: string needed\nkey: string\nforce: boolean\nrestart: boolean",
			Returns: &pveapi.Value{Type: "object"}, Handle: apiSetCertificate,
		},
		{Name: "DELETE " + at + "custom", Perm: modify, Params: "restart: boolean", Returns: null, Handle: apiDropCertificate},
	}
}
