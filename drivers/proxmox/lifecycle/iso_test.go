package lifecycle_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/drivers/proxmox/lifecycle"
)

type testingT interface {
	require.TestingT
	Helper()
}

// read takes an image apart with somebody else's reader.
func read(t testingT, dir string, image []byte) (label string, files map[string]string) {
	t.Helper()
	f, err := os.CreateTemp(dir, "*.iso")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	_, err = f.Write(image)
	require.NoError(t, err)
	fsys, err := iso9660.Read(file.New(f, true), int64(len(image)), 0, 2048)
	require.NoError(t, err)
	files = map[string]string{}
	entries, err := fsys.ReadDir(".")
	require.NoError(t, err)
	for _, e := range entries {
		data, err := fs.ReadFile(fsys, e.Name())
		require.NoError(t, err, "%s", e.Name())
		files[e.Name()] = string(data)
	}
	return strings.TrimRight(fsys.Label(), " \x00"), files
}

func TestImageIsReadBack(t *testing.T) {
	want := map[string]string{
		"user-data": "#cloud-config\npackages: [nginx]\n", "meta-data": "{}", "network-config": strings.Repeat("x", 5000), "vendor-data": "",
	}
	var list []lifecycle.ImageFile
	for _, name := range []string{"user-data", "meta-data", "network-config", "vendor-data"} {
		list = append(list, lifecycle.ImageFile{Name: name, Data: []byte(want[name])})
	}
	image, err := lifecycle.NewImage(lifecycle.Label, list)
	require.NoError(t, err)
	label, files := read(t, t.TempDir(), image)
	require.Equal(t, "cidata", label)
	require.Equal(t, want, files)
}

// TestImagesOfAllSortsAreReadBack: whatever files are put on, a reader finds them
// and nothing else, and the bytes do not depend on when or in which order.
func TestImagesOfAllSortsAreReadBack(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z][a-z0-9]{0,10}(-[a-z0-9]{1,8})?`), 1, 6, func(s string) string { return strings.ReplaceAll(s, "-", "_") }).Draw(t, "names")
		want, list := map[string]string{}, []lifecycle.ImageFile{}
		for _, n := range names {
			data := bytes.Repeat([]byte{byte(rapid.IntRange(1, 255).Draw(t, "byte"))}, rapid.IntRange(0, 5000).Draw(t, "size"))
			want[n], list = string(data), append(list, lifecycle.ImageFile{Name: n, Data: data})
		}
		image, err := lifecycle.NewImage("cidata", list)
		require.NoError(t, err)
		again, err := lifecycle.NewImage("cidata", rapid.Permutation(list).Draw(t, "order"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(image, again))
		label, files := read(t, dir, image)
		require.Equal(t, "cidata", label)
		require.Equal(t, want, files)
	})
}

// TestOtherToolsReadIt asks the tools of Linux distributions, where they are.
func TestOtherToolsReadIt(t *testing.T) {
	image, err := seed().Image()
	require.NoError(t, err)
	name := filepath.Join(t.TempDir(), "seed.iso")
	require.NoError(t, os.WriteFile(name, image, 0o600))
	for _, c := range []struct {
		tool  string
		args  []string
		holds []string
	}{
		{"isoinfo", []string{"-d", "-i", name}, []string{"Volume id: cidata", "Joliet with UCS level 3 found", "Rock Ridge signatures version 1 found"}},
		{"isoinfo", []string{"-f", "-R", "-i", name}, []string{"/meta-data\n", "/network-config\n", "/user-data\n", "/vendor-data\n"}},
		{"isoinfo", []string{"-f", "-J", "-i", name}, []string{"/meta-data", "/network-config", "/user-data", "/vendor-data"}},
		{"isoinfo", []string{"-R", "-i", name, "-x", "/user-data"}, []string{seed().UserData}},
		{"isoinfo", []string{"-J", "-i", name, "-x", "/user-data"}, []string{seed().UserData}},
		{"xorriso", []string{"-indev", name, "-find", "/"}, []string{"'/user-data'", "'/network-config'"}},
	} {
		t.Run(c.tool+" "+c.args[0]+c.args[1], func(t *testing.T) {
			if _, err := exec.LookPath(c.tool); err != nil {
				t.Skip(c.tool + " is not installed")
			}
			out, err := exec.CommandContext(t.Context(), c.tool, c.args...).CombinedOutput()
			require.NoError(t, err, "%s", out)
			for _, s := range c.holds {
				require.Contains(t, string(out), s)
			}
			require.NotContains(t, strings.ToLower(string(out)), "corrupt")
		})
	}
}

func TestImpossibleImages(t *testing.T) {
	for name, c := range map[string]struct {
		label string
		files []lifecycle.ImageFile
		says  string
	}{
		"no label":       {"", nil, "volume label"},
		"long label":     {strings.Repeat("a", 17), nil, "volume label"},
		"odd label":      {"ä", nil, "volume label"},
		"upper case":     {"cidata", []lifecycle.ImageFile{{Name: "User"}}, "is not possible on a seed image"},
		"path":           {"cidata", []lifecycle.ImageFile{{Name: "a/b"}}, "is not possible on a seed image"},
		"hidden":         {"cidata", []lifecycle.ImageFile{{Name: ".."}}, "is not possible on a seed image"},
		"no name":        {"cidata", []lifecycle.ImageFile{{}}, "is not possible on a seed image"},
		"twice":          {"cidata", []lifecycle.ImageFile{{Name: "a"}, {Name: "a"}}, "are one in ISO 9660"},
		"one in capital": {"cidata", []lifecycle.ImageFile{{Name: "a-b"}, {Name: "a.b"}}, "are one in ISO 9660"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := lifecycle.NewImage(c.label, c.files)
			require.ErrorContains(t, err, c.says)
		})
	}
	var many []lifecycle.ImageFile
	for i := range 40 {
		many = append(many, lifecycle.ImageFile{Name: fmt.Sprintf("file-%d", i)})
	}
	_, err := lifecycle.NewImage("cidata", many)
	require.ErrorContains(t, err, "too many")
}

func TestAnEmptyImageIsSmallerThanAnySeed(t *testing.T) {
	image, err := lifecycle.Seed{}.Image()
	require.NoError(t, err)
	require.Less(t, len(lifecycle.EmptyImage()), len(image))
	label, files := read(t, t.TempDir(), lifecycle.EmptyImage())
	require.Equal(t, "empty", label)
	require.Empty(t, files)
}

// FuzzNames: a name is either refused or read back as it was.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"user-data", "USER-DATA", "a.b", "../x", "", "ü", strings.Repeat("n", 64), strings.Repeat("n", 65), "x;1", "-"} {
		f.Add(s, "text")
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, name, data string) {
		image, err := lifecycle.NewImage("cidata", []lifecycle.ImageFile{{Name: name, Data: []byte(data)}})
		if err != nil {
			return
		}
		require.True(t, utf8.ValidString(name))
		_, files := read(t, dir, image)
		require.Equal(t, map[string]string{name: data}, files)
	})
}
