package session

// A command line is about one agent: that of this machine, one that --socket, --data-dir or --config names, or
// one on another machine. If no agent runs, verbs read what the last one left in its data folder.

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/view"
)

// AgentFlags are the flags by which a verb finds an agent. Add them with one of Find, Anywhere and All.
type AgentFlags struct {
	service.Flags
	elsewhere  service.Elsewhere // of the verbs that may ask another machine
	dataDir    string
	attributes map[string]*string // of agent.hcl, by path; nil but for the verb agent
	changed    func(flag string) bool
	ui         *ui.UI
}

// Find adds the flags of any verb about the agent.
func (f *AgentFlags) Find(u *ui.UI, c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.File, "config", "", "`FILE`: configuration of the agent (default: "+service.Etc+"/agent.hcl, if it exists)")
	fs.StringVar(&f.dataDir, "data-dir", "", "`FOLDER`: folder of keys, receipts and the repository copy (default: the agent's)")
	fs.StringVar(&f.Socket, "socket", "", "`FILE`: control socket of the agent")
	f.changed, f.ui = fs.Changed, u
	ui.Must(c.MarkFlagDirname("data-dir"))
}

// Anywhere adds the flags of Find, and those to ask the agent of another machine.
func (f *AgentFlags) Anywhere(u *ui.UI, c *cobra.Command) {
	f.Find(u, c)
	fs := c.Flags()
	fs.StringVar(&f.elsewhere.Server, "server", "", "`URL`: agent to ask, such as https://192.0.2.10:44443")
	fs.StringArrayVar(&f.elsewhere.Pins, "pin", nil, "`PIN`: the server's key, such as sha256:…; repeatable")
	fs.StringVar(&f.elsewhere.KeyFile, "key-file", "", "`FILE`: key to authenticate with")
	c.MarkFlagsMutuallyExclusive("server", "socket")
}

// All adds the flags of the verb agent: those of Find, and one for each attribute of agent.hcl that has a flag.
func (f *AgentFlags) All(u *ui.UI, c *cobra.Command) {
	f.Find(u, c)
	f.attributes = map[string]*string{}
	for _, a := range service.Attributes() {
		f.attributes[a.Path] = c.Flags().String(a.Flag, "", a.Usage)
	}
}

// Configuration is that of the agent of this machine, as far as these flags are about it.
func (f *AgentFlags) Configuration() (*service.Config, diag.List) {
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
	return flags.ReadConfig(f.ui.Env)
}

// Client finds the agent; control.ErrNoAgent if none runs. The configuration is that of an agent of this machine, else nil.
func (f *AgentFlags) Client(ctx context.Context) (*control.Client, *service.Config, error) {
	if f.elsewhere.Server != "" {
		c, err := f.elsewhere.Client()
		return c, nil, err
	}
	cfg, found := f.Configuration()
	if f.File != "" && cfg.Err != nil {
		return nil, cfg, cfg.Err
	}
	c, err := cfg.Search().Find(ctx)
	if errors.Is(err, control.ErrNoAgent) && cfg.File != "" {
		// Perhaps that is why it does not run, and then its data folder is a guess.
		f.ui.Findings(slices.DeleteFunc(found, func(f diag.Finding) bool { return f.Severity != diag.Error }))
	}
	return c, cfg, err
}

// Running finds an agent that must run.
func (f *AgentFlags) Running(ctx context.Context) (*control.Client, error) {
	c, cfg, err := f.Client(ctx)
	if errors.Is(err, control.ErrNoAgent) {
		return nil, fmt.Errorf("%w (data folder %s)\nstart it: systemctl start homestak-gitops, or homestak-gitops agent; choose another one with --socket or --data-dir", err, cfg.DataDir)
	}
	return c, err
}

// Name names the agent that was found for people.
func (f *AgentFlags) Name(c *control.Client) string {
	if c.Card.Identity == "" {
		return "the server at " + f.elsewhere.Server
	}
	return "the agent of host " + c.Card.Identity
}

// Record answers about an agent: the agent itself, or what the last one left behind.
type Record interface {
	Status(ctx context.Context) (agent.Status, error)
	History(ctx context.Context, n int, address string) (control.History, error)
	Verify(ctx context.Context) (ledger.Proof, error)
	Why(ctx context.Context, address string) (control.Reasons, error)
}

// Record finds the agent, or what the last one left behind.
func (f *AgentFlags) Record(ctx context.Context) (Record, error) {
	c, cfg, err := f.Client(ctx)
	if errors.Is(err, control.ErrNoAgent) {
		return control.Folder(cfg.DataDir).ReadOffline()
	}
	return c, err
}

// NotedRecord is Record, and says so where it is that of the last agent.
func (f *AgentFlags) NotedRecord(ctx context.Context) (Record, error) {
	r, err := f.Record(ctx)
	if o, ok := r.(*control.Offline); ok && err == nil {
		s, _ := o.Status(ctx) // it is read already
		f.ui.Notef("no agent is running here; this is its state at %s", view.When(s.At))
	}
	return r, err
}

// Status asks the agent, or reads what the last one left behind.
func (f *AgentFlags) Status(ctx context.Context) (agent.Status, error) {
	r, err := f.Record(ctx)
	if err != nil {
		return agent.Status{}, err
	}
	return r.Status(ctx)
}

// CompleteAddress completes an address with those of the agent's nodes. Without a response it completes nothing;
// the verb itself reports the error.
func (f *AgentFlags) CompleteAddress(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	if s, err := f.Status(c.Context()); err == nil {
		for _, n := range s.Nodes {
			out = append(out, n.Address)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// CompleteNotify completes the name of a notifier, as CompleteAddress does.
func (f *AgentFlags) CompleteNotify(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	if s, err := f.Status(c.Context()); err == nil {
		for _, n := range s.Notify {
			out = append(out, n.Name)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// CompleteManifest completes the name of a manifest with those of the agent, as CompleteAddress does.
func (f *AgentFlags) CompleteManifest(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	r, _, err := f.Client(c.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return r.Card.Manifests, cobra.ShellCompDirectiveNoFileComp
}
