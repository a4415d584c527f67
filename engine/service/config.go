package service

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Etc is the machine's configuration folder of this program.
const Etc = "/etc/homestak-gitops"

// Flags are the flags of a command line for the agent of this machine.
type Flags struct {
	File   string            // agent.hcl
	Socket string            // the control socket
	Given  map[string]string // attributes of agent.hcl, by path
	Asks   bool              // the verb only talks to the agent: that may be without reading its file
}

// Attribute is an attribute of agent.hcl that a flag sets.
type Attribute struct{ Flag, Path, Usage string }

// Attributes are those that the verb agent has flags for.
func Attributes() []Attribute {
	return []Attribute{
		{"identity", "identity", "`NAME`: host to converge (default: the name of this machine)"},
		{"repository", "repository.url", "`URL`: repository of the site"},
		{"branch", "repository.branch", "`NAME`: branch to follow (default: main)"},
		{"path", "repository.path", "`FOLDER`: site in the repository (default: its root)"},
		{"poll", "repository.poll", "`TIME`: interval between polls of the repository (default: 1m)"},
		{"secrets", "secrets_file", "`FILE`: secrets, re-read on each pass"},
		{"drift-every", "drift_every", "`TIME`: interval between full checks of the host (default: 5m)"},
		{"concurrency", "concurrency", "`NUMBER`: parallel steps (default: 8)"},
		{"listen", "listen", "`ADDRESS`: server for nodes and children, or none (default: :44443)"},
		{"parent", "parent.url", "`URL`: the parent's server"},
		{"parent-pins", "parent.pins", "`PINS`: the parent's server, comma-separated"},
		{"parent-token-file", "parent.token_file", "`FILE`: token for the parent's server"},
		{"log-level", "log.level", "`LEVEL`: debug, info, warn or error (default: info)"},
		{"log-format", "log.format", "`FORM`: text or json (default: text)"},
	}
}

// dataDirFlag sets the data folder, for all verbs that find the agent.
var dataDirFlag = Attribute{Flag: "data-dir", Path: "data_dir"}

// Config is the configuration of the agent of this machine, and where each value is from.
type Config struct {
	model.AgentFile
	File string // the agent.hcl that was read, "" for none
	Err  error  // why it could not be read, if so

	flags Flags
	env   func(string) string
	from  map[string]string // by path; what is missing is from nowhere
}

// ReadConfig reads the configuration: flags count before the environment, that before the
// file, and that before what is usual on such a machine. Nothing of it is ever read from
// the repository.
func (f Flags) ReadConfig(env func(string) string) (*Config, diag.List) {
	c := &Config{flags: f, env: env, from: map[string]string{}}
	name, data, err := c.readFile()
	if err != nil {
		file, _ := hcl.ParseAgent("", nil)
		c.AgentFile, c.Err = *file, err
		return c, diag.List{diag.FromError(err)}
	}
	file, found := hcl.ParseAgent(name, data)
	c.AgentFile, c.File = *file, name
	for _, p := range c.Ranges {
		c.from[p.Path] = p.At.String()
	}
	each(&c.AgentFile, func(path string, v reflect.Value) {
		if c.from[path] != "" && isFile(path) {
			beside(v, filepath.Dir(name))
		}
		variable := "HOMESTAK_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
		if text := c.env(variable); text != "" {
			found = append(found, c.set(path, v, text, variable)...)
		}
	})
	found = append(found, c.setFlags()...)
	found = append(found, c.machine()...)
	found = append(found, c.page()...)
	return c, append(found, c.above()...).Sorted()
}

// readFile reads agent.hcl; without one it returns nothing, and no error.
func (c *Config) readFile() (name string, data []byte, err error) {
	name = cmp.Or(c.flags.File, c.env("HOMESTAK_CONFIG"))
	wanted := name != ""
	name = cmp.Or(name, filepath.Join(Etc, "agent.hcl"))
	data, err = os.ReadFile(name)
	switch {
	case err == nil:
		abs, aerr := filepath.Abs(name)
		return abs, data, aerr
	case !wanted && errors.Is(err, fs.ErrNotExist):
		return "", nil, nil
	case !wanted && c.flags.Asks && errors.Is(err, fs.ErrPermission):
		return "", nil, nil // who may not read it may well use the socket
	default:
		return "", nil, fmt.Errorf("read the agent's configuration: %w\nname its file with --config or HOMESTAK_CONFIG; without either it is %s/agent.hcl, if there is one", err, Etc)
	}
}

