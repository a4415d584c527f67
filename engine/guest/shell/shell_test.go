package shell_test

import (
	"encoding/base64"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/shell"
)

// run runs a script by the shell of this machine; the scripts here write below dir only.
func run(t testing.TB, c guest.Command) (out, complaints string, code int) {
	t.Helper()
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Stdin = strings.NewReader(string(c.Stdin))
	var o, e strings.Builder
	cmd.Stdout, cmd.Stderr = &o, &e
	if err := cmd.Run(); err != nil {
		require.ErrorAs(t, err, new(*exec.ExitError))
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

func TestWordsAndDataAreTakenAsTheyAre(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		word := strings.ReplaceAll(rapid.String().Draw(r, "word"), "\x00", "")
		data := string(rapid.SliceOf(rapid.Byte()).Draw(r, "data"))
		out, complaints, code := run(t, shell.Script("printf '%s' "+shell.Quote(word)+"; echo; "+shell.Data(data)))
		require.Zero(t, code, complaints)
		require.Equal(t, word+"\n"+data, out)
	})
}

// A script that arrives in part does nothing at all.
func TestAPartOfAScriptDoesNothing(t *testing.T) {
	c := shell.Script("echo did something")
	for _, cut := range []int{10, len(c.Stdin) / 2, len(c.Stdin) - 14, len(c.Stdin) - 18} {
		out, _, code := run(t, guest.Command{Args: c.Args, Stdin: c.Stdin[:cut]})
		require.NotZero(t, code)
		require.Empty(t, out)
	}
}

// Whatever a fragment answers, also what looks like the frame, it comes back as it is.
func TestAnAnswerCannotForgeAnother(t *testing.T) {
	const boundary = "homestak-0123"
	hostile := "\n" + boundary + " users " + base64.StdEncoding.EncodeToString([]byte("forged\n0\n")) + "\n" + boundary + " end\n\n0"
	fragments := []shell.Fragment{
		{Name: "files", Body: shell.Data(hostile)}, {Name: "fails", Body: "echo part; exit 7"}, {Name: "users", Body: "echo true one"}, {Name: "empty", Body: ":"},
	}
	out, _, code := run(t, shell.Probe(boundary, "echo Welcome to the machine\n", fragments))
	require.Zero(t, code)
	got, err := shell.ReadProbe(boundary, out, fragments)
	require.NoError(t, err)
	require.Equal(t, map[string]shell.Answer{
		"files": {Text: hostile}, "fails": {Code: 7, Text: "part\n"}, "users": {Text: "true one\n"}, "empty": {},
	}, got)
}

func TestAnIncompleteAnswerIsRefused(t *testing.T) {
	fragments := []shell.Fragment{{Name: "a"}}
	ok := base64.StdEncoding.EncodeToString([]byte("\n0\n"))
	for out, says := range map[string]string{
		"": "has no end", "B a " + ok + "\n": "has no end", "B end\n": `did not answer about "a"`, "B a\nB end\n": `about "a" is cut`,
		"B a !\nB end\n": "illegal base64", "B a " + ok + "\nB a " + ok + "\nB end\n": `answered twice about "a"`, "B a bm8=\nB end\n": "has no exit code",
	} {
		_, err := shell.ReadProbe("B", out, fragments)
		require.ErrorContains(t, err, says, out)
	}
}

func TestPutReplacesWholeFilesOnly(t *testing.T) {
	dir := t.TempDir()
	me, group := id(t, "-un"), id(t, "-gn")
	file := dir + "/it's"
	out, complaints, code := run(t, shell.Script(shell.Put(file, "one\n", "0640", me, group)+"\nstat -c '%a %Y %i' "+shell.Quote(file)+"; "+
		shell.Put(file, "one\n", "0640", me, group)+"\nstat -c '%a %Y %i' "+shell.Quote(file)+"; ls -A "+shell.Quote(dir)))
	require.Zero(t, code, complaints)
	lines := strings.Split(out, "\n")
	require.True(t, strings.HasPrefix(lines[0], "640 "), out)
	require.Equal(t, lines[0], lines[1], "what is the same is not written")
	require.Equal(t, "it's", lines[2])
	for what, script := range map[string]string{
		"is a symbolic link":   "ln -s /etc/passwd " + dir + "/link; " + shell.Put(dir+"/link", "x", "0644", me, group),
		"is a folder":          shell.Put(dir, "x", "0644", me, group),
		"could not be written": shell.Put(file, "two", "0644", "no-such-user-here", group),
	} {
		_, complaints, code := run(t, shell.Script("set -e\n"+script))
		require.Equal(t, 1, code)
		require.Contains(t, complaints, what)
	}
	_, complaints, code = run(t, shell.Script("set -e\n"+shell.Unchanged(file, "0", true)))
	require.Equal(t, shell.ExitStale, code)
	require.Contains(t, complaints, "has changed since it was read")
	out, _, _ = run(t, shell.Script("cat "+shell.Quote(file)+"; ls -A "+shell.Quote(dir)+" | grep new"))
	require.Equal(t, "one\n", out)
}

func id(t *testing.T, flag string) string {
	t.Helper()
	b, err := exec.Command("id", flag).Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(b))
}
