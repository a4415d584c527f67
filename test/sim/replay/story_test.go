package replay_test

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve/simtest"
)

// A story is a recording of a real PVE that stands alone: it starts from a
// node without guests and makes all it needs. The README beside the files
// describes the layout.
type story struct {
	folder  string
	partial bool   // It needs what others left, and no call of some was recorded.
	PVE     string `json:"pve_version"`
	// Recorded is when the recording began; requests may name points of time.
	Recorded time.Time `json:"recorded_at"`
	Start    struct {
		Node       string
		Storage    string
		GuestRange [2]int `json:"guest_range"`
		RootToken  string `json:"root_token"`
		Bridges    []string
		Storages   []struct {
			Storage, Type, Path string
			Content             []string
		}
	}
	Files     map[string]storyFile
	Vars      []storyVar
	Exchanges []storyExchange
}

// storyFile is what an upload sends: in the recording or beside it.
type storyFile struct {
	Size           int
	Encoding, Data string
	File           string
}

// storyVar is a value that differs on every run and that later requests need. It
// is found in the answer to an exchange at a JSON pointer.
type storyVar struct {
	Name, Recorded, At, Match string
	Exchange                  int
}

type storyExchange struct {
	Note    string
	PauseS  float64 `json:"pause_s"` // Seconds to wait first.
	Sync    string  // "stats": wait for the next sample first.
	Until   string  // "stopped": ask until the task is over.
	Loose   []string
	Request struct {
		Method, Path string
		Headers      map[string]string
		Form         [][2]any
		JSON         any
		RawBody      *string `json:"raw_body"`
		Upload       *struct {
			Fields         [][2]any
			Filename, File string
		}
	}
	Response struct {
		Status  int
		Reason  string
		Headers []any           // [name, value] or "name: value".
		BodyRaw *string         `json:"body_raw"`
		Body    json.RawMessage // JSON; absent where there was none.
	}
}

// storySets are the folders of stories: the first six of 8.4, further ones, and those
// of 9.2.
var storySets = []string{"stories", "more-8.4", "9.2"}

// storyRoots are where those folders may be, the first that has any first: a folder that
// was set, the recordings beside this repository, the copies kept here. A folder that was
// set may also be one of stories itself.
func storyRoots() []string {
	if set := os.Getenv("HOMESTAK_RECORDINGS"); set != "" {
		return []string{set}
	}
	return []string{beside, "testdata"}
}

// recordingFolders are where the other recordings may be. None are kept here.
func recordingFolders() []string {
	if set := os.Getenv("HOMESTAK_RECORDINGS"); set != "" {
		return []string{set}
	}
	return []string{beside}
}

// beside is where recordings lie that are not part of this repository.
var beside = filepath.Join("..", "..", "..", "..", "shared", "pve-recordings")

// storyNames lists the stories there are, as "folder/name", or skips the test.
func storyNames(t *testing.T) []string {
	t.Helper()
	for _, root := range storyRoots() {
		var names []string
		for _, set := range append(storySets, "") {
			files, err := filepath.Glob(filepath.Join(root, set, "*.json*"))
			require.NoError(t, err)
			for _, file := range files {
				if text, err := readPacked(file); err == nil && bytes.Contains(text, []byte(`"guest_range"`)) {
					names = append(names, path.Join(set, strings.TrimSuffix(strings.TrimSuffix(filepath.Base(file), ".gz"), ".json")))
				}
			}
		}
		if len(names) > 0 {
			return names
		}
	}
	t.Skip("HOMESTAK_RECORDINGS names a folder without stories")
	return nil
}

// readStory reads a recording, or skips the test if there is none.
func readStory(t *testing.T, name string) *story {
	t.Helper()
	for _, root := range storyRoots() {
		for _, ending := range []string{".json", ".json.gz"} {
			file := filepath.Join(root, filepath.FromSlash(name)+ending)
			text, err := readPacked(file)
			if os.IsNotExist(err) {
				continue
			}
			require.NoError(t, err)
			s := &story{folder: filepath.Dir(file)}
			require.NoError(t, decodeJSON(text, s), name)
			require.NotEmpty(t, s.Exchanges, name)
			return s
		}
	}
	t.Skip("needs the recordings of a real PVE: set HOMESTAK_RECORDINGS to their folder")
	return nil
}

