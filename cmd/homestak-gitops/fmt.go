package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/hcl"
)

func fmtVerb(a *app) *cobra.Command {
	var check bool
	c := &cobra.Command{
		Use:   "fmt [DIR]",
		Short: "Bring the HCL files of a folder into the one layout",
		Long: `Brings every *.hcl file of a folder (default: the current one) into the one
layout and lists the files that it rewrote. With --check it only lists them, and
exits 2 if there are any.`,
		Args: takes(0, 1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(_ *cobra.Command, args []string) error {
			return runFmt(a, append(args, ".")[0], check)
		},
	}
	c.Flags().BoolVar(&check, "check", false, "write nothing, exit 2 if a file would change")
	return c
}

func runFmt(a *app, dir string, check bool) error {
	files, err := hclFiles(dir)
	if err != nil {
		return fmt.Errorf("list the files of %s: %w", dir, err)
	}
	if len(files) == 0 {
		return fmt.Errorf("%s holds no *.hcl file\na site begins with: homestak-gitops init %s", dir, dir)
	}
	var found diag.List
	var errs []error
	changed := 0
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out, l := hcl.Format(src, name)
		found = append(found, l...)
		if l.HasErrors() || bytes.Equal(src, out) {
			continue
		}
		if !check {
			if err := replaceFile(name, out); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		changed++
		a.ui.printf("%s\n", name)
	}
	a.ui.findings(found)
	switch {
	case len(errs) > 0:
		return errors.Join(errs...)
	case found.HasErrors():
		return &exit.Error{Code: exit.Invalid}
	case check && changed > 0:
		return &exit.Error{Code: exit.Pending}
	default:
		return nil
	}
}

// hclFiles lists the files of a site, in order; a single file stands for itself.
// Hidden folders are no part of a site, and links are left to what they point at.
func hclFiles(dir string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != dir && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.Type().IsRegular() && filepath.Ext(name) == ".hcl":
			files = append(files, name)
		}
		return nil
	})
	return files, err
}

// replaceFile gives a file new contents, all or none of them, and keeps its mode.
func replaceFile(name string, data []byte) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), ".fmt-*")
	if err != nil {
		return fmt.Errorf("rewrite %s: %w", name, err)
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(info.Mode().Perm()), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return fmt.Errorf("rewrite %s: %w", name, err)
	}
	return nil
}
