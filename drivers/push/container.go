package push

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/homestak/homestak-gitops/drivers/local"
	"github.com/homestak/homestak-gitops/engine/guest"
)

// newContainer runs commands in a container of a Proxmox VE host, with pct on the host; so a container
// needs no sshd. The host is any guest.Machine: this machine, or a remote one.
func newContainer(host guest.Machine, vmid int) guest.Machine {
	return &container{host: host, id: strconv.Itoa(vmid)}
}

type container struct {
	host guest.Machine
	id   string
}

// Address implements guest.Machine: the first address that the host sees of it (lxc-info(1), -i and
// -H), IPv4 before IPv6.
func (c *container) Address(ctx context.Context) (guest.Address, error) {
	out, err := c.host.Run(ctx, guest.Command{Args: []string{"/usr/bin/lxc-info", "-n", c.id, "-i", "-H"}})
	switch {
	case err != nil:
		return guest.Address{}, fmt.Errorf("the addresses of container %s: %w", c.id, err)
	case out.Code != 0 || out.Signal != 0:
		return guest.Address{}, fmt.Errorf("the addresses of container %s: lxc-info failed with exit code %d: %s", c.id, out.Code, guest.Excerpt(out.Err))
	}
	var best netip.Addr
	for word := range strings.FieldsSeq(out.Out) {
		ip, err := netip.ParseAddr(word)
		if err == nil && ip.IsGlobalUnicast() && (!best.IsValid() || ip.Is4() && !best.Is4()) {
			best = ip
		}
	}
	if !best.IsValid() {
		return guest.Address{}, fmt.Errorf("container %s has no address yet", c.id)
	}
	return guest.Address{IP: best, Why: fmt.Sprintf("%s by lxc-info", best)}, nil
}

// Ping implements guest.Machine.
func (c *container) Ping(ctx context.Context) error {
	_, err := c.Run(ctx, guest.Command{Args: []string{"true"}})
	return err
}

// Run implements guest.Machine. pct reads its arguments in the locale's encoding, so that this must
// be UTF-8, and they too (get_options in PVE/JSONSchema.pm). It becomes lxc-attach
// (PVE/CLI/pct.pm), which connects stdin and outputs as they are. The environment is set here,
// since its default differs between PVE 8 and 9 (keep-env).
//
// A shell in the container waits for the command, since lxc-attach before LXC 6 gives exit
// code 0 for one that was killed by a signal; so a signal comes as 128 and its number.
func (c *container) Run(ctx context.Context, cmd guest.Command) (guest.Output, error) {
	if err := cmd.Check(); err != nil {
		return guest.Output{}, err
	}
	args := []string{"/usr/bin/env", "LC_ALL=C.UTF-8", "/usr/sbin/pct", "exec", c.id, "--", "/usr/bin/env", "-i"}
	args = append(args, local.Environment()...)
	args = append(args, "/bin/sh", "-c", `(exec "$@"); exit $?`, "sh")
	for i, arg := range cmd.Args {
		if !utf8.ValidString(arg) {
			return guest.Output{}, &lastingError{fmt.Sprintf("argument %d of %s is not UTF-8, and pct would change it: pass it on standard input", i, cmd.Args[0])}
		}
		args = append(args, arg)
	}
	out, err := c.host.Run(ctx, guest.Command{Args: args, Stdin: cmd.Stdin})
	if err != nil {
		return guest.Output{}, fmt.Errorf("in container %s by pct: %w", c.id, err)
	}
	if err := c.failed(out); err != nil {
		return guest.Output{}, err
	}
	return out, nil
}

// failed reports whether pct failed, and not the command.
func (c *container) failed(out guest.Output) error {
	said, short := strings.TrimSpace(out.Err), guest.Excerpt(out.Err)
	switch {
	case out.Code == 0 || out.Out != "":
		return nil
	case said == fmt.Sprintf("container '%s' not running!", c.id):
		return fmt.Errorf("container %s does not run", c.id)
	case strings.HasPrefix(said, "Configuration file '") && strings.HasSuffix(said, "/lxc/"+c.id+".conf' does not exist"):
		return &lastingError{fmt.Sprintf("container %s is not on this node (%s)", c.id, short)}
	case out.Code == 127 && strings.HasPrefix(said, "/usr/bin/env: ") && strings.Contains(said, "/usr/sbin/pct"):
		return &lastingError{"this machine has no pct: it is not a Proxmox VE host (" + short + ")"}
	case strings.HasPrefix(said, "lxc-attach: "+c.id+": "):
		return fmt.Errorf("%w: container %s: %s", guest.ErrOutcomeLost, c.id, short)
	}
	return nil
}

// lastingError is an error that no waiting resolves.
type lastingError struct{ text string }

func (e *lastingError) Error() string { return e.text }

// Hopeless is true; see guest.Machine.
func (*lastingError) Hopeless() bool { return true }

const pct = "/usr/sbin/pct"

// mayEnter returns why this program cannot enter the containers of a machine, on which its commands run; nil if it
// can. It needs a Proxmox VE host with its pct, and root: pct asks the cluster's file system, which only responds
// to root (pve-cluster, IPCC.xs).
func mayEnter(ctx context.Context, host guest.Machine) error {
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

// isHere returns an error unless the machine is this node and has a container with this VMID and
// name: elsewhere the VMID may belong to another container.
func isHere(ctx context.Context, host guest.Machine, vmid int, node, name string) error {
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

// pushFile copies a file of the machine into a container (pct(1), push). The file belongs to root
// there. The write is not atomic: the caller renames the file.
func pushFile(ctx context.Context, host guest.Machine, vmid int, from, to, mode string) error {
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
