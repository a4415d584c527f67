package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/complete"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/view"
)

// agentRecord answers about an agent: the agent itself, or what the last one left behind.
type agentRecord interface {
	Status(ctx context.Context) (agent.Status, error)
	History(ctx context.Context, n int, address string) (control.History, error)
	Verify(ctx context.Context) (control.Chain, error)
	Why(ctx context.Context, address string) (control.Reasons, error)
}

// agentFlags are the flags by which a verb finds the agent of this machine; the verb agent
// has further ones, which set attributes of agent.hcl.
type agentFlags struct {
	service.Flags
	elsewhere  service.Elsewhere // of the verbs that may ask another machine
	dataDir    string
	attributes map[string]*string // by path
	changed    func(flag string) bool
}

// find adds the flags of any verb about the agent.
func (f *agentFlags) find(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.File, "config", "", "`FILE` of the agent's configuration (default: "+service.Etc+"/agent.hcl, if it is there)")
	fs.StringVar(&f.dataDir, "data-dir", "", "`FOLDER` of clone, receipts and locks")
	fs.StringVar(&f.Socket, "socket", "", "`FILE` of the agent's control socket")
	f.changed = fs.Changed
	complete.Must(c.MarkFlagDirname("data-dir"))
}

// anywhere adds the flags of find, and those to ask the agent of another machine.
func (f *agentFlags) anywhere(c *cobra.Command) {
	f.find(c)
	fs := c.Flags()
	fs.StringVar(&f.elsewhere.Server, "server", "", "ask the agent whose server is at `URL`, such as https://192.0.2.10:44443")
	fs.StringArrayVar(&f.elsewhere.Pins, "pin", nil, "`PIN` of a key of that server, such as sha256:…; may be repeated")
	fs.StringVar(&f.elsewhere.KeyFile, "key-file", "", "`FILE` with a key of that server")
	c.MarkFlagsMutuallyExclusive("server", "socket")
}

// all adds the flags of the verb agent.
func (f *agentFlags) all(c *cobra.Command) {
	f.find(c)
	f.attributes = map[string]*string{}
	for _, a := range service.Attributes() {
		f.attributes[a.Path] = c.Flags().String(a.Flag, "", a.Usage)
	}
}

// configuration is that of the agent of this machine, as far as these flags are about it.
func (f *agentFlags) configuration(a *app) (*service.Config, diag.List) {
	flags := f.Flags
	flags.Asks, flags.Given = f.attributes == nil, map[string]string{}
	if f.changed("data-dir") {
		flags.Given["data_dir"] = f.dataDir
	}
	for _, attr := range service.Attributes() {
		if value := f.attributes[attr.Path]; value != nil && f.changed(attr.Flag) {
			flags.Given[attr.Path] = *value
		}
	}
	return service.ReadConfig(flags, a.env)
}

// agentHere finds the agent that the flags are about, and its configuration;
// control.ErrNoAgent if none runs.
func (a *app) agentHere(ctx context.Context, f *agentFlags) (*control.Client, *service.Config, error) {
	if f.elsewhere.Server != "" {
		c, err := f.elsewhere.Client()
		return c, nil, err
	}
	cfg, found := f.configuration(a)
	if f.File != "" && cfg.Err != nil {
		return nil, cfg, cfg.Err
	}
	c, err := cfg.Search().Find(ctx)
	if errors.Is(err, control.ErrNoAgent) && cfg.File != "" {
		// Perhaps that is why it does not run, and then its data folder is a guess.
		a.ui.findings(slices.DeleteFunc(found, func(f diag.Finding) bool { return f.Severity != diag.Error }))
	}
	return c, cfg, err
}

// ask runs a verb that asks the agent of this machine: the first signal ends it, since there
// is nothing to finish.
func (a *app) ask(c *cobra.Command, do func(context.Context) error) error {
	ctx, cancel := a.stopping.soon(c.Context())
	defer cancel()
	return do(ctx)
}

// runningAgent finds an agent that must be there.
func (a *app) runningAgent(ctx context.Context, f *agentFlags) (*control.Client, error) {
	c, cfg, err := a.agentHere(ctx, f)
	if errors.Is(err, control.ErrNoAgent) {
		return nil, fmt.Errorf("%w (data folder %s)\nstart it: systemctl start homestak-gitops, or homestak-gitops agent; another one is named by --socket or --data-dir", err, cfg.DataDir)
	}
	return c, err
}

// recordOf finds the agent, or what the last one left behind.
func (a *app) recordOf(ctx context.Context, f *agentFlags) (agentRecord, error) {
	c, cfg, err := a.agentHere(ctx, f)
	if errors.Is(err, control.ErrNoAgent) {
		return control.ReadOffline(cfg.DataDir)
	}
	return c, err
}

// noteOffline says that a record is the last agent's, if it is.
func (u *ui) noteOffline(ctx context.Context, r agentRecord) {
	if o, ok := r.(*control.Offline); ok {
		s, _ := o.Status(ctx) // it is read already
		u.notef("no agent is running here; this is what it knew at %s", view.When(s.At))
	}
}

// completeAddresses completes an address with those of the agent's nodes. Where no
// agent answers, nothing is completed or reported: the verb itself does that.
func completeAddresses(a *app, f *agentFlags) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		s, err := statusOf(c.Context(), a, f)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var out []string
		for _, n := range s.Nodes {
			out = append(out, n.Address)
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
