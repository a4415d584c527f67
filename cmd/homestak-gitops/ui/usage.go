package ui

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// VerbNames names what can follow the name of a command: its verbs and topics.
func VerbNames(root *cobra.Command) []string {
	var names []string
	for _, c := range root.Commands() {
		if c.IsAvailableCommand() || c.IsAdditionalHelpTopicCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// NameValues gives the values of flags the names that begin their usages, as in "`FILE`: secrets", for help: pflag would
// repeat the name in the text.
func NameValues(flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		name, usage := pflag.UnquoteUsage(f)
		if rest, found := strings.CutPrefix(usage, name+": "); found {
			f.Value, f.Usage = named{f.Value, name}, rest
		}
		if f.DefValue == "0s" || f.DefValue == "[]" {
			f.DefValue = ""
		}
	})
}

// named is the value of a flag, with a name that help shows as its type.
type named struct {
	pflag.Value
	name string
}

func (n named) Type() string { return n.name }

// TakesArgs bounds how many arguments a verb has; its usage line names them.
func TakesArgs(low, high int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		most := ""
		switch n := len(args); {
		case n >= low && n <= high:
			return nil
		case low < high:
			most = "at most "
		}
		return fmt.Errorf("%s takes %s%s, but %s given\nusage: %s\nsee: %s --help", c.CommandPath(),
			most, diag.Count(high, "argument"), were(len(args)), c.UseLine(), c.CommandPath())
	}
}

func were(n int) string {
	switch n {
	case 0:
		return "none was"
	case 1:
		return "1 was"
	default:
		return fmt.Sprintf("%d were", n)
	}
}

// ExplainUsage replaces what cobra says of a verb that does not exist, and of an argument that a
// verb does not take, by what the user meant perhaps.
func ExplainUsage(root *cobra.Command, err error) error {
	var word, where string
	if err == nil {
		return nil
	}
	if n, _ := fmt.Sscanf(err.Error(), "unknown command %q for %q", &word, &where); n != 2 {
		return err
	}
	if where == root.CommandPath() {
		return fmt.Errorf("unknown verb %q\n%s\nsee: %s --help", word, cmp.Or(replacement(word), diag.DidYouMean(word, VerbNames(root))), where)
	}
	hint := ""
	if c, _, _ := root.Find(strings.Fields(where)[1:]); c != nil && c.Flags().Lookup("manifest") != nil {
		hint = "\na manifest is named by -M, the folder of a site by --site"
	}
	return fmt.Errorf("%s takes no argument, but %q was given%s\nsee: %s --help", where, word, hint, where)
}
