package source

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
)

func TestAddresses(t *testing.T) {
	for text, want := range map[string]address{
		"/srv/git/site.git":                  {by: byFile, path: "/srv/git/site.git", shown: "/srv/git/site.git"},
		"/srv/a:b":                           {by: byFile, path: "/srv/a:b", shown: "/srv/a:b"},
		"file:///srv/git/site.git":           {by: byFile, path: "/srv/git/site.git", shown: "file:///srv/git/site.git"},
		"file://localhost/srv/a%20b":         {by: byFile, path: "/srv/a b", shown: "file:///srv/a%20b"},
		"git@example.org:home/site.git":      {by: bySSH, user: "git", host: "example.org", port: "22", path: "home/site.git", shown: "git@example.org:home/site.git"},
		"example.org:/srv/site":              {by: bySSH, host: "example.org", port: "22", path: "/srv/site", shown: "example.org:/srv/site"},
		"git@[fe80::1]:site":                 {by: bySSH, user: "git", host: "fe80::1", port: "22", path: "site", shown: "git@[fe80::1]:site"},
		"ssh://git@example.org/srv/site.git": {by: bySSH, user: "git", host: "example.org", port: "22", path: "/srv/site.git", shown: "ssh://git@example.org/srv/site.git"},
		"ssh://example.org:2222/~ada/site":   {by: bySSH, host: "example.org", port: "2222", path: "~ada/site", shown: "ssh://example.org:2222/~ada/site"},
		"ssh://git@[fe80::1]:2222/site":      {by: bySSH, user: "git", host: "fe80::1", port: "2222", path: "/site", shown: "ssh://git@[fe80::1]:2222/site"},
	} {
		got, err := parseAddress(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
	}
	for text, want := range map[string]address{
		"https://example.org/site.git/":       {shown: "https://example.org/site.git"},
		"https://bob:s3cret@example.org/site": {user: "bob", password: "s3cret", shown: "https://example.org/site"},
		"https://s3cret@example.org:8443/x":   {user: "s3cret", shown: "https://example.org:8443/x"},
		"http://127.0.0.1:3000/x":             {shown: "http://127.0.0.1:3000/x"},
		"http://localhost/x":                  {shown: "http://localhost/x"},
		"http://[::1]/x":                      {shown: "http://[::1]/x"},
	} {
		got, err := parseAddress(text)
		require.NoError(t, err, text)
		require.Equal(t, want.shown, got.url.String())
		got.url, want.by = nil, byHTTP
		require.Equal(t, want, got)
	}
	for text, want := range map[string]string{
		"":                           "no repository URL",
		"http://example.org/x":       "use https://example.org/x",
		"https:///x":                 "names no host",
		"https://example.org/x?a=b":  "no ? or #",
		"ftp://example.org/x":        "not read by ftp://",
		"file://srv/x":               "whole path",
		"file://":                    "whole path",
		"ssh://bob:x@example.org/x":  "no password",
		"ssh://example.org":          "names no path",
		"ssh://-oProxyCommand=x/y":   "begins with a dash",
		"-oProxyCommand=x:y":         "begins with a dash",
		"git@example.org:--upload=x": "begins with a dash",
		"https://example.org/\nx":    "control characters",
		"ada:s3cret@example.org/x":   "put https:// before it",
	} {
		_, err := parseAddress(text)
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "s3cret")
	}
}

func TestQuote(t *testing.T) {
	require.Equal(t, `'/a b'`, quote("/a b"))
	require.Equal(t, `'it'\''s'\!''`, quote("it's!"))
}

// No text shows the credentials of a URL, whatever is wrong with it.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"https://bob:s3cret@example.org/x", "git@h:p", "ssh://h/p", "file:///p", "/p", "https://bob:s3cret@[::1", "x://bob:s3cret@h", "https://bob:s3cret@h:p/%zz"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseAddress(s)
		if err != nil {
			if _, rest, ok := strings.Cut(s, "://"); ok && strings.Contains(rest, "s3cret") {
				require.NotContains(t, err.Error(), "s3cret")
			}
			return
		}
		require.NotEmpty(t, a.String())
		switch a.by {
		case byFile:
			require.True(t, strings.HasPrefix(a.path, "/"))
		case bySSH:
			require.NotEmpty(t, a.host)
			require.NotEmpty(t, a.path)
			require.NotEqual(t, byte('-'), a.host[0])
		case byHTTP:
			require.Nil(t, a.url.User)
			require.Equal(t, a.url.String(), a.String())
			require.True(t, a.url.Scheme == "https" || model.OnThisMachine(a.url.Hostname()))
		default:
			t.Fatal(a.by)
		}
	})
}

func TestBranchNames(t *testing.T) {
	for _, good := range []string{"main", "feature/a-b", "v1.2", "ünïcode"} {
		require.NoError(t, CheckBranch(good))
	}
	for _, bad := range []string{"-x", "a b", "a\nb", "a..b", "/a", "a/", "a//b", "a~1", "a^", "a:b", "x.lock", "refs*", "a\\b", "a\x7f"} {
		require.ErrorContains(t, CheckBranch(bad), "not a branch name")
	}
}
