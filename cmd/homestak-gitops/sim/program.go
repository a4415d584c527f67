package sim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/sim/debian"
	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/specserve"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/node"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// A simulated machine cannot run this program, nor Python. In place of the program a node downloads a
// script, whose interpreter is a Go function that runs the same packages.
const (
	python      = "/usr/bin/python3"
	interpreter = "/usr/lib/simulated/homestak-gitops"
	installed   = "/usr/local/bin/homestak-gitops"
)

// download is the program in a version.
func download(version string) string { return "#!" + interpreter + "\n# " + version + "\n" }

// versionOf is that of the program which is installed on a machine.
func versionOf(fs *machine.FS) (string, error) {
	text, err := fs.ReadFile(installed)
	_, version, ok := strings.Cut(strings.TrimSpace(text), "\n# ")
	if err == nil && !ok {
		err = errors.New("it is not the simulated program")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", installed, err)
	}
	return version, nil
}

// NodePrograms are those of nodes, for sim.Guests whose network leads to a parent. No agent runs on them.
func NodePrograms() map[string]debian.Program { return programsOf(nil) }

// programsOf are those of nodes, some of which may run agents.
func programsOf(a *agents) map[string]debian.Program {
	n := &programs{agents: a, busy: map[*debian.Machine]*turn{}}
	return map[string]debian.Program{python: n.python, interpreter: n.command}
}

type programs struct {
	agents *agents

	mu   sync.Mutex // for busy
	busy map[*debian.Machine]*turn
}

// turn is for one run on a machine at a time. Dir has the state of the machine for all of them, until it is off.
type turn struct {
	sync.Mutex

	dir string
}

// turn finds the turn of a machine.
func (n *programs) turn(m *debian.Machine) (*turn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.busy[m]
	if t == nil {
		dir, err := os.MkdirTemp("", "homestak-gitops-node-")
		if err != nil {
			return nil, err
		}
		t = &turn{dir: dir}
		n.busy[m] = t
		go func() {
			<-m.Down()
			n.mu.Lock()
			defer n.mu.Unlock()
			delete(n.busy, m)
			_ = os.RemoveAll(dir) // a folder for temporary files, which may be in use
		}()
	}
	return t, nil
}

// contextOf ends when a process has to.
func contextOf(p *machine.Process) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-p.Killed():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// command is the program: agent, config fetch, config wait, and config apply with and without --fetch.
func (n *programs) command(m *debian.Machine, p *machine.Process) int {
	if n.agents != nil && len(p.Args) == 3 && p.Args[2] == "agent" {
		return n.agents.run(m, p)
	}
	ctx, cancel := contextOf(p)
	defer cancel()
	if p.Cred.UID != 0 {
		return p.Failf("root only")
	}
	at, err := n.turn(m)
	if err != nil {
		return p.Failf("%v", err)
	}
	at.Lock()
	verb := strings.Join(p.Args[min(2, len(p.Args)):], " ")
	if err := lend(m.K.FS, at.dir); err != nil {
		at.Unlock()
		return p.Failf("%v", err)
	}
	run := node.Run{
		Folder: at.dir, Machine: inside{m}, Dial: m.Dial,
		Note: func(format string, args ...any) { fmt.Fprintf(p.Err(), format+"\n", args...) },
	}
	from := node.Source{File: filepath.Join(at.dir, filepath.Base(wire.ParentFile))}
	if verb == "config wait" { // beside the others, which it starts
		at.Unlock()
		if err := run.Wait(ctx, from); err != nil && ctx.Err() == nil {
			return p.Failf("%v", err)
		}
		return 0
	}
	defer at.Unlock()
	switch verb {
	case "config fetch":
		_, err = run.Fetch(ctx, from)
	case "config apply":
		_, _, err = run.Apply(ctx, nil, "")
	case "config apply --fetch":
		_, _, err = run.Apply(ctx, &from, "")
	default:
		err = fmt.Errorf("%q is not simulated", verb)
	}
	if err = errors.Join(err, takeBack(m.K.FS, at.dir)); err != nil {
		return p.Failf("%v", err)
	}
	return 0
}

// state are the files of a node that the program itself reads and writes, by where they are on a node.
func state() []string {
	out := []string{wire.ParentFile}
	for _, name := range node.FolderFiles() {
		out = append(out, node.DefaultFolder+"/"+name)
	}
	return out
}

