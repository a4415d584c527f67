package serve

import (
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/homestak/homestak-gitops/engine/source/objects"
)

// longestPath is the maximum length of a path in bytes.
const longestPath = 4096

// raw answers with one file. The path is a list of names that are searched in the trees of
// a commit, so nothing else can be named by it, however it is written.
func (h *Handler) raw(w http.ResponseWriter, r *http.Request, escaped string) error {
	names, err := split(escaped)
	if err != nil {
		return &RefusalError{http.StatusBadRequest, err.Error(), "name a file as git ls-tree does: " + RepositoryPrefix + "raw/HEAD/hosts/pve1.hcl"}
	}
	file, err := h.server.File(names[0], strings.Join(names[1:], "/"))
	switch {
	case err == nil:
		return h.content(w, r, kindOf(names[len(names)-1]), file.ID, file.Size, file.Copy)
	case errors.Is(err, errNothing):
		w.Header().Set("Retry-After", "10")
		return &RefusalError{http.StatusServiceUnavailable, err.Error(), "try again"}
	case errors.Is(err, errNoRef):
		return &RefusalError{http.StatusNotFound, err.Error(), "name HEAD, last-good, or the full id of one of these two commits"}
	case errors.Is(err, errNotFile):
		return &RefusalError{http.StatusNotFound, err.Error(), "name a file; links are not followed"}
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrInvalid):
		return &RefusalError{http.StatusNotFound, "the commit has no such file", "git ls-tree -r --name-only HEAD lists all"}
	case errors.Is(err, objects.ErrTooLarge):
		return &RefusalError{http.StatusRequestEntityTooLarge, err.Error(), "clone the repository"}
	}
	return h.broken(r, err)
}

// split returns the decoded names of a path that is still escaped: a commit, then at least
// one more. Each is decoded once; none may mean anything but itself.
func split(escaped string) ([]string, error) {
	if len(escaped) > longestPath {
		return nil, errors.New("the path is too long")
	}
	var names []string
	for part := range strings.SplitSeq(escaped, "/") {
		name, err := url.PathUnescape(part)
		switch {
		case err != nil:
			return nil, errors.New("the path is not encoded as paths in URLs are")
		case name == "":
			return nil, errors.New("the path has an empty name")
		case name == ".", name == "..":
			return nil, errors.New("the path has a name that stands for a folder")
		case strings.ContainsAny(name, `/\`):
			return nil, errors.New("the path has a name with a slash in it")
		case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
			return nil, errors.New("the path has a name with a control character in it")
		}
		names = append(names, name)
	}
	if len(names) < 2 {
		return nil, errors.New("the path names no file")
	}
	return names, nil
}

// kindOf is the content type of a file. None of them is one that a browser would run.
func kindOf(name string) string {
	switch path.Ext(name) {
	case ".hcl", ".yaml", ".yml", ".json", ".rego", ".md", ".txt", ".conf", ".pub", ".sh", ".pem":
		return "text/plain; charset=utf-8"
	}
	return "application/octet-stream"
}
