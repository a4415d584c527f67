package local

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
)

const pct = "/usr/sbin/pct"

// HasContainers reports whether a machine is a Proxmox VE host, whose pct enters containers.
func HasContainers(ctx context.Context, host guest.Machine) bool {
	out, err := host.Run(ctx, guest.Command{Args: []string{"/usr/bin/test", "-x", pct}})
	return err == nil && out.Code == 0
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
		return fmt.Errorf("copying %s into container %s: pct failed with exit code %d: %s", from, id, out.Code, strings.TrimSpace(out.Err))
	}
	return nil
}
