package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim"
)

// simFlags are the flags of sim.
type simFlags struct {
	listen   string
	node     string
	nodes    []string
	offline  []string
	noQuorum bool
	version  string
	latency  time.Duration
	taskTime time.Duration
	speed    int
	workers  int
	guests   int
	storages []string
	bridges  []string
	token    string
	password string
	seed     int64
	cpus     int
	memory   int64
	disk     int64
	noKVM    bool
	faults   []string
	// downloads are rules of [pvesim.ParseDownload].
	downloads []string
}

// simulator is the one line that sim --json prints.
type simulator struct {
	API         string `json:"api"`
	Node        string `json:"node"`
	Token       string `json:"token"`
	Fingerprint string `json:"fingerprint"`
}

func (a *app) simVerb() *cobra.Command {
	f := &simFlags{}
	c := &cobra.Command{
		Use:   "sim",
		Short: "Serve a simulated Proxmox VE host, to try things on",
		Long: `Serves a simulated Proxmox VE host behind the real protocol (TLS, tokens and
tickets, /api2/json) until it is interrupted. All of it is in memory.

A storage is NAME:TYPE:CONTENT[:SIZE in GiB][:PATH][:shared], content separated
by commas, type dir, zfspool, lvmthin, nfs and the like. Without --storage there
are local (dir: iso, vztmpl, backup, snippets, import) and local-lvm (lvmthin:
images, rootdir).

A fault is "METHOD PATH-PATTERN [nth=N] status=S [apply]": METHOD may be *, in
the pattern * stands for one segment and ** for the rest, nth counts matching
requests, status -1 drops the connection, and with apply the request takes
effect all the same: its answer was lost. With no-worker in place of the status
the request fails where PVE starts the process of a task, as on a busy host.

A download is "URL-PATTERN status=N", "URL-PATTERN file=PATH" or "URL-PATTERN
size=BYTES": what the host gets from such addresses. In the pattern * stands for
any run of characters, and the first download that matches decides. With file
the content counts: a wrong checksum, a broken image or a broken archive fails
as on a real host. From all other addresses the host gets a file of some size
with the right checksum.

With --speed 10 the clock of the host runs ten times as fast as yours: tasks,
boots, timeouts, leases and the times of the other flags take a tenth. Only
connections keep to your clock. The host's date then runs ahead of yours, which
doctor reports.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.simulate(c.Context(), f) },
	}
	fs := c.Flags()
	fs.StringVar(&f.listen, "listen", "127.0.0.1:8006", "`ADDRESS` to serve on; port 0 chooses a free one")
	fs.StringVar(&f.node, "node", "father", "`NAME` of the node that answers")
	fs.StringSliceVar(&f.nodes, "nodes", nil, "`NAMES` of further nodes of its cluster, separated by commas, or how many there are in all")
	fs.StringSliceVar(&f.offline, "offline", nil, "`NAMES` of nodes that are down, separated by commas")
	fs.BoolVar(&f.noQuorum, "no-quorum", false, "let the cluster be without quorum: nothing can be written")
	fs.StringVar(&f.version, "pve-version", "9.2", "`VERSION` of Proxmox VE that answers: 8.4, 9.1 or 9.2")
	fs.DurationVar(&f.latency, "latency", 0, "`TIME` that every request takes")
	fs.DurationVar(&f.taskTime, "task-time", time.Second, "`TIME` that a task takes")
	fs.IntVar(&f.speed, "speed", 1, "`NUMBER` of times as fast as yours that the clock of the host runs")
	fs.IntVar(&f.workers, "workers", 3, "`NUMBER` of requests that a node serves at once")
	fs.IntVar(&f.guests, "guests", 0, "`NUMBER` of guests of somebody else that are there from the start")
	fs.StringArrayVar(&f.storages, "storage", nil, "`STORAGE` of every node; may be repeated")
	fs.StringSliceVar(&f.bridges, "bridge", nil, "`NAMES` of the bridges of every node, separated by commas (default vmbr0)")
	fs.StringVar(&f.token, "token", "", "API `TOKEN`, user@realm!name=secret (default: made from the seed)")
	fs.StringVar(&f.password, "password", "", "`PASSWORD` of root@pam, for tickets (default: the secret of the token)")
	fs.IntVar(&f.cpus, "processors", 0, "`NUMBER` of processors of every node (default 64)")
	fs.Int64Var(&f.memory, "memory", 0, "`SIZE` in GiB of the memory of every node (default 1024)")
	fs.Int64Var(&f.disk, "root-disk", 0, "`SIZE` in GiB of the system disk of every node (default 96)")
	fs.BoolVar(&f.noKVM, "no-kvm", false, "be a machine without virtualisation, on which a VM starts only with kvm=0")
	fs.Int64Var(&f.seed, "seed", 0, "`NUMBER` that fixes everything invented")
	fs.StringArrayVar(&f.downloads, "download", nil, "`DOWNLOAD` that sets what some addresses hold; may be repeated")
	fs.StringArrayVar(&f.faults, "fault", nil, "`FAULT` that makes requests fail; may be repeated")
	a.ui.jsonFlag(c)
	return c
}

var (
	nodeName  = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?$`)
	tokenForm = regexp.MustCompile(`^[^\s@!=/:]+@[A-Za-z][A-Za-z0-9.\-_]+![A-Za-z][A-Za-z0-9.\-_]+=\S+$`)
)

// keptTasks is how many finished tasks a served simulator remembers, which may run for
// months: some more than anybody asks for, and no more than some megabytes.
const keptTasks = 10_000

