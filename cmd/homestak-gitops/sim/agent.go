package sim

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/sim/debian"
	"github.com/homestak/homestak-gitops/sim/machine"
)

// agents are the agents of simulated machines, each of which is a whole one in this process: it reads agent.hcl of its
// machine, serves a port of it, and converges the Proxmox VE of it. Its data folder is on this machine and belongs
// to the disk of the other one.
type agents struct {
	world *World

	mu      sync.Mutex // for moments: they begin and end by themselves
	dir     string     // of what they keep; "" before the first
	version string     // of the program that agents of hosts run, and hand down
	running map[string]*service.Service
}

// folder returns the folder with the agents' data. It is removed by close.
func (a *agents) folder() (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dir != "" {
		return a.dir, nil
	}
	dir, err := os.MkdirTemp("", "homestak-gitops-agents-")
	if err == nil {
		a.dir = dir
		err = os.WriteFile(programIn(dir), []byte(download(a.version)), 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("the agents of simulated machines: %w", err)
	}
	return dir, nil
}

// release makes another version the one that agents of hosts run when they are made.
func (a *agents) release(version string) error {
	dir, err := a.folder()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version = version
	return durable.Replace(programIn(dir), []byte(download(version))) // those that run have the other one open
}

func (a *agents) released() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.version
}

// programIn is the file of a folder that simulated machines get in place of this program.
func programIn(dir string) string { return filepath.Join(dir, "program") }

// close removes what agents have kept. None may run any more.
func (a *agents) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dir == "" {
		return nil
	}
	return os.RemoveAll(a.dir)
}

const (
	settings = service.Etc + "/agent.hcl"
	dataDir  = "/var/lib/homestak-gitops"
	// keeps names the folder of this machine in which the agent has its data.
	keeps = dataDir + "/.simulated"

	reportEvery = 5 * time.Second
)

// pace is the least time between two reports of agents in a simulation.
const pace = 100 * time.Millisecond

// run is the verb agent, as a service.
func (a *agents) run(m *debian.Machine, p *machine.Process) int {
	ctx, cancel := contextOf(p)
	defer cancel()
	err := a.serve(ctx, m, p)
	if err == nil || ctx.Err() != nil {
		return 0
	}
	a.world.o.Log.Error("the agent of a simulated machine ended", "machine", m.K.Hostname(), "error", err)
	return p.Failf("%v", err)
}

func (a *agents) serve(ctx context.Context, m *debian.Machine, p *machine.Process) error {
	dir, err := a.folder()
	if err != nil {
		return err
	}
	lent, err := os.MkdirTemp(dir, "etc-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(lent) }()
	cfg, err := configuration(m, p, lent)
	if err != nil {
		return err
	}
	release, err := cfg.Claim("agent", control.NoSocket)
	if err != nil {
		return err
	}
	defer func() { _ = release() }()
	version, err := versionOf(m.K.FS)
	if err != nil {
		return err
	}
	s, err := a.world.service(cfg, version, vantage{
		transport: hostAPI(m), reaches: reachesFrom(m, a.world.Hosts.Reaches), dial: m.Dial,
		listen: func(at netip.AddrPort) (net.Listener, error) { return m.Listen(at.Port()) },
	})
	if err != nil {
		return err
	}
	a.note(cfg.Identity, s)
	defer a.note(cfg.Identity, nil)
	stop, hangups := make(chan struct{}), make(chan os.Signal, 1)
	p.Handle(syscall.SIGTERM, sync.OnceFunc(func() { close(stop) }))
	p.Handle(syscall.SIGHUP, func() {
		select {
		case hangups <- syscall.SIGHUP:
		default: // one is on its way
		}
	})
	p.Ready()
	return s.Run(ctx, control.NoSocket, stop, hangups)
}

// note remembers which agents run.
func (a *agents) note(identity string, s *service.Service) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s == nil {
		delete(a.running, identity)
	} else {
		a.running[identity] = s
	}
}

