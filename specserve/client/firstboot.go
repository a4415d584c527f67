package client

// User-data for the first boot of a node in mode pull: it writes node.json, fetches the program from the parent,
// and applies the spec.

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the script and its unit
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/mail"
	"net/textproto"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// The script is Python, because every image with cloud-init has it, but not curl.
//
//go:embed firstboot.py
var script string

//go:embed firstboot.service
var unit string

// Paths of the script and unit of the first boot. It removes both when it is done.
const (
	FirstBootScript   = "/var/lib/homestak-gitops/firstboot.py"
	FirstBootUnit     = "homestak-gitops-firstboot.service"
	FirstBootUnitFile = "/etc/systemd/system/" + FirstBootUnit
)

// FirstBootProgram is that script.
func FirstBootProgram() string { return script }

// IsFirstBootScript reports whether a text is the script, for machines that do by other means what it does.
func IsFirstBootScript(text string) bool { return text == script }

// cloudConfig is cloud-init's configuration: https://cloudinit.readthedocs.io/en/latest/reference/modules.html.
type cloudConfig struct {
	WriteFiles []file     `json:"write_files"`
	RunCmd     [][]string `json:"runcmd"`
}

type file struct {
	Path        string `json:"path"`
	Owner       string `json:"owner"`
	Permissions string `json:"permissions"`
	Content     string `json:"content"`
}

// header is the first line by which cloud-init knows such a document.
const header = "#cloud-config\n"

// merge makes cloud-init add our lists to those of the site, and keep the site's values
// (cloudinit/handlers/cloud_config.py).
const merge = "list(append)+dict(recurse_list,no_replace)+str()"

// FirstBootUserData is the user-data of a new node, including the site's user_data ("" for none). It is secret,
// because it contains the token.
func FirstBootUserData(p wire.Parent, site string) (string, error) {
	if err := p.Check(); err != nil {
		return "", fmt.Errorf("making the first boot of a node: %w", err)
	}
	ours, err := firstbootDocument(cloudConfig{
		WriteFiles: []file{
			{wire.ParentFile, "root:root", "0600", string(p.Document())},
			{FirstBootScript, "root:root", "0700", script},
			{FirstBootUnitFile, "root:root", "0644", unit},
		},
		RunCmd: [][]string{{"systemctl", "enable", "--now", "--no-block", FirstBootUnit}},
	})
	if err != nil || site == "" {
		return ours, err
	}
	return join(site, ours)
}

// firstbootDocument writes a value as JSON, which is YAML too, without having to quote.
func firstbootDocument(c cloudConfig) (string, error) {
	var b strings.Builder
	b.WriteString(header)
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(c); err != nil {
		return "", fmt.Errorf("making the first boot of a node: %w", err)
	}
	return b.String(), nil
}

// join makes one MIME message of the site's user-data and ours, in this order.
func join(site, ours string) (string, error) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	sum := sha256.Sum256([]byte(site + ours))
	err := w.SetBoundary("homestak-" + hex.EncodeToString(sum[:16])) // the same input gives the same bytes
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&b, "Content-Type: multipart/mixed; boundary=%q\nMIME-Version: 1.0\n\n", w.Boundary())
	// cloud-init finds out itself what a part of text/plain is, by its first line. It reads parts as
	// ASCII unless they are encoded.
	head, body := textproto.MIMEHeader{"Content-Type": {"text/plain; charset=\"utf-8\""}, "Content-Transfer-Encoding": {"base64"}}, lines(site)
	if strings.HasPrefix(site, "Content-Type: multipart/") || strings.HasPrefix(site, "MIME-Version:") {
		m, err := mail.ReadMessage(strings.NewReader(site))
		if err == nil && m.Header.Get("Content-Type") == "" {
			err = errors.New("it has no Content-Type")
		}
		if err != nil {
			return "", fmt.Errorf("user_data begins as a MIME message, and is none: %w", err)
		}
		inner, err := io.ReadAll(m.Body)
		if err != nil {
			return "", err
		}
		head, body = textproto.MIMEHeader{"Content-Type": {m.Header.Get("Content-Type")}}, string(inner)
	}
	for _, part := range []struct {
		head textproto.MIMEHeader
		body string
	}{{head, body}, {textproto.MIMEHeader{"Content-Type": {"text/cloud-config; charset=\"utf-8\""}, "Content-Transfer-Encoding": {"base64"}, "Merge-Type": {merge}}, lines(ours)}} {
		p, err := w.CreatePart(part.head)
		if err != nil {
			return "", err
		}
		if _, err := io.WriteString(p, part.body); err != nil {
			return "", err
		}
	}
	err = w.Close()
	return b.String(), err
}

// lines is a text in base64, in lines of the length that MIME allows (RFC 2045, 6.8).
func lines(text string) string {
	var b strings.Builder
	for piece := range slices.Chunk([]byte(text), 57) {
		b.WriteString(base64.StdEncoding.EncodeToString(piece) + "\n")
	}
	return b.String()
}
