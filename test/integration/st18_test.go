package integration_test

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// A new signing key, certificate, token and secret are served by the process that runs, and nobody is
// cut off: what is old is good in the overlap, and only then.
func TestST18Rotation(t *testing.T) {
	t.Parallel()
	p := beginParent(t)
	becomes := func(want string, ask func() string) {
		t.Helper()
		got := ""
		require.Eventually(t, func() bool { got = ask(); return got == want }, 5*time.Minute, 200*time.Millisecond, "%s instead of %s", got, want)
	}
	specOf := func(node, credential string) func() string {
		return func() string { return p.child("127.0.0.3").get("/spec/"+node, credential).code() }
	}

	// A child as it is: it knows the server by its pins, and itself by its token.
	node := wire.Parent{Identity: "alpha", Server: "https://" + p.addr, Token: p.mint("alpha")}
	pins, err := wire.ParsePins(p.pins)
	require.NoError(t, err)
	node.Pins = pins
	fetch := func(tag string) client.Fetched {
		t.Helper()
		c := &client.Client{Parent: node, Agent: "test"}
		got, err := c.Spec(t.Context(), tag)
		require.NoError(t, err)
		if got.Pins != nil {
			node.Pins = got.Pins
		}
		if got.Token != "" {
			node.Token = got.Token
		}
		return got
	}
	first := fetch("")
	require.Len(t, node.Pins, 2, "the key of the server and the next one")
	p.pins = []string{node.Pins[0].String(), node.Pins[1].String()}
	others := p.child("127.0.0.2").keepAsking("/health", "")
	require.True(t, fetch(first.ETag).NotModified)

	// Signing key: the old token is good, and is replaced with the answer.
	old := node.Token
	p.rotate()
	require.Eventually(t, func() bool { fetch(""); return node.Token != old }, 5*time.Minute, 200*time.Millisecond)
	require.Equal(t, "200", specOf("alpha", old)(), "in the overlap")
	require.Equal(t, "200", specOf("alpha", node.Token)())
	p.rotate("--drop-old")
	becomes("401 E301", specOf("alpha", old))
	require.Equal(t, "200", specOf("alpha", node.Token)())
	fetch("")

	// Certificate: it will expire tomorrow, so the server takes the key that it announced.
	was := p.certificate()
	p.expireTomorrow()
	require.Eventually(t, func() bool { return !bytes.Equal(p.certificate().RawSubjectPublicKeyInfo, was.RawSubjectPublicKeyInfo) }, 5*time.Minute, 200*time.Millisecond)
	before := node.Pins
	require.Equal(t, before[1], wire.PinOf(p.certificate()), "the key that children know as the next one")
	require.Eventually(t, func() bool { return !fetch(first.ETag).NotModified }, 5*time.Minute, 200*time.Millisecond, "the child has to learn the key after that")
	require.Equal(t, before[1], node.Pins[0])
	require.NotContains(t, before, node.Pins[1])
	require.True(t, p.certificate().NotAfter.After(time.Now().Add(300*24*time.Hour)))
	p.pins = []string{before[0].String()}
	_, err = p.child("127.0.0.5").tryAsk(http.MethodGet, "/health", "", http.NoBody)
	_, mismatch := errors.AsType[*wire.PinMismatchError](err)
	require.True(t, mismatch, "who knows the old key only is cut off: %v", err)
	p.pins = []string{node.Pins[0].String(), node.Pins[1].String()}

	// Token of the site, and a secret in a spec: one commit changes both.
	require.Equal(t, "200", specOf("alpha", alphaToken)())
	require.Equal(t, "200", specOf("beta", siteToken)())
	tag := fetch("").ETag
	p.encrypt(strings.NewReplacer("password-alpha", "password-second", alphaToken, alphaToken+"-2", siteToken, siteToken+"-2").Replace(parentSecrets))
	p.commit("other secrets")
	becomes("401 E301", specOf("alpha", alphaToken))
	require.Equal(t, "401 E301", specOf("beta", siteToken)())
	require.Equal(t, "200", specOf("beta", siteToken+"-2")())
	got := fetch(tag)
	require.False(t, got.NotModified)
	require.Contains(t, string(got.Spec), "canary-password-second")
	require.NotContains(t, string(got.Spec), "canary-password-alpha")

	// Keys of people.
	name := filepath.Join(p.data(), daemon.Folder, keys.ReadFile)
	key := string(p.access().Read)
	status := func(key string) func() string {
		return func() string { return p.child("127.0.0.4").get("/status", key).code() }
	}
	require.Equal(t, "200", status(key)())
	require.NoError(t, os.WriteFile(name, []byte(strings.Repeat("ab", 32)+"\n"), 0o600))
	becomes("200", status(strings.Repeat("ab", 32)))
	require.Equal(t, "401 E301", status(key)())

	others.rest(t)
	require.Nil(t, p.cmd.ProcessState, "it is still the same process")
	require.NotContains(t, p.stop(), "canary")
}

// certificate is the one that the server shows.
func (p *serving) certificate() *x509.Certificate {
	p.t.Helper()
	c, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(p.t.Context(), "tcp", p.addr) //nolint:gosec // it is read, not trusted
	require.NoError(p.t, err)
	defer func() { _ = c.Close() }()
	conn, ok := c.(*tls.Conn)
	require.True(p.t, ok)
	return conn.ConnectionState().PeerCertificates[0]
}

// expireTomorrow replaces the certificate of the server by one of the same key that is about to expire.
func (p *serving) expireTomorrow() {
	p.t.Helper()
	name := filepath.Join(p.data(), daemon.Folder, keys.CertFile)
	text, err := os.ReadFile(name)
	require.NoError(p.t, err)
	block, rest := pem.Decode(text)
	leaf, err := x509.ParseCertificate(block.Bytes)
	require.NoError(p.t, err)
	private, _ := pem.Decode(rest)
	key, err := x509.ParsePKCS8PrivateKey(private.Bytes)
	require.NoError(p.t, err)
	leaf.SerialNumber, leaf.NotAfter = big.NewInt(1), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, leaf, leaf, leaf.PublicKey, key)
	require.NoError(p.t, err)
	require.NoError(p.t, os.WriteFile(name+".new", append(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: der}), rest...), 0o600))
	require.NoError(p.t, os.Rename(name+".new", name))
}
