package pve

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// shownCertificate returns PVE's description of a certificate (get_certificate_info in
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
		"san": otherNames(cert), "pem": asPEM(cert),
	}
}

// apiCertificates is GET /nodes/{node}/certificates/info: the authority and the certificate
// that it signed (PVE/API2/Certificates.pm).
func apiCertificates(w *core.World, _ *core.Call) (any, error) {
	list := []map[string]any{}
	if w.Certificate != nil {
		list = append(list, shownCertificate("pve-root-ca.pem", w.Authority), shownCertificate("pve-ssl.pem", w.Certificate))
	}
	return list, nil
}

// certificate is what the host shows to who connects (pve-ssl.pem), and the authority of
// the cluster that signed it (pve-root-ca.pem), of which clients see nothing. Names and
// terms are those that pvecm gives them (gen_pve_ssl_cert and gen_pveca_cert in
// PVE/Cluster/Setup.pm); the keys are of elliptic curves, since they are made quickly.
type certificate struct {
	TLS         tls.Certificate
	Parsed      *x509.Certificate
	Authority   *x509.Certificate
	Fingerprint string
}

var (
	commonName         = asn1.ObjectIdentifier{2, 5, 4, 3}
	organization       = asn1.ObjectIdentifier{2, 5, 4, 10}
	organizationalUnit = asn1.ObjectIdentifier{2, 5, 4, 11}
	alternativeNames   = asn1.ObjectIdentifier{2, 5, 29, 17}
)

// newCertificate makes the certificate of a node, and an authority for it, both valid from now on.
func newCertificate(node string, now time.Time) certificate {
	authorityKey, key := newKey(), newKey()
	authority := signed(&x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject: pkix.Name{ExtraNames: []pkix.AttributeTypeAndValue{
			{Type: commonName, Value: "Proxmox Virtual Environment"}, {Type: organizationalUnit, Value: freshUUID()}, {Type: organization, Value: "PVE Cluster Manager CA"},
		}},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0), BasicConstraintsValid: true, IsCA: true,
	}, nil, authorityKey, authorityKey)
	leaf := signed(&x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano() + 1),
		Subject: pkix.Name{ExtraNames: []pkix.AttributeTypeAndValue{
			{Type: organizationalUnit, Value: "PVE Cluster Node"}, {Type: organization, Value: "Proxmox Virtual Environment"}, {Type: commonName, Value: node},
		}},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(2, 0, 0), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, ExtraExtensions: []pkix.Extension{{Id: alternativeNames, Value: nodeNames(node)}},
	}, authority, key, authorityKey)
	sum := sha256.Sum256(leaf.Raw)
	return certificate{
		TLS:    tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key},
		Parsed: leaf, Authority: authority, Fingerprint: "sha256:" + hex.EncodeToString(sum[:]),
	}
}

func newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(fmt.Sprintf("pve: making a key: %v", err)) // No randomness, no program.
	}
	return key
}

// signed makes a certificate; without a signer it signs itself.
func signed(template, signer *x509.Certificate, key, signerKey *ecdsa.PrivateKey) *x509.Certificate {
	if signer == nil {
		signer = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer, &key.PublicKey, signerKey)
	if err != nil {
		panic(fmt.Sprintf("pve: making a certificate: %v", err))
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		panic(fmt.Sprintf("pve: reading a certificate: %v", err))
	}
	return parsed
}

func freshUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// The tags of the names that a certificate is valid for (RFC 5280, 4.2.1.6).
const (
	tagHost    = 2
	tagAddress = 7
)

// nodeNames are the other names of a node, in the order of PVE.
func nodeNames(node string) []byte {
	name := func(tag int, value []byte) asn1.RawValue {
		return asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tag, Bytes: value}
	}
	der, err := asn1.Marshal([]asn1.RawValue{
		name(tagAddress, net.IPv4(127, 0, 0, 1).To4()), name(tagAddress, net.IPv6loopback), name(tagHost, []byte("localhost")), name(tagHost, []byte(node)),
	})
	if err != nil {
		panic(fmt.Sprintf("pve: naming a certificate: %v", err))
	}
	return der
}

// otherNames are the names that a certificate is valid for, in its order. Of an address
// of IPv6 all digits are shown (PVE/Certificate.pm).
func otherNames(cert *x509.Certificate) []string {
	list := []string{}
	for _, extension := range cert.Extensions {
		var names []asn1.RawValue
		if !extension.Id.Equal(alternativeNames) {
			continue
		}
		if _, err := asn1.Unmarshal(extension.Value, &names); err != nil {
			continue
		}
		for _, name := range names {
			switch {
			case name.Tag == tagHost:
				list = append(list, string(name.Bytes))
			case name.Tag == tagAddress && len(name.Bytes) == net.IPv6len:
				groups := []string{}
				for i := 0; i < net.IPv6len; i += 2 {
					groups = append(groups, hex.EncodeToString(name.Bytes[i:i+2]))
				}
				list = append(list, strings.Join(groups, ":"))
			case name.Tag == tagAddress:
				list = append(list, net.IP(name.Bytes).String())
			}
		}
	}
	return list
}

// distinguished is a name as OpenSSL writes it in one line.
func distinguished(raw []byte) string {
	var sequence pkix.RDNSequence
	if _, err := asn1.Unmarshal(raw, &sequence); err != nil {
		return ""
	}
	short := map[string]string{"2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.10": "O", "2.5.4.11": "OU"}
	var b strings.Builder
	for _, set := range sequence {
		for _, part := range set {
			name := part.Type.String()
			if short[name] != "" {
				name = short[name]
			}
			fmt.Fprintf(&b, "/%s=%v", name, part.Value)
		}
	}
	return b.String()
}

// asPEM prints a certificate in PEM.
func asPEM(cert *x509.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
}
