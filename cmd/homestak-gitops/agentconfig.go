package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

// etc is where the machine's own files of this program are.
const etc = "/etc/homestak-gitops"

// agentFlags are the flags that say what holds for the agent of this machine. The
// verbs that only talk to it have the first three of them.
type agentFlags struct {
	config  string
	socket  string
	dataDir string
	rest    map[string]*string // by path in agent.hcl, of the verb agent
	given   func(flag string) bool
}

// agentFlag is a flag that stands for an attribute of agent.hcl.
type agentFlag struct{ name, path, usage string }

func attributeFlags() []agentFlag {
	return []agentFlag{
		{"identity", "identity", "`NAME` of the host of the site that is converged (default: the name of this machine)"},
		{"repository", "repository.url", "`URL` of the repository that holds the site"},
		{"branch", "repository.branch", "`NAME` of the branch that counts (default: main)"},
		{"path", "repository.path", "`FOLDER` in the repository that holds the site (default: its top)"},
		{"poll", "repository.poll", "`TIME` between two polls of the repository (default: 1m)"},
		{"secrets", "secrets_file", "`FILE` of secrets, read again at every look"},
		{"drift-every", "drift_every", "`TIME` between two full checks of the host (default: 5m)"},
		{"concurrency", "concurrency", "`NUMBER` of steps at once (default: 8)"},
		{"log-level", "log.level", "`LEVEL` of what is logged: debug, info, warn, error (default: info)"},
		{"log-format", "log.format", "`FORM` of the log: text or json (default: text)"},
	}
}

// find adds the flags by which any verb finds the agent of this machine.
func (f *agentFlags) find(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.config, "config", "", "`FILE` that tells the agent of itself (default: "+etc+"/agent.hcl, if it is there)")
	fs.StringVar(&f.dataDir, "data-dir", "", "`FOLDER` of clone, receipts and locks")
	fs.StringVar(&f.socket, "socket", "", "`FILE` of the agent's control socket")
	f.given = c.Flags().Changed
	must(c.MarkFlagDirname("data-dir"))
}

// all adds the flags of the verb agent.
func (f *agentFlags) all(c *cobra.Command) {
	f.find(c)
	f.rest = map[string]*string{}
	for _, flag := range attributeFlags() {
		f.rest[flag.path] = c.Flags().String(flag.name, "", flag.usage)
	}
}

// agentConfig is what holds for the agent of this machine, and where it is from.
type agentConfig struct {
	model.AgentFile
	file string            // that was read, "" for none
	from map[string]string // by path; what is missing is from nowhere
}

// agentConfig works out what holds: flags before environment before file before
// what is usual on such a machine. Nothing of it is ever read from the repository.
func (a *app) agentConfig(f *agentFlags) (*agentConfig, diag.List) {
	c := &agentConfig{from: map[string]string{}}
	name, data, err := a.agentFile(f)
	if err != nil {
		file, _ := hcl.ParseAgent("", nil)
		c.AgentFile = *file
		return c, diag.List{plain(err)}
	}
	file, found := hcl.ParseAgent(name, data)
	c.AgentFile, c.file = *file, name
	for _, p := range c.Ranges {
		c.from[p.Path] = p.At.String()
	}
	each(&c.AgentFile, func(path string, v reflect.Value) {
		if c.from[path] != "" && isFile(path) {
			beside(v, filepath.Dir(name))
		}
		env := "HOMESTAK_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
		if text := a.env(env); text != "" {
			found = append(found, c.set(path, v, text, env)...)
		}
	})
	found = append(found, c.flags(f)...)
	found = append(found, a.machine(c)...)
	return c, append(found, c.idle()...).Sorted()
}

// agentFile reads agent.hcl; without one it gives nothing, and no error.
func (a *app) agentFile(f *agentFlags) (name string, data []byte, err error) {
	name = cmp.Or(f.config, a.env("HOMESTAK_CONFIG"))
	wanted := name != ""
	name = cmp.Or(name, filepath.Join(etc, "agent.hcl"))
	data, err = os.ReadFile(name)
	switch {
	case err == nil:
		abs, aerr := filepath.Abs(name)
		return abs, data, aerr
	case !wanted && errors.Is(err, fs.ErrNotExist):
		return "", nil, nil
	case !wanted && f.rest == nil && errors.Is(err, fs.ErrPermission):
		return "", nil, nil // who may not read it may well use the socket
	default:
		return "", nil, fmt.Errorf("read the agent's configuration: %w\nname its file with --config or HOMESTAK_CONFIG; without either it is %s/agent.hcl, if there is one", err, etc)
	}
}

