package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/drivers/proxmox/simhost"
)

// simFlags are the flags of sim.
type simFlags struct {
	simhost.Options
	listen, ssh string
}

// simulator is the one line that sim --json prints.
type simulator struct {
	API         string `json:"api"`
	Node        string `json:"node"`
	Token       string `json:"token"`
	Fingerprint string `json:"fingerprint"`
	SSH         string `json:"ssh"` // by which guests are reached
	HostKey     string `json:"host_key"`
}

func simVerb(a *app) *cobra.Command {
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

Guests that are made from an image of Debian 12 or 13 run a simulated Debian.
Specs are applied in it by SSH through the host, which lets in any key at the
address of --ssh, as jump in the ssh block of the host says. The guests let in
those keys that the site gives them. With via = "agent" in access of a spec, no
SSH is needed.

With --speed 10 the clock of the host runs ten times as fast as yours: tasks,
boots, timeouts, leases and the times of the other flags take a tenth. Only
connections keep to your clock. The host's date then runs ahead of yours, which
doctor reports.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runSim(c.Context(), a, f) },
	}
	fs := c.Flags()
	fs.StringVar(&f.listen, "listen", "127.0.0.1:8006", "`ADDRESS` to serve on; port 0 chooses a free one")
	fs.StringVar(&f.ssh, "ssh", "127.0.0.1:0", "`ADDRESS` to serve SSH on, as the host through which its guests are reached; port 0 chooses a free one")
	fs.StringVar(&f.Node, "node", "father", "`NAME` of the node that answers")
	fs.StringSliceVar(&f.Nodes, "nodes", nil, "`NAMES` of further nodes of its cluster, separated by commas, or how many there are in all")
	fs.StringSliceVar(&f.Offline, "offline", nil, "`NAMES` of nodes that are down, separated by commas")
	fs.BoolVar(&f.NoQuorum, "no-quorum", false, "let the cluster be without quorum: nothing can be written")
	fs.StringVar(&f.Version, "pve-version", "9.2", "`VERSION` of Proxmox VE that answers: 8.4, 9.1 or 9.2")
	fs.DurationVar(&f.Latency, "latency", 0, "`TIME` that every request takes")
	fs.DurationVar(&f.TaskTime, "task-time", time.Second, "`TIME` that a task takes")
	fs.IntVar(&f.Speed, "speed", 1, "`NUMBER` of times as fast as yours that the clock of the host runs")
	fs.IntVar(&f.Workers, "workers", 3, "`NUMBER` of requests that a node serves at once")
	fs.IntVar(&f.Guests, "guests", 0, "`NUMBER` of guests of somebody else that are there from the start")
	fs.StringArrayVar(&f.Storages, "storage", nil, "`STORAGE` of every node; may be repeated")
	fs.StringSliceVar(&f.Bridges, "bridge", nil, "`NAMES` of the bridges of every node, separated by commas (default vmbr0)")
	fs.StringVar(&f.Token, "token", "", "API `TOKEN`, user@realm!name=secret (default: made from the seed)")
	fs.StringVar(&f.Password, "password", "", "`PASSWORD` of root@pam, for tickets (default: the secret of the token)")
	fs.IntVar(&f.CPUs, "processors", 0, "`NUMBER` of processors of every node (default 64)")
	fs.Int64Var(&f.Memory, "memory", 0, "`SIZE` in GiB of the memory of every node (default 1024)")
	fs.Int64Var(&f.RootDisk, "root-disk", 0, "`SIZE` in GiB of the system disk of every node (default 96)")
	fs.BoolVar(&f.NoKVM, "no-kvm", false, "be a machine without virtualisation, on which a VM starts only with kvm=0")
	fs.Int64Var(&f.Seed, "seed", 0, "`NUMBER` that fixes everything invented")
	fs.StringArrayVar(&f.Downloads, "download", nil, "`DOWNLOAD` that sets what some addresses hold; may be repeated")
	fs.StringVar(&f.Files, "pmxcfs", "", "`FOLDER` for the files by which a node shows that guests changed (etc/pve/.version and others)")
	fs.StringArrayVar(&f.Faults, "fault", nil, "`FAULT` that makes requests fail; may be repeated")
	a.ui.jsonFlag(c)
	return c
}

func runSim(ctx context.Context, a *app, f *simFlags) error {
	host, err := simhost.New(f.Options)
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
	way, err := new(net.ListenConfig).Listen(ctx, "tcp", f.ssh)
	if err != nil {
		_ = ln.Close()
		return fmt.Errorf("serve SSH on %s: %w\nchoose another address: --ssh 127.0.0.1:0", f.ssh, err)
	}
	jump := simhost.Jump(host)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	all.Go(func() { jump.Serve(ctx, way) })
	at := simulator{
		API: "https://" + reachable(ln.Addr()), Node: host.Node(), Token: host.Token(), Fingerprint: host.Fingerprint(),
		SSH: reachable(way.Addr()), HostKey: jump.HostKey(),
	}
	if err := announce(a, at); err != nil {
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
func announce(a *app, at simulator) error {
	if a.ui.json {
		return a.ui.line(at)
	}
	ip, port, err := net.SplitHostPort(at.SSH)
	if err != nil {
		return err
	}
	a.ui.printf(`A simulated Proxmox VE host %[2]s listens at %[1]s.

In the site:

  host %[2]q {
    api         = %[1]q
    fingerprint = %[4]q
    ssh {
      address  = %[5]q
      port     = %[6]s
      host_key = %[7]q
      jump     = true
    }
  }

In its secrets.yaml, which git must not track (or in a file for --secrets):

  api_tokens:
    %[2]s: %[3]q

Ctrl-C ends it.
`, at.API, at.Node, at.Token, at.Fingerprint, ip, port, at.HostKey)
	return nil
}
