package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/complete"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/exit"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/site"
)

// siteFlags are the common flags of the verbs that read a site.
type siteFlags struct {
	dir      string
	host     string
	manifest string
	secrets  string
	mode     string
	vars     []string
	timeout  time.Duration

	sim bool // on verbs that reach a host
	yes bool // on verbs that change one

	allowDeletes int      // on verbs that plan
	allowOrphans []string // on these, and destroy
}

// read adds the flags of every verb that reads a site.
func (f *siteFlags) read(a *app, c *cobra.Command) {
	f.files(a, c)
	fs := c.Flags()
	fs.StringVarP(&f.host, "host", "H", "", "`NAME` of a host of the site (default: the manifest's, or the only one)")
	fs.StringVarP(&f.manifest, "manifest", "M", "", "only the manifest of this `NAME`")
	fs.StringVar(&f.mode, "mode", "", "execution `MODE` of this run: push or pull")
	fs.DurationVar(&f.timeout, "timeout", 0, "`TIME` that all of it may take, such as 10m (default: no limit)")
	complete.Site(c, f.load)
}

// files adds the flags that say where a site is.
func (f *siteFlags) files(a *app, c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.dir, "site", ".", "read the site from `DIR`")
	fs.StringVar(&f.secrets, "secrets", "", "`FILE` of secrets (default: secrets.sops.yaml in the site, or else secrets.yaml, if git does not track it)")
	fs.StringArrayVar(&f.vars, "var", nil, "`NAME=VALUE` of a variable of the site; may be repeated")
	a.ui.jsonFlag(c)
}

// reach adds the flags of a verb that observes a host.
func (f *siteFlags) reach(a *app, c *cobra.Command) {
	f.read(a, c)
	c.Flags().BoolVar(&f.sim, "sim", false, "make every host of the site a fresh simulator, embedded in this run")
}

// change adds the flags of a verb that changes a host.
func (f *siteFlags) change(a *app, c *cobra.Command) {
	f.reach(a, c)
	c.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask")
}

// grant adds the flag of verbs whose plans may remove many guests. What a destroy
// removes was asked for by name: it needs no such grant.
func (f *siteFlags) grant(c *cobra.Command) {
	c.Flags().IntVar(&f.allowDeletes, "allow-deletes", 0, "let `N` guests be removed at once, where the cap on deletions is lower")
	f.letGo(c)
}

// letGo adds the flag of verbs whose plans may remove a guest that holds nodes.
func (f *siteFlags) letGo(c *cobra.Command) {
	c.Flags().StringSliceVar(&f.allowOrphans, "allow-orphans", nil, "remove the pve node `NAME` with all nodes that may be in it; repeatable")
}

// check finds values that cannot be right before any work is done.
func (f *siteFlags) check() error {
	if f.mode != "" && f.mode != "push" && f.mode != "pull" {
		return fmt.Errorf("--mode %s: want push or pull", f.mode)
	}
	if f.allowDeletes < 0 {
		return fmt.Errorf("--allow-deletes %d: a number of guests cannot be negative", f.allowDeletes)
	}
	if f.timeout < 0 {
		return fmt.Errorf("--timeout %s: a time span cannot be negative", f.timeout)
	}
	return nil
}

// variables reads the values of --var.
func (f *siteFlags) variables() (map[string]string, error) {
	vars := make(map[string]string, len(f.vars))
	for _, v := range f.vars {
		name, value, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--var %s: want NAME=VALUE", v)
		}
		vars[name] = value
	}
	return vars, nil
}

// load loads the site without its secrets and policies, for completion; nil if that is not
// possible.
func (f *siteFlags) load() *model.Site {
	vars, err := f.variables()
	if err != nil {
		return nil
	}
	return site.Peek(drivers.Kinds(), f.dir, vars)
}

// within runs a verb for at most --timeout.
func (f *siteFlags) within(c *cobra.Command, do func(context.Context) error) error {
	ctx, cancel := exit.Limit(c.Context(), f.timeout)
	defer cancel()
	return exit.Because(ctx, do(ctx))
}

// addresses reads the values of --target.
func addresses(texts []string) ([]model.Address, error) {
	var out []model.Address
	for _, t := range texts {
		a, err := model.ParseAddress(t)
		if err != nil {
			return nil, fmt.Errorf("--target: %w", err)
		}
		out = append(out, a)
	}
	return out, nil
}
