package pve

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// answer is a response.
type answer struct {
	status int
	reason string
	body   []byte
	// content is the value from which the formats write the body; a bare failure has none.
	content     map[string]any
	contentType string
	slow        bool     // Held back as a 401 is, though it shows another status.
	noLength    bool     // No Content-Length line, as PVE's 401 has none.
	connection  []string // Lines "Connection: …"; PVE sends two of them at times.
	dropped     bool     // Nothing goes back: the connection ends.
	date        time.Time
}

// newAnswer encodes what a handler returned. A failure closes the connection;
// so does, after a good answer, every call that ran as root in pvedaemon, here
// or on another node: pveproxy does not keep its own connection to pvedaemon and
// hands on that "close", beside a Keep-Alive that HTTP clients must not believe.
func newAnswer(c *core.Call, data any, err error) *answer {
	if err != nil {
		a := errorAnswer(err)
		a.format(c.Req.Format)
		return a
	}
	body := map[string]any{"data": data}
	if list, ok := data.(core.Paged); ok {
		body["data"] = list.Data
		if list.Total > 0 { // A total of 0 is not told (rest_handler in PVE/HTTPServer.pm).
			body["total"] = list.Total
		}
	}
	if list, ok := data.(core.Beside); ok {
		maps.Copy(body, list.Attributes)
		body["data"] = list.Data
	}
	a := &answer{status: http.StatusOK, reason: "OK", content: body, connection: []string{"Keep-Alive"}}
	a.format(c.Req.Format)
	switch {
	case c.Req.Upload != nil:
		a.connection = []string{"close"}
	case c.M != nil && c.M.Protected:
		a.connection = []string{"close", "Keep-Alive"}
	}
	return a
}

func encode(v any) []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		panic(fmt.Sprintf("pve: an answer that is no JSON: %v", err)) // A handler's mistake.
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// faultAnswer is an answer a fault rule asked for.
func faultAnswer(status int) *answer {
	if status < 100 {
		return &answer{dropped: true}
	}
	reasons := map[int]string{595: "No route to host", 596: "Connection timed out", 597: "Connection reset by peer", 598: "Too many redirections", 599: "Broken pipe"}
	reason, pseudo := reasons[status]
	switch {
	case pseudo, status == http.StatusUnauthorized:
		if !pseudo {
			reason = "No ticket"
		}
		return errorAnswer(&perl.APIError{Status: status, Message: reason, Plain: true})
	case status < 400:
		return &answer{status: status, reason: http.StatusText(status), connection: []string{"close"}}
	default:
		a := errorAnswer(&perl.APIError{Status: status, Message: http.StatusText(status) + " (by a fault rule)"})
		a.format("json")
		return a
	}
}

// header are the header lines, in the form of net/http.
func (a *answer) header() http.Header {
	date := a.date.UTC().Format(http.TimeFormat)
	h := http.Header{
		"Cache-Control": {"max-age=0"}, "Pragma": {"no-cache"},
		"Date": {date}, "Expires": {date}, "Server": {"pve-api-daemon/3.0"},
		"Connection": a.connection,
	}
	if a.contentType != "" {
		h["Content-Type"] = []string{a.contentType}
	}
	if !a.noLength {
		h["Content-Length"] = []string{strconv.Itoa(len(a.body))}
	}
	return h
}

// response is the answer as a client of net/http gets it.
func (a *answer) response(r *http.Request) *http.Response {
	return &http.Response{
		Status: fmt.Sprintf("%d %s", a.status, a.reason), StatusCode: a.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.header(), Body: io.NopCloser(bytes.NewReader(a.body)), ContentLength: int64(len(a.body)),
		Close: a.closes(), Request: r,
	}
}

// closes says whether a client must not use the connection again.
func (a *answer) closes() bool { return len(a.connection) == 0 || a.connection[0] == "close" }

// gzipFrom is the size from which a body is compressed for clients that take it.
const gzipFrom = 1024