// set writes an attribute from the environment or a flag. A path in it is relative
// to where the program was started.
func (c *agentConfig) set(path string, v reflect.Value, text, from string) diag.List {
	found := hcl.SetAgent(&c.AgentFile, path, text)
	for i := range found {
		found[i].Summary = from + ": " + found[i].Summary
	}
	c.from[path] = from
	if here, err := os.Getwd(); err == nil && isFile(path) {
		beside(v, here)
	}
	return found
}

func (c *agentConfig) flags(f *agentFlags) diag.List {
	var found diag.List
	set := func(flag, path, text string) {
		if f.given != nil && f.given(flag) {
			each(&c.AgentFile, func(p string, v reflect.Value) {
				if p == path {
					found = append(found, c.set(path, v, text, "--"+flag)...)
				}
			})
		}
	}
	set("data-dir", "data_dir", f.dataDir)
	for _, flag := range attributeFlags() {
		if value := f.rest[flag.path]; value != nil {
			set(flag.name, flag.path, *value)
		}
	}
	return found
}

// machine fills in what is usual on this machine.
func (a *app) machine(c *agentConfig) diag.List {
	var found diag.List
	if c.Identity == "" {
		c.from["identity"] = "the name of this machine"
		found = a.ownName(c)
	}
	if c.DataDir == "" {
		c.from["data_dir"] = "STATE_DIRECTORY"
		c.DataDir, _, _ = strings.Cut(a.env("STATE_DIRECTORY"), ":")
	}
	if c.DataDir == "" {
		var err error
		if c.DataDir, err = a.ownDataDir(); err != nil {
			found = append(found, plain(err))
		}
		c.from["data_dir"] = "default"
	}
	for _, dir := range []struct{ from, name string }{{"CREDENTIALS_DIRECTORY", a.env("CREDENTIALS_DIRECTORY")}, {"default", etc}} {
		name := filepath.Join(dir.name, secretsName)
		if _, err := os.Stat(name); err == nil && c.SecretsFile == "" && dir.name != "" {
			c.SecretsFile, c.from["secrets_file"] = name, dir.from
		}
	}
	return found
}

// ownName makes the short name of the machine the identity, if a host can have it.
func (*app) ownName(c *agentConfig) diag.List {
	const hint = "name the host of the site that is converged: identity in agent.hcl, or --identity"
	name, err := os.Hostname()
	if err != nil {
		return diag.List{plain(fmt.Errorf("identity is not known: %w\n%s", err, hint))}
	}
	short, _, _ := strings.Cut(name, ".")
	if found := hcl.SetAgent(&c.AgentFile, "identity", short); found.HasErrors() {
		return diag.List{plain(fmt.Errorf("identity is not known, and the name of this machine, %q, cannot be that of a host\n%s", short, hint))}
	}
	return nil
}

// idle warns of what is accepted and has no effect in this version.
func (c *agentConfig) idle() diag.List {
	var found diag.List
	each(&c.AgentFile, func(path string, v reflect.Value) {
		top, _, _ := strings.Cut(path, ".")
		if v.IsZero() || !slices.Contains([]string{"listen", "parent", "access"}, top) {
			return
		}
		w := diag.Warnf(c.At(path), path+" has no effect yet", "The server for children comes with a later version; everything else works.")
		w.Address = path
		found = append(found, w)
	})
	return found
}

// each visits the attributes of agent.hcl in the order of its reference.
func each(file *model.AgentFile, visit func(path string, v reflect.Value)) {
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for _, f := range model.Fields(v.Type()) {
			if f.Block {
				walk(prefix+f.Name+".", v.Field(f.Index).Elem())
			} else {
				visit(prefix+f.Name, v.Field(f.Index))
			}
		}
	}
	walk("", reflect.ValueOf(file).Elem())
}

// isFile reports whether an attribute may hold the name of a file or folder.
func isFile(path string) bool {
	return strings.HasSuffix(path, "_file") || strings.HasSuffix(path, "_dir") || path == "repository.url"
}

// beside makes the name of a file whole, if it is one and is not.
func beside(v reflect.Value, dir string) {
	name := v.String()
	head, _, _ := strings.Cut(name, "/")
	if name == "" || filepath.IsAbs(name) || strings.ContainsRune(head, ':') {
		return // a colon before the first slash: https://…, user@host:path
	}
	v.SetString(filepath.Join(dir, name))
}

// plain makes a finding of an error that is about no file of the site.
func plain(err error) diag.Finding {
	summary, detail, _ := strings.Cut(err.Error(), "\n")
	return diag.Errorf(diag.Range{}, summary, "%s", detail)
}