// configuration reads the settings of a machine, with copies of the files that they name. Files that the user of
// the process may not read are missing, except secrets, which the service manager passes on.
func configuration(m *debian.Machine, p *machine.Process, lent string) (*service.Config, error) {
	fs := m.K.FS
	list, err := fs.ReadDir(machine.Cred{}, service.Etc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", service.Etc, err)
	}
	for _, f := range list {
		name := service.Etc + "/" + f.Name
		if f.Kind != machine.PlainFile {
			continue
		}
		if err := copyOut(m, p, name, filepath.Join(lent, f.Name), f.Name == "secrets.yaml" || f.Name == "age-keys.txt"); err != nil {
			return nil, err
		}
	}
	data, err := dataOf(fs, lent)
	if err != nil {
		return nil, err
	}
	env := map[string]string{
		"HOMESTAK_CONFIG": filepath.Join(lent, filepath.Base(settings)), "HOMESTAK_DATA_DIR": data,
		"CREDENTIALS_DIRECTORY": lent, "HOMESTAK_PARENT_REPORT_EVERY": reportEvery.String(),
	}
	cfg, found := service.Flags{}.ReadConfig(func(key string) string { return env[key] })
	if found.HasErrors() {
		return nil, fmt.Errorf("%s: %s", settings, found.Sorted()[0])
	}
	for _, name := range []*string{&cfg.SecretsFile, &cfg.AgeKeyFile} {
		if filepath.Dir(*name) != lent {
			*name = "" // it would be one of this machine
		}
	}
	for _, name := range []*string{&cfg.API.CAFile, &cfg.API.TokenFile, &cfg.Parent.TokenFile} {
		if *name == "" || filepath.Dir(*name) == lent {
			continue
		}
		here := filepath.Join(lent, filepath.Base(*name))
		if err := copyOut(m, p, *name, here, false); err != nil {
			return nil, err
		}
		*name = here
	}
	if host, port, err := net.SplitHostPort(cfg.Listen); err == nil && host == "" {
		cfg.Listen = net.JoinHostPort(m.Address().String(), port)
	}
	return cfg, nil
}

// copyOut copies a file of a machine to this one, if the process may read it or any is.
func copyOut(m *debian.Machine, p *machine.Process, name, to string, anyone bool) error {
	const read = 4
	info, err := m.K.FS.Stat(machine.Cred{}, name)
	if errors.Is(err, syscall.ENOENT) || err == nil && !anyone && !m.K.FS.Access(p.Cred, name, read) {
		return nil // the agent says what is missing
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	text, err := m.K.FS.ReadFile(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	perm := os.FileMode(info.Perm & 0o777)
	if strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".txt") {
		perm = 0o600 // a credential
	}
	return os.WriteFile(to, []byte(text), perm)
}

// dataOf is the data folder of the agent on a disk, beside a folder that was lent. It is lost if the one on the
// machine is removed.
func dataOf(machine *machine.FS, lent string) (string, error) {
	if name, err := machine.ReadFile(keeps); err == nil {
		return strings.TrimSpace(name), nil
	}
	dir, err := os.MkdirTemp(filepath.Dir(lent), "data-")
	if err != nil {
		return "", err
	}
	if err := machine.MkdirAll(dataDir, 0o700); err != nil {
		return "", err
	}
	return dir, machine.WriteFile(keeps, dir+"\n", 0o600, 0, 0)
}

// hostAPI is the way of a program of a machine to the Proxmox VE of that machine: TLS, by the certificate and with the
// token that the program knows.
func hostAPI(m *debian.Machine) func(*model.Site, *model.Host) (http.RoundTripper, string) {
	return func(_ *model.Site, h *model.Host) (http.RoundTripper, string) {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(h.CAPEM)
		return &http.Transport{
			DialContext: m.Dial, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			MaxIdleConnsPerHost: 8, IdleConnTimeout: 4 * time.Second, DisableCompression: true,
		}, h.APIToken
	}
}

// reachesFrom returns what a prober on a machine can reach: nothing, once the machine is off.
func reachesFrom(m *debian.Machine, network func(netip.Addr) error) func(netip.Addr) error {
	return func(ip netip.Addr) error {
		got := make(chan error, 1)
		go func() { got <- network(ip) }()
		select {
		case err := <-got:
			return err
		case <-m.Down():
			return fs.ErrClosed // a host may be busy with halting this machine
		}
	}
}
