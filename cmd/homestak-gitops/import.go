package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/session"
	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/ui"
	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/importer"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/hcl"
)

// importFlags are the flags of import beside those that say where a site is.
type importFlags struct {
	session.Flags
	choice      importer.Options
	vmids       string
	out         string
	node        string
	tokenFile   string
	fingerprint string
	check       bool
	transport   http.RoundTripper // nil: TLS to the API of the host
}

// tokenVar is the environment variable with the API token of a host that no site declares.
const tokenVar = "HOMESTAK_API_TOKEN"

func importVerb(a *app) *cobra.Command {
	f := &importFlags{}
	c := &cobra.Command{
		Use:   "import",
		Short: "Write the guests that a host has already as files of a site",
		Long: `The guests become nodes with "adopt", which a plan then adopts as they are. It changes
nothing on the host: a token with PVEAuditor on / is enough.

With --out it makes a new site, and --host is the URL of the host; its token comes from
--token-file or HOMESTAK_API_TOKEN. With --site it adds new files with what the site does
not declare yet, and --host is the name of a host block. With --node it prints a patch
with the values of the host, for "git apply" in the folder of the site, and on stderr what
the patch lacks, such as secrets and values that other nodes share.

Values of secrets are not written, nor what only root@pam may set: it stays as it is, and
the files and the report say so. Pools and IP sets are written as blocks that only watch
them, files of images as comments, since the host does not keep their URLs.

--check reads the host again and exits 2 if the plan of the site has more than adoptions,
or 4 if it refuses one.`,
		Args: cobra.NoArgs,
		RunE: f.Within(func(ctx context.Context, _ []string) error {
			if f.node != "" {
				return runImportNode(ctx, a, f)
			}
			return runImport(ctx, a, f)
		}),
	}
	f.Files(a.ui, c)
	fs := c.Flags()
	fs.Lookup("site").DefValue, f.Dir = "", ""
	fs.StringVarP(&f.Host, "host", "H", "", "`NAME`: host of the site, or URL such as https://192.0.2.10:8006")
	fs.StringVar(&f.out, "out", "", "`DIR`: folder of the new site")
	fs.StringVar(&f.node, "node", "", "`NAME`: print a patch of this node's file")
	fs.StringSliceVar(&f.choice.Only, "only", nil, "`TYPES`: only these: "+strings.Join(importer.Types(), ", "))
	fs.StringVar(&f.vmids, "vmid", "", "`RANGE`: only guests with these VMIDs, such as 100-399")
	fs.StringVar(&f.choice.Pool, "pool", "", "`POOL`: only guests in this pool")
	fs.StringVar(&f.choice.Tag, "tag", "", "`TAG`: only guests with this tag")
	fs.StringVar(&f.choice.Name, "name", "", "`PATTERN`: only guests with such names, as 'web-*'")
	fs.StringVar(&f.choice.By, "by", "pool", "`KEY`: pool, tag or node, by which manifests are arranged")
	fs.StringVar(&f.tokenFile, "token-file", "", "`FILE`: API token, user@realm!name=secret")
	fs.StringVar(&f.fingerprint, "fingerprint", "", "`FINGERPRINT`: SHA-256 of the host's certificate, in hex")
	fs.BoolVar(&f.check, "check", false, "plan the site afterwards, and fail unless it only adopts")
	fs.DurationVar(&f.Timeout, "timeout", 0, "`TIME`: time limit, such as 10m (default: none)")
	c.MarkFlagsMutuallyExclusive("out", "site")
	for _, other := range []string{"host", "out", "only", "vmid", "pool", "tag", "name", "by", "token-file", "fingerprint", "check"} {
		c.MarkFlagsMutuallyExclusive("node", other)
	}
	f.CompleteHost(c)
	ui.Must(c.MarkFlagDirname("out"))
	for flag, words := range map[string][]string{"by": importer.Ways(), "only": importer.Types()} {
		ui.Must(c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
	}
	return c
}

// complete checks the values of the flags before any work is done.
func (f *importFlags) complete() error {
	for _, t := range f.choice.Only {
		if !slices.Contains(importer.Types(), t) {
			return fmt.Errorf("--only %s: want %s", t, strings.Join(importer.Types(), ", "))
		}
	}
	if !slices.Contains(importer.Ways(), f.choice.By) {
		return fmt.Errorf("--by %s: want %s", f.choice.By, strings.Join(importer.Ways(), ", "))
	}
	if _, err := path.Match(f.choice.Name, ""); err != nil {
		return fmt.Errorf("--name %s: %w", f.choice.Name, err)
	}
	from, to, _ := strings.Cut(f.vmids, "-")
	var errFrom, errTo error
	if f.vmids != "" {
		f.choice.From, errFrom = strconv.Atoi(from)
		f.choice.To, errTo = strconv.Atoi(cmp.Or(to, from))
	}
	switch {
	case errFrom != nil, errTo != nil:
		return fmt.Errorf("--vmid %s: want a VMID or a range, such as 100-399", f.vmids)
	case f.Host == "":
		return errors.New("name the host with --host: a host block of the site, or the URL of an API")
	case f.out == "" && f.Dir == "":
		return errors.New("say where the files go: --out DIR for a new site, --site DIR for one that exists")
	case f.out != "" && !f.byURL():
		return fmt.Errorf("--host %s: a new site needs the URL of the host, such as https://192.0.2.10:8006", f.Host)
	}
	return nil
}

// byURL reports whether the host is given by the URL of its API.
func (f *importFlags) byURL() bool { return strings.Contains(f.Host, "://") }

// importReport is the document of import.
type importReport struct {
	*importer.Report
	Success bool           `json:"success"`
	Check   *importChecked `json:"check,omitempty"`
	Error   string         `json:"error,omitempty"`
}

// importChecked is what --check found: how many adoptions the plan has, and how many other steps.
type importChecked struct {
	Adoptions int `json:"adoptions"`
	Others    int `json:"others"`
}

func runImport(ctx context.Context, a *app, f *importFlags) error {
	a.ui.Document = func(err error) any { return importReport{Report: &importer.Report{}, Error: err.Error()} }
	if err := f.complete(); err != nil {
		return err
	}
	dir := cmp.Or(f.out, f.Dir)
	site, h, token, err := f.target(ctx, a)
	if err != nil {
		return err
	}
	report, err := f.write(ctx, a, site, h, token, dir)
	if err != nil {
		return err
	}
	doc := importReport{Report: report, Success: true}
	var ending error
	if f.check {
		doc.Check, ending = f.plan(ctx, a, dir, h.Name, token)
		doc.Success = ending == nil
	}
	if a.ui.JSON {
		return errors.Join(a.ui.Emit(doc), ending)
	}
	var text strings.Builder
	report.Text(&text)
	a.ui.Wrapf("%s", text.String())
	if c := doc.Check; c != nil && ending == nil {
		a.ui.Printf("check: %s, and no other step\n", diag.Count(c.Adoptions, "adoption"))
	}
	if f.out != "" && ending == nil {
		a.ui.Printf("\nput the token of the host into %s, under api_tokens, and look at the plan:\n\n  homestak-gitops plan --site %s\n", filepath.Join(dir, secretsName), dir)
	}
	return ending
}

// target is the site that the files are added to, its host, and the token where it is not the one of the site.
func (f *importFlags) target(ctx context.Context, a *app) (*model.Site, *model.Host, string, error) {
	token := ""
	if f.tokenFile != "" {
		text, err := os.ReadFile(f.tokenFile)
		if err != nil {
			return nil, nil, "", fmt.Errorf("read the API token: %w", err)
		}
		token = strings.TrimSpace(string(text))
	}
	if f.out != "" {
		token = cmp.Or(token, a.ui.Env(tokenVar))
		if have, err := hcl.Files(f.out); err == nil && len(have) > 0 {
			return nil, nil, "", fmt.Errorf("%s already contains HCL files, such as %s\nadd to that site with --site %s", f.out, have[0], f.out)
		}
		if token == "" {
			return nil, nil, "", fmt.Errorf("no API token for %s\nname a file with --token-file, or set %s", f.Host, tokenVar)
		}
		name, err := siteName(f.out)
		if err != nil {
			return nil, nil, "", err
		}
		site := &model.Site{Name: name, Kinds: drivers.Kinds()}
		return site, &model.Host{Name: "host", API: strings.TrimRight(f.Host, "/"), Fingerprint: f.fingerprint}, token, nil
	}
	s, err := a.sites.Open(ctx, &f.Flags)
	if err != nil {
		return nil, nil, "", err
	}
	defer s.Close()
	if err := s.CheckLoaded(); err != nil {
		return nil, nil, "", err
	}
	site := s.Desired.Site
	for _, h := range site.Hosts {
		if h.Name == f.Host || h.API == strings.TrimRight(f.Host, "/") {
			h.Fingerprint = cmp.Or(f.fingerprint, h.Fingerprint)
			return site, h, cmp.Or(token, h.APIToken, a.ui.Env(tokenVar)), nil
		}
	}
	return nil, nil, "", fmt.Errorf("the site has no host %s\nwrite a host block for it first", f.Host)
}

// siteName is the name of a new site: that of its folder, if a site can have it.
func siteName(dir string) (string, error) {
	name, err := filepath.Abs(dir)
	return cmp.Or(importer.Label(filepath.Base(name)), "home"), err
}

// write reads the host, with progress, and writes the files.
func (f *importFlags) write(ctx context.Context, a *app, site *model.Site, h *model.Host, token, dir string) (*importer.Report, error) {
	files, report, err := f.read(ctx, a, site, h, token, dir)
	if err != nil {
		return nil, err
	}
	if len(report.Files) == 0 {
		return report, nil
	}
	err = inPlace(dir, func(dir string) error {
		if f.out != "" {
			if err := writeSecretsOf(dir, report.Secrets()); err != nil {
				return err
			}
		}
		for _, name := range report.Files {
			if err := createFile(filepath.Join(dir, name), files[name], 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("write the site: %w", err)
	}
	return report, nil
}

// read reads the host, with progress, and makes the files.
func (f *importFlags) read(ctx context.Context, a *app, site *model.Site, h *model.Host, token, dir string) (map[string][]byte, *importer.Report, error) {
	progress := a.ui.Terminal().Watch()
	defer progress.Close()
	progress.Waits("listing the guests of " + h.API)
	var all, done atomic.Int64
	cfg := api.Config{Host: h, Token: token, Transport: f.transport, Sent: func(string, int) {
		if n := all.Load(); n > 0 {
			progress.Waits(fmt.Sprintf("reading guests of host %s: %d of %d", h.Name, min(done.Add(1), n), n))
		}
	}}
	if f.out != "" {
		if err := importer.Discover(ctx, cfg); err != nil {
			return nil, nil, err
		}
	}
	c, err := api.Open(cfg) // how many requests go to each node follows from their names
	if err != nil {
		return nil, nil, err
	}
	seen, err := importer.Read(ctx, c, h, f.choice, func(guests int) { all.Store(int64(guests)) })
	if err != nil {
		return nil, nil, err
	}
	o := f.choice
	o.Program = "homestak-gitops " + thisBuild().Version
	files, report := seen.Write(site, h, o, f.out != "", func(name string) bool {
		_, err := os.Lstat(filepath.Join(dir, name))
		return !errors.Is(err, fs.ErrNotExist)
	})
	return files, report, nil
}

// plan plans the site in a folder, and requires adoptions only.
func (f *importFlags) plan(ctx context.Context, a *app, dir, host, token string) (*importChecked, error) {
	flags := f.Flags
	flags.Dir, flags.Host = dir, host
	s, err := a.sites.Open(ctx, &flags)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if err := s.CheckLoaded(); err != nil {
		return nil, err
	}
	h := s.Desired.Site.Hosts[host]
	if h.APIToken, h.TokenMissing = token, false; f.fingerprint != "" {
		h.Fingerprint = f.fingerprint
	}
	p, err := s.PassOver(h, plan.Scope{})
	if err != nil {
		return nil, err
	}
	r := s.Observe(ctx, p)
	a.ui.Findings(r.Findings)
	if r.Plan == nil || r.Outcome != engine.Planned {
		return nil, ui.ExitOfPlan(r, false)
	}
	out := &importChecked{}
	for _, step := range r.Plan.Steps {
		if step.Action == plan.Adopt {
			out.Adoptions++
		} else {
			out.Others++
		}
	}
	if out.Others > 0 {
		a.ui.Sketch(r.Plan)
		return out, ui.ExitPending.With(fmt.Errorf("the plan has %d steps that are not adoptions", out.Others))
	}
	return out, ui.ExitOfPlan(r, false)
}
