package main

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/specserve/daemon"
)

// serveFlags are the flags of serve.
type serveFlags struct {
	session.Flags
	serverFolder
	listen, cert, key   string
	logLevel, logFormat string
}

// serverAt is the one line that serve --json prints.
type serverAt struct {
	URL    string `json:"url"`
	Pin    string `json:"pin"`
	Commit string `json:"commit"`
}

func serveVerb(a *app) *cobra.Command {
	f := &serveFlags{}
	c := &cobra.Command{
		Use:   "serve",
		Short: "Serve the specs of a site to its nodes, over HTTPS",
		Long: `The posture of a node defines who may fetch its spec. New commits, keys, certificates and
secrets need no restart; an invalid site changes nothing. SIGHUP checks the files now.

If the folder is a git checkout, it also serves the repository, read-only, to nodes of
type pve and to clients with the key in repository.key. New nodes can download this
program from it.

The first start creates the certificate and all keys. A node needs the pin of the
certificate and a token: homestak-gitops token mint NODE. With --json the first line is
{"url": …, "pin": …, "commit": …}.`,
		Args: cobra.NoArgs,
		// An interrupt is the normal end of this verb, even the first signal.
		RunE: a.soon(func(ctx context.Context, _ []string) error { return runServe(ctx, a, f) }),
	}
	f.Files(a.ui, c)
	f.flag(c)
	fs := c.Flags()
	fs.StringVarP(&f.Host, "host", "H", "", "`NAME`: only the nodes of this host")
	fs.StringVar(&f.listen, "listen", ":44443", "`ADDRESS`: server, unless systemd passes a socket; port 0 chooses a free one")
	fs.StringVar(&f.cert, "cert", "", "`FILE`: certificate (default: create one)")
	fs.StringVar(&f.key, "key", "", "`FILE`: key of --cert")
	fs.StringVar(&f.logLevel, "log-level", "info", "`LEVEL`: debug, info, warn or error")
	fs.StringVar(&f.logFormat, "log-format", "text", "`FORM`: text or json")
	f.CompleteHost(c)
	return c
}

func runServe(ctx context.Context, a *app, f *serveFlags) error {
	vars, err := f.Variables()
	if err != nil {
		return err
	}
	dir, err := f.path(a.ui.Env)
	if err != nil {
		return err
	}
	hangups, unsubscribe := a.ui.Hangups()
	defer unsubscribe()
	return daemon.Run(ctx, daemon.Options{
		Site: site.FolderOptions{Kinds: drivers.Kinds(), Dir: f.Dir, Secrets: f.Secrets, Keys: site.Keys{Env: a.ui.Env}, Vars: vars, Sandbox: sandbox()}, Host: f.Host,
		Dir: dir, CertFile: f.cert, KeyFile: f.key, Listen: f.listen, Version: thisBuild().Version, Program: service.ProgramFile(),
		Log: service.NewLog(a.ui.Stderr, a.ui.Env("JOURNAL_STREAM"), f.logLevel, f.logFormat), Found: a.ui.Findings,
		Ready: func(at daemon.Announce) error {
			url := "https://" + view.Reachable(at.Addr)
			if a.ui.JSON {
				return a.ui.Line(serverAt{url, at.Pins[0], at.Commit})
			}
			a.ui.Printf("serving at %s\npin of its key: %s\nPress Ctrl-C to stop.\n", url, at.Pins[0])
			return nil
		},
	}, hangups)
}

// serverFolder is the flag that names the data folder of a server. serve and the verbs of token must find the same
// keys, so all have it.
type serverFolder struct{ dataDir string }

func (f *serverFolder) flag(c *cobra.Command) {
	c.Flags().StringVar(&f.dataDir, "data-dir", "", "`FOLDER`: folder of keys, receipts and the repository copy (default: the agent's)")
	ui.Must(c.MarkFlagDirname("data-dir"))
}

// path is the folder of the keys of the server, below the data folder.
func (f *serverFolder) path(env func(string) string) (string, error) {
	dir := f.dataDir
	if dir == "" {
		var err error
		if dir, err = service.LockDir(env); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, daemon.Folder), nil
}
