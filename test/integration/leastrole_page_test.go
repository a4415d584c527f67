package integration_test

import (
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// permissionsPage is where the roles stand that these stories use. They are read
// from there and written down nowhere else, so that page and program cannot part.
const permissionsPage = "../../docs/permissions.md"

// commandsOf are the commands of a page for one major version of PVE: its indented
// lines, but those whose paragraph says that they are for another version.
func commandsOf(t *testing.T, page, version string) [][]string {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	words := regexp.MustCompile(`"[^"]*"|\S+`)
	heading := regexp.MustCompile(`On Proxmox VE (\d+):$|on Proxmox VE (\d+):$`)
	only := "" // the version that the last paragraph is about
	var out [][]string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		command := strings.HasPrefix(line, "    ") && strings.HasPrefix(strings.TrimSpace(line), "pveum ")
		switch m := heading.FindStringSubmatch(line); {
		case m != nil:
			only = m[1] + m[2]
		case command && (only == "" || strings.HasPrefix(version, only+".")):
			out = append(out, words.FindAllString(strings.ReplaceAll(line, `'`, `"`), -1))
		case line != "" && !command && !strings.HasPrefix(line, "and "): // "and …:" goes on about the same version
			only = ""
		}
	}
	return out
}

// privsOf are the privileges that a command puts into a role, and where in the
// command they stand; -1 for one that does not.
func privsOf(command []string) (privs []string, at int) {
	at = slices.Index(command, "--privs") + 1
	if at == 0 || command[1] != "role" {
		return nil, -1
	}
	return strings.Split(strings.Trim(command[at], `"`), ","), at
}

// pveum does what a command of an administrator does on the console, and gives the
// secret that it prints, if any.
func (s *story) pveum(command []string) (secret string) {
	s.t.Helper()
	var plain []string
	flags := map[string]string{}
	for i := 1; i < len(command); i++ {
		if name, ok := strings.CutPrefix(command[i], "--"); ok {
			flags[name] = strings.Trim(command[i+1], `"`)
			i++
			continue
		}
		plain = append(plain, command[i])
	}
	switch verb := strings.Join(plain[:2], " "); verb {
	case "pool add":
		s.call(http.MethodPost, "/pools", map[string]string{"poolid": plain[2]})
	case "user add":
		s.call(http.MethodPost, "/access/users", map[string]string{"userid": plain[2]})
	case "role add":
		s.call(http.MethodPost, "/access/roles", map[string]string{"roleid": plain[2], "privs": flags["privs"]})
	case "role modify":
		s.call(http.MethodPut, "/access/roles/"+plain[2], flags)
	case "acl modify":
		flags["path"] = plain[2]
		s.call(http.MethodPut, "/access/acl", flags)
	case "user token":
		var token struct{ Value string }
		require.NoError(s.t, json.Unmarshal(s.call(http.MethodPost, "/access/users/"+plain[3]+"/token/"+plain[4], flags), &token))
		return plain[3] + "!" + plain[4] + "=" + token.Value
	default:
		s.t.Fatalf("the page has a command that this test does not know: %v", command)
	}
	return ""
}

// least gives the site the token that the page describes, all of its features but
// those that a day leaves out, and without one privilege of one role, if that is named.
func (s *story) least(d day, version string, without role) {
	s.t.Helper()
	for _, c := range commandsOf(s.t, permissionsPage, version) {
		if strings.Join(c[1:3], " ") == "pool add" {
			continue // the site has a pool block
		}
		if without.priv == "Sys.AccessNetwork" && slices.Contains(c, "HomestakCluster") {
			continue // Sys.Audit and Sys.Modify on / together would do as well
		}
		if privs, at := privsOf(c); at > 0 {
			privs = slices.DeleteFunc(privs, func(p string) bool {
				return p == d.without || c[3] == without.name && p == without.priv
			})
			if len(privs) == 0 && c[2] == "modify" {
				continue
			}
			c[at] = strings.Join(privs, ",")
		}
		if secret := s.pveum(c); secret != "" {
			s.edit("secrets.yaml", s.host.Token(), secret)
		}
	}
	s.edit("host.hcl", "node        =", "pool        = \"homestak\"\n  storage {\n    backups = \"backups\"\n    iso     = \"isos\"\n  }\n  node        =")
	s.write("pool.hcl", "pool \"homestak\" {\n  host = host.father\n}\n")
}

// role is one privilege of a role of the page.
type role struct{ name, path, priv string }

// rolesOf are all privileges that the page grants, each with its path.
func rolesOf(t *testing.T, page, version string) []role {
	t.Helper()
	paths := map[string]string{}
	var out []role
	for _, c := range commandsOf(t, page, version) {
		if c[1] == "acl" {
			paths[c[7]] = c[3]
		}
	}
	for _, c := range commandsOf(t, page, version) {
		privs, at := privsOf(c)
		if at < 0 {
			continue
		}
		require.NotEmpty(t, paths[c[3]], "the page makes role %s and gives it to nobody", c[3])
		for _, p := range privs {
			out = append(out, role{c[3], paths[c[3]], p})
		}
	}
	return out
}
