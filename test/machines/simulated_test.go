package machines_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	simdebian "github.com/homestak/homestak-gitops/sim/debian"
	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/machine/userland"
	"github.com/homestak/homestak-gitops/specserve/node"
)

// simulated is a simulated Debian with the packages that real machines find here.
type simulated struct {
	*simdebian.Machine
	disk  *simdebian.Disk
	birth simdebian.Birth
	t     *testing.T
	runs  int
}

// simulatedKey stands for the key of the repository extra.
const simulatedKey = `"-----BEGIN PGP PUBLIC KEY BLOCK-----\nsimulated\n-----END PGP PUBLIC KEY BLOCK-----\n"`

func beginSimulated(t *testing.T) *simulated {
	t.Helper()
	var more []simdebian.Package
	for _, name := range slices.Sorted(maps.Keys(archive)) {
		p := simdebian.Package{Name: name, Files: map[string]string{}, Scripts: map[string]string{}}
		for line := range strings.Lines(archive[name].fields) {
			if needs, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok {
				p.Depends = strings.Split(needs, ", ")
			}
		}
		for file, text := range archive[name].files {
			switch script, isScript := strings.CutPrefix(file, "DEBIAN/"); {
			case file == "DEBIAN/conffiles":
				p.Conffiles = strings.Fields(text)
			case isScript:
				p.Scripts[script] = text
			default:
				p.Files["/"+file] = text
			}
		}
		more = append(more, p)
	}
	more = append(more, simdebian.Package{Name: "hs-extra", Source: "file:/srv/apt/extra", Files: map[string]string{"/usr/bin/hs-extra": "#!/bin/sh\necho extra\n"}})
	more = append(more, simdebian.Package{Name: "hs-part", Source: "file:/srv/apt/parts", Component: "main", Files: map[string]string{"/usr/bin/hs-part": "#!/bin/sh\necho part\n"}})
	m := &simulated{t: t, disk: simdebian.NewDisk(simdebian.Options{Packages: more}), birth: simdebian.Birth{
		Instance: "1", Hostname: "vm", Disks: []machine.Volume{{Serial: "other", Bytes: 512 << 20}, {Serial: "data", Bytes: 512 << 20}}, DNS: []string{"10.9.0.53"},
		Network: simdebian.Network{Address: "10.9.0.5/24", Gateway: "10.9.0.1", LAN: userland.LAN{
			Routers: []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24"), netip.MustParsePrefix("10.8.0.1/24")}, Lease: netip.MustParsePrefix("10.9.0.100/24"),
		}},
	}}
	m.Machine = m.disk.Begin(m.birth)
	t.Cleanup(func() { m.Halt() })
	m.sh("apt-get update && apt-get -y install fail2ban ")
	return m
}

// Run is that of guest.Machine.
func (m *simulated) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	if ctx.Err() != nil { // the caller is gone
		return guest.Output{}, context.Cause(ctx)
	}
	m.runs++
	var out, errs bytes.Buffer
	s := m.Root(c.Args...)
	s.In, s.Out, s.Err = bytes.NewReader(c.Stdin), &out, &errs
	p, err := m.K.Start(s)
	if err != nil {
		return guest.Output{}, err
	}
	code, signal := p.Ended()
	if signal != 0 {
		code = 0
	}
	return guest.Output{Code: code, Signal: int(signal), Out: out.String(), Err: errs.String()}, nil
}

func (m *simulated) sh(line string) string {
	m.t.Helper()
	out, err := m.Run(m.t.Context(), guest.Command{Args: []string{"sh", "-c", line}})
	require.NoError(m.t, err)
	require.Zero(m.t, out.Code, "%s\n%s%s", line, out.Out, out.Err)
	return out.Out
}

func (m *simulated) apply(s *spec.Spec) {
	m.t.Helper()
	state, err := converge.Apply(m.t.Context(), m, s, converge.Options{})
	require.NoError(m.t, err)
	require.Empty(m.t, changes(state))
}

// unchanged requires that an apply costs one command, and writes nothing at all.
func (m *simulated) unchanged(s *spec.Spec) {
	m.t.Helper()
	m.sh("touch /run/since")
	m.runs = 0
	m.apply(s)
	require.Equal(m.t, 1, m.runs, "an unchanged machine costs one command")
	require.Empty(m.t, m.sh("find / -xdev -newer /run/since -not -path '/run*' -not -path '/tmp*'"))
}

