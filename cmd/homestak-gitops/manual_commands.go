package main

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
)

// commandsPage is one page about all verbs, with the table of exit codes. Flags that mean the
// same for two verbs or more have one list for all of them.
func commandsPage(root *cobra.Command) []byte {
	shared := sharedFlags(root)
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Commands\n\n<!-- Made by `homestak-gitops docs`; do not edit. -->\n\n%s\n", root.Long)
	verbPages(&b, root, "##", shared)
	fmt.Fprint(&b, "\n## Shared flags\n\nAll commands have `--color` and `--verbose`.\n\n")
	for _, g := range flagGroups {
		fmt.Fprintf(&b, "* *%s*: `--%s`\n", g[0], strings.Join(g[1:], "`, `--"))
	}
	fmt.Fprintln(&b)
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) { shared[f.Name] = flagRow(f) })
	for _, name := range slices.Sorted(maps.Keys(shared)) {
		b.WriteString(shared[name])
	}
	fmt.Fprint(&b, "\n## Exit codes\n\n| code | means |\n|---|---|\n")
	meanings := ui.ExitMeanings()
	for _, code := range slices.Sorted(maps.Keys(meanings)) {
		fmt.Fprintf(&b, "| %d | %s |\n", code, meanings[code])
	}
	return b.Bytes()
}

// flagGroups are shared flags that many verbs have together, each after the name of its group.
var flagGroups = [][]string{
	{"site", "host", "manifest", "mode", "secrets", "site", "timeout", "var"},
	{"agent", "config", "data-dir", "socket"},
	{"server", "key-file", "pin", "server"},
}

// sharedFlags returns the rows of the shared flags by their names. If a name has several
// meanings, the row is the one of most verbs.
func sharedFlags(root *cobra.Command) map[string]string {
	uses := map[string]int{} // by row
	rows := map[string]string{}
	var visit func(of *cobra.Command)
	visit = func(of *cobra.Command) {
		of.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if row := flagRow(f); row != "" {
				uses[row]++
				if uses[row] >= 2 && uses[row] > uses[rows[f.Name]] {
					rows[f.Name] = row
				}
			}
		})
		for _, c := range of.Commands() {
			if c.Name() != "completion" {
				visit(c)
			}
		}
	}
	visit(root)
	return rows
}

// verbPages writes a section on every verb, and below it on the verbs of that verb.
func verbPages(b *bytes.Buffer, of *cobra.Command, level string, shared map[string]string) {
	for _, c := range of.Commands() {
		if !c.IsAvailableCommand() || c.Name() == "help" {
			continue
		}
		name := strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ")
		fmt.Fprintf(b, "\n%s %s\n\n%s.\n", level, name, c.Short)
		if use := strings.TrimSuffix(c.UseLine(), " [flags]"); use != c.CommandPath() {
			fmt.Fprintf(b, "\n    %s\n", use)
		}
		if c.Name() == "completion" { // its verbs are the shells, which its own help shows
			continue
		}
		if c.Long != "" {
			fmt.Fprintf(b, "\n%s\n", c.Long)
		}
		flagList(b, c.NonInheritedFlags(), shared)
		verbPages(b, c, level+"#", shared)
	}
}

// flagList writes the flags that only few verbs have, and the names of the others.
func flagList(b *bytes.Buffer, fs *pflag.FlagSet, shared map[string]string) {
	var rows strings.Builder
	var others []string
	fs.VisitAll(func(f *pflag.Flag) {
		switch row := flagRow(f); {
		case row == "":
		case shared[f.Name] == row:
			others = append(others, f.Name)
		default:
			rows.WriteString(row)
		}
	})
	if rows.Len() > 0 {
		fmt.Fprintf(b, "\n%s", rows.String())
	}
	var names []string
	for _, g := range flagGroups {
		rest := slices.DeleteFunc(slices.Clone(others), func(name string) bool { return slices.Contains(g[1:], name) })
		if len(rest) == len(others)-len(g[1:]) {
			names, others = append(names, "*"+g[0]+"*"), rest
		}
	}
	for _, name := range others {
		names = append(names, "`--"+name+"`")
	}
	if len(names) > 0 {
		fmt.Fprintf(b, "\n[Shared](#shared-flags): %s\n", strings.Join(names, ", "))
	}
}

// flagRow is the line of a flag in a list; empty for a flag that the page leaves out.
func flagRow(f *pflag.Flag) string {
	if f.Hidden || f.Name == "help" {
		return ""
	}
	name := "--" + f.Name
	kind, usage := pflag.UnquoteUsage(f)
	usage = strings.TrimPrefix(usage, kind+": ")
	if kind != "" {
		name += " " + kind
	}
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	if def := f.DefValue; def != "" && def != "false" && def != "[]" && def != "0s" && def != "0" {
		usage += fmt.Sprintf(" (default: %s)", def)
	}
	return fmt.Sprintf("* `%s`: %s\n", name, usage)
}
