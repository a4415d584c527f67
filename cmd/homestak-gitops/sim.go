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
		Long: `It speaks the real protocol until it is interrupted, and keeps everything in memory.

    --storage NAME:TYPE:CONTENT[:SIZE in GiB][:PATH][:shared]
    --fault 'METHOD PATH-PATTERN [nth=N] status=S [apply]'
    --download 'URL-PATTERN status=N', or file=PATH, or size=BYTES

TYPE is dir, zfspool, lvmthin, nfs or another of Proxmox VE, CONTENT is separated by
commas. Without --storage there are local (dir) and local-lvm (lvmthin), as on a new host.

METHOD may be *; nth counts matching requests; in the pattern * stands for one segment and
** for the rest. Status -1 drops the connection; with apply the request takes effect all
the same. no-worker in place of status=S fails where PVE starts the process of a task.

The first --download that matches decides what the host gets from an address; * stands for
any characters. With file the content counts: a wrong checksum fails. Other addresses
deliver a file with the right checksum.

Guests made from an image of Debian 12 or 13 run a simulated Debian; nothing runs inside
those of --from. Specs are applied over SSH through the host (--ssh), or with via =
"agent". Agents of children and nodes in mode pull run only in agent --sim and test --sim.`,
		Args: cobra.NoArgs,
		// An interrupt is the normal end of this verb, even the first signal.
		RunE: a.soon(func(ctx context.Context, _ []string) error { return runSim(ctx, a, o) }),
	}
	fs := c.Flags()
	fs.StringVar(&o.Listen, "listen", "127.0.0.1:8006", "`ADDRESS`: where to listen; port 0 chooses a free one")
	fs.StringVar(&o.SSH, "ssh", "127.0.0.1:0", "`ADDRESS`: where to listen for SSH, also to its guests")
	fs.StringVar(&o.From, "from", "", "`FILE`: observation of a host, to serve its twin")
	fs.StringVar(&o.Node, "node", "father", "`NAME`: node that answers")
	fs.StringSliceVar(&o.Nodes, "nodes", nil, "`NAMES`: more nodes of the cluster, comma-separated, or the total number of nodes")
	fs.StringSliceVar(&o.Offline, "offline", nil, "`NAMES`: nodes that are down, comma-separated")
	fs.BoolVar(&o.NoQuorum, "no-quorum", false, "no quorum: the cluster is read-only")
	fs.StringVar(&o.Version, "pve-version", "9.2", "`VERSION`: 8.4, 9.1 or 9.2")
	fs.DurationVar(&o.Latency, "latency", 0, "`TIME`: duration of each request")
	fs.DurationVar(&o.TaskTime, "task-time", time.Second, "`TIME`: duration of a task")
	fs.IntVar(&o.Speed, "speed", 1, "`NUMBER`: speed of the host's clock and of the times of other flags; its date runs ahead")
	fs.IntVar(&o.Workers, "workers", 3, "`NUMBER`: parallel requests that a node serves")
	fs.IntVar(&o.Guests, "guests", 0, "`NUMBER`: unmanaged guests at the start")
	fs.StringArrayVar(&o.Storages, "storage", nil, "`STORAGE`: storage of every node; repeatable")
	fs.StringSliceVar(&o.Bridges, "bridge", nil, "`NAMES`: bridges of every node, comma-separated (default: vmbr0)")
	fs.StringVar(&o.Token, "token", "", "`TOKEN`: API token, user@realm!name=secret (default: made from the seed)")
	fs.StringVar(&o.Password, "password", "", "`PASSWORD`: for tickets of root@pam (default: the secret of the token)")
	fs.IntVar(&o.CPUs, "processors", 0, "`NUMBER`: processors of a node (default: 64)")
	fs.Int64Var(&o.Memory, "memory", 0, "`SIZE`: memory of a node in GiB (default: 1024)")
	fs.Int64Var(&o.RootDisk, "root-disk", 0, "`SIZE`: system disk of a node in GiB (default: 96)")
	fs.BoolVar(&o.NoKVM, "no-kvm", false, "no virtualisation: VMs start only with kvm=0")
	fs.Int64Var(&o.Seed, "seed", 0, "`NUMBER`: seed of all generated values")
	fs.StringArrayVar(&o.Downloads, "download", nil, "`DOWNLOAD`: content of some URLs; repeatable")
	fs.StringVar(&o.Files, "pmxcfs", "", "`FOLDER`: files that show changes of guests (etc/pve/.version and others)")
	fs.StringArrayVar(&o.Faults, "fault", nil, "`FAULT`: requests that fail; repeatable")
	for _, name := range []string{"node", "nodes", "offline", "no-quorum", "pve-version", "guests", "storage", "bridge", "processors", "memory", "root-disk"} {
		c.MarkFlagsMutuallyExclusive("from", name) // the observation says it
	}
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
