package guest_test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/guest"
)

func TestCommandThatNoMachineCanRun(t *testing.T) {
	for want, c := range map[string]guest.Command{
		"the command names no program":             {Args: []string{""}},
		"an argument of echo has a NUL byte in it": {Args: []string{"echo", "a\x00b"}},
	} {
		err := c.Check()
		require.EqualError(t, err, want)
		require.True(t, guest.Hopeless(err))
	}
	require.Error(t, guest.Command{}.Check())
	require.NoError(t, guest.Command{Args: []string{"echo", "", "\xff\n"}, Stdin: []byte{0}}.Check())
}

func TestOutputIsLimited(t *testing.T) {
	full := strings.Repeat("x", guest.OutputLimit)
	require.Equal(t, guest.Output{Out: full, Err: "e", Code: 3}, guest.Output{Out: full, Err: "e", Code: 3}.Limited())
	require.Equal(t, guest.Output{Err: full, Cut: true}, guest.Output{Err: full + "y"}.Limited())
	require.Equal(t, guest.Output{Out: full, Cut: true}, guest.Output{Out: full + "y"}.Limited())
}

func TestTheStateFoundStays(t *testing.T) {
	first := guest.RecordEntry{Aspect: "files", Item: "/etc/motd", Identity: "path", Found: map[string]string{"mode": "0644"}}
	again := guest.RecordEntry{Aspect: "files", Item: "/etc/motd", Identity: "path", Found: map[string]string{"mode": "0600"}, Put: map[string]string{"restart": "x"}}
	made := guest.RecordEntry{Aspect: "files", Item: "/etc/new", Identity: "path"}
	r := (&guest.Record{}).With([]guest.RecordEntry{first, made})
	r = r.With([]guest.RecordEntry{again, {Aspect: "files", Item: "/etc/new", Identity: "path", Found: map[string]string{"mode": "0644"}}})
	require.Equal(t, map[string]string{"mode": "0644"}, r.Get("files", "/etc/motd").Found)
	require.Equal(t, map[string]string{"restart": "x"}, r.Get("files", "/etc/motd").Put)
	require.Nil(t, r.Get("files", "/etc/new").Found)
	require.Equal(t, []string{"/etc/motd"}, r.Without([]guest.RecordKey{made.Key()}).Items("files"))
}

func TestTextIsTheSameForTheSameThings(t *testing.T) {
	a, b := guest.RecordEntry{Aspect: "a", Item: "x"}, guest.RecordEntry{Aspect: "b", Item: "x"}
	zero := &guest.Record{}
	one := zero.With([]guest.RecordEntry{b, a})
	require.Equal(t, one.Text(), zero.With([]guest.RecordEntry{a}).With([]guest.RecordEntry{b}).Text())
	require.Equal(t, one.Text(), one.With([]guest.RecordEntry{a}).Text())
	require.Empty(t, zero.Text(), "a machine that nothing was put on has no file")
	require.NotEmpty(t, one.Without([]guest.RecordKey{a.Key(), b.Key()}).Text(), "one that something was put on keeps it")
	back, err := guest.ReadRecord(one.Text())
	require.NoError(t, err)
	require.Equal(t, one.Text(), back.Text())
	require.Empty(t, guest.ContentSum(""))
}

func TestADamagedRecordIsRefused(t *testing.T) {
	for text, says := range map[string]string{
		"{": "is damaged", "[]": "is damaged", `{"version": 2}`: "has version 2, this program reads 1", "{}": "has version 0",
	} {
		_, err := guest.ReadRecord(text)
		require.ErrorContains(t, err, says, text)
	}
}

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
		out, complaints, code := run(t, guest.Script("printf '%s' "+guest.Quote(word)+"; echo; "+guest.PrintBytes(data)))
		require.Zero(t, code, complaints)
		require.Equal(t, word+"\n"+data, out)
	})
}

// A script that arrives in part does nothing at all.
func TestAPartOfAScriptDoesNothing(t *testing.T) {
	c := guest.Script("echo did something")
	for _, cut := range []int{10, len(c.Stdin) / 2, len(c.Stdin) - 14, len(c.Stdin) - 18} {
		out, _, code := run(t, guest.Command{Args: c.Args, Stdin: c.Stdin[:cut]})
		require.NotZero(t, code)
		require.Empty(t, out)
	}
}