// readPacked reads a file that may be compressed.
func readPacked(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil || !strings.HasSuffix(file, ".gz") {
		return text, err
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(unpacked)
}

// decodeJSON keeps numbers as they are written.
func decodeJSON(text []byte, to any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return decoder.Decode(to)
}

// title names the subtest of an exchange.
func (s *story) title(i int) string {
	r := s.Exchanges[i].Request
	return fmt.Sprintf("%03d %s %s", i, r.Method, strings.TrimPrefix(r.Path, "/api2/json"))
}

// content is the content of a file that an upload names.
func (s *story) content(name string) ([]byte, error) {
	file, ok := s.Files[name]
	if !ok {
		return nil, fmt.Errorf("the story has no file %q", name)
	}
	if file.File != "" {
		content, err := os.ReadFile(filepath.Join(s.folder, file.File))
		if os.IsNotExist(err) { // Not kept here: its length shows, and of a template its system.
			return append(simtest.RootArchive(map[string]string{
				"etc/os-release": "ID=alpine\n", "etc/alpine-release": "3.20.3\n", "bin/sh": simtest.ELF("\x3e"),
			}), make([]byte, file.Size)...)[:file.Size], nil
		}
		return content, err
	}
	if file.Encoding != "zlib+base64" {
		return nil, fmt.Errorf("file %q has the unknown encoding %q", name, file.Encoding)
	}
	r, err := zlib.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(file.Data)))
	if err != nil {
		return nil, fmt.Errorf("unpack file %q: %w", name, err)
	}
	return io.ReadAll(r)
}

// substitutions turn recorded values into those at hand.
type substitutions struct {
	values []storyVar // Recorded, and in Match the value at hand.
}

func (s *substitutions) learn(v storyVar, value string) {
	v.Match = value
	s.values = append(s.values, v)
	// Longer ones first: a ticket may contain another value.
	slices.SortStableFunc(s.values, func(a, b storyVar) int { return len(b.Recorded) - len(a.Recorded) })
}

func (s *substitutions) in(text string) string {
	for _, v := range s.values {
		text = strings.ReplaceAll(text, v.Recorded, v.Match)
		for _, encode := range []func(string) string{url.QueryEscape, url.PathEscape} {
			text = strings.ReplaceAll(text, encode(v.Recorded), encode(v.Match))
		}
	}
	return text
}

// deep substitutes in the strings of a JSON value.
func (s *substitutions) deep(value any) any {
	switch value := value.(type) {
	case string:
		return s.in(value)
	case []any:
		all := make([]any, len(value))
		for i := range value {
			all[i] = s.deep(value[i])
		}
		return all
	case map[string]any:
		all := make(map[string]any, len(value))
		for name := range value {
			all[name] = s.deep(value[name])
		}
		return all
	default:
		return value
	}
}

// request makes the request of an exchange.
func (s *story) request(t *testing.T, e storyExchange, vars *substitutions) (*http.Request, error) {
	t.Helper()
	var body bytes.Buffer
	contentType := e.Request.Headers["Content-Type"]
	switch r := e.Request; {
	case r.Upload != nil:
		w := multipart.NewWriter(&body)
		for _, field := range r.Upload.Fields {
			if err := w.WriteField(fmt.Sprint(field[0]), vars.in(fmt.Sprint(field[1]))); err != nil {
				return nil, err
			}
		}
		content, err := s.content(r.Upload.File)
		if err != nil {
			return nil, err
		}
		part, err := w.CreateFormFile("filename", r.Upload.Filename)
		if err != nil {
			return nil, err
		}
		if _, err := part.Write(content); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		contentType = w.FormDataContentType()
	case r.RawBody != nil:
		body.WriteString(vars.in(*r.RawBody))
	case r.JSON != nil:
		if err := json.NewEncoder(&body).Encode(vars.deep(r.JSON)); err != nil {
			return nil, err
		}
	default:
		for i, field := range r.Form {
			if i > 0 {
				body.WriteByte('&')
			}
			body.WriteString(url.QueryEscape(fmt.Sprint(field[0])) + "=" + url.QueryEscape(vars.in(fmt.Sprint(field[1]))))
		}
	}
	address := "https://" + s.Start.Node + ":8006" + vars.in(e.Request.Path)
	r, err := http.NewRequestWithContext(t.Context(), e.Request.Method, address, &body)
	if err != nil {
		return nil, err
	}
	for name, value := range e.Request.Headers {
		r.Header.Set(name, vars.in(value))
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	return r, nil
}

// pick finds the value of a var in an answer.
func (v storyVar) pick(body any) (string, error) {
	for name := range strings.SplitSeq(strings.TrimPrefix(v.At, "/"), "/") {
		name = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
		switch within := body.(type) {
		case map[string]any:
			body = within[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i >= len(within) {
				return "", fmt.Errorf("var %s: nothing at %s", v.Name, v.At)
			}
			body = within[i]
		default:
			return "", fmt.Errorf("var %s: nothing at %s", v.Name, v.At)
		}
	}
	text, ok := body.(string)
	if !ok {
		return "", fmt.Errorf("var %s: no string at %s, but %v", v.Name, v.At, body)
	}
	if v.Match == "" {
		return text, nil
	}
	found := regexp.MustCompile(v.Match).FindString(text)
	if found == "" {
		return "", fmt.Errorf("var %s: %q does not match %s", v.Name, text, v.Match)
	}
	return found, nil
}