// lend copies the state of a node into a folder of this machine. Tasks are only read and written there.
func lend(fs *machine.FS, dir string) error {
	for _, name := range state() {
		own := filepath.Join(dir, filepath.Base(name))
		if _, err := os.Stat(own); err == nil && filepath.Base(name) == "tasks.json" {
			continue
		}
		info, err := fs.Stat(machine.Cred{}, name)
		if errors.Is(err, syscall.ENOENT) {
			if err := os.Remove(own); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			continue
		}
		text := ""
		if err == nil {
			text, err = fs.ReadFile(name)
		}
		if err == nil {
			err = os.WriteFile(own, []byte(text), os.FileMode(info.Perm&0o777))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// takeBack makes the state of a node what is in a folder.
func takeBack(fs *machine.FS, dir string) error {
	if err := fs.MkdirAll(node.DefaultFolder, 0o755); err != nil {
		return err
	}
	for _, name := range state() {
		text, err := os.ReadFile(filepath.Join(dir, filepath.Base(name)))
		switch {
		case err == nil:
			err = fs.WriteFile(name, string(text), 0o600, 0, 0)
		case errors.Is(err, os.ErrNotExist):
			if err = fs.Remove(machine.Cred{}, name); errors.Is(err, syscall.ENOENT) {
				err = nil
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// inside is a machine as a program of its own sees it.
type inside struct{ m *debian.Machine }

// Run is as converge.Machine wants it.
func (i inside) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	var out, errs guest.Capture
	s := i.m.Root(c.Args...)
	s.In, s.Out, s.Err = bytes.NewReader(c.Stdin), &out, &errs
	p, err := i.m.K.Start(s)
	if err != nil {
		return guest.Output{}, fmt.Errorf("%s did not start: %w", c.Args[0], err)
	}
	stop := context.AfterFunc(ctx, func() { p.Signal(syscall.SIGKILL) })
	defer stop()
	code, signal := p.Ended()
	if ctx.Err() != nil {
		return guest.Output{}, fmt.Errorf("%w: %w", guest.ErrOutcomeLost, context.Cause(ctx))
	}
	return out.Output(code, int(signal), &errs), nil
}

// python does what the script of the first boot does, and nothing else.
func (*programs) python(m *debian.Machine, p *machine.Process) int {
	ctx, cancel := contextOf(p)
	defer cancel()
	if text, err := p.ReadFile(p.Args[len(p.Args)-1]); err != nil || len(p.Args) != 2 || !client.IsFirstBootScript(text) {
		return p.Failf("no other script than that of a first boot is simulated")
	}
	if err := firstBoot(ctx, m); err != nil {
		return p.Failf("%v", err)
	}
	return 0
}

// firstBoot is main of firstboot.py.
func firstBoot(ctx context.Context, m *debian.Machine) error {
	text, err := m.K.FS.ReadFile(wire.ParentFile)
	if err != nil {
		return err
	}
	of, err := wire.ReadParent([]byte(text))
	if err != nil {
		return err
	}
	var answer struct{ Agent map[string]string }
	body, err := get(ctx, m, of, wire.SpecPath.Of(of.Identity))
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	if err != nil {
		return err
	}
	if err := install(ctx, m, of, answer.Agent[specserve.ProgramSystem()]); err != nil {
		return err
	}
	done, err := inside{m}.Run(ctx, guest.Command{Args: []string{installed, "config", "apply", "--fetch"}})
	if err != nil || done.Code != 0 || done.Signal != 0 {
		return errors.Join(err, fmt.Errorf("the spec is not applied yet: %s ended with %d: %s", installed, done.Code, done.Err))
	}
	_, err = inside{m}.Run(ctx, guest.Command{Args: []string{"sh", "-c", fmt.Sprintf("systemctl disable %s && rm %s %s && systemctl daemon-reload", client.FirstBootUnit, client.FirstBootUnitFile, client.FirstBootScript)}})
	return err
}

// install gets the program, if there is another one.
func install(ctx context.Context, m *debian.Machine, of wire.Parent, want string) error {
	sum := func(text string) string {
		s := sha256.Sum256([]byte(text))
		return hex.EncodeToString(s[:])
	}
	if there, err := m.K.FS.ReadFile(installed); err == nil && sum(there) == want {
		return nil
	}
	got, err := get(ctx, m, of, wire.AgentPath.Of(specserve.ProgramSystem()))
	switch {
	case err != nil:
		return err
	case sum(string(got)) != want:
		return errors.New("the program that the server sent has another checksum than the spec names")
	}
	return m.K.FS.WriteFile(installed, string(got), 0o755, 0, 0)
}

// get asks the parent.
func get(ctx context.Context, m *debian.Machine, of wire.Parent, path string) ([]byte, error) {
	t := &http.Transport{DialContext: m.Dial, TLSClientConfig: wire.PinnedTLS(of.Pins), DisableKeepAlives: true}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(of.Server, "/")+path, nil)
	if err != nil {
		return nil, err
	}
	wire.SetToken(r.Header, of.Token)
	answer, err := t.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, wire.MaxSpec))
	if err = errors.Join(err, answer.Body.Close()); err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: the server answered %d", path, answer.StatusCode)
	}
	return slices.Clip(body), err
}
