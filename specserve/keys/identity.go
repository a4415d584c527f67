package keys

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

const (
	validity = 365 * 24 * time.Hour
	ahead    = 30 * 24 * time.Hour // before it expires, a certificate is renewed
	skew     = 24 * time.Hour      // by which the clock of a client may be late
)

// The types of the blocks in server.pem.
const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY"
	nextBlock        = "NEXT PRIVATE KEY"
)

// identity is the server's certificate with its keys. It is immutable.
type identity struct {
	pair tls.Certificate // with its Leaf
	next *ecdsa.PrivateKey
}

// pins are those of the present key and, if it is known, of the next one.
func (id *identity) pins() ([]string, error) {
	out := []string{wire.PinOf(id.pair.Leaf).String()}
	if id.next == nil {
		return out, nil
	}
	info, err := x509.MarshalPKIXPublicKey(id.next.Public())
	if err != nil {
		return nil, err
	}
	return append(out, wire.Pin(sha256.Sum256(info)).String()), nil
}

// ReadPins returns the pins of the server whose folder it is: of its key and the next one. Without a server there are none.
func (f Folder) ReadPins() ([]string, error) {
	text, err := durable.ReadPrivate(filepath.Join(string(f), serverFile))
	if err != nil {
		return nil, fmt.Errorf("read the certificate of the server: %w\nrun this on the machine of the parent, whose agent makes one", err)
	}
	id, err := decode(text)
	if err != nil {
		return nil, err
	}
	return id.pins()
}

// due says why a certificate has to be made again, and whether with the next key.
func (id *identity) due(now time.Time, of Names) (why string, rotate bool) {
	leaf := id.pair.Leaf
	switch {
	case now.After(leaf.NotAfter.Add(-ahead)):
		return "it expires on " + leaf.NotAfter.Format(time.DateOnly), true
	case now.Before(leaf.NotBefore):
		return "it was made while the clock was ahead", false
	}
	for _, name := range of.DNS {
		if !slices.Contains(leaf.DNSNames, name) {
			return "this machine is now also called " + name, false
		}
	}
	for _, ip := range of.IPs {
		if !slices.ContainsFunc(leaf.IPAddresses, ip.Equal) {
			return "this machine now also has the address " + ip.String(), false
		}
	}
	return "", false
}

// create makes the identity of a server that has none.
func create(now time.Time, of Names) (*identity, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	next, err := newKey()
	if err != nil {
		return nil, err
	}
	return sign(key, next, now, now.Add(validity), of)
}

// renewed makes the identity that follows.
func (id *identity) renewed(now time.Time, of Names, rotate bool) (*identity, error) {
	key, ok := id.pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("the key is not an ECDSA one")
	}
	if !rotate {
		// The end stays, unless it is further away than it can be: otherwise new names would postpone the next key
		// indefinitely.
		end := id.pair.Leaf.NotAfter
		if latest := now.Add(validity); end.After(latest) {
			end = latest
		}
		return sign(key, id.next, now, end, of)
	}
	next, err := newKey()
	if err != nil {
		return nil, err
	}
	return sign(id.next, next, now, now.Add(validity), of)
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

func sign(key, next *ecdsa.PrivateKey, now, end time.Time, of Names) (*identity, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "homestak-gitops"},
		NotBefore: now.Add(-skew), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, DNSNames: of.DNS, IPAddresses: of.IPs,
	}, &x509.Certificate{Subject: pkix.Name{CommonName: "homestak-gitops"}}, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &identity{pair: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, next: next}, nil
}

// encode writes server.pem.
func (id *identity) encode() ([]byte, error) {
	var out bytes.Buffer
	write := func(kind string, der []byte) error { return pem.Encode(&out, &pem.Block{Type: kind, Bytes: der}) }
	if err := write(certificateBlock, id.pair.Certificate[0]); err != nil {
		return nil, err
	}
	for _, k := range []struct {
		kind string
		key  crypto.PrivateKey
	}{{keyBlock, id.pair.PrivateKey}, {nextBlock, id.next}} {
		der, err := x509.MarshalPKCS8PrivateKey(k.key)
		if err != nil {
			return nil, err
		}
		if err := write(k.kind, der); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// decode reads server.pem. No error repeats what is in it.
func decode(text []byte) (*identity, error) {
	blocks := map[string][]byte{}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		blocks[block.Type] = block.Bytes
	}
	for _, kind := range []string{certificateBlock, keyBlock, nextBlock} {
		if blocks[kind] == nil {
			return nil, fmt.Errorf("it has no block %s", kind)
		}
	}
	leaf, err := x509.ParseCertificate(blocks[certificateBlock])
	if err != nil {
		return nil, errors.New("its certificate cannot be read")
	}
	key, err := ecKey(blocks[keyBlock])
	if err != nil {
		return nil, err
	}
	next, err := ecKey(blocks[nextBlock])
	if err != nil {
		return nil, err
	}
	if public, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(key.Public()) {
		return nil, errors.New("its certificate is of another key")
	}
	return &identity{pair: tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}, next: next}, nil
}

func ecKey(der []byte) (*ecdsa.PrivateKey, error) {
	key, err := x509.ParsePKCS8PrivateKey(der)
	if ec, ok := key.(*ecdsa.PrivateKey); ok && err == nil {
		return ec, nil
	}
	return nil, errors.New("a key in it cannot be read")
}

// Names are the names of a server.
type Names struct {
	DNS []string
	IPs []net.IP
}
