package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/sim"
)

func simVerb(a *app) *cobra.Command {
	o := &sim.ServeOptions{}
	c := &cobra.Command{
		Use:   "sim",
		Short: "Serve a simulated Proxmox VE host",
		Long: `Serves a simulated Proxmox VE host over the real protocol (TLS, tokens and tickets,
/api2/json) until it is interrupted. It keeps everything in memory.

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
SSH is needed. A child gets a simulated Proxmox VE, but its agent does not run
here, and a node in mode pull does not apply its spec: both run in simulations
of other verbs, as with agent --sim and test --sim.

With --speed 10 the clock of the host runs ten times as fast as yours: tasks,
boots, timeouts, leases and the times of the other flags take a tenth. Only
connections keep to your clock. The host's date then runs ahead of yours, which
doctor reports.`,
		Args: cobra.NoArgs,
		// To be interrupted is how this verb ends well, at the first signal already.
		RunE: a.soon(func(ctx context.Context, _ []string) error { return runSim(ctx, a, o) }),
	}
	fs := c.Flags()
	fs.StringVar(&o.Listen, "listen", "127.0.0.1:8006", "`ADDRESS` to listen on; port 0 chooses a free port")
	fs.StringVar(&o.SSH, "ssh", "127.0.0.1:0", "`ADDRESS` to listen on for SSH, the jump host for its guests; port 0 chooses a free port")
	fs.StringVar(&o.Node, "node", "father", "`NAME` of the node that answers")
	fs.StringSliceVar(&o.Nodes, "nodes", nil, "`NAMES` of more nodes of the cluster, separated by commas, or the total number of nodes")
	fs.StringSliceVar(&o.Offline, "offline", nil, "`NAMES` of nodes that are down, separated by commas")
	fs.BoolVar(&o.NoQuorum, "no-quorum", false, "simulate a cluster without quorum: it is read-only")
	fs.StringVar(&o.Version, "pve-version", "9.2", "`VERSION` of Proxmox VE that answers: 8.4, 9.1 or 9.2")
	fs.DurationVar(&o.Latency, "latency", 0, "`TIME` that each request takes")
	fs.DurationVar(&o.TaskTime, "task-time", time.Second, "`TIME` that a task takes")
	fs.IntVar(&o.Speed, "speed", 1, "run the clock of the host `NUMBER` times as fast as yours")
	fs.IntVar(&o.Workers, "workers", 3, "`NUMBER` of parallel requests that a node serves")
	fs.IntVar(&o.Guests, "guests", 0, "`NUMBER` of unmanaged guests at the start")
	fs.StringArrayVar(&o.Storages, "storage", nil, "`STORAGE` of every node; repeatable")
	fs.StringSliceVar(&o.Bridges, "bridge", nil, "`NAMES` of the bridges of every node, separated by commas (default vmbr0)")
	fs.StringVar(&o.Token, "token", "", "API `TOKEN`, user@realm!name=secret (default: made from the seed)")
	fs.StringVar(&o.Password, "password", "", "`PASSWORD` of root@pam, for tickets (default: the secret of the token)")
	fs.IntVar(&o.CPUs, "processors", 0, "`NUMBER` of processors of every node (default 64)")
	fs.Int64Var(&o.Memory, "memory", 0, "`SIZE` in GiB of the memory of every node (default 1024)")
	fs.Int64Var(&o.RootDisk, "root-disk", 0, "`SIZE` in GiB of the system disk of every node (default 96)")
	fs.BoolVar(&o.NoKVM, "no-kvm", false, "simulate a machine without virtualisation, where VMs start only with kvm=0")
	fs.Int64Var(&o.Seed, "seed", 0, "`NUMBER` that seeds all generated values")
	fs.StringArrayVar(&o.Downloads, "download", nil, "`DOWNLOAD` that defines the content at some URLs; repeatable")
	fs.StringVar(&o.Files, "pmxcfs", "", "`FOLDER` for the files that show changes of guests (etc/pve/.version and others)")
	fs.StringArrayVar(&o.Faults, "fault", nil, "`FAULT` that makes requests fail; repeatable")
	a.ui.JSONFlag(c)
	return c
}

func runSim(ctx context.Context, a *app, o *sim.ServeOptions) error {
	o.Ready = func(at sim.Simulator) error {
		if a.ui.JSON {
			return a.ui.Line(at)
		}
		a.ui.Printf("%s", at.Text())
		return nil
	}
	return sim.Serve(ctx, *o)
}