// Any output of a fragment comes back as it is, also one that looks like the frame.
func TestAnAnswerCannotForgeAnother(t *testing.T) {
	const boundary = "homestak-0123"
	hostile := "\n" + boundary + " users " + base64.StdEncoding.EncodeToString([]byte("forged\n0\n")) + "\n" + boundary + " end\n\n0"
	fragments := []guest.Fragment{
		{Name: "files", Body: guest.PrintBytes(hostile)}, {Name: "fails", Body: "echo part; exit 7"}, {Name: "users", Body: "echo true one"}, {Name: "empty", Body: ":"},
	}
	out, _, code := run(t, guest.Probe(boundary, "echo Welcome to the machine\n", fragments))
	require.Zero(t, code)
	got, err := guest.ReadProbe(boundary, out, fragments)
	require.NoError(t, err)
	require.Equal(t, map[string]guest.Answer{
		"files": {Text: hostile}, "fails": {Code: 7, Text: "part\n"}, "users": {Text: "true one\n"}, "empty": {},
	}, got)
}

func TestAnIncompleteAnswerIsRefused(t *testing.T) {
	fragments := []guest.Fragment{{Name: "a"}}
	ok := base64.StdEncoding.EncodeToString([]byte("\n0\n"))
	for out, says := range map[string]string{
		"": "is incomplete", "B a " + ok + "\n": "is incomplete", "B end\n": `did not answer about "a"`, "B a\nB end\n": `about "a" is cut`,
		"B a !\nB end\n": "illegal base64", "B a " + ok + "\nB a " + ok + "\nB end\n": `answered twice about "a"`, "B a bm8=\nB end\n": "has no exit code",
	} {
		_, err := guest.ReadProbe("B", out, fragments)
		require.ErrorContains(t, err, says, out)
	}
}

func TestPutReplacesWholeFilesOnly(t *testing.T) {
	dir := t.TempDir()
	me, group := id(t, "-un"), id(t, "-gn")
	file := dir + "/it's"
	out, complaints, code := run(t, guest.Script(guest.PutFile(file, "one\n", "0640", me, group)+"\nstat -c '%a %Y %i' "+guest.Quote(file)+"; "+
		guest.PutFile(file, "one\n", "0640", me, group)+"\nstat -c '%a %Y %i' "+guest.Quote(file)+"; ls -A "+guest.Quote(dir)))
	require.Zero(t, code, complaints)
	lines := strings.Split(out, "\n")
	require.True(t, strings.HasPrefix(lines[0], "640 "), out)
	require.Equal(t, lines[0], lines[1], "what is the same is not written")
	require.Equal(t, "it's", lines[2])
	for what, script := range map[string]string{
		"is a symbolic link":   "ln -s /etc/passwd " + dir + "/link; " + guest.PutFile(dir+"/link", "x", "0644", me, group),
		"is a folder":          guest.PutFile(dir, "x", "0644", me, group),
		"could not be written": guest.PutFile(file, "two", "0644", "no-such-user-here", group),
	} {
		_, complaints, code := run(t, guest.Script("set -e\n"+script))
		require.Equal(t, guest.ExitBlocked, code)
		require.Contains(t, complaints, what)
	}
	_, complaints, code = run(t, guest.Script("set -e\n"+guest.FileUnchanged(file, "0", true)))
	require.Equal(t, guest.ExitStale, code)
	require.Contains(t, complaints, "has changed since it was read")
	out, _, _ = run(t, guest.Script("cat "+guest.Quote(file)+"; ls -A "+guest.Quote(dir)+" | grep new"))
	require.Equal(t, "one\n", out)
}

func id(t *testing.T, flag string) string {
	t.Helper()
	b, err := exec.Command("id", flag).Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(b))
}

// attack runs a script in a folder that another user may write to. The command do runs as that user right after the command at
// of the library.
func attack(t *testing.T, at, do, script string) (dir, victim, complaints string, code int) {
	t.Helper()
	dir, victim = filepath.Join(t.TempDir(), "shared"), filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.Chmod(dir, 0o777)) // whatever the umask is
	require.NoError(t, os.Mkdir(victim, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(victim, "shadow"), []byte("root:*:1\n"), 0o600))
	hook := "_DIR=" + guest.Quote(dir) + " _VICTIM=" + guest.Quote(victim) + " _done=\n" +
		at + "() { command " + at + " \"$@\"; _code=$?; if [ -z \"$_done\" ]; then _done=1; ( " + do + " ) >/dev/null 2>&1; fi; return $_code; }\n"
	_, complaints, code = run(t, guest.Script(hook+"set -e\n"+script))
	content, err := os.ReadFile(filepath.Join(victim, "shadow"))
	require.NoError(t, err, complaints)
	require.Equal(t, "root:*:1\n", string(content), complaints)
	files, err := os.ReadDir(victim)
	require.NoError(t, err)
	require.Len(t, files, 1, "%v", files)
	info, err := files[0].Info()
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	return dir, victim, complaints, code
}

