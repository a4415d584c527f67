package wire

// Parent is the connection of a child to its parent: URL, pins and token. A node stores it in node.json.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/engine/durable"
)

// ParentFile is its path on a node. The first boot writes it, and every response of the parent may renew pins and
// token in it.
const ParentFile = "/etc/homestak-gitops/node.json"

// parentVersion is the version of the file.
const parentVersion = 1

// maxSize bounds the file, in bytes.
const maxSize = 64 << 10

// Parent is a parent as a child knows it.
type Parent struct {
	Identity string // of the child: its name in the site
	Server   string // https://HOST:PORT
	Pins     []Pin  // of the key in use, and of the next one
	Token    string // "": none is needed
}

// document is the file.
type document struct {
	Version  int      `json:"version"`
	Identity string   `json:"identity"`
	Server   string   `json:"server"`
	Pins     []string `json:"pins"`
	Token    string   `json:"token,omitempty"`
}

// ErrNoParent says that the file does not exist: this machine is not a node in mode pull.
var ErrNoParent = errors.New("this machine has no parent to fetch from")

// LoadParent reads the file. It is refused if users other than its owner may read it: the token gives access to the
// spec with its secrets.
func LoadParent(name string) (Parent, error) {
	err := private(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Parent{}, fmt.Errorf("%w: %s does not exist", ErrNoParent, name)
	case err != nil:
		return Parent{}, fmt.Errorf("reading who the parent is: %w", err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return Parent{}, fmt.Errorf("reading who the parent is: %w", err)
	}
	p, err := ReadParent(b)
	if err != nil {
		return Parent{}, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// ReadParent parses the document strictly: unknown and missing members are errors. The error does not show the
// token.
func ReadParent(b []byte) (Parent, error) {
	var doc document
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil {
		return Parent{}, fmt.Errorf("it is not the JSON document that it should be: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Parent{}, errors.New("something follows the document")
	}
	if doc.Version != parentVersion {
		return Parent{}, fmt.Errorf("version is %d, this program reads %d", doc.Version, parentVersion)
	}
	pins, err := ParsePins(doc.Pins)
	if err != nil {
		return Parent{}, fmt.Errorf("pins: %w", err)
	}
	p := Parent{Identity: doc.Identity, Server: doc.Server, Pins: pins, Token: doc.Token}
	return p, p.Check()
}

// label is a name as the site has it.
var label = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`) })

// Check validates it.
func (p Parent) Check() error {
	if !label().MatchString(p.Identity) {
		return fmt.Errorf("identity %.80q is not the name of a node", p.Identity)
	}
	if err := checkServer(p.Server); err != nil {
		return err
	}
	if len(p.Pins) == 0 {
		return errors.New("pins: there are none, and without one the server cannot be verified")
	}
	return checkToken(p.Token)
}

// checkServer wants what Parent.Server says, and nothing more in it.
func checkServer(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return fmt.Errorf("server %.200q is not a URL", text)
	}
	port, errPort := strconv.Atoi(u.Port())
	switch {
	case u.Scheme != "https":
		return fmt.Errorf("server %.200q: want https://HOST:PORT", u.Redacted())
	case u.User != nil, u.RawQuery != "", u.Fragment != "", u.Opaque != "", u.Path != "" && u.Path != "/":
		return fmt.Errorf("server %.200q: want https://HOST:PORT and nothing behind it", u.Redacted())
	case u.Hostname() == "" || u.Port() != "" && (errPort != nil || port < 1 || port > 65535):
		return fmt.Errorf("server %.200q names no host and port", u.Redacted())
	}
	return nil
}

// checkToken says whether a text can be sent as a token; it may be empty. The error does not show it.
func checkToken(token string) error {
	if len(token) > 4096 || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("the token has characters that a token does not have, or too many of them")
	}
	return nil
}

// Document is the file as Load reads it.
func (p Parent) Document() []byte {
	b, err := json.MarshalIndent(document{parentVersion, p.Identity, p.Server, PinTexts(p.Pins), p.Token}, "", "  ")
	if err != nil {
		panic(err) // strings always encode
	}
	return append(b, '\n')
}

// Save replaces the file, with mode 0600.
func (p Parent) Save(name string) error {
	if err := p.Check(); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	err := os.MkdirAll(filepath.Dir(name), 0o755) //nolint:gosec // the file is 0600
	if err == nil {
		err = durable.Replace(name, p.Document())
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}

// String keeps the token out of everything that prints one.
func (p Parent) String() string { return p.Identity + " at " + p.Server }

// GoString is as String.
func (p Parent) GoString() string { return p.String() }

// ParentByHand is a parent given by the user: the token is in a file, so that it is not visible in process lists;
// "" for none.
func ParentByHand(identity, server, tokenFile string, pins []string) (Parent, error) {
	p := Parent{Identity: identity, Server: server}
	var err error
	if p.Pins, err = ParsePins(pins); err != nil {
		return Parent{}, err
	}
	if tokenFile != "" {
		if err := private(tokenFile); err != nil {
			return Parent{}, err
		}
		b, err := os.ReadFile(tokenFile)
		if err != nil {
			return Parent{}, fmt.Errorf("reading the token: %w", err)
		}
		p.Token = strings.TrimSpace(string(b))
	}
	return p, p.Check()
}

// private reports a file that is none of its owner alone, or too large.
func private(name string) error {
	info, err := os.Lstat(name)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", name)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%s has mode %04o, and contains a token: chmod 600 %s, and mint a new token (token mint NODE --out FILE) if others were on this machine", name, info.Mode().Perm(), name)
	case info.Size() > maxSize:
		return fmt.Errorf("%s has %d bytes, more than the %d that it may have", name, info.Size(), maxSize)
	}
	return nil
}
