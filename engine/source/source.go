// Package source follows the repository of a site for an agent; on the command line a site is a folder, see
// OpenWorktree. OpenRepository opens a Repository, a local copy of one branch: Head fetches new commits from the
// remote, by file, https or ssh; Files returns the files of a commit, read directly from the copy without a
// checkout; Since lists the commits between two others; Keep names the commits to keep, and the rest is removed in
// time.
//
// Each check has deadlines, and each response a size limit. No message contains credentials, which are read from
// their files at every use.
//
// Errors of the remote are *Error values of a kind, such as errDenied, with a text that says what to do.
package source

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
)

// Options are the options of a repository.
type Options struct {
	// Dir is the folder of the local copy. It belongs to one Repository alone: two that share it
	// would remove each other's files. It may be deleted while no program uses it. The caller must
	// lock it.
	Dir string

	// URL is the URL of the repository: a folder or file://, https://, ssh://, or user@host:path. http:// is
	// accepted for loopback addresses only.
	URL    string
	Branch string // "main" if empty; DefaultBranch: the one that the remote chooses
	Path   string // the folder of the site inside the repository; its root if empty

	Auth Auth

	// Transport sends the requests over https, with whatever it takes to be let in; Auth is not used then.
	// Nil: the network, as Auth says.
	Transport http.RoundTripper

	// Timeout bounds one check of the remote, 60 s if zero. Connecting may take a
	// quarter of it and silence half of it; a download may take ten times as long as
	// long as bytes come.
	Timeout time.Duration

	Depth   int   // commits of the first download, 64 if zero
	MaxPack int64 // bytes of one download, 512 MiB if zero
	MaxFile int64 // bytes of one file of the site, 64 MiB if zero

	// Refusals are remembered by repositories that are opened one after the other. Nil: each remembers its own.
	Refusals Refusals

	Log *slog.Logger // gets a warning when a damaged copy is removed; nil: none

	packs   int   // so many may exist side by side, mostPacks if zero
	largest int64 // bytes of one object, largestObject if zero
}

// Refusals are the newest commits that cannot be fetched, by the folder of the local copy: they are not downloaded
// again to find that out.
type Refusals map[string]refusal

type refusal struct {
	commit plumbing.Hash
	why    error
}

// DefaultBranch stands for the branch that the HEAD of a remote names.
const DefaultBranch = "HEAD"

// Limits for repositories, whose content is not trusted.
const (
	defaultTimeout = 60 * time.Second
	defaultPack    = 512 << 20
	defaultFile    = 64 << 20
	defaultUser    = "git"
)

func (o Options) withDefaults() (Options, error) {
	if o.Dir == "" {
		return o, errors.New("open repository: no folder for the local copy is named")
	}
	o.Branch = cmp.Or(o.Branch, "main")
	o.Depth = cmp.Or(max(o.Depth, 0), firstDepth)
	o.Timeout = cmp.Or(max(o.Timeout, 0), defaultTimeout)
	o.MaxPack = cmp.Or(max(o.MaxPack, 0), defaultPack)
	o.MaxFile = cmp.Or(max(o.MaxFile, 0), defaultFile)
	o.packs = cmp.Or(max(o.packs, 0), mostPacks)
	o.largest = cmp.Or(max(o.largest, 0), largestObject)
	o.Auth.Username = cmp.Or(o.Auth.Username, defaultUser)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Refusals == nil {
		o.Refusals = Refusals{}
	}
	if err := CheckBranch(o.Branch); err != nil {
		return o, err
	}
	path, err := cleanPath(o.Path)
	if err != nil {
		return o, fmt.Errorf("open repository: %w", err)
	}
	o.Path = path
	return o, nil
}

// CheckBranch accepts what git accepts, as far as it could do harm here: the name
// becomes a line of a file.
func CheckBranch(name string) error {
	bad := strings.HasPrefix(name, "-") || strings.HasPrefix(name, "/") || strings.HasSuffix(name, "/") ||
		strings.HasSuffix(name, ".lock") || strings.Contains(name, "..") || strings.Contains(name, "//") ||
		strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`~^:?*[\`, r) })
	if bad {
		return fmt.Errorf("%q is not a branch name such as main", name)
	}
	return nil
}

// cleanPath returns the sub-folder with slashes, "." for the root.
func cleanPath(name string) (string, error) {
	p := path.Clean("/" + filepath.ToSlash(name))[1:]
	if strings.HasPrefix(path.Clean(filepath.ToSlash(name)), "..") {
		return "", fmt.Errorf("the folder %q is outside the repository", name)
	}
	if p == "" {
		return ".", nil
	}
	return p, nil
}