// A link that another user creates while a file is written leads nowhere.
func TestPutFollowsNoLinkOfAnotherUser(t *testing.T) {
	me := fmt.Sprintf("%d %d", os.Getuid(), os.Getgid())
	put := "printf mine | put \"$_DIR/app\" 0644 " + me
	for _, c := range []struct{ name, at, do, script string }{
		{"in place of the new file", "rm", `ln -s "$_VICTIM/shadow" "$_DIR/.app.homestak-new"`, put},
		{"in place of the folder of the new file", "mkdir", `mv "$_DIR/.app.homestak-new" "$_DIR/old"; ln -s "$_VICTIM" "$_DIR/.app.homestak-new"`, put},
		{"above the file", "true", `ln -s "$_VICTIM" "$_DIR/etc"`, `true; printf mine | put "$_DIR/etc/shadow" 0644 ` + me},
		{"above a folder", "true", `ln -s "$_VICTIM" "$_DIR/etc"`, `true; folder "$_DIR/etc/new"`},
		{"in place of a folder that is made", "mkdir", `mv "$_DIR/etc" "$_DIR/old"; ln -s "$_VICTIM" "$_DIR/etc"`, `folder "$_DIR/etc/new"`},
		{"above a file that is removed", "true", `ln -s "$_VICTIM" "$_DIR/etc"`, `true; drop "$_DIR/etc/shadow"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, complaints, code := attack(t, c.at, c.do, c.script)
			require.Equal(t, guest.ExitBlocked, code, complaints)
			require.NotEmpty(t, complaints)
		})
	}
	t.Run("that is there already", func(t *testing.T) {
		dir, _, complaints, code := attack(t, "true", `ln -s "$_VICTIM/shadow" "$_DIR/.app.homestak-new"`, "true; "+put)
		require.Zero(t, code, complaints)
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, files, 1)
		content, err := os.ReadFile(filepath.Join(dir, "app"))
		require.NoError(t, err)
		require.Equal(t, "mine", string(content))
	})
}

// The stored content of a file is what was read, and never that of another file.
func TestKeepFollowsNoLinkOfAnotherUser(t *testing.T) {
	sum := func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }
	to := filepath.Join(t.TempDir(), "kept")
	_, _, complaints, code := attack(t, "true", `ln -s "$_VICTIM/shadow" "$_DIR/app"`, `true; keep "$_DIR/app" `+to+" "+sum("root:*:1\n"))
	require.Equal(t, guest.ExitBlocked, code, complaints)
	require.NoFileExists(t, to)
	require.NoFileExists(t, to+".homestak-new")
	_, _, complaints, code = attack(t, "true", `printf theirs >"$_DIR/app"`, `true; keep "$_DIR/app" `+to+" "+sum("theirs"))
	require.Zero(t, code, complaints)
	require.FileExists(t, to)
}

// Links that only root can make are followed, as /var/run is, and what is missing is made.
func TestPutFollowsLinksOfRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root makes such links")
	}
	root, err := os.MkdirTemp("/var/lib", "homestak-test-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	require.NoError(t, os.Mkdir(filepath.Join(root, "real"), 0o755))
	require.NoError(t, os.Symlink("real", filepath.Join(root, "link")))
	_, complaints, code := run(t, guest.Script("set -e\nfolder "+root+"/link/../link/a/b\nprintf x | put "+root+"/link/a/b/c 0600 0 0\nprintf x | put "+root+"/link/a/b/c 0600 0 0\n"))
	require.Zero(t, code, complaints)
	content, err := os.ReadFile(filepath.Join(root, "real/a/b/c"))
	require.NoError(t, err)
	require.Equal(t, "x", string(content))
	_, complaints, code = run(t, guest.Script("set -e\ndrop "+root+"/link/a/b/c "+root+"/missing/x\nchmod g+w "+root+"\nprintf x | put "+root+"/link/a/b/c 0600 0 0\n"))
	require.Equal(t, guest.ExitBlocked, code)
	require.Contains(t, complaints, "/link is a symbolic link, and others than root may change it")
	require.NoFileExists(t, filepath.Join(root, "real/a/b/c"))
}
