// Package setup prepares a Proxmox VE node for an agent: a user with least roles and a token, a first site in a
// repository, and the unit. Read reads the host and returns a Plan, the steps that are missing. A Plan is printed as
// a script, or carried out. A Record on the host has what each step found and how to undo it.
//
// A step is data: commands of the host, files, and a look that shows the state of what it changes.
package setup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/systemd"
)

// runner runs programs of the host.
type runner interface {
	// Run returns the standard output. The error of a program that failed has its standard error.
	Run(ctx context.Context, argv []string) (string, error)
}

// Programs runs them on this machine.
type Programs struct{}

// Run is that of Runner.
func (Programs) Run(ctx context.Context, argv []string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that an interrupt of the terminal does not end it
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(failed.Stderr)))
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", quoted(argv), err)
	}
	return string(out), err
}

// Setup is a node and what to make of it.
type Setup struct {
	Run     runner
	Root    string                           // goes before the name of each file that is read or written; "" on a host
	Program string                           // the file of this program
	Files   map[string][]byte                // of a first site, as init writes it
	Say     func(format string, args ...any) // reports what is done, a line at a time

	API, Disks, Images, Bridge string // instead of what is found on the host
	Repository                 string // URL; "" for a repository on the host

	// Stop is called between any two changes, and its error ends the run; may be nil.
	Stop func() error
}

// The files of the agent on a host.
const (
	folder      = "/etc/homestak-gitops"
	recordFile  = folder + "/setup.json"
	secretsFile = folder + "/secrets.yaml"
	agentFile   = folder + "/agent.hcl"
	deployKey   = folder + "/deploy-key"
	knownHosts  = folder + "/known_hosts"
	tokenFile   = folder + "/git-token"
	bareFolder  = "/srv/homestak-gitops.git"
	dataFolder  = "/var/lib/homestak-gitops"
	serviceLink = "/etc/systemd/system/multi-user.target.wants/" + systemd.Service
)

func (s *Setup) path(name string) string { return filepath.Join("/", s.Root, name) }

// step is a part of the plan.
type step struct {
	name   string
	look   look
	before string     // state that the look showed
	after  string     // state when it is done; "" if the look has to show it
	do     []action   // each may be repeated
	undo   [][]string // commands
}

// action is one of: a command, a file, the first commit of the site.
type action struct {
	argv  []string
	keep  string // name under which the last line of its output is kept; the output is secret
	field string // what is kept is this field of the JSON object that it prints

	file    string
	content string // with ${NAME} for what was kept
	mode    fs.FileMode

	push map[string][]byte // the site
}

// Do carries out the steps of a plan. After an error or a crash the next plan begins with the step that was not done.
func (s *Setup) Do(ctx context.Context, p *Plan) error {
	r, err := s.readRecord()
	if err != nil {
		return err
	}
	kept := map[string]string{}
	for _, st := range p.steps {
		s.Say("%s", st.name)
		e := r.entry(st.name)
		if e == nil {
			r.Entries = append(r.Entries, entry{Step: st.name, Look: st.look, Before: st.before, Undo: st.undo})
			e = &r.Entries[len(r.Entries)-1]
		}
		e.After = nil
		for _, name := range st.look.Files {
			e.Folders = append(e.Folders, missingFolders(name)...)
		}
		if err := s.save(r); err != nil {
			return err
		}
		for _, a := range st.do {
			if err := s.act(ctx, a, p, kept); err != nil {
				return fmt.Errorf("%s: %w", st.name, err)
			}
		}
		after := st.after
		if after == "" {
			if after, err = s.state(ctx, e.Look); err != nil {
				return fmt.Errorf("%s: %w", st.name, err)
			}
		}
		e.After = &after
		if err := s.save(r); err != nil {
			return err
		}
	}
	return nil
}

// missingFolders are those of a file that are not there now, the innermost first.
func missingFolders(name string) (out []string) {
	for dir := filepath.Dir(name); ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			return out
		}
		out = append(out, dir)
	}
}

// check ends a run that shall stop.
func (s *Setup) check() error {
	if s.Stop == nil {
		return nil
	}
	return s.Stop()
}

