package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/drivers/proxmox/importer"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

func convertVerb(a *app) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use:   "convert DIR --out NEW",
		Short: "Make a site of the YAML files of the predecessor",
		Long: `DIR has site.yaml, hosts, nodes, presets, postures, specs and manifests (version 1 and 2).
Names stay the same. What cannot be converted becomes a comment with the reason, and a line of the
report. The manifests become recipes: add host to the one that you deploy.

Secrets go into secrets.yaml, which only your user can read; a file that SOPS encrypted
stays encrypted. All files are written, or none; an existing file is never overwritten.
Unknown keys, anchors, links and wrong types are errors. Exit code 3 means that the new
site has findings.`,
		Args: ui.TakesArgs(1, 1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: a.soon(func(ctx context.Context, args []string) error { return runConvert(ctx, a, args[0], out) }),
	}
	c.Flags().StringVar(&out, "out", "", "`DIR`: folder of the new site")
	a.ui.JSONFlag(c)
	ui.Must(c.MarkFlagDirname("out"))
	return c
}

// conversionReport is the document of convert.
type conversionReport struct {
	*importer.Conversion
	Success  bool      `json:"success"`
	Findings diag.List `json:"findings"` // of the YAML, or of the new site
}

func runConvert(ctx context.Context, a *app, dir, out string) error {
	a.ui.Document = func(err error) any { return conversionReport{nil, false, ui.ErrorFindings(err)} }
	if out == "" {
		return errors.New("say where the site goes: --out NEW")
	}
	if have, err := hcl.Files(out); err == nil && len(have) > 0 {
		return fmt.Errorf("%s already contains HCL files, such as %s\nchoose another folder with --out", out, have[0])
	}
	made, found, err := convertFolder(dir, out)
	if err != nil {
		return err
	}
	if made == nil {
		return concludeConversion(a, conversionReport{nil, false, found})
	}
	if made.Files[".gitignore"], err = scaffoldSite.ReadFile("site/dot.gitignore"); err != nil {
		return err
	}
	if err := inPlace(out, func(dir string) error { return writeFiles(dir, made.Files) }); err != nil {
		return fmt.Errorf("write the site: %w\nchoose another folder with --out", err)
	}
	s, err := a.sites.Open(ctx, &session.Flags{Dir: out})
	if err != nil {
		return err
	}
	defer s.Close()
	_, valid := s.Verdict(s.Desired.Findings)
	if !a.ui.JSON {
		var text strings.Builder
		made.Text(&text)
		a.ui.Wrapf("%s", text.String())
		a.ui.Printf("\nread the comments that begin with \"Check\" and \"Not converted\", then:\n\n  homestak-gitops validate --site %s\n", out)
	}
	return concludeConversion(a, conversionReport{made, valid, append(diag.List{}, s.Desired.Findings...)})
}

// concludeConversion reports the findings and, with --json, the document.
func concludeConversion(a *app, doc conversionReport) error {
	a.ui.Findings(doc.Findings)
	var err error
	if a.ui.JSON {
		err = a.ui.Emit(doc)
	}
	if !doc.Success {
		err = errors.Join(err, ui.ExitInvalid.With(nil))
	}
	return err
}

// convertFolder converts the files in a folder; nothing outside of it is read.
func convertFolder(dir, out string) (*importer.Conversion, diag.List, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("open the folder of the predecessor: %w", err)
	}
	defer func() { _ = root.Close() }()
	name, err := siteName(out)
	if err != nil {
		return nil, nil, err
	}
	made, found := importer.Convert(root.FS(), name, "homestak-gitops "+thisBuild().Version, model.NewOwnershipKey())
	return made, found, nil
}
