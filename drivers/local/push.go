package local

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
)

const pct = "/usr/sbin/pct"

// MayEnter returns why this program cannot enter the containers of a machine, on which its commands run; nil if it
// can. It needs a Proxmox VE host with its pct, and root: pct asks the cluster's file system, which only responds
// to root (pve-cluster, IPCC.xs).
func MayEnter(ctx context.Context, host guest.Machine) error {
	out, err := host.Run(ctx, guest.Command{Args: []string{"/bin/sh", "-c", `id -u; test -x "$1"`, "sh", pct}})
	user := strings.TrimSpace(out.Out)
	switch {
	case err != nil:
		return err
	case out.Code != 0:
		return &lastingError{"pct exec is not possible, since this machine has no pct: run the program on the node of the container, as root, or set via = \"ssh\" in access of the spec"}
	case user != "0":
		return &lastingError{"pct exec needs root, and this program runs as user " + user + ", as the agent of the installed unit does: set via = \"ssh\" in access of the spec, or apply as root on the node"}
	}
	return nil
}

// IsHere returns an error unless the machine is this node and has a container with this VMID and
// name: elsewhere the VMID may belong to another container.
func IsHere(ctx context.Context, host guest.Machine, vmid int, node, name string) error {
	id := strconv.Itoa(vmid)
	out, err := host.Run(ctx, guest.Command{Args: []string{"/bin/sh", "-c", `uname -n; exec "$@"`, "sh", pct, "config", id}})
	if err != nil {
		return err
	}
	first, rest, _ := strings.Cut(out.Out, "\n")
	here, _, _ := strings.Cut(first, ".")
	for line := range strings.Lines(rest) {
		if here == node && strings.TrimSpace(line) == "hostname: "+name {
			return nil
		}
	}
	return &lastingError{fmt.Sprintf("container %s (%s) of node %s is not on this machine, which is %s: run the program on that node, as root", id, name, node, here)}
}

// Push copies a file of the machine into a container (pct(1), push). The file belongs to root
// there. The write is not atomic: the caller renames the file.
func Push(ctx context.Context, host guest.Machine, vmid int, from, to, mode string) error {
	id := strconv.Itoa(vmid)
	out, err := host.Run(ctx, guest.Command{Args: []string{pct, "push", id, from, to, "--perms", mode}})
	if err != nil {
		return fmt.Errorf("copying %s into container %s: %w", from, id, err)
	}
	if out.Code != 0 || out.Signal != 0 {
		return fmt.Errorf("copying %s into container %s: pct failed with exit code %d: %s", from, id, out.Code, guest.Excerpt(out.Err))
	}
	return nil
}