// Who configures the card of a simulated machine: systemd-networkd does from the start.
const (
	byIfupdown = `systemctl disable --now systemd-networkd && rm /etc/systemd/network/* && ip -4 addr flush dev eth0 && `
	// The bridge needs ifupdown2.
	bridged = byIfupdown + `apt-get update && apt-get -y install ifupdown2 && printf 'auto lo\niface lo inet loopback\n\nallow-hotplug eth0\niface eth0 inet static\n\taddress 10.9.0.5/24\n\tgateway 10.9.0.1\n' >/etc/network/interfaces && ifup eth0 && cp /etc/network/interfaces /srv/before`
)

// has is a line of shell that succeeds while an interface has an address, a gateway and name servers.
func has(dev, address, gateway string, dns ...string) string {
	return fmt.Sprintf(`ip -4 -o addr show dev %[1]s scope global | grep -q ' %[2]s ' && ip route show default | grep -q '^default via %[3]s dev %[1]s' && [ "$(sed -n 's/^nameserver //p' /etc/resolv.conf | tr '\n' ' ')" = '%[4]s ' ]`,
		dev, address, gateway, strings.Join(dns, " "))
}

// addressed is a row that changes the address of a machine, whatever configures it.
func addressed(name, before, files, found string) field {
	const sums = "find %s /etc/resolv.conf -type f | sort | while read -r f; do sha256sum $f; done"
	return field{
		name: name, before: before + " && " + fmt.Sprintf(sums, files) + " >/srv/sums",
		with:    `"network": {"ip": "10.8.0.7/24", "gateway": "10.8.0.1", "dns": ["10.9.0.2", "10.9.0.3"]}`,
		without: `"config": {}`,
		effect:  has("eth0", "10.8.0.7/24", "10.8.0.1", "10.9.0.2", "10.9.0.3"),
		absent:  has("eth0", found, "10.9.0.1", "10.9.0.53") + " && [ \"$(" + fmt.Sprintf(sums, files) + ")\" = \"$(cat /srv/sums)\" ]",
	}
}

