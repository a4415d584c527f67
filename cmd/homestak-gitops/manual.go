package main

// This part of the package writes what is generated from the program: man pages, and the pages about the
// command line and the site language.

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// WriteManual writes the man pages of a command, and its pages about commands and language, into
// a folder: man/*.1, commands.md and reference.md. The same program writes the same bytes.
func WriteManual(root *cobra.Command, kinds model.Kinds, dir string) error {
	root.DisableAutoGenTag = true
	root.InitDefaultCompletionCmd()
	man := filepath.Join(dir, "man")
	if err := os.MkdirAll(man, 0o755); err != nil {
		return fmt.Errorf("write the pages: %w", err)
	}
	header := &doc.GenManHeader{Section: "1", Source: "homestak-gitops", Manual: "homestak-gitops", Date: builtAt()}
	if err := doc.GenManTree(root, header, man); err != nil {
		return fmt.Errorf("write the man pages: %w", err)
	}
	var language bytes.Buffer
	if err := hcl.Reference(&language, kinds); err != nil {
		return fmt.Errorf("write the reference of the language: %w", err)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "commands.md"), commandsPage(root), 0o644),
		os.WriteFile(filepath.Join(dir, "reference.md"), language.Bytes(), 0o644),
	)
}

// builtAt is the time of the commit that the program was built from; nil, which
// leaves it to SOURCE_DATE_EPOCH, where that is not known.
func builtAt() *time.Time {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.time" {
			if t, err := time.Parse(time.RFC3339, s.Value); err == nil {
				return &t
			}
		}
	}
	return nil
}

// commandsPage is one page about all verbs, with the table of exit codes.
func commandsPage(root *cobra.Command) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# The command line\n\n<!-- Made by `homestak-gitops docs`; do not edit. -->\n\n%s\n", root.Long)
	verbPages(&b, root, "##")
	fmt.Fprint(&b, "\n## Everywhere\n")
	flagTable(&b, root.PersistentFlags())
	fmt.Fprint(&b, "\n## Exit codes\n\n| code | means |\n|---|---|\n")
	for _, c := range ui.ExitMeanings() {
		fmt.Fprintf(&b, "| %d | %s |\n", c.Code, c.Meaning)
	}
	return b.Bytes()
}

// verbPages writes a section on every verb, and below it on the verbs of that verb.
func verbPages(b *bytes.Buffer, of *cobra.Command, level string) {
	for _, c := range of.Commands() {
		if !c.IsAvailableCommand() || c.Name() == "help" {
			continue
		}
		name := strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ")
		fmt.Fprintf(b, "\n%s %s\n\n%s.\n\n    %s\n", level, name, c.Short, c.UseLine())
		if c.Long != "" {
			fmt.Fprintf(b, "\n%s\n", c.Long)
		}
		flagTable(b, c.NonInheritedFlags())
		if c.Name() != "completion" { // its verbs are the shells, which its own help shows
			verbPages(b, c, level+"#")
		}
	}
}

func flagTable(b *bytes.Buffer, fs *pflag.FlagSet) {
	var rows strings.Builder
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "--" + f.Name
		kind, usage := pflag.UnquoteUsage(f)
		if kind != "" {
			name += " " + kind
		}
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if def := f.DefValue; def != "" && def != "false" && def != "[]" && def != "0s" && def != "0" {
			usage += fmt.Sprintf(" (default: %s)", def)
		}
		fmt.Fprintf(&rows, "| `%s` | %s |\n", name, strings.ReplaceAll(usage, "|", `\|`))
	})
	if rows.Len() > 0 {
		fmt.Fprintf(b, "\n| flag | does |\n|---|---|\n%s", rows.String())
	}
}
