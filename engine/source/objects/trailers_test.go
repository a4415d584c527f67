package objects

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
)

// messages are those on which readings of trailers differ.
func messages() []string {
	return []string{
		"subject\n\nTicket: HOME-7\n",
		"subject\n\nbody\n\nTicket: HOME-7\nAllow-Deletes: 3\n",
		"Ticket: in the subject\n",
		"Ticket: in the subject\nAllow: too\n",
		"subject\nTicket: in the same paragraph\n",
		"subject\n\nTicket: HOME-7",
		"subject\n\nTicket: HOME-7\n\n\n  \n",
		"subject\n\nTicket:HOME-7\nA :  spaced  \nB\t: tab\n",
		"subject\n\nTicket: a\n  continued\n\tand more\nNext: b\n",
		"subject\n\nTicket: a\nno trailer at all\n",
		"subject\n\nno trailer\nTicket: a\n",
		"subject\n\nSigned-off-by: Ada <a@example.org>\nno trailer\nno other\nnor this\n",
		"subject\n\nSigned-off-by: Ada <a@example.org>\nno trailer\nno other\nnor this\nnor that\n",
		"subject\n\n(cherry picked from commit 1234)\nTicket: a\n",
		"subject\n\nTicket: a\n\nnot in the last paragraph\n",
		"subject\n\nTicket: one\nTicket: two\n",
		"subject\n\nTicket: a\n# a comment\nNext: b\n",
		"subject\n\nTicket: a\n# a comment below\n\n",
		"subject\n\nTicket: a\n\nConflicts:\n\tfile\n",
		"subject\n\nTicket: a\n# ------------------------ >8 ------------------------\nNext: b\n",
		"subject\n\nTicket:\nEmpty: \n",
		"subject\n\nTicket: a: b: c\nhttp://example.org/a\n",
		"subject\n\nKey with spaces: a\nkey_with: b\n",
		"subject\n\n  Indented: a\nTicket: b\n",
		"subject\n\nbody\n\n  Indented: a\n",
		"subject\r\n\r\nTicket: HOME-7\r\nNext: b\r\n",
		"subject\n\nTicket: a\n---\nNext: b\n",
		"subject\n\nbody\n---\n\nTicket: a\n",
		"\n\nsubject\n\nTicket: a\n",
		"# comment first\nsubject\n\nTicket: a\n",
		"subject\n \nTicket: a\n",
		"subject\n\nÜmlaut: a\nTicket: b\n",
		"subject\n\n: nothing\nTicket: b\n",
		"subject\n\n-: dash\n1: digit\n",
		"subject\n\nTicket: a\n \nNext: b\n",
		"subject\n\nTicket: a\n   \n\n",
		"", "\n", "subject", "subject\n\n", "\n\nTicket: a\n",
		"subject\n\nTicket: \n  folded from nothing\n",
		"subject\n\nSigned-off-by: a\nx\n y\n z\n",
		"subject\n\nConflicts:\nTicket: a\n",
	}
}

// gitTrailers asks git. Its --no-divider is for messages of commits, in which a line
// of dashes does not begin a patch.
func gitTrailers(t require.TestingT, message string) map[string]string {
	cmd := sourcetest.Git(context.Background(), "", "interpret-trailers", "--parse", "--no-divider")
	cmd.Env = append(cmd.Env, "GIT_DIR=/nonexistent")
	cmd.Stdin = strings.NewReader(message)
	out, err := cmd.Output()
	require.NoError(t, err)
	got := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if line == "\n" {
			continue
		}
		key, value, _ := strings.Cut(line, ":")
		got[key] = strings.TrimSpace(value)
	}
	return got
}

func TestTrailersAreThoseOfGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed, so there is nothing to compare with:", err)
	}
	for _, m := range messages() {
		require.Equal(t, gitTrailers(t, m), parseTrailers(m), "%q", m)
	}
}

// Messages put together from awkward lines.
func TestTrailersOfAnyMessageAreThoseOfGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed, so there is nothing to compare with:", err)
	}
	lines := []string{
		"", "", " ", "text", "Key: value", "Other: b", "Signed-off-by: x", " folded", "\ttab", "# note", "Conflicts:", "a b: c", "---", "No:", "x: y: z",
		"(cherry picked from commit 12)", "# ------------------------ >8 ------------------------",
	}
	rapid.Check(t, func(t *rapid.T) {
		m := strings.Join(rapid.SliceOfN(rapid.SampledFrom(lines), 0, 12).Draw(t, "lines"), "\n")
		if rapid.Bool().Draw(t, "newline") {
			m += "\n"
		}
		require.Equal(t, gitTrailers(t, m), parseTrailers(m), "%q", m)
	})
}

func FuzzTrailers(f *testing.F) {
	for _, m := range messages() {
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, m string) {
		for key, value := range parseTrailers(m) {
			require.NotEmpty(t, key)
			require.NotContains(t, key, "\n")
			require.NotContains(t, value, "\n")
			require.Contains(t, m, key)
		}
	})
}
