package proxmoxtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// maxBody is PVE's limit for a request that is not an upload, in bytes ($limit_max_post in
// PVE/APIServer/AnyEvent.pm).
const maxBody = 512 << 10

// ValidateRequest is for tests of a client: it says what PVE would object to in
// an outgoing request before any code of a method runs, and what PVE would
// silently take for something else. It names everything it finds. The request
// stays as it was: a body that was read is restored.
//
// The newest PVE is asked; ValidateRequestFor asks another one.
func ValidateRequest(r *http.Request) error { return ValidateRequestFor("", r) }

// ValidateRequestFor is ValidateRequest for a host of that version ("8.4").
func ValidateRequestFor(version string, r *http.Request) error {
	path, ok := strings.CutPrefix(r.URL.EscapedPath(), "/api2/json")
	if !ok {
		return fmt.Errorf("%s %s: not below /api2/json", r.Method, r.URL.Path)
	}
	if err := validate(version, r, path); err != nil {
		return fmt.Errorf("%s %s: %w", r.Method, path, err)
	}
	return nil
}

func validate(version string, r *http.Request, path string) error {
	m, vars, known := pveapi.Lookup(r.Method, path)
	switch {
	case !known:
		return errors.New("no such path")
	case m == nil:
		return errors.New("the path knows no such verb")
	case !m.In(version):
		return fmt.Errorf("not in version %s, only since %s", version, m.Since)
	}
	body, err := peek(r)
	if err != nil {
		return err
	}
	values := map[string]any{}
	found := merge(values, r.URL.RawQuery)
	if len(body) > 0 && (r.Method == http.MethodGet || r.Method == http.MethodDelete) {
		found = append(found, errors.New("PVE refuses a body with this verb; parameters belong into the query"))
	} else if len(body) > 0 {
		fromBody, wrong := decodeBody(r.Header.Get("Content-Type"), body)
		found = append(found, wrong...)
		maps.Copy(values, fromBody)
	}
	for name, value := range vars {
		if given, twice := values[name]; twice && pveapi.Text(given) != value {
			found = append(found, fmt.Errorf("%s: given in the path and, differently, as a parameter", name))
		}
		values[name] = value
	}
	wrong := m.CheckFor(version, values)
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		found = append(found, fmt.Errorf("%s: %s", name, strings.TrimSpace(wrong[name])))
	}
	return errors.Join(found...)
}

// peek reads a body and puts it back.
func peek(r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fmt.Errorf("read the body: %w", err)
	}
	if err := r.Body.Close(); err != nil {
		return nil, fmt.Errorf("close the body: %w", err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body, nil
}

// decodeBody reads parameters from a body of any type PVE takes.
func decodeBody(contentType string, body []byte) (values map[string]any, found []error) {
	values = map[string]any{}
	if contentType == "" {
		contentType = "application/x-www-form-urlencoded" // As PVE takes it.
	}
	kind, options, err := mime.ParseMediaType(contentType)
	if err != nil {
		return values, []error{fmt.Errorf("content type %q of the body: %w", contentType, err)}
	}
	if len(body) > maxBody && kind != "multipart/form-data" {
		found = append(found, fmt.Errorf("a body of %d bytes; PVE reads up to %d", len(body), maxBody))
	}
	switch kind {
	case "application/x-www-form-urlencoded":
		return values, append(found, merge(values, string(body))...)
	case "application/json":
		decoder := json.NewDecoder(bytes.NewReader(body))
		decoder.UseNumber()
		if err := decoder.Decode(&values); err != nil {
			found = append(found, fmt.Errorf("JSON body: %w", err))
		}
		return values, found
	case "multipart/form-data":
		if err := decodeParts(values, multipart.NewReader(bytes.NewReader(body), options["boundary"])); err != nil {
			found = append(found, fmt.Errorf("multipart body: %w", err))
		}
		return values, found
	default:
		return values, append(found, fmt.Errorf("PVE takes no body of type %q", kind))
	}
}

// decodeParts reads a multipart body. PVE streams the one file of an upload to
// disk, so it must be the last part, named "filename"; its name is the value.
func decodeParts(values map[string]any, parts *multipart.Reader) error {
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read a part: %w", err)
		}
		if _, done := values["filename"]; done {
			return fmt.Errorf("part %q comes after the file, which must be the last", part.FormName())
		}
		if part.FileName() != "" {
			if part.FormName() != "filename" {
				return fmt.Errorf("the part with the file is named %q, not \"filename\"", part.FormName())
			}
			values["filename"] = part.FileName()
			continue
		}
		text, err := io.ReadAll(part)
		if err != nil {
			return fmt.Errorf("read part %q: %w", part.FormName(), err)
		}
		pveapi.AddValue(values, part.FormName(), string(text))
	}
}

// merge adds the parameters of a query or form to values and says where PVE's
// reading of it differs from that of all others.
func merge(values map[string]any, form string) []error {
	var found []error
	if strings.Contains(form, ";") {
		found = append(found, errors.New("a bare ; in a query or form starts a new parameter on PVE: encode it as %3B"))
	}
	for pair := range strings.SplitSeq(form, "&") {
		name, value, _ := strings.Cut(pair, "=")
		if strings.Contains(value, "=") {
			found = append(found, fmt.Errorf("%s: PVE cuts a value at a bare =: encode it as %%3D", name))
		}
	}
	maps.Copy(values, pveapi.DecodeForm(form))
	return found
}
