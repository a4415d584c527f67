package push

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	"github.com/homestak/homestak-gitops/drivers/local"
	"github.com/homestak/homestak-gitops/engine/guest"
)

// pctHost is a Proxmox VE host: its pct runs commands on this machine, or answers.
type pctHost struct {
	local.Machine
	t       *testing.T
	answers map[string]guest.Output // by program
}

func (h pctHost) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	i := slices.Index(c.Args, "/usr/sbin/pct")
	if i < 0 {
		return h.answers[c.Args[0]], nil
	}
	if out, ok := h.answers["pct"]; ok {
		return out, nil
	}
	require.Equal(h.t, []string{"/usr/bin/env", "LC_ALL=C.UTF-8", "/usr/sbin/pct", "exec", "200", "--"}, c.Args[:6])
	return h.Machine.Run(ctx, guest.Command{Args: c.Args[6:], Stdin: c.Stdin})
}

func TestContainer(t *testing.T) {
	drivertest.Machine(t, func(t *testing.T) guest.Machine {
		t.Helper()
		return newContainer(pctHost{Machine: local.New(), t: t}, 200)
	})
}

// Messages of pct and lxc-attach are not output of the command.
func TestContainerThatCannotBeReached(t *testing.T) {
	for _, v := range []struct {
		said     string
		code     int
		want     string // "" is an output
		hopeless bool
	}{
		{"container '200' not running!\n", 255, "container 200 does not run", false},
		{"Configuration file 'nodes/father/lxc/200.conf' does not exist\n", 2, "container 200 is not on this node (Configuration file 'nodes/father/lxc/200.conf' does not exist)", true},
		{"/usr/bin/env: '/usr/sbin/pct': No such file or directory\n", 127, "this machine has no pct: it is not a Proxmox VE host (/usr/bin/env: '/usr/sbin/pct': No such file or directory)", true},
		{"lxc-attach: 200: ../src/lxc/attach.c: get_attach_context: 405 Connection refused\n", 1, "the outcome of the command is unknown: container 200: lxc-attach: 200: ../src/lxc/attach.c: get_attach_context: 405 Connection refused", false},
		{strings.Repeat("lxc-attach: 200: ../src/lxc/attach.c: lxc_attach: 1694 Bad file descriptor\n", 30), 1, "the outcome of the command is unknown: container 200: …", false},
		{"container '201' not running!\n", 255, "", false},
		{"no\n", 255, "", false},
	} {
		answer := guest.Output{Code: v.code, Err: v.said}
		out, err := newContainer(pctHost{answers: map[string]guest.Output{"pct": answer}}, 200).Run(t.Context(), guest.Command{Args: []string{"true"}})
		if v.want == "" {
			require.NoError(t, err)
			require.Equal(t, answer, out)
			continue
		}
		if begin, cut := strings.CutSuffix(v.want, "…"); cut {
			require.ErrorContains(t, err, begin)
		} else {
			require.EqualError(t, err, v.want)
		}
		require.Equal(t, strings.HasPrefix(v.said, "lxc-attach"), errors.Is(err, guest.ErrOutcomeLost))
		drivertest.Hopeless(t, err, v.hopeless)
	}
	_, err := newContainer(pctHost{t: t}, 200).Run(t.Context(), guest.Command{Args: []string{"echo", "\xff"}})
	require.EqualError(t, err, "argument 1 of echo is not UTF-8, and pct would change it: pass it on standard input")
	drivertest.Hopeless(t, err, true)
}

// A container is entered by its VMID only where it is the one that is meant.
func TestAContainerOfThisMachine(t *testing.T) {
	const config = "arch: amd64\nhostname: box\nmemory: 512\n"
	for _, c := range []struct {
		said guest.Output
		ok   bool
	}{
		{guest.Output{Out: "father\n" + config}, true},
		{guest.Output{Out: "father.home.example\n" + config}, true},
		{guest.Output{Out: "mother\n" + config}, false},
		{guest.Output{Out: "father\nhostname: boxes\n"}, false},
		{guest.Output{Out: "father\n", Err: "Configuration file 'nodes/father/lxc/200.conf' does not exist\n", Code: 2}, false},
		{guest.Output{Out: "father\n", Err: "sh: exec: /usr/sbin/pct: not found\n", Code: 127}, false},
	} {
		err := isHere(t.Context(), pctHost{answers: map[string]guest.Output{"pct": c.said}}, 200, "father", "box")
		if c.ok {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "container 200 (box) of node father is not on this machine, which is ")
		require.ErrorContains(t, err, ": run the program on that node, as root")
		drivertest.Hopeless(t, err, true)
	}
}

func TestPush(t *testing.T) {
	answers := map[string]guest.Output{"pct": {}}
	require.NoError(t, pushFile(t.Context(), pctHost{answers: answers}, 200, "/a", "/b", "0755"))
	answers["pct"] = guest.Output{Code: 255, Err: "failed to copy\n"}
	require.EqualError(t, pushFile(t.Context(), pctHost{answers: answers}, 200, "/a", "/b", "0755"), "copying /a into container 200: pct failed with exit code 255: failed to copy")
}

// Whether the process may enter containers is known before anything is tried.
func TestR9AccessToContainers(t *testing.T) {
	for says, answer := range map[string]guest.Output{
		"": {Out: "0\n"},
		"pct exec needs root, and this program runs as user 998, as the agent of the installed unit does": {Out: "998\n"},
		"this machine has no pct: run the program on the node of the container, as root":                  {Out: "0\n", Code: 1},
	} {
		err := mayEnter(t.Context(), pctHost{answers: map[string]guest.Output{"pct": answer}})
		if says == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, `set via = "ssh" in access of the spec`)
		drivertest.Hopeless(t, err, true)
	}
}

func TestAddressOfAContainer(t *testing.T) {
	for said, want := range map[string]string{
		"fe80::1\n2001:db8::7\n10.0.12.7\n10.0.13.7\n": "10.0.12.7 by lxc-info",
		"2001:db8::7\n": "2001:db8::7 by lxc-info",
		"127.0.0.1\n":   "",
		"":              "",
	} {
		at, err := newContainer(pctHost{answers: map[string]guest.Output{"/usr/bin/lxc-info": {Out: said}}}, 200).Address(t.Context())
		if want == "" {
			require.EqualError(t, err, "container 200 has no address yet")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, want, at.Why)
	}
	_, err := newContainer(pctHost{answers: map[string]guest.Output{"/usr/bin/lxc-info": {Code: 1, Err: "200 doesn't exist\n"}}}, 200).Address(t.Context())
	require.EqualError(t, err, "the addresses of container 200: lxc-info failed with exit code 1: 200 doesn't exist")
}
