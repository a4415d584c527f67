package ui_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/site"
)

// Whatever way a text takes out, nothing of it drives a terminal or reorders what is read.
func TestS7Outputs(t *testing.T) {
	const evil = "a\x1b]0;t\x07b\u009b2Jc\u202ed\u2066e\xfff\x7fg"
	found := diag.List{{Severity: diag.Error, Summary: evil, Detail: evil + "\n" + evil, Code: evil, At: diag.Range{File: evil, Start: diag.Pos{Line: 1, Column: 1}, End: diag.Pos{Line: 1, Column: 2}}}}
	for name, write := range map[string]func(s *screen){
		"Printf":          func(s *screen) { s.Printf("%s\n", evil) },
		"Notef":           func(s *screen) { s.Notef("note: %s", evil) },
		"Failure":         func(s *screen) { s.Failure(errors.New(evil)) },
		"invalid site":    func(s *screen) { s.Failure(&site.InvalidError{Found: found}) },
		"Findings":        func(s *screen) { s.Findings(found) },
		"Emit":            func(s *screen) { require.NoError(t, s.Emit(map[string]string{evil: evil})) },
		"Line":            func(s *screen) { require.NoError(t, s.Line([]string{evil})) },
		"Show":            func(s *screen) { require.NoError(t, s.Show(nil, evil)) },
		"Terminal":        func(s *screen) { _, _ = s.Terminal().W.Write([]byte(evil)) },
		"the text stream": func(s *screen) { w, _ := s.Text(); _, _ = w.Write([]byte(evil)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, ui.Process{})
			write(s)
			out := s.out.String() + s.err.String()
			require.NotEmpty(t, out)
			require.Equal(t, diag.Clean(out), out)
			require.NotContains(t, strings.ReplaceAll(out, "\\u001b", ""), "\x1b")
		})
	}
}