// config checks the flags: pvesim takes only what makes sense.
func (f *simFlags) config() (pvesim.Config, error) {
	c := pvesim.Config{
		Node: f.node, Nodes: f.furtherNodes(), Offline: f.offline, NoQuorum: f.noQuorum, Version: f.version, Seed: f.seed,
		TaskTime: f.taskTime, Speed: f.speed, Latency: f.latency, Workers: f.workers, Guests: f.guests, Token: f.token,
		Bridges: f.bridges, Password: f.password, KeepTasks: keptTasks, CPUs: f.cpus, Memory: f.memory << 30, RootDisk: f.disk << 30, NoKVM: f.noKVM,
	}
	seen := map[string]bool{}
	for _, n := range append([]string{f.node}, c.Nodes...) {
		if !nodeName.MatchString(n) || seen[n] {
			return c, fmt.Errorf("node %q: want names of nodes, each once", n)
		}
		seen[n] = true
	}
	for _, n := range f.offline {
		if !seen[n] || n == f.node {
			return c, fmt.Errorf("--offline: %q is none of the further nodes %s", n, strings.Join(c.Nodes, ", "))
		}
	}
	if !slices.Contains(pvesim.Versions(), f.version) {
		return c, fmt.Errorf("--pve-version: %q is none of %s", f.version, strings.Join(pvesim.Versions(), ", "))
	}
	if f.token != "" && !tokenForm.MatchString(f.token) {
		return c, fmt.Errorf("--token is not of the form user@realm!name=secret")
	}
	if f.latency < 0 || f.taskTime < 0 || f.workers < 1 || f.guests < 0 {
		return c, fmt.Errorf("--latency, --task-time and --guests cannot be negative, and --workers must be at least 1")
	}
	if f.speed < 1 || f.speed > topSpeed {
		return c, fmt.Errorf("--speed must be from 1 to %d", topSpeed)
	}
	if f.cpus < 0 || f.memory < 0 || f.disk < 0 || max(f.memory, f.disk) > mostGiB {
		return c, fmt.Errorf("--processors, --memory and --root-disk cannot be negative, and the sizes at most %d GiB", mostGiB)
	}
	storages := map[string]bool{}
	for _, text := range f.storages {
		st, err := pvesim.ParseStorage(text)
		if err != nil {
			return c, fmt.Errorf("--storage: %w", err)
		}
		if storages[st.Name] {
			return c, fmt.Errorf("--storage: %s is there twice", st.Name)
		}
		storages[st.Name] = true
		c.Storages = append(c.Storages, st)
	}
	for _, text := range f.downloads {
		d, err := pvesim.ParseDownload(text)
		if err != nil {
			return c, fmt.Errorf("--download: %w", err)
		}
		c.Downloads = append(c.Downloads, d)
	}
	var faults []pvesim.Fault
	for _, text := range f.faults {
		fault, err := pvesim.ParseFault(text)
		if err != nil {
			return c, fmt.Errorf("--fault: %w", err)
		}
		faults = append(faults, fault)
	}
	if len(faults) > 0 {
		c.Fault = pvesim.Faults(faults...)
	}
	return c, nil
}

// topSpeed is the fastest clock: with it a task of a second is over before its caller
// has read the answer.
const topSpeed = 1000

// mostGiB is the largest machine: a size in bytes has to fit in a number.
const mostGiB = 1 << 30

// mostNodes is how many nodes --nodes makes; corosync is not built for more.
const mostNodes = 32

// furtherNodes are the names of the nodes beside the first: as given, or numbered
// from 2 when only their number is.
func (f *simFlags) furtherNodes() []string {
	if len(f.nodes) != 1 {
		return f.nodes
	}
	count, err := strconv.Atoi(f.nodes[0])
	if err != nil || count < 1 || count > mostNodes {
		return f.nodes
	}
	var names []string
	for n := 2; n <= count; n++ {
		names = append(names, fmt.Sprint(f.node, n))
	}
	return names
}

func (a *app) simulate(ctx context.Context, f *simFlags) error {
	cfg, err := f.config()
	if err != nil {
		return err
	}
	// To be interrupted is how this verb ends well, at the first signal already.
	ctx, cancel := a.stopping.soon(ctx)
	defer cancel()
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return fmt.Errorf("serve on %s: %w\nchoose another address: --listen 127.0.0.1:0", f.listen, err)
	}
	host := pvesim.New(cfg)
	at := simulator{API: "https://" + reachable(ln.Addr()), Node: host.Node(), Token: host.Token(), Fingerprint: host.Fingerprint()}
	if err := a.announce(at); err != nil {
		_ = ln.Close()
		return err
	}
	if err := host.Serve(ctx, ln); err != nil {
		return fmt.Errorf("serve on %s: %w", ln.Addr(), err)
	}
	return nil
}

// reachable is an address that a client on this machine can use.
func reachable(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if ok && tcp.IP.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", fmt.Sprint(tcp.Port))
	}
	return addr.String()
}

// announce tells how to reach the simulator, as one line for a program or as what
// to write into a site.
func (a *app) announce(at simulator) error {
	if a.ui.json {
		line, err := json.Marshal(at)
		if err != nil {
			return err
		}
		a.ui.written = true
		_, err = fmt.Fprintf(a.stdout, "%s\n", line)
		return err
	}
	a.ui.printf(`A simulated Proxmox VE host %[2]s listens at %[1]s.

In the site:

  host %[2]q {
    api         = %[1]q
    fingerprint = %[4]q
  }

In its secrets.yaml, which git must not track (or in a file for --secrets):

  api_tokens:
    %[2]s: %[3]q

Ctrl-C ends it.
`, at.API, at.Node, at.Token, at.Fingerprint)
	return nil
}
