package session

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/site"
)

// Flags are the common flags of the verbs that read a site.
type Flags struct {
	Dir      string
	Host     string
	Manifest string
	Secrets  string        // a file
	Mode     string        // of execution: push, pull, or "" for what the site says
	Vars     []string      // as NAME=VALUE
	Timeout  time.Duration // 0: no limit

	Sim      bool   // on verbs that reach a host
	Observed string // on plan: a file with an observation of the host, in place of the host
	Yes      bool   // on verbs that change one

	AllowDeletes int      // on verbs that plan
	AllowOrphans []string // on these, and destroy
}

// Files adds the flags that say where a site is.
func (f *Flags) Files(u *ui.UI, c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.Dir, "site", ".", "`DIR`: folder of the site")
	fs.StringVar(&f.Secrets, "secrets", "", "`FILE`: secrets (default: secrets.sops.yaml in the site, or secrets.yaml if git does not track it)")
	fs.StringArrayVar(&f.Vars, "var", nil, "`NAME=VALUE`: set this variable of the site; repeatable")
	u.JSONFlag(c)
}

// Read adds the flags of every verb that reads a site.
func (f *Flags) Read(u *ui.UI, c *cobra.Command) {
	f.Files(u, c)
	fs := c.Flags()
	fs.StringVarP(&f.Host, "host", "H", "", "`NAME`: host (default: that of the manifest, or the only one)")
	fs.StringVarP(&f.Manifest, "manifest", "M", "", "`NAME`: only this manifest")
	fs.StringVar(&f.Mode, "mode", "", "`MODE`: push or pull, in this run")
	fs.DurationVar(&f.Timeout, "timeout", 0, "`TIME`: time limit, such as 10m (default: none)")
	f.completeSite(c)
}

// Reach adds the flags of a verb that observes a host.
func (f *Flags) Reach(u *ui.UI, c *cobra.Command) {
	f.Read(u, c)
	c.Flags().BoolVar(&f.Sim, "sim", false, "use a fresh simulator for every host of the site")
}

// Change adds the flags of a verb that changes a host.
func (f *Flags) Change(u *ui.UI, c *cobra.Command) {
	f.Reach(u, c)
	c.Flags().BoolVarP(&f.Yes, "yes", "y", false, "do not ask")
}

// Grant adds the flags of verbs whose plans may remove many guests. A destroy names what it removes, so it needs no
// such flags.
func (f *Flags) Grant(c *cobra.Command) {
	c.Flags().IntVar(&f.AllowDeletes, "allow-deletes", 0, "allow up to `N` deletions of guests, above the cap")
	f.GrantOrphans(c)
}

// GrantOrphans adds the flag of verbs whose plans may remove a guest that holds nodes.
func (f *Flags) GrantOrphans(c *cobra.Command) {
	c.Flags().StringSliceVar(&f.AllowOrphans, "allow-orphans", nil, "`NAME`: remove this pve node with all nodes in it; repeatable")
}

// Target adds the flag that narrows a plan, into targets.
func (f *Flags) Target(c *cobra.Command, targets *[]string) {
	c.Flags().StringArrayVar(targets, "target", nil, "`ADDRESS`: only this resource, such as vm.web-1 or web-1, and what it needs; repeatable")
	f.completeTargets(c)
}

// Check finds values that cannot be right before any work is done.
func (f *Flags) Check() error {
	if f.Mode != "" && f.Mode != "push" && f.Mode != "pull" {
		return fmt.Errorf("--mode %s: want push or pull", f.Mode)
	}
	if f.AllowDeletes < 0 {
		return fmt.Errorf("--allow-deletes %d: a number of guests cannot be negative", f.AllowDeletes)
	}
	if f.Timeout < 0 {
		return fmt.Errorf("--timeout %s: a time span cannot be negative", f.Timeout)
	}
	return nil
}

// Variables reads the values of --var.
func (f *Flags) Variables() (map[string]string, error) {
	vars := make(map[string]string, len(f.Vars))
	for _, v := range f.Vars {
		name, value, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--var %s: want NAME=VALUE", v)
		}
		vars[name] = value
	}
	return vars, nil
}

// Scope is the scope of plans with these flags and the values of --target.
func (f *Flags) Scope(targets []string) plan.Scope {
	return plan.Scope{Manifest: f.Manifest, Targets: targets, AllowDeletes: f.AllowDeletes, AllowOrphans: f.AllowOrphans}
}

// Peek loads the site without its secrets and policies, for completion; nil if that is not
// possible.
func (f *Flags) Peek() *model.Site {
	vars, err := f.Variables()
	if err != nil {
		return nil
	}
	return site.Peek(drivers.Kinds(), f.Dir, vars)
}

// Within is the RunE of a verb that does something for at most --timeout.
func (f *Flags) Within(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		ctx, cancel := ui.LimitTime(c.Context(), f.Timeout)
		defer cancel()
		return ui.Because(ctx, do(ctx, args))
	}
}
