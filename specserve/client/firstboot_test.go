package client_test

import (
	"encoding/base64"
	"flag"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"net/textproto"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

var update = flag.Bool("update", false, "write the golden files")

func firstbootChild(t *testing.T) wire.Parent {
	t.Helper()
	pins, err := wire.ParsePins([]string{strings.Repeat("0a", 32), strings.Repeat("0b", 32)})
	require.NoError(t, err)
	return wire.Parent{Identity: "edge", Server: "https://192.0.2.10:44443", Pins: pins, Token: `to"ken:'{#}%$`}
}

type document struct {
	WriteFiles []struct {
		Path, Owner, Permissions, Content string
	} `yaml:"write_files"`
	RunCmd [][]string `yaml:"runcmd"`
}

// read reads a document as cloud-init does: as YAML.
func read(t *testing.T, text string) document {
	t.Helper()
	require.True(t, strings.HasPrefix(text, "#cloud-config\n"))
	var doc document
	require.NoError(t, yaml.Unmarshal([]byte(text), &doc))
	return doc
}

// The files arrive as they are, whatever is in them, and who may read them.
func TestUserData(t *testing.T) {
	p := firstbootChild(t)
	text, err := client.FirstBootUserData(p, "")
	require.NoError(t, err)
	require.NoError(t, lifecycle.CheckUserData(text), "it fits on a seed")
	doc := read(t, text)
	var who []string
	for _, f := range doc.WriteFiles {
		who = append(who, f.Permissions+" "+f.Owner+" "+f.Path)
	}
	require.Equal(t, []string{
		"0600 root:root /etc/homestak-gitops/node.json",
		"0700 root:root /var/lib/homestak-gitops/firstboot.py",
		"0644 root:root /etc/systemd/system/homestak-gitops-firstboot.service",
	}, who)
	got, err := wire.ReadParent([]byte(doc.WriteFiles[0].Content))
	require.NoError(t, err)
	require.Equal(t, p, got)
	require.Equal(t, [][]string{{"systemctl", "enable", "--now", "--no-block", "homestak-gitops-firstboot.service"}}, doc.RunCmd)
	for _, f := range doc.WriteFiles[1:] {
		require.NotContains(t, f.Content, p.Token)
	}
	golden(t, "testdata/alone.txt", text)

	p.Server = "http://192.0.2.10"
	_, err = client.FirstBootUserData(p, "")
	require.ErrorContains(t, err, "want https://HOST:PORT")
}

// What the site says is a part of its own, whatever it is.
func TestUserDataOfTheSite(t *testing.T) {
	for name, site := range map[string]string{
		"script": "#!/bin/sh\necho ü\n", "config": "#cloud-config\npackages: [nginx]\n", "jinja": "## template: jinja\n#cloud-config\n{}\n",
		"message": "Content-Type: multipart/mixed; boundary=\"x\"\nMIME-Version: 1.0\n\n--x\nContent-Type: text/x-shellscript\n\n#!/bin/sh\n\n--x--\n",
	} {
		t.Run(name, func(t *testing.T) {
			text, err := client.FirstBootUserData(firstbootChild(t), site)
			require.NoError(t, err)
			again, err := client.FirstBootUserData(firstbootChild(t), site)
			require.NoError(t, err)
			require.Equal(t, text, again)
			require.NoError(t, lifecycle.CheckUserData(text))
			m, err := mail.ReadMessage(strings.NewReader(text))
			require.NoError(t, err)
			kind, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
			require.NoError(t, err)
			require.Equal(t, "multipart/mixed", kind)
			parts := multipart.NewReader(m.Body, params["boundary"])
			first, err := parts.NextPart()
			require.NoError(t, err)
			body, err := io.ReadAll(first)
			require.NoError(t, err)
			if name == "message" {
				require.Equal(t, `multipart/mixed; boundary="x"`, first.Header.Get("Content-Type"))
				require.True(t, strings.HasPrefix(string(body), "--x\n"))
			} else {
				require.Equal(t, site, decode(t, first.Header, body))
			}
			second, err := parts.NextPart()
			require.NoError(t, err)
			require.Equal(t, "list(append)+dict(recurse_list,no_replace)+str()", second.Header.Get("Merge-Type"))
			body, err = io.ReadAll(second)
			require.NoError(t, err)
			require.Len(t, read(t, decode(t, second.Header, body)).WriteFiles, 3)
			_, err = parts.NextPart()
			require.ErrorIs(t, err, io.EOF)
			if name == "script" {
				golden(t, "testdata/with-script.txt", text)
			}
		})
	}
	_, err := client.FirstBootUserData(firstbootChild(t), "MIME-Version: 1.0")
	require.ErrorContains(t, err, "begins as a MIME message, and is none")
}

// decode gives what is in a part.
func decode(t *testing.T, head textproto.MIMEHeader, body []byte) string {
	t.Helper()
	require.Equal(t, "base64", head.Get("Content-Transfer-Encoding"))
	b, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(string(body), "\n", ""))
	require.NoError(t, err)
	return string(b)
}

func golden(t *testing.T, name, text string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return
	}
	want, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, string(want), text)
}
