package core

import (
	"bufio"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"regexp"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/content"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

// upload is the file part of a multipart body.
type upload struct {
	filename string
	*content.FileContent
}

// readUpload reads a multipart body: text fields become parameters, the part
// named filename is the file. Only its size and sums are kept. PVE does not parse
// the body part by part: it looks for the fields it knows one after the other, each
// from where the last one ended (file_upload_multipart in pve-http-server,
// PVE/APIServer/AnyEvent.pm). So their order counts, and what stands between is refused.
func (req *Request) readUpload(body io.Reader, boundary string) (*upload, error) {
	if boundary == "" {
		return nil, perl.PlainError(http.StatusNotImplemented, "upload without a boundary")
	}
	stream := bufio.NewReaderSize(body, fieldsMost)
	head, err := stream.Peek(fieldsMost)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, perl.PlainError(http.StatusBadRequest, "reading the upload: "+err.Error())
	}
	defer func() { _, _ = io.Copy(io.Discard, stream) }()
	all := len(head)
	f := form{req: req, rest: head, delim: "--" + regexp.QuoteMeta(boundary) + `\r?\n`}
	f.skip(`^.*?(` + f.delim + `)`)
	for _, name := range []string{"content", "checksum-algorithm", "checksum"} {
		value, there, err := f.field(name)
		if err != nil {
			return nil, err
		}
		if there {
			req.Params[name] = value
		}
	}
	filename, err := f.file()
	if err != nil {
		return nil, err
	}
	if _, err := stream.Discard(all - len(f.rest)); err != nil {
		return nil, perl.PlainError(http.StatusBadRequest, "reading the upload: "+err.Error())
	}
	// What is left is the data of one part, up to the last boundary.
	data := multipart.NewReader(io.MultiReader(strings.NewReader("--"+boundary+"\r\n\r\n"), stream), boundary)
	part, err := data.NextPart()
	if err != nil {
		return nil, req.uploadFailed()
	}
	content, err := content.ReadContent(part)
	if err != nil {
		return nil, req.uploadFailed()
	}
	req.Params["filename"] = filename
	return &upload{filename, content}, nil
}

// fieldsMost bounds what of a body is looked at for its text fields.
const fieldsMost = 64 << 10

// form is a multipart body, as far as it was not taken yet.
type form struct {
	req   *Request
	rest  []byte
	delim string // pattern of the line between two parts
}

func (req *Request) uploadFailed() error { return req.diedInServer("upload failed", 1317, 1370) }

// skip drops what a pattern matches but for its first group.
func (f *form) skip(pattern string) {
	if m := regexp.MustCompile(`(?s)` + pattern).FindSubmatchIndex(f.rest); m != nil {
		keep := m[1]
		if len(m) > 2 {
			keep = m[2]
		}
		f.rest = f.rest[keep:]
	}
}

// field takes a text field, which must be in the next part.
func (f *form) field(name string) (value string, there bool, err error) {
	pattern := regexp.MustCompile(`(?s)^` + f.delim + `.*?Content-Disposition: (.*?); name="` + name + `"(.*?` + f.delim + `)`)
	m := pattern.FindSubmatchIndex(f.rest)
	if m == nil {
		return "", false, nil
	}
	disposition := string(f.rest[m[2]:m[3]])
	f.rest = f.rest[m[4]:]
	if err := mustBeFormData(disposition); err != nil {
		return "", false, err
	}
	f.skip(`^.*?\r?\n\r?\n`)
	if m := regexp.MustCompile(`(?s)^(.*?)` + f.delim).FindSubmatchIndex(f.rest); m != nil {
		value, f.rest = strings.TrimSpace(string(f.rest[m[2]:m[3]])), f.rest[m[3]:]
	}
	return value, true, nil
}

// file takes the head of the file's part, which must be the next one and begin with
// what it is, and gives the name of the file.
func (f *form) file() (string, error) {
	pattern := regexp.MustCompile(`(?s)^` + f.delim + `Content-Disposition: (.*?); name="(.*?)"; filename="([^"]+)"`)
	m := pattern.FindSubmatchIndex(f.rest)
	if m == nil {
		return "", f.req.uploadFailed()
	}
	disposition, field, name := string(f.rest[m[2]:m[3]]), string(f.rest[m[4]:m[5]]), string(f.rest[m[6]:m[7]])
	f.rest = f.rest[m[1]:]
	if err := mustBeFormData(disposition); err != nil {
		return "", err
	}
	if field != "filename" {
		return "", f.req.diedInServer("wrong field name '"+field+"' for file upload, expected 'filename'", 1281, 1325)
	}
	f.skip(`^.*?\r?\n\r?\n`)
	return strings.TrimSpace(name), nil
}

func mustBeFormData(disposition string) error {
	if disposition == "form-data" {
		return nil
	}
	return perl.Died("wrong Content-Disposition '" + disposition + "' in multipart, expected 'form-data'")
}
