package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os/exec"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/web"
)

func webVerb(a *app) *cobra.Command {
	f := &session.AgentFlags{}
	var port int
	var demo bool
	c := &cobra.Command{
		Use:   "web",
		Short: "Show an agent and its fleet in a browser",
		Long: `Serves a page on this machine, for you alone, until Ctrl-C. It opens the browser where
there is a display, and prints the address, which is good for one use.

The page is about the agent of this machine, or the one at --server, whose pin the program
verifies. With the operator key it has buttons to reconcile, suspend and resume.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if demo {
				page := func(ctx context.Context, agent *control.Client) error { return showPage(ctx, a, agent, true, port) }
				return runDemo(c.Context(), a, true, page)
			}
			return a.soon(func(ctx context.Context, _ []string) error { return runWeb(ctx, a, f, port) })(c, args)
		},
	}
	f.Anywhere(a.ui, c)
	c.Flags().BoolVar(&demo, "demo", false, "show the fleet of \"demo --serve\", whose story runs beside it")
	c.Flags().IntVar(&port, "port", 0, "`NUMBER`: local port; 0 chooses a free one")
	return c
}

func runWeb(ctx context.Context, a *app, f *session.AgentFlags, port int) error {
	c, err := f.Running(ctx)
	if err != nil {
		return err
	}
	return showPage(ctx, a, c, c.Operates(ctx), port)
}

// showPage serves a page at a loopback address, and opens it.
func showPage(ctx context.Context, a *app, source web.Source, operates bool, port int) error {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("serve the page: %w\nchoose another port with --port", err)
	}
	at, token := ln.Addr().String(), web.NewToken(operates)
	address := "http://" + at + token.Path()
	a.ui.Printf("%s\nThe address is good for one use. Press Ctrl-C to stop.\n", address)
	if a.ui.Env("DISPLAY") != "" || a.ui.Env("WAYLAND_DISPLAY") != "" {
		go func() {
			if err := exec.CommandContext(context.WithoutCancel(ctx), "xdg-open", address).Run(); err != nil { // the browser may outlive the page
				a.ui.Notef("the browser was not opened: %v", err)
			}
		}()
	}
	return web.Serve(ctx, ln, pageOf(source, token, at), nil, slog.New(slog.DiscardHandler))
}

// pageOf is the page of a source for the person with a token.
func pageOf(source web.Source, token *web.Token, at string) http.Handler {
	host, port, _ := net.SplitHostPort(at)
	hosts := []string{at, net.JoinHostPort("localhost", port)}
	if port == "80" { // browsers omit it
		hosts = append(hosts, host, "localhost")
	}
	return web.Handler(web.Options{
		Source: source, Hosts: hosts,
		Access: web.Access{Keys: web.RandomKeys(), Token: token},
	})
}
