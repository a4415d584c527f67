package service

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/model"
)

// outputSite is a site with outputs, whose templates are their texts.
func outputSite(outputs ...*model.Output) engine.Desired {
	s := &model.Site{Name: "home", Hosts: map[string]*model.Host{"father": {Name: "father"}, "below": {Name: "below", Parent: "father"}}, Outputs: map[string]*model.Output{}}
	for _, o := range outputs {
		s.Outputs[o.Name] = o
	}
	return engine.Desired{Site: s, Render: func(context.Context, map[string]any) (map[string]model.Rendered, error) {
		out := map[string]model.Rendered{}
		for _, o := range outputs {
			out[o.Name] = model.Rendered{Text: o.Template}
			if o.Template == "" {
				out[o.Name] = model.Rendered{Error: "no template"}
			}
		}
		return out, nil
	}}
}

func TestOutputsAreWrittenReplacedAndRemoved(t *testing.T) {
	w := &outputs{dir: t.TempDir()}
	at := filepath.Join(w.dir, "outputs", "sub", "hosts")
	write := func(outputs ...*model.Output) []agent.OutputStatus {
		return w.writeAll(t.Context(), "father", outputSite(outputs...), nil, nil)
	}
	first := write(&model.Output{Name: "hosts", Template: "one\n", To: "sub/hosts"})
	require.Len(t, first, 1)
	require.Empty(t, first[0].Error)
	require.NotNil(t, first[0].Changed)
	require.Equal(t, "one\n", read(t, at))
	info, err := os.Stat(at)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), info.Mode())

	require.Nil(t, write(&model.Output{Name: "hosts", Template: "one\n", To: "sub/hosts"})[0].Changed, "nothing is written twice")
	require.NoError(t, os.WriteFile(at, []byte("edited"), 0o600))
	require.NotNil(t, write(&model.Output{Name: "hosts", Template: "two\n", To: "sub/hosts"})[0].Changed)
	require.Equal(t, "two\n", read(t, at))

	require.Equal(t, "no template", write(&model.Output{Name: "hosts", To: "sub/hosts"})[0].Error)
	require.Equal(t, "two\n", read(t, at), "a text that cannot be rendered leaves the last one")

	require.Empty(t, write(&model.Output{Name: "printed", Template: "x"}, &model.Output{Name: "elsewhere", Template: "x", To: "x", Host: "below"}))
	require.NoFileExists(t, at)
}

// Files that this agent did not write stay as they are, also after the output left the site.
func TestOutputsReplaceNothingOfOthers(t *testing.T) {
	w := &outputs{dir: t.TempDir()}
	at := filepath.Join(w.dir, "outputs", "hosts")
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(t, os.WriteFile(at, []byte("of others"), 0o600))
	o := &model.Output{Name: "hosts", Template: "ours", To: "hosts"}
	require.Contains(t, w.writeAll(t.Context(), "father", outputSite(o), nil, nil)[0].Error, "exists, and this agent did not write it")
	w.writeAll(t.Context(), "father", outputSite(), nil, nil)
	require.Equal(t, "of others", read(t, at))

	require.NoError(t, os.Remove(at))
	require.Empty(t, w.writeAll(t.Context(), "father", outputSite(o), nil, nil)[0].Error)
	require.NoError(t, os.WriteFile(at, []byte("edited by hand"), 0o600))
	w.writeAll(t.Context(), "father", outputSite(), nil, nil)
	require.Equal(t, "edited by hand", read(t, at), "what was edited since is not removed")
}

// A commit chooses no file of the machine, but in a folder that agent.hcl permits; a link does not lead out of it.
func TestOutputsStayInTheirFolders(t *testing.T) {
	permitted, other := t.TempDir(), t.TempDir()
	w := &outputs{dir: t.TempDir(), folders: []string{permitted, permitted + "-none", "/sys"}}
	require.NoError(t, os.Symlink(other, filepath.Join(permitted, "link")))
	for to, want := range map[string]string{
		filepath.Join(permitted, "hosts"):     "",
		filepath.Join(other, "hosts"):         "is in no folder that output_folders of agent.hcl permits",
		permitted:                             "is in no folder that output_folders of agent.hcl permits",
		permitted + "-2/hosts":                "is in no folder that output_folders of agent.hcl permits",
		filepath.Join(permitted, "link", "x"): "path escapes from parent",
		permitted + "-none/hosts":             "no such file or directory: run install -d -o homestak-gitops " + permitted + "-none, and set ReadWritePaths=",
		"/sys/hosts":                          "and set ReadWritePaths=/sys with systemctl edit homestak-gitops", // the kernel lets no one create files there
	} {
		got := w.writeAll(t.Context(), "father", outputSite(&model.Output{Name: "o", Template: "x", To: to}), nil, nil)[0].Error
		if want == "" {
			require.Empty(t, got)
		} else {
			require.Contains(t, got, want, to)
		}
	}
	left, err := os.ReadDir(other)
	require.NoError(t, err)
	require.Empty(t, left)
}

// A crash between the entry and the file leaves a file that the next pass knows, or none.
func TestACrashWhileAnOutputIsWritten(t *testing.T) {
	w := &outputs{dir: t.TempDir()}
	o := &model.Output{Name: "hosts", Template: "new\n", To: "hosts"}
	at := filepath.Join(w.dir, "outputs", "hosts")
	require.NoError(t, w.keep(written{at: sumOf("new\n")}))
	require.NotNil(t, w.writeAll(t.Context(), "father", outputSite(o), nil, nil)[0].Changed)
	require.Equal(t, "new\n", read(t, at))
	text, known := WrittenOutput(w.dir, o)
	require.True(t, known)
	require.Equal(t, "new\n", text)
}

func TestOutputsOfARepository(t *testing.T) {
	var pushed []string
	fail := errors.New("refused")
	w := &outputs{dir: t.TempDir(), push: func(_ context.Context, o *model.Output, text string) error {
		pushed = append(pushed, o.Repository.Branch+" "+text)
		return fail
	}}
	o := &model.Output{Name: "zone", Template: "a", To: "zone", Repository: &model.OutputRepository{URL: "https://git.example/dns", Branch: "outputs"}}
	require.Equal(t, "refused", w.writeAll(t.Context(), "father", outputSite(o), nil, nil)[0].Error)
	fail = nil
	for range 2 {
		require.Empty(t, w.writeAll(t.Context(), "father", outputSite(o), nil, nil)[0].Error)
	}
	require.Equal(t, []string{"outputs a", "outputs a"}, pushed, "it is tried again, and not committed twice")
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(b)
}
