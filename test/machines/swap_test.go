package machines_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// The swap file takes part in what the kernel has, changes its size, and goes. The root of
// the machine is a file system that takes swap files, which the layers of nspawn do not; and
// the machine believes that it is no container.
func TestST02TheSwapFile(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	d := withDisks(t, 512, "root")
	d.Run0("mkfs.ext4 -q /dev/sdb && mkdir /srv/root && mount /dev/sdb /srv/root && cd /srv/root && for f in bin sbin lib lib64; do if [ -e /$f ]; then ln -s usr/$f $f; fi; done; for f in usr etc var proc dev run tmp sys root; do mkdir $f && mount --rbind /$f $f; done")
	d.Run0("printf '#!/bin/sh\\nexit 1\\n' >/usr/local/sbin/systemd-detect-virt && chmod 755 /usr/local/sbin/systemd-detect-virt && printf 'proc /proc proc defaults 0 0\\n' >/etc/fstab")
	t.Cleanup(func() { d.Run0("chroot /srv/root swapoff /swapfile 2>/dev/null || :") }) // the kernel is that of all machines
	d.instead = func(c guest.Command) guest.Command {
		c.Args = append([]string{"chroot", "/srv/root"}, c.Args...)
		return c
	}
	inside := func(line string) string { return d.Run("chroot", "/srv/root", "sh", "-c", line) }
	const state = `grep '^/swapfile ' /proc/swaps | awk '{print $1, $3}'; stat -c '%a %s' /swapfile; grep swap /etc/fstab`
	s := parse(t, `"config": {"swap": 64}`)
	require.Equal(t, []string{"config.swap 0 → 64"}, changes(d.observe(s)))
	d.apply(s)
	require.Equal(t, "/swapfile 65532\n600 67108864\n/swapfile none swap sw 0 0", inside(state))
	d.unchanged(s)

	for _, c := range []struct{ do, change string }{
		{"swapoff /swapfile", `config.swap "64 (off)" → 64`},
		{"sed -i /swap/d /etc/fstab", `config.swap "64 (until the next restart)" → 64`},
		{"chmod 644 /swapfile", `config.swap "64 (others may read it)" → 64`},
		{"swapoff /swapfile; rm /swapfile", `config.swap "0 (off)" → 64`},
	} {
		inside(c.do)
		require.Equal(t, []string{c.change}, changes(d.observe(s)), c.do)
		d.apply(s)
		require.Equal(t, "/swapfile 65532\n600 67108864\n/swapfile none swap sw 0 0", inside(state), c.do)
	}

	d.refused(parse(t, `"config": {"swap": 4096}`), "there is no room for a swap file of 4096 MiB")
	require.Equal(t, "/swapfile 65532\n600 67108864\n/swapfile none swap sw 0 0", inside(state), "the old one stays")
	require.Empty(t, inside("ls -A / | grep new || :"))

	d.apply(parse(t, `"config": {"swap": 32}`))
	require.Equal(t, "/swapfile 32764\n600 33554432\n/swapfile none swap sw 0 0", inside(state))
	d.apply(spec.Empty("edge"))
	require.Equal(t, "proc /proc proc defaults 0 0", inside("grep '^/swapfile ' /proc/swaps; ls -A / | grep swap; cat /etc/fstab"))
	d.unchanged(spec.Empty("edge"))

	// One that was there before comes back as it was.
	inside("fallocate -l 16M /swapfile && chmod 600 /swapfile && mkswap /swapfile >/dev/null && swapon /swapfile && echo '/swapfile swap swap defaults 0 0' >>/etc/fstab")
	d.apply(s)
	require.Equal(t, "/swapfile 65532\n600 67108864\n/swapfile none swap sw 0 0", inside(state))
	d.apply(spec.Empty("edge"))
	require.Equal(t, "/swapfile 16380\n600 16777216\n/swapfile swap swap defaults 0 0", inside(state))
}

// A container has the swap of its host.
func TestST13SwapOfAContainer(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	w.refused(parse(t, `"config": {"swap": 64}`), "this machine is a container (systemd-nspawn), and its swap is that of its host")
	w.Run0("[ ! -e /swapfile ]")
}