// onlySimulated are the fields that tests of their own show on real machines; see elsewhere.
var onlySimulated = []field{
	{ // a name that has an address of the network keeps it
		name: "routable", with: `"identity": {"hostname": "edge", "domain": "home.example", "routable": true}`, without: `"identity": {"hostname": "edge", "domain": "home.example"}`,
		effect: `grep -qx '10.9.0.5 edge.home.example edge' /etc/hosts && ! grep -q '^127.0.1.1.* edge' /etc/hosts`, absent: `grep -qx '10.9.0.5 edge.home.example edge' /etc/hosts && [ "$(hostname -f)" = edge.home.example ]`,
	},
	{
		name: "file of bytes", with: `"config": {"files": [{"path": "/srv/logo", "content_base64": "AP8K", "mode": "0644", "owner": "root", "group": "root"}]}`, without: `"config": {}`,
		effect: `[ "$(base64 /srv/logo)" = AP8K ]`, absent: `[ ! -e /srv/logo ]`,
	},
	{
		name: "mount", with: `"config": {"mounts": [{"path": "/srv/a/data", "disk": "data", "fstype": "ext4", "options": ["noatime", "nodev"]}]}`, without: `"config": {}`,
		before: "printf '# static\\nproc /proc proc defaults 0 0\\n' >/etc/fstab",
		effect: `grep -q ' /srv/a/data rw,nodev,noatime .* - ext4 /dev/sdc ' /proc/self/mountinfo && grep -q '^LABEL=data /srv/a/data ext4 nofail,' /etc/fstab && [ "$(blkid -p -s LABEL -o value /dev/sdc)" = data ] && ! blkid -p /dev/sdb && { [ ! -e /srv/seen ] || [ -e /srv/a/data/kept ]; } && touch /srv/seen /srv/a/data/kept`,
		absent: `! grep -q /srv /proc/self/mountinfo && [ ! -e /srv/a ] && [ "$(cat /etc/fstab)" = "$(printf '# static\nproc /proc proc defaults 0 0')" ]`,
	},
	{
		name: "options of a mount", with: `"config": {"mounts": [{"path": "/srv/data", "disk": "data", "fstype": "ext4", "options": ["nosuid", "sync"]}]}`, without: `"config": {"mounts": [{"path": "/srv/data", "disk": "data", "fstype": "ext4", "options": ["ro"]}]}`,
		before: "mkfs.ext4 -q -L data /dev/sdc && mkdir /srv/data && echo '/dev/sdc /srv/data ext4 ro 0 0' >/etc/fstab && mount /srv/data && touch /srv/data/kept",
		effect: `grep -q ' /srv/data rw,nosuid,relatime .* rw,sync$' /proc/self/mountinfo && [ -e /srv/data/kept ]`, absent: `grep -q ' /srv/data ro,relatime ' /proc/self/mountinfo && [ -e /srv/data/kept ]`,
	},
	{
		name: "swap", with: `"config": {"swap": 64}`, without: `"config": {}`,
		effect: `grep -q '^/swapfile .*[^0-9]65532[^0-9]' /proc/swaps && [ "$(stat -c '%a %s' /swapfile)" = '600 67108864' ] && grep -qx '/swapfile none swap sw 0 0' /etc/fstab`, absent: `! grep -q swapfile /proc/swaps && [ ! -e /swapfile ] && ! grep -q swap /etc/fstab`,
	},
	{
		name: "swap that was there", with: `"config": {"swap": 64}`, without: `"config": {}`,
		before: "touch /swapfile && chmod 600 /swapfile && fallocate -l 16M /swapfile && mkswap /swapfile && swapon /swapfile && echo '/swapfile swap swap defaults 0 0' >/etc/fstab",
		effect: `grep -q '^/swapfile .*[^0-9]65532[^0-9]' /proc/swaps`, absent: `grep -q '^/swapfile .*[^0-9]16380[^0-9]' /proc/swaps && [ "$(cat /etc/fstab)" = '/swapfile swap swap defaults 0 0' ]`,
	},
	{
		name: "repository of Proxmox VE", with: `"config": {"pve": {"no_subscription": true}}`, without: `"config": {}`,
		before: "echo 'deb https://enterprise.proxmox.com/debian/pve trixie pve-enterprise' >/etc/apt/sources.list.d/pve-enterprise.list && cp /etc/apt/sources.list.d/pve-enterprise.list /srv",
		effect: `apt-get update && grep -qx 'Components: pve-no-subscription' /etc/apt/sources.list.d/homestak-pve.sources && [ -s /etc/apt/keyrings/homestak-pve.gpg ]`, absent: `! apt-get update && cmp /srv/pve-enterprise.list /etc/apt/sources.list.d/pve-enterprise.list && ! ls /etc/apt/sources.list.d /etc/apt/keyrings | grep homestak`,
	},
	{
		name: "reminder of Proxmox VE", with: `"config": {"pve": {"remove_subscription_nag": true}}, "platform": {"packages": ["proxmox-widget-toolkit"]}`, without: `"platform": {"packages": ["proxmox-widget-toolkit"]}`,
		effect: `[ "$(grep -c "status.toLowerCase() === 'silenced" ` + webLibrary + `)$(grep -c "status.toLowerCase() !== 'active'" ` + webLibrary + `)" = 11 ]`, absent: `! grep -q silenced ` + webLibrary + ` && [ "$(grep -c "status.toLowerCase() !== 'active'" ` + webLibrary + `)" = 2 ] && [ ! -e /etc/dpkg/dpkg.cfg.d/homestak-gitops-pve ]`,
	},
	{
		name: "reminder that comes with a package", with: `"config": {"pve": {"remove_subscription_nag": true}}`, without: `"config": {}`,
		effect: `{ [ -e ` + webLibrary + ` ] || apt-get update && apt-get -y install proxmox-widget-toolkit; } && grep -q silenced ` + webLibrary, absent: `! grep -q silenced ` + webLibrary,
	},
	{
		name: "bridge of Proxmox VE", with: `"config": {"pve": {"bridge": "vmbr0"}}`, without: `"config": {}`, before: bridged,
		effect: has("vmbr0", "10.9.0.5/24", "10.9.0.1", "10.9.0.53") + ` && [ "$(ls /sys/class/net/vmbr0/brif)" = eth0 ] && [ -z "$(ip -4 -o addr show dev eth0 scope global)" ]`,
		absent: has("eth0", "10.9.0.5/24", "10.9.0.1", "10.9.0.53") + ` && [ ! -e /sys/class/net/vmbr0 ] && cmp /srv/before /etc/network/interfaces`,
	},
	{
		name: "address of a bridge", with: `"config": {"pve": {"bridge": "vmbr0"}}, "network": {"ip": "10.9.0.6/24", "gateway": "10.9.0.1"}`, without: `"config": {"pve": {"bridge": "vmbr0"}}`, before: bridged,
		effect: has("vmbr0", "10.9.0.6/24", "10.9.0.1", "10.9.0.53"), absent: has("vmbr0", "10.9.0.5/24", "10.9.0.1", "10.9.0.53"),
	},
	addressed("address by systemd-networkd", "true", "/etc/systemd/network /etc/cloud", "10.9.0.5/24"),
	addressed("address by systemd-networkd with DHCP", `printf '[Match]\nName=e*\n[Network]\nDHCP=yes\n' >/etc/systemd/network/10-cloud-init-eth0.network && networkctl reload && networkctl reconfigure eth0`, "/etc/systemd/network /etc/cloud", "10.9.0.100/24"),
	addressed("address by ifupdown", byIfupdown+`printf 'auto lo\niface lo inet loopback\n\nauto eth0\niface eth0 inet static\n\taddress 10.9.0.5\n\tnetmask 255.255.255.0\n\tgateway 10.9.0.1\n' >/etc/network/interfaces && ifup eth0`, "/etc/network", "10.9.0.5/24"),
	addressed("address by ifupdown with DHCP", byIfupdown+`printf 'source /etc/network/interfaces.d/*\n' >/etc/network/interfaces && printf '# mine\nallow-hotplug eth0\niface eth0 inet dhcp\n\tup echo up >>/run/ups\n' >/etc/network/interfaces.d/eth0 && ifup eth0`, "/etc/network", "10.9.0.100/24"),
	{
		name: "address of a lease", with: `"network": {"ip": "dhcp", "dns": ["10.9.0.2"]}`, without: `"config": {}`,
		effect: has("eth0", "10.9.0.100/24", "10.9.0.1", "10.9.0.2"), absent: has("eth0", "10.9.0.5/24", "10.9.0.1", "10.9.0.53"),
	},
	{
		name: "timer of mode pull", with: `"run": {"trigger": "schedule", "interval_seconds": 600}`, without: `"config": {}`,
		effect: `systemctl is-active homestak-gitops-pull.timer && grep -qx OnUnitInactiveSec=600s /etc/systemd/system/homestak-gitops-pull.timer`, absent: `! systemctl is-active homestak-gitops-pull.timer && ! ls /etc/systemd/system | grep homestak`,
	},
}

