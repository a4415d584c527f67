package sim

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/observation"
	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// HostOptions say what a simulator that is served is like, as the flags of the verb sim do.
type HostOptions struct {
	From      string // a file with an observation: the nodes, version, guests, storages, bridges and devices are from there
	Node      string
	Nodes     []string // further nodes of its cluster, or one number: how many there are in all
	Offline   []string
	NoQuorum  bool
	Version   string
	Latency   time.Duration // of every request
	TaskTime  time.Duration
	Speed     int      // of its clock
	Workers   int      // requests that a node serves at once
	Guests    int      // unmanaged ones, from the start
	Storages  []string // see [pve.ParseStorage]
	Bridges   []string
	Token     string
	Password  string
	Seed      int64
	CPUs      int
	Memory    int64 // GiB
	RootDisk  int64 // GiB
	NoKVM     bool
	Files     string   // see [pve.Config]
	Faults    []string // see [pve.ParseFault]
	Downloads []string // see [pve.ParseDownload]
}

// NewHost makes a simulator. An error names the flag that is wrong.
func NewHost(o HostOptions) (*pve.Host, error) {
	cfg, err := o.config()
	if err != nil {
		return nil, err
	}
	inner := pve.Config{Version: cfg.Version, TaskTime: cfg.TaskTime, Latency: cfg.Latency, Workers: cfg.Workers, KeepTasks: keptTasks}
	n := &Network{}
	cfg.Systems = &Guests{Clock: machine.Clock{Begin: time.Now(), Speed: o.Speed}, Network: n, Inner: inner}
	var h *pve.Host
	if o.From == "" {
		h = pve.New(cfg)
	} else if h, err = twin(o.From, cfg); err != nil {
		return nil, err
	}
	n.Dial = Hosts{h.Node(): h}.Dial
	return h, nil
}

func twin(file string, cfg pve.Config) (*pve.Host, error) {
	observed, err := observation.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return pve.Twin(observed, cfg)
}

var (
	nodeName  = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?$`)
	tokenForm = regexp.MustCompile(`^[^\s@!=/:]+@[A-Za-z][A-Za-z0-9.\-_]+![A-Za-z][A-Za-z0-9.\-_]+=\S+$`)
)

// keptTasks is the number of finished tasks that a served simulator remembers, which may run for
// months: more than a client asks for, and a few megabytes.
const keptTasks = 10_000

// config checks the options: pvesim takes only what makes sense.
func (o HostOptions) config() (pve.Config, error) {
	c := pve.Config{
		Node: o.Node, Nodes: o.furtherNodes(), Offline: o.Offline, NoQuorum: o.NoQuorum, Version: o.Version, Seed: o.Seed,
		TaskTime: o.TaskTime, Speed: o.Speed, Latency: o.Latency, Workers: o.Workers, Guests: o.Guests, Files: o.Files, Token: o.Token,
		Bridges: o.Bridges, Password: o.Password, KeepTasks: keptTasks, CPUs: o.CPUs, Memory: o.Memory << 30, RootDisk: o.RootDisk << 30, NoKVM: o.NoKVM,
	}
	seen := map[string]bool{}
	for _, n := range append([]string{o.Node}, c.Nodes...) {
		if !nodeName.MatchString(n) || seen[n] {
			return c, fmt.Errorf("node %q: want names of nodes, each once", n)
		}
		seen[n] = true
	}
	for _, n := range o.Offline {
		if !seen[n] || n == o.Node {
			return c, fmt.Errorf("--offline: %q is none of the further nodes %s", n, strings.Join(c.Nodes, ", "))
		}
	}
	if !slices.Contains(pve.Versions(), o.Version) {
		return c, fmt.Errorf("--pve-version: %q is none of %s", o.Version, strings.Join(pve.Versions(), ", "))
	}
	if o.Token != "" && !tokenForm.MatchString(o.Token) {
		return c, fmt.Errorf("--token is not of the form user@realm!name=secret")
	}
	if o.Latency < 0 || o.TaskTime < 0 || o.Workers < 1 || o.Guests < 0 {
		return c, fmt.Errorf("--latency, --task-time and --guests cannot be negative, and --workers must be at least 1")
	}
	if o.Speed < 1 || o.Speed > topSpeed {
		return c, fmt.Errorf("--speed must be from 1 to %d", topSpeed)
	}
	if o.CPUs < 0 || o.Memory < 0 || o.RootDisk < 0 || max(o.Memory, o.RootDisk) > mostGiB {
		return c, fmt.Errorf("--processors, --memory and --root-disk cannot be negative, and the sizes at most %d GiB", mostGiB)
	}
	storages := map[string]bool{}
	for _, text := range o.Storages {
		st, err := pve.ParseStorage(text)
		if err != nil {
			return c, fmt.Errorf("--storage: %w", err)
		}
		if storages[st.Name] {
			return c, fmt.Errorf("--storage: %s is listed twice", st.Name)
		}
		storages[st.Name] = true
		c.Storages = append(c.Storages, st)
	}
	for _, text := range o.Downloads {
		d, err := pve.ParseDownload(text)
		if err != nil {
			return c, fmt.Errorf("--download: %w", err)
		}
		c.Downloads = append(c.Downloads, d)
	}
	var faults []pve.Fault
	for _, text := range o.Faults {
		fault, err := pve.ParseFault(text)
		if err != nil {
			return c, fmt.Errorf("--fault: %w", err)
		}
		faults = append(faults, fault)
	}
	if len(faults) > 0 {
		c.Fault = pve.Faults(faults...)
	}
	return c, nil
}

// topSpeed is the fastest clock: with it a task of a second is over before its caller
// has read the answer.
const topSpeed = 1000

// mostGiB is the largest machine: a size in bytes has to fit in a number.
const mostGiB = 1 << 30

// mostNodes is the maximum of --nodes; corosync is not built for more.
const mostNodes = 32

// furtherNodes are the names of the nodes beside the first: as given, or numbered
// from 2 when only their number is.
func (o HostOptions) furtherNodes() []string {
	if len(o.Nodes) != 1 {
		return o.Nodes
	}
	count, err := strconv.Atoi(o.Nodes[0])
	if err != nil || count < 1 || count > mostNodes {
		return o.Nodes
	}
	var names []string
	for n := 2; n <= count; n++ {
		names = append(names, fmt.Sprint(o.Node, n))
	}
	return names
}
