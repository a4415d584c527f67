package real_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// api asks a host as an administrator does who changes things by hand. It is apart from
// the driver on purpose: the driver is what is tested.
type api struct {
	base   string // https://host:8006/api2/json
	header string // Authorization
	client *http.Client
}

// newAPI trusts exactly the certificate with that fingerprint.
func newAPI(base, token, fingerprint string) *api {
	pinned := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // VerifyPeerCertificate compares the fingerprint in its place.
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
			if got := fingerprintOf(raw[0]); got != fingerprint {
				return fmt.Errorf("the certificate has the fingerprint %s, not %s", got, fingerprint)
			}
			return nil
		},
	}
	return &api{base: base + "/api2/json", header: "PVEAPIToken=" + token, client: &http.Client{
		Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: pinned, IdleConnTimeout: 4 * time.Second},
	}}
}

func fingerprintOf(certificate []byte) string {
	sum := sha256.Sum256(certificate)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// presented asks a server for its certificate, and gives its fingerprint.
func presented(ctx context.Context, address string) (string, error) {
	d := &tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}} //nolint:gosec // Only looked at; nothing is sent.
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // Nothing was written.
	chain := conn.(*tls.Conn).ConnectionState().PeerCertificates
	if len(chain) == 0 {
		return "", errors.New("the server shows no certificate")
	}
	return fingerprintOf(chain[0].Raw), nil
}

// statusError is an answer that is no success.
type statusError struct {
	status  int
	message string
}

func (e *statusError) Error() string { return fmt.Sprintf("%d %s", e.status, e.message) }

// call sends a request and decodes the data of its answer into out, if that is not nil.
func (a *api) call(ctx context.Context, method, path string, form url.Values, out any) error {
	var body io.Reader = http.NoBody
	switch {
	case len(form) == 0:
	case method == http.MethodGet || method == http.MethodDelete:
		path += "?" + form.Encode()
	default:
		body = strings.NewReader(form.Encode())
	}
	r, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return err
	}
	if body != http.NoBody {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return a.send(r, out)
}

func (a *api) send(r *http.Request, out any) error {
	r.Header.Set("Authorization", a.header)
	answer, err := a.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, &statusError{answer.StatusCode, strings.TrimSpace(answer.Status + " " + string(text))})
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, &struct{ Data any }{out})
}

// upload puts a file into a storage and waits for its task.
func (a *api) upload(ctx context.Context, node, storage, content, name string, file []byte) error {
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	if err := w.WriteField("content", content); err != nil {
		return err
	}
	part, err := w.CreateFormFile("filename", name)
	if err != nil {
		return err
	}
	if _, err := part.Write(file); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+"/nodes/"+node+"/storage/"+storage+"/upload", &body)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", w.FormDataContentType())
	var upid string
	if err := a.send(r, &upid); err != nil {
		return err
	}
	return a.finished(ctx, node, upid)
}

// task sends a request whose answer is a task, and waits until that has ended well.
func (a *api) task(ctx context.Context, node, method, path string, form url.Values) error {
	var upid *string
	if err := a.call(ctx, method, path, form, &upid); err != nil || upid == nil {
		return err
	}
	return a.finished(ctx, node, *upid)
}

// finished waits for the end of a task.
func (a *api) finished(ctx context.Context, node, upid string) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		var task struct{ Status, ExitStatus string }
		if err := a.call(ctx, http.MethodGet, "/nodes/"+node+"/tasks/"+url.PathEscape(upid)+"/status", nil, &task); err != nil {
			return err
		}
		switch {
		case task.Status == "stopped" && (task.ExitStatus == "OK" || strings.HasPrefix(task.ExitStatus, "WARNINGS")):
			return nil
		case task.Status == "stopped":
			return fmt.Errorf("task %s: %s", upid, task.ExitStatus)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
