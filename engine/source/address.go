package source

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
)

// The transports.
const (
	byFile = "file"
	byHTTP = "http"
	bySSH  = "ssh"
)

// address is a repository's URL, parsed. No text contains its credentials.
type address struct {
	by   string // byFile, byHTTP or bySSH
	path string // of the repository: on disk, or as ssh's remote command gets it

	url *url.URL // byHTTP: without credentials

	host, port string // bySSH
	user       string // of the URL, for http and ssh; may be empty
	password   string // byHTTP, of the URL; may be empty
	shown      string
}

// String returns the URL without credentials.
func (a address) String() string { return a.shown }

// SSHHost returns the server of a repository's URL, where that is reached by ssh. No error has a password of the URL.
func SSHHost(url string) (host, port string, ssh bool, err error) {
	a, err := parseAddress(url)
	if err == nil && a.password != "" {
		err = errors.New("the URL of the repository has a password: name a file for it instead")
	}
	return a.host, a.port, a.by == bySSH, err
}

// ServerOf returns the server of a repository's URL, such as https://git.example or ssh://git.example:22, and file:// for a
// folder of this machine. No error has a password of the URL.
func ServerOf(url string) (string, error) {
	a, err := parseAddress(url)
	switch {
	case err != nil:
		return "", err
	case a.by == byHTTP && a.password == "":
		return a.url.Scheme + "://" + a.url.Host, nil
	case a.by == bySSH:
		return "ssh://" + net.JoinHostPort(a.host, a.port), nil
	case a.by == byFile && strings.HasPrefix(url, "file:"):
		return "file://", nil
	case a.password != "":
		return "", errors.New("the URL of the repository has a password: name a token instead")
	}
	return "", fmt.Errorf("%q is not the URL of a repository: write https://…, ssh://… or file:///…", url)
}

// Shown returns the URL of a repository without credentials, such as a token in place of a user.
func Shown(url string) string {
	a, _ := parseAddress(url)
	return a.String()
}

// scp is the short form of ssh: user@host:path, where no slash comes before the colon.
var scp = regexp.MustCompile(`^(?:([^@/:\s]+)@)?(\[[0-9a-fA-F:.]+\]|[^@/:\s\[\]]+):(.+)$`)

// parseAddress reads the URL of a repository. Its errors do not repeat the URL where
// that could hold a password.
func parseAddress(text string) (address, error) {
	scheme, rest, hasScheme := strings.Cut(text, "://")
	switch {
	case text == "":
		return address{}, errors.New("no repository URL is given")
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return address{}, errors.New("the URL of the repository contains control characters")
	case !hasScheme:
		return parsePlain(text)
	}
	switch strings.ToLower(scheme) {
	case "file":
		return parseFile(rest)
	case "http", "https":
		return parseHTTP(text)
	case "ssh", "git+ssh", "ssh+git":
		return parseSSH(text)
	default:
		return address{}, fmt.Errorf("repositories are not read by %s://: use https://, ssh:// or a folder", oneLine(scheme))
	}
}

// parsePlain reads user@host:path or the name of a folder. As in git, a slash before
// the first colon makes it a folder.
func parsePlain(text string) (address, error) {
	m := scp.FindStringSubmatch(text)
	if m == nil || strings.HasPrefix(text, "/") || strings.HasPrefix(text, ".") {
		abs, err := filepath.Abs(text)
		if err != nil {
			return address{}, fmt.Errorf("find the repository's folder: %w", err)
		}
		return address{by: byFile, path: abs, shown: abs}, nil
	}
	if first, _, _ := strings.Cut(m[3], "/"); m[1] == "" && strings.Contains(first, "@") {
		return address{}, errors.New("the URL of the repository looks like user:password@host: put https:// before it, or better the password into token_file")
	}
	host := strings.Trim(m[2], "[]")
	if strings.HasPrefix(host, "-") || strings.HasPrefix(m[3], "-") {
		return address{}, errors.New("the URL of the repository has a host or path that begins with a dash")
	}
	return address{by: bySSH, user: m[1], host: host, port: "22", path: m[3], shown: text}, nil
}

func parseFile(rest string) (address, error) {
	rest = strings.TrimPrefix(rest, "localhost")
	name, err := url.PathUnescape(rest)
	if err != nil || !path.IsAbs(name) || strings.Contains(name, "\x00") {
		return address{}, errors.New("a file URL needs the whole path of a folder: file:///srv/git/site.git")
	}
	name = path.Clean(name)
	return address{by: byFile, path: name, shown: "file://" + (&url.URL{Path: name}).EscapedPath()}, nil
}

func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if why, ok := errors.AsType[*url.Error](err); ok {
		err = why.Err // without the URL, which may hold a password
	}
	switch {
	case err != nil:
		// Even the reason may quote a part of it: net/url shows a bad port or host.
		return nil, errors.New("the URL of the repository cannot be read: check its host, port and % signs")
	case u.Hostname() == "":
		return nil, errors.New("the URL of the repository names no host")
	case strings.HasPrefix(u.Hostname(), "-"):
		return nil, errors.New("the URL of the repository has a host that begins with a dash")
	}
	return u, nil
}

func parseHTTP(text string) (address, error) {
	u, err := parseURL(text)
	if err != nil {
		return address{}, err
	}
	if u.RawQuery != "" || u.Fragment != "" || u.ForceQuery {
		return address{}, errors.New("the URL of a repository has no ? or # part")
	}
	a := address{by: byHTTP, user: u.User.Username()}
	a.password, _ = u.User.Password()
	u.User = nil
	u.Path = strings.TrimRight(u.Path, "/")
	u.RawPath = strings.TrimRight(u.RawPath, "/")
	a.url, a.shown = u, u.String()
	if u.Scheme == "http" && !model.OnThisMachine(u.Hostname()) {
		return address{}, fmt.Errorf("%s: an attacker on the network could change the site: use https://%s%s", a.shown, u.Host, u.EscapedPath())
	}
	return a, nil
}

func parseSSH(text string) (address, error) {
	u, err := parseURL(text)
	if err != nil {
		return address{}, err
	}
	if _, has := u.User.Password(); has {
		return address{}, errors.New("an ssh URL takes no password: name a key file instead")
	}
	if u.Path == "" || u.Path == "/" {
		return address{}, errors.New("the ssh URL names no path: ssh://user@host/path/site.git")
	}
	a := address{by: bySSH, user: u.User.Username(), host: u.Hostname(), port: cmp.Or(u.Port(), "22"), path: u.Path}
	if strings.HasPrefix(a.path, "/~") {
		a.path = a.path[1:] // as git: a path below a home directory
	}
	u.RawQuery, u.Fragment = "", ""
	a.shown = u.String()
	return a, nil
}
