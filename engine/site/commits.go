package site

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/policy"
)

// Commits loads the sites of the commits of a repository, for unattended passes. It is not safe for concurrent use.
type Commits struct {
	Loader  *Loader
	Files   func(commit string) (fs.FS, error)
	Notes   func(commit string) diag.List        // what the repository reports about a commit
	Secrets string                               // a file, read at each load, since it may change without a commit; "" for secrets.sops.yaml of the commit
	Keys    Keys                                 // read at each load as well
	Local   func() (*model.LocalHost, diag.List) // what this machine knows of its host, read at each load; may be nil
	Given   given                                // secrets of a parent, in place of secrets.sops.yaml; may be nil

	rules []rulesOf // of the commits that were loaded last, the newest at the end

	noted string    // the commit that notes are about
	notes diag.List // of that commit
}

// Load loads the site of a commit. An error is one of its findings.
func (c *Commits) Load(ctx context.Context, commit model.Commit) engine.Desired {
	tree, err := c.Files(commit.ID)
	if errors.Is(err, fs.ErrNotExist) {
		text := strings.TrimSuffix(err.Error(), ": "+fs.ErrNotExist.Error())
		err = fmt.Errorf("%s\npath in agent.hcl, or --path, names the folder of the site in the repository", text)
	}
	if err != nil {
		return engine.Desired{Commit: commit.ID, Findings: diag.List{diag.FromError(err)}}
	}
	if c.noted != commit.ID {
		c.noted, c.notes = commit.ID, c.Notes(commit.ID)
	}
	in := Input{Commit: commit, Tree: commit.ID, Unattended: true, Found: slices.Clone(c.notes)}
	var given *model.Secrets
	awaits := false
	if c.Given != nil && c.Secrets == "" {
		given, awaits = c.Given()
	}
	secrets, found := commitSecrets(tree, c.Secrets, given, c.Keys)
	in.Secrets, in.Found = secrets, append(in.Found, found...)
	if c.Local != nil {
		in.Local, found = c.Local()
		in.Found = append(in.Found, found...)
	}
	d := c.Loader.Load(ctx, tree, in)
	d.AwaitsSecrets = awaits && secrets == nil
	if d.Site == nil {
		return d
	}
	c.rules = append(slices.DeleteFunc(c.rules, func(r rulesOf) bool { return r.commit == commit.ID }), rulesOf{commit.ID, c.Loader.Policies()})
	c.rules = c.rules[max(0, len(c.rules)-mostRules):]
	return d
}

// given are the secrets that a parent gave; nil if it gave none, or has still to say whether there are any: awaits.
type given func() (secrets *model.Secrets, awaits bool)

// rulesOf are the compiled policies of a commit.
type rulesOf struct {
	commit string
	set    *policy.Set
}

// mostRules bounds of how many commits the policies are kept: a pass loads the one that it is about, and those before.
const mostRules = 8

// Policies are the compiled policies of a commit as they were when it was loaded last. Others may have been loaded since;
// of one that was loaded long ago, or never, they are nil.
func (c *Commits) Policies(commit string) *policy.Set {
	for _, r := range c.rules {
		if r.commit == commit {
			return r.set
		}
	}
	return nil
}
