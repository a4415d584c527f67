package debian

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/mail"
	"slices"
	"strings"
	"unicode/utf16"

	"go.yaml.in/yaml/v3"
)

// seed is the content of a disc that cloud-init's data source NoCloud reads (cloudinit/sources/DataSourceNoCloud.py).
type seed struct {
	Instance string `yaml:"instance-id"`
	Hostname string `yaml:"local-hostname"`

	network struct {
		Ethernets map[string]struct {
			Addresses []string `yaml:"addresses"`
			Routes    []struct {
				Via string `yaml:"via"`
			} `yaml:"routes"`
			Nameservers struct {
				Addresses []string `yaml:"addresses"`
				Search    []string `yaml:"search"`
			} `yaml:"nameservers"`
		} `yaml:"ethernets"`
	}
	vendor, user cloudConfig
	scripts      []string
	unknown      []string // what is in it and not simulated
}

// cloudConfig is the part of a cloud-config that is simulated
// (https://cloudinit.readthedocs.io/en/latest/reference/modules.html).
type cloudConfig struct {
	FQDN string `yaml:"fqdn"`
	User struct {
		Name string `yaml:"name"`
	} `yaml:"user"`
	Users      []string    `yaml:"users"`
	Keys       []string    `yaml:"ssh_authorized_keys"`
	WriteFiles []writeFile `yaml:"write_files"`
	RunCmd     []command   `yaml:"runcmd"`
	HostsToo   bool        `yaml:"manage_etc_hosts"` // always done here
	Upgrade    bool        `yaml:"package_upgrade"`

	More map[string]any `yaml:",inline"` // what is not simulated
}

type writeFile struct {
	Path        string `yaml:"path"`
	Content     string `yaml:"content"`
	Owner       string `yaml:"owner"`
	Permissions string `yaml:"permissions"`
}

// command is a line of shell, or a list of words.
type command string

// UnmarshalYAML reads either.
func (c *command) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.SequenceNode {
		return n.Decode((*string)(c))
	}
	var words []string
	if err := n.Decode(&words); err != nil {
		return err
	}
	for i, w := range words {
		words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	*c = command(strings.Join(words, " "))
	return nil
}

// readSeed finds the seed among discs; nil if none has one. An invalid seed is an error.
func readSeed(discs [][]byte) (*seed, error) {
	for _, disc := range discs {
		label, files, err := readDisc(disc)
		if err != nil || !strings.EqualFold(label, "cidata") || files["meta-data"] == "" {
			continue // some other disc
		}
		s := &seed{}
		for _, part := range []struct {
			name string
			into any
		}{{"meta-data", s}, {"network-config", &s.network}, {"vendor-data", &s.vendor}} {
			if err := yaml.Unmarshal([]byte(files[part.name]), part.into); err != nil {
				return nil, fmt.Errorf("%s: %w", part.name, err)
			}
		}
		if err := s.part(files["user-data"]); err != nil {
			return nil, fmt.Errorf("user-data: %w", err)
		}
		for key := range s.vendor.More {
			s.unknown = append(s.unknown, key)
		}
		return s, nil
	}
	return nil, nil //nolint:nilnil // no seed is an answer
}

// part takes user-data, or a part of it, by its first line.
func (s *seed) part(text string) error {
	first, _, _ := strings.Cut(text, "\n")
	switch first = strings.TrimSpace(first); {
	case first == "":
		return nil
	case first == "#cloud-config":
		var c cloudConfig
		if err := yaml.Unmarshal([]byte(text), &c); err != nil {
			return err
		}
		s.user.WriteFiles, s.user.RunCmd = append(s.user.WriteFiles, c.WriteFiles...), append(s.user.RunCmd, c.RunCmd...)
		s.user.Keys = append(s.user.Keys, c.Keys...)
		for key := range c.More {
			s.unknown = append(s.unknown, key)
		}
		return nil
	case strings.HasPrefix(first, "#!"):
		s.scripts = append(s.scripts, text)
		return nil
	case strings.HasPrefix(first, "Content-Type: multipart/"), strings.HasPrefix(first, "MIME-Version:"):
		return s.message(text)
	}
	s.unknown = append(s.unknown, first)
	return nil
}