// write sends the answer over a connection.
func (a *answer) write(w *bufio.Writer, r *http.Request) error {
	body, h := a.body, a.header()
	if len(body) > gzipFrom && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		var b bytes.Buffer
		z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
		if err != nil {
			return err
		}
		if _, err = z.Write(body); err == nil {
			err = z.Close()
		}
		if err != nil {
			return err
		}
		body = b.Bytes()
		h.Set("Content-Encoding", "gzip")
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	if _, err := fmt.Fprintf(w, "HTTP/1.1 %d %s\r\n", a.status, a.reason); err != nil {
		return err
	}
	if err := h.Write(w); err != nil {
		return err
	}
	if _, err := w.WriteString("\r\n"); err != nil {
		return err
	}
	_, err := w.Write(body)
	return err
}

// errorAnswer makes a failure an answer, which is still to be written in a format.
func errorAnswer(err error) *answer {
	var e *perl.APIError
	if !errors.As(err, &e) {
		e = &perl.APIError{Status: http.StatusInternalServerError, Message: err.Error()}
	}
	reason, _, _ := strings.Cut(e.Error(), "\n")
	if strings.Contains(reason, "\r") { // It would end the status line (response in APIServer/AnyEvent.pm).
		return &answer{status: http.StatusBadRequest, reason: "Bad Request", connection: []string{"close"}, noLength: true}
	}
	reason = strings.Map(func(r rune) rune { // Nothing of a request may end the status line.
		if r < ' ' {
			return ' '
		}
		return r
	}, reason)
	a := &answer{status: e.Status, reason: reason, connection: []string{"close"}}
	if e.Plain {
		a.body = []byte(e.Text)
		a.noLength = e.Text == ""
		return a
	}
	message := strings.TrimSuffix(e.Error(), "\n")
	if e.Status != http.StatusNotImplemented && e.Status != http.StatusFailedDependency { // These do not die, so they have no line break.
		message += "\n"
	}
	body := map[string]any{"data": nil, "message": message}
	if e.Errors != nil {
		body["errors"] = e.Errors
	}
	a.content = body
	return a
}

// The formats of answers: the word between /api2/ and the path of a call selects one
// (PVE/APIServer/Formatter/Standard.pm). All of them are written from the same content.

// formatter writes the content of an answer.
type formatter func(content map[string]any) (contentType string, body []byte)

// formatters are the formats by name.
func formatters() map[string]formatter {
	return map[string]formatter{"json": inJSON, "extjs": inJSON, "htmljs": inEntities, "html": inHTML}
}

func inJSON(content map[string]any) (string, []byte) {
	return "application/json;charset=UTF-8", encode(content)
}

// inEntities is JSON for a form that uploads, inHTML a page for people: PVE's has a
// frame around it.
func inEntities(content map[string]any) (string, []byte) {
	return "text/html;charset=UTF-8", []byte(html.EscapeString(string(encode(content))))
}

func inHTML(content map[string]any) (string, []byte) {
	var b bytes.Buffer
	pretty := json.NewEncoder(&b)
	pretty.SetEscapeHTML(false)
	pretty.SetIndent("", "  ")
	if err := pretty.Encode(content); err != nil {
		panic(fmt.Sprintf("pve: an answer that is no JSON: %v", err)) // A handler's mistake.
	}
	return "text/html;charset=UTF-8", []byte("<!DOCTYPE html>\n<html><body><pre>" + html.EscapeString(b.String()) + "</pre></body></html>\n")
}

// format writes the content of an answer in a format. ExtJS wants to be told in the
// content whether a call succeeded, and nothing by the status (prepare_response_data).
func (a *answer) format(name string) {
	if a.content == nil {
		return
	}
	if name == "extjs" || name == "htmljs" {
		a.content["success"] = perl.BoolInt(a.status < 400)
		if a.status >= 400 {
			a.slow = a.status == http.StatusUnauthorized
			a.content["status"] = a.status
			a.status, a.reason, a.connection = http.StatusOK, "OK", []string{"Keep-Alive"}
		}
	}
	write := formatters()[name]
	if write == nil {
		write = inJSON
	}
	a.contentType, a.body = write(a.content)
}