// Every field of a spec takes effect on a simulated machine, and is withdrawn: by a row of real machines, or by one of its own.
func TestSimulatedMachineHasARowForEveryField(t *testing.T) {
	shown := shownBy(t, slices.Concat(fields, onlySimulated))
	require.Empty(t, slices.DeleteFunc(allFields(), func(name string) bool { return shown[name] || noEffect[name] != "" }))
}

// Every row of fields that passes on a real machine passes on a simulated one.
func TestSimulatedMachineTakesEveryField(t *testing.T) {
	for _, f := range slices.Concat(fields, onlySimulated) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			m := beginSimulated(t)
			if f.before != "" {
				m.sh(f.before)
			}
			with, without := parse(t, strings.Replace(f.with, `"KEY"`, simulatedKey, 1)), parse(t, strings.Replace(f.without, `"KEY"`, simulatedKey, 1))
			m.apply(with)
			m.sh(f.effect)
			m.unchanged(with)
			m.apply(without)
			m.sh(f.absent)
			m.unchanged(without)
			m.apply(with)
			m.sh(f.effect)
		})
	}
}

// A larger disk gets a larger file system, and what is on it stays.
func TestST02SimulatedDiskGrows(t *testing.T) {
	t.Parallel()
	m := beginSimulated(t)
	s := mountSpec(t, mounting("/srv/data", "data", ""))
	m.apply(s)
	m.sh("echo kept >/srv/data/file")
	m.Halt()
	m.birth.Disks[1].Bytes *= 2
	m.Machine = m.disk.Begin(m.birth)
	state, err := converge.Observe(t.Context(), m, s)
	require.NoError(t, err)
	require.Equal(t, []string{`config.mount./srv/data.size "512 of 1024 MiB" → "whole disk"`}, changes(state))
	m.apply(s)
	m.unchanged(s)
	require.Equal(t, "kept\n", m.sh("cat /srv/data/file"))
}