func (s *Setup) act(ctx context.Context, a action, p *Plan, kept map[string]string) error {
	if err := errors.Join(ctx.Err(), s.check()); err != nil {
		return err
	}
	s.Say("  %s", p.text(a))
	switch {
	case a.push != nil:
		return s.push(ctx, p, a.push)
	case a.file != "":
		return writeFile(a.file, expand(a.content, kept), a.mode)
	}
	out, err := s.Run.Run(ctx, a.argv)
	if err != nil || a.keep == "" {
		return err
	}
	if a.field != "" {
		var object map[string]any
		if err := json.Unmarshal([]byte(out), &object); err != nil {
			return fmt.Errorf("%s: %w", quoted(a.argv), err)
		}
		out, _ = object[a.field].(string)
	}
	if kept[a.keep] = strings.TrimSpace(out); kept[a.keep] == "" {
		return fmt.Errorf("%s: it printed nothing", quoted(a.argv))
	}
	return nil
}

// expand puts what was kept into a text. Other variables stay, since units have their own.
func expand(text string, kept map[string]string) string {
	for name, value := range kept {
		text = strings.ReplaceAll(text, "${"+name+"}", value)
	}
	return text
}

// writeFile replaces a file atomically. Its folders may be missing.
func writeFile(name, content string, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if err := durable.Replace(name, []byte(content)); err != nil {
		return err
	}
	return os.Chmod(name, mode)
}

// push makes the first commit. A repository on the host is recreated: its content is left from an earlier attempt. One
// elsewhere that has commits is left as it is.
func (s *Setup) push(ctx context.Context, p *Plan, files map[string][]byte) error {
	work, err := os.MkdirTemp("", "homestak-gitops-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	for name, content := range files {
		if err := writeFile(filepath.Join(work, "site", name), string(content), 0o644); err != nil {
			return err
		}
	}
	site, checkout := os.DirFS(filepath.Join(work, "site")), filepath.Join(work, "checkout")
	var author *source.Author
	if !p.Local {
		author, err = source.NewRemoteAuthor(p.repository, p.login, checkout, site)
	} else if err = os.RemoveAll(p.repository); err == nil {
		author, err = source.NewAuthor(p.repository, checkout, site)
	}
	if err != nil {
		return err
	}
	author.Name, author.Email = "homestak-gitops", "root@"+p.host.Name
	_, err = author.Push(ctx, "First site of "+p.host.Name)
	switch {
	case errors.Is(err, source.ErrAhead) && !p.Local:
		name := "hosts/" + p.host.Name + ".hcl"
		s.Say("  it has commits already, and the agent follows them. They need a block for this host; if they have none, add %s:\n\n%s", name, files[name])
		s.Say("  All agents of a site have its ownership key: copy it from another secrets.yaml into %s", s.path(secretsFile))
		return nil
	case err != nil && !p.Local:
		return fmt.Errorf("%w\n%s", err, s.pushAdvice(p))
	case err != nil || !p.Local:
		return err
	}
	config, err := os.OpenFile(filepath.Join(p.repository, "config"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = config.WriteString("[core]\n\tsharedRepository = world\n") // the agent reads what root pushes, with any umask
	return errors.Join(err, config.Close())
}

// pushAdvice says how setup gets the right to push.
func (s *Setup) pushAdvice(p *Plan) string {
	if p.login.KeyFile == "" {
		name := s.path(tokenFile)
		return fmt.Sprintf("put a token that may write to the repository into %s, with chown homestak-gitops and chmod 400, then run the same command again", name)
	}
	public, err := os.ReadFile(p.login.KeyFile + ".pub")
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("if the server refused it: on the git server, add this deploy key to the repository, with the right to write; then run the same command again\n%s"+
		"compare the keys of the server with its own: ssh-keygen -lf %s", public, p.login.KnownHostsFile)
}

// quoted is a command as a shell reads it.
func quoted(argv []string) string {
	words := make([]string, len(argv))
	for i, w := range argv {
		if words[i] = w; w == "" || strings.ContainsAny(w, " \t\n\"'$&|;<>()*?!{}\\`#~") {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}
