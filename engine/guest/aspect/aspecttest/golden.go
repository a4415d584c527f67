// Package aspecttest runs the cases of aspects, for tests.
package aspecttest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// Golden runs the cases in testdata. Each file is a case of one aspect, which its name begins with: what is
// wanted, what is recorded, what the machine answers, and what follows.
func Golden(t *testing.T, all []aspect.Aspect, update bool) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	covered := map[string]bool{}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			require.NoError(t, err)
			which, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(name), ".txtar"), "-")
			covered[which] = true
			got := run(t, find(t, all, which), archive)
			archive.Files = append(slices.DeleteFunc(slices.Clone(archive.Files), func(f txtar.File) bool { return strings.HasPrefix(f.Name, "gives/") }), got...)
			if update {
				require.NoError(t, os.WriteFile(name, txtar.Format(archive), 0o600))
				return
			}
			want, err := os.ReadFile(name)
			require.NoError(t, err)
			require.Equal(t, string(want), string(txtar.Format(archive)))
		})
	}
	for _, a := range all {
		require.True(t, covered[a.Name], "aspect %s has no case in testdata", a.Name)
	}
}

func find(t *testing.T, all []aspect.Aspect, name string) aspect.Aspect {
	t.Helper()
	i := slices.IndexFunc(all, func(a aspect.Aspect) bool { return a.Name == name })
	require.GreaterOrEqual(t, i, 0, "unknown aspect %s", name)
	return all[i]
}

func run(t *testing.T, a aspect.Aspect, in *txtar.Archive) []txtar.File {
	t.Helper()
	q := &aspect.Query{Record: &guest.Record{}, OS: aspect.OS{ID: "debian", Version: "12"}}
	var answer strings.Builder
	for _, f := range in.Files {
		text := string(f.Data)
		var err error
		switch kind, rest, _ := strings.Cut(f.Name, " "); kind {
		case "want":
			q.Want, err = spec.Read([]byte(`{"version": 1, "node": "edge", "spec": "test", ` + text + `}`))
		case "record":
			q.Record, err = guest.ReadRecord(text)
		case "login":
			q.Login = rest
		case "rows":
			answer.WriteString(text)
		case "row": // one whose last field may be anything
			answer.WriteString(strings.Join(strings.Fields(rest), "\t") + "\t=" + base64.StdEncoding.EncodeToString(f.Data) + "\n")
		}
		require.NoError(t, err, f.Name)
	}
	have := spec.Empty("edge")
	for _, u := range q.Want.Access.Users { // users.go reads them before
		if a.Name == "sudo" {
			have.Access.Users = append(have.Access.Users, spec.User{Name: u.Name})
		}
	}
	r, err := a.Read(q, guest.Answer{Text: answer.String()}, have)
	require.NoError(t, err)
	out := []txtar.File{{Name: "gives/probe", Data: []byte(a.Probe(q))}}
	var changes, steps strings.Builder
	for _, c := range plan.Differences(q.Want, have) {
		if a.Owns(c.Path) {
			fmt.Fprintf(&changes, "%s    %s\n", c, c.Class)
		}
	}
	out = append(out, txtar.File{Name: "gives/changes", Data: []byte(changes.String())})
	if len(r.Unmanaged) > 0 {
		out = append(out, txtar.File{Name: "gives/unmanaged", Data: []byte(strings.Join(r.Unmanaged, "\n") + "\n")})
	}
	if changes.Len() == 0 {
		return out
	}
	for _, s := range r.Steps() {
		fmt.Fprintf(&steps, "== %s (stage %d)\n", s.Text, s.Stage)
		for _, part := range []struct {
			name    string
			entries []guest.RecordEntry
		}{{"keep", s.Keep}, {"after", s.After}} {
			for _, e := range part.entries {
				b, err := json.Marshal(e)
				require.NoError(t, err)
				fmt.Fprintf(&steps, "%s %s\n", part.name, b)
			}
		}
		for _, k := range s.Drop {
			fmt.Fprintf(&steps, "drop %s %s\n", k.Aspect, k.Item)
		}
		if s.Supplies {
			fmt.Fprintln(&steps, "supplies packages")
		}
		if s.Needs != "" {
			fmt.Fprintf(&steps, "needs %s\n", s.Needs)
		}
		for _, part := range []struct{ name, text string }{{"ask", s.Ask}, {"script", s.Script}, {"change", s.Change}, {"check", s.Check}, {"restore", s.Restore}, {"finish", s.Finish}} {
			if part.text != "" {
				fmt.Fprintf(&steps, "-- %s\n%s", part.name, readable(part.text))
			}
		}
	}
	return append(out, txtar.File{Name: "gives/steps", Data: []byte(steps.String())})
}

var data = regexp.MustCompile(`printf %s '([A-Za-z0-9+/=]*)' \| base64 -d`)

// readable shows what a script writes, and leaves out the functions that are always the same.
func readable(text string) string {
	text = data.ReplaceAllStringFunc(text, func(m string) string {
		raw, err := base64.StdEncoding.DecodeString(data.FindStringSubmatch(m)[1])
		if err != nil {
			return m
		}
		return fmt.Sprintf("data %q", raw)
	})
	for _, name := range []string{"reach", "apt_get"} {
		if strings.HasPrefix(text, name+"() {") {
			_, text, _ = strings.Cut(text, "\n}\n")
		}
	}
	return text
}