// message takes the parts of a MIME message.
func (s *seed) message(text string) error {
	m, err := mail.ReadMessage(strings.NewReader(text))
	if err != nil {
		return err
	}
	_, options, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	if err != nil {
		return err
	}
	parts := multipart.NewReader(m.Body, options["boundary"])
	for {
		p, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		body := io.Reader(p)
		if strings.EqualFold(p.Header.Get("Content-Transfer-Encoding"), "base64") {
			body = base64.NewDecoder(base64.StdEncoding, p)
		}
		content, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		inner := string(content)
		if kind := p.Header.Get("Content-Type"); strings.HasPrefix(kind, "multipart/") {
			inner = "Content-Type: " + kind + "\n\n" + inner
		}
		if err := s.part(inner); err != nil {
			return err
		}
	}
}

// birth returns what the seed declares for a machine.
func (s *seed) birth(b Birth) Birth {
	b.Instance, b.Hostname = s.Instance, cmp.Or(s.Hostname, b.Hostname)
	_, b.Domain, _ = strings.Cut(s.vendor.FQDN, ".")
	b.User, b.Keys = cmp.Or(s.vendor.User.Name, "debian"), slices.Concat(s.vendor.Keys, s.user.Keys)
	for i, name := range slices.Sorted(maps.Keys(s.network.Ethernets)) {
		card := s.network.Ethernets[name]
		if i == 0 && len(card.Addresses) > 0 && !strings.Contains(card.Addresses[0], ":") { // the first card, by IPv4
			b.Network.Address, b.Network.Gateway = card.Addresses[0], ""
			for _, r := range card.Routes {
				b.Network.Gateway = cmp.Or(b.Network.Gateway, r.Via)
			}
		}
		if len(card.Nameservers.Addresses) > 0 {
			b.DNS = card.Nameservers.Addresses
		}
		if len(card.Nameservers.Search) > 0 {
			b.Domain = card.Nameservers.Search[0]
		}
	}
	return b
}

// script returns the script that runs at the end of the first boot.
func (s *seed) script() string {
	var b strings.Builder
	for _, line := range s.user.RunCmd {
		b.WriteString(string(line) + "\n")
	}
	return b.String()
}

const sectorSize = 2048

// readDisc gives the label and the files in the root folder of an ISO 9660 image with Joliet names
// (ECMA-119, 8 and 9.1; Joliet specification).
func readDisc(disc []byte) (label string, files map[string]string, err error) {
	wide := func(b []byte) string {
		units := make([]uint16, len(b)/2)
		for i := range units {
			units[i] = binary.BigEndian.Uint16(b[2*i:])
		}
		return string(utf16.Decode(units))
	}
	extent := func(record []byte) ([]byte, error) {
		at, size := int(binary.LittleEndian.Uint32(record[2:]))*sectorSize, int(binary.LittleEndian.Uint32(record[10:]))
		if at < 0 || size < 0 || at+size > len(disc) {
			return nil, errors.New("it ends too early")
		}
		return disc[at : at+size], nil
	}
	for at := 16 * sectorSize; at+sectorSize <= len(disc) && disc[at] != 255; at += sectorSize {
		d := disc[at : at+sectorSize]
		if d[0] != 2 || !bytes.Equal(d[1:6], []byte("CD001")) {
			continue
		}
		root, err := extent(d[156:190])
		if err != nil {
			return "", nil, err
		}
		files := map[string]string{}
		for len(root) > 33 && root[0] > 33 && int(root[0]) <= len(root) {
			record := root[:root[0]]
			root = root[root[0]:]
			name := record[33:min(33+int(record[32]), len(record))]
			if record[25]&2 != 0 {
				continue
			}
			content, err := extent(record)
			if err != nil {
				return "", nil, err
			}
			files[wide(name)] = string(content)
		}
		return strings.TrimRight(wide(d[40:72]), " "), files, nil
	}
	return "", nil, errors.New("the disc has no Joliet names")
}