// set writes an attribute from the environment or a flag. A path in it is relative
// to where the program was started.
func (c *Config) set(path string, v reflect.Value, text, from string) diag.List {
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

func (c *Config) setFlags() diag.List {
	var found diag.List
	for _, a := range append([]Attribute{dataDirFlag}, Attributes()...) {
		text, given := c.flags.Given[a.Path]
		if !given {
			continue
		}
		each(&c.AgentFile, func(p string, v reflect.Value) {
			if p == a.Path {
				found = append(found, c.set(p, v, text, "--"+a.Flag)...)
			}
		})
	}
	return found
}

// machine fills in what is usual on this machine.
func (c *Config) machine() diag.List {
	var found diag.List
	if c.Identity == "" {
		c.from["identity"] = "the name of this machine"
		found = c.ownName()
	}
	if c.from["listen"] == "" {
		c.Listen, c.from["listen"] = standardListen, "default"
	}
	if c.DataDir == "" {
		c.from["data_dir"] = "STATE_DIRECTORY"
		c.DataDir, _, _ = strings.Cut(c.env("STATE_DIRECTORY"), ":")
	}
	if c.DataDir == "" {
		var err error
		if c.DataDir, err = ownDataDir(c.env); err != nil {
			found = append(found, diag.FromError(err))
		}
		c.from["data_dir"] = "default"
	}
	for _, dir := range []struct{ from, name string }{{"CREDENTIALS_DIRECTORY", c.env("CREDENTIALS_DIRECTORY")}, {"default", Etc}} {
		for _, file := range []struct {
			path, base string
			value      *string
		}{{"secrets_file", site.SecretsName, &c.SecretsFile}, {"age_key_file", "age-keys.txt", &c.AgeKeyFile}} {
			name := filepath.Join(dir.name, file.base)
			if _, err := os.Stat(name); err == nil && *file.value == "" && dir.name != "" && !placeholder(name) {
				*file.value, c.from[file.path] = name, dir.from
			}
		}
	}
	return found
}

// placeholder reports whether a credential is what the unit has for a file that does not exist on
// the machine (SetCredential in systemd/homestak-gitops.service).
func placeholder(name string) bool {
	info, err := os.Stat(name)
	if err != nil || info.Size() > 8 {
		return false
	}
	data, err := os.ReadFile(name)
	text := strings.TrimSpace(string(data))
	return err == nil && (text == "{}" || text == "#")
}

// ownName makes the short name of the machine the identity, if a host can have it.
func (c *Config) ownName() diag.List {
	const hint = "name the host of the site that is converged: identity in agent.hcl, or --identity"
	name, err := os.Hostname()
	if err != nil {
		return diag.List{diag.FromError(fmt.Errorf("identity is not known: %w\n%s", err, hint))}
	}
	short, _, _ := strings.Cut(name, ".")
	if found := hcl.SetAgent(&c.AgentFile, "identity", short); found.HasErrors() {
		return diag.List{diag.FromError(fmt.Errorf("identity is not known, and the name of this machine, %q, cannot be that of a host\n%s", short, hint))}
	}
	return nil
}

// standardListen is the default listen address of agents for nodes and children.
const standardListen = ":44443"

// noServer as listen says that there is none; the environment cannot say "".
const noServer = "none"

// Serves is the address of the server; "" for none.
func (c *Config) Serves() string {
	if c.Listen == noServer {
		return ""
	}
	return c.Listen
}

// above completes what is about a parent, and finds what is missing there.
func (c *Config) above() diag.List {
	p := c.Parent
	switch {
	case p.URL == "" && (len(p.Pins) > 0 || p.TokenFile != ""):
		return diag.List{c.missing("parent.url", "Which server? Pins and token are of no use without it.")}
	case p.URL == "":
		return nil
	}
	if c.Repository.URL == "" {
		c.Repository.URL, c.from["repository.url"] = strings.TrimRight(p.URL, "/")+string(wire.RepositoryPath), "parent.url"
	}
	var found diag.List
	if len(p.Pins) == 0 {
		found = append(found, c.missing("parent.pins", "Without a pin the server cannot be verified; status on its machine shows its pins."))
	}
	if p.TokenFile == "" {
		found = append(found, c.missing("parent.token_file", "The parent has to know which child asks; on its machine: homestak-gitops token mint "+c.Identity))
	}
	return found
}

func (c *Config) missing(path, why string) diag.Finding {
	at := c.At("parent.url")
	f := diag.Errorf(at, path+" is missing", "%s", why)
	f.Address = path
	return f
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

// Set reports whether a file, the environment or a flag gives an attribute a value.
func (c *Config) Set(path string) bool { return c.from[path] != "" }

// ownDataDir is the default data folder of agents of this user.
func ownDataDir(env func(string) string) (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/homestak-gitops", nil
	}
	state := env("XDG_STATE_HOME")
	if home := env("HOME"); !filepath.IsAbs(state) && home != "" {
		state = filepath.Join(home, ".local", "state")
	}
	if !filepath.IsAbs(state) {
		return "", errors.New("no folder for locks: HOMESTAK_DATA_DIR, XDG_STATE_HOME and HOME are not set")
	}
	return filepath.Join(state, "homestak-gitops"), nil
}

// LockDir returns the folder of this machine's locks, which are about no site. Root shares it
// with the agent, so that agent.hcl counts too.
func LockDir(env func(string) string) (string, error) {
	if dir := env("HOMESTAK_DATA_DIR"); dir != "" {
		return dir, nil
	}
	if os.Geteuid() != 0 {
		return ownDataDir(env)
	}
	c, _ := Flags{Asks: true}.ReadConfig(env) // the agent reports what is wrong with it
	return c.DataDir, nil
}

// Socket is the socket of an agent of this configuration.
func (c *Config) Socket() string {
	switch dir := c.env("RUNTIME_DIRECTORY"); {
	case c.flags.Socket != "":
		return c.flags.Socket
	case c.env("HOMESTAK_SOCKET") != "":
		return c.env("HOMESTAK_SOCKET")
	case dir != "":
		dir, _, _ = strings.Cut(dir, ":")
		return filepath.Join(dir, "agent.sock")
	case os.Geteuid() == 0 && c.from["data_dir"] == "default":
		return control.StandardSocket
	default:
		return filepath.Join(c.DataDir, "agent.sock")
	}
}

// Search says where the agent of this configuration may listen.
func (c *Config) Search() control.Search {
	return control.Search{
		Socket: cmp.Or(c.flags.Socket, c.env("HOMESTAK_SOCKET")), DataDir: c.DataDir, Given: c.from["data_dir"] != "default",
	}
}
