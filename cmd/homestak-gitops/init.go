package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// scaffold is the site that init writes. A name that begins with "dot." becomes a
// hidden file: go:embed leaves hidden files out.
//
//go:embed scaffold
var scaffold embed.FS

func initVerb(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "init [DIR]",
		Short: "Write a small site to begin with",
		Long: `Writes a small, commented site that validates into a folder (default: the
current one). No file is ever overwritten.`,
		Args: takes(0, 1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(_ *cobra.Command, args []string) error {
			return runInit(a, append(args, ".")[0])
		},
	}
}

func runInit(a *app, dir string) error {
	files, err := scaffoldFiles()
	if err != nil {
		return err
	}
	// All or nothing: half a scaffold among other files would be no site.
	if have, err := hclFiles(dir); err == nil && len(have) > 0 {
		return fmt.Errorf("%s holds HCL files already, such as %s\nchoose another folder: homestak-gitops init DIR", dir, have[0])
	}
	for name := range files {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is there already, and nothing is overwritten\nchoose another folder: homestak-gitops init DIR", filepath.Join(dir, name))
		}
	}
	for name, data := range files {
		if err := createFile(filepath.Join(dir, name), data); err != nil {
			return fmt.Errorf("write the site: %w", err)
		}
	}
	in := ""
	if dir != "." {
		in = "cd " + dir + "\n  "
	}
	a.ui.printf(`A small site is in %s. Look at its files, they are short, then:

  %shomestak-gitops validate       is it right?
  homestak-gitops plan --sim     what would happen, on a simulated host
  homestak-gitops apply --sim    make it happen there

For a real host: put its address into hosts/father.hcl and its API token into
secrets.yaml (git ignores that file):

  api_tokens:
    father: "user@pve!name=secret"
`, dir, in)
	return nil
}

// scaffoldFiles gives the files of the scaffold by the name they get.
func scaffoldFiles() (map[string][]byte, error) {
	files := map[string][]byte{}
	err := fs.WalkDir(scaffold, "scaffold", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := scaffold.ReadFile(name)
		base := filepath.Base(name)
		if hidden, ok := strings.CutPrefix(base, "dot."); ok {
			base = "." + hidden
		}
		files[filepath.Join(strings.TrimPrefix(filepath.Dir(name), "scaffold"), base)] = data
		return err
	})
	return files, err
}

// createFile makes a file that must not exist, and its folder.
func createFile(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
