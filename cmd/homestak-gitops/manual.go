package main

// This file writes the pages that are generated from the program.

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/policy"
)

// writeManual writes the man pages of a command, and its pages about commands and language, into
// a folder: man/*.1, commands.md and reference.md. The same program writes the same bytes.
func writeManual(root *cobra.Command, kinds model.Kinds, dir string) error {
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
	if err := errors.Join(hcl.Reference(&language, kinds), policy.Reference(&language)); err != nil {
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