// A new address that cannot be reached is reverted by the machine itself: if its gateway does not answer, and if no connection
// confirms it, also with a restart in between.
func TestST02SimulatedAddressThatLocksUsOutIsTakenBack(t *testing.T) {
	for _, by := range []struct{ name, before string }{
		{"systemd-networkd", "true"},
		{"ifupdown", byIfupdown + `printf 'auto eth0\niface eth0 inet static\n\taddress 10.9.0.5/24\n\tgateway 10.9.0.1\n' >/etc/network/interfaces && ifup eth0`},
	} {
		t.Run(by.name, func(t *testing.T) {
			t.Parallel()
			m := beginSimulated(t)
			m.sh(by.before + ` && find /etc/network /etc/systemd /etc/cloud -type f | sort | while read -r f; do sha256sum "$f"; done >/srv/sums`)
			old, locked := netip.MustParseAddr("10.9.0.5"), static(t, "10.7.0.5/24", "10.7.0.1")
			restored := func() {
				t.Helper()
				m.sh(`n=0; until ` + has("eth0", "10.9.0.5/24", "10.9.0.1", "10.9.0.53") + ` && [ -z "$(ls /var/lib/homestak-gitops-spec/revert)" ]; do n=$((n + 1)); [ $n -lt 300 ] || exit 1; sleep 0.1; done
					[ "$(find /etc/network /etc/systemd /etc/cloud -type f | sort | while read -r f; do sha256sum "$f"; done)" = "$(cat /srv/sums)" ]`)
				require.True(t, m.Network.Answers(old))
			}
			apply := func(ctx context.Context, o converge.Options) error {
				_, err := converge.Apply(ctx, m, locked, o)
				return err
			}
			require.ErrorContains(t, apply(t.Context(), converge.Options{}), "it does not work, so the old state is restored: the gateway 10.7.0.1 does not answer")
			restored()

			for _, restart := range []string{"", "before it is restored", "while it is restored"} {
				reached := false
				ctx, gone := context.WithCancel(t.Context())
				require.Error(t, apply(ctx, converge.Options{ConfirmWithin: 2 * time.Second, Confirm: func(_ context.Context, _ *spec.Spec, s aspect.Step) error {
					require.Equal(t, "10.7.0.5", s.Address.String())
					//nolint:contextcheck // it is about to end
					m.sh("n=0; until ip -4 -o addr show dev eth0 scope global | grep -q 10.7.0.5; do n=$((n + 1)); [ $n -lt 300 ] || exit 1; sleep 0.1; done")
					require.False(t, m.Network.Answers(old))
					require.False(t, m.Network.Answers(s.Address), "its subnet is not in this network")
					reached = true
					gone() // with this process, so no request restores anything
					return errNoWayIn
				}}))
				require.True(t, reached)
				if restart != "" {
					if restart == "while it is restored" { // as its first command leaves it
						m.sh("cd /var/lib/homestak-gitops-spec/revert && for f in *.sh; do mv -T $f $f.4711; done")
					}
					m.Halt()
					m.Machine = m.disk.Begin(m.birth)
				}
				restored()
			}
		})
	}
}

// A spec that reports drift is applied once by the machine itself; a later change by hand stays, and is counted. An edited spec is
// applied.
func TestST10SimulatedPullOnlyReportsDrift(t *testing.T) {
	t.Parallel()
	m, left := beginSimulated(t), 0
	f := node.Folder{Path: t.TempDir()}
	n := node.Node{Folder: f, Machine: m, Left: func(differ int) { left = differ }}
	run := func(zone string) int {
		left = 0
		_, changed, err := n.Run(t.Context(), func(context.Context) error {
			_, err := f.Store([]byte(`{"version": 1, "node": "edge", "spec": "test", "config": {"timezone": "` + zone + `", "drift": "report"}}`))
			return err
		})
		require.NoError(t, err)
		return changed
	}
	zone := func() string { return strings.TrimSpace(m.sh("readlink /etc/localtime")) }
	require.Equal(t, 1, run("Europe/Berlin"))
	require.Zero(t, left, "it was applied")
	require.Equal(t, "/usr/share/zoneinfo/Europe/Berlin", zone())

	m.sh("ln -sfT /usr/share/zoneinfo/UTC /etc/localtime")
	require.Equal(t, 1, run("Europe/Berlin"))
	require.Equal(t, 1, left)
	require.Equal(t, "/usr/share/zoneinfo/UTC", zone())

	require.Equal(t, 1, run("Europe/Paris"))
	require.Zero(t, left)
	require.Equal(t, "/usr/share/zoneinfo/Europe/Paris", zone())
}
