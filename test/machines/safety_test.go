package machines_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// A file in a folder of a user goes there, and not where a link of that user leads: neither when it is written, nor
// when it is withdrawn.
func TestST02AFileInAFolderOfAUser(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	w.Run0("useradd --create-home ann; setpriv --reuid=ann --regid=ann --clear-groups ln -s /etc /home/ann/conf; echo mine >/etc/app; mkdir /srv/real; ln -s real /srv/link")
	file := func(path string) *spec.Spec {
		return parse(t, `"config": {"files": [{"path": "`+path+`", "content": "of the spec\n", "mode": "0644", "owner": "ann", "group": "ann"}]}`)
	}
	const planted = "/home/ann/conf is a symbolic link, and others than root may change it"
	for _, path := range []string{"/home/ann/conf/new", "/home/ann/conf/app.d/new", "/home/ann/conf/app"} {
		w.refused(file(path), planted)
	}
	require.Equal(t, "("+planted+")", w.observe(file("/home/ann/conf/app")).Have.File("/home/ann/conf/app").Content)
	w.Run0("ln -sT /etc /home/ann/.ssh; chown -h ann: /home/ann/.ssh") // of a file that is restored unless somebody gets in
	restored := file("/home/ann/.ssh/app")
	step := w.observe(restored).Steps()[0]
	require.Equal(t, "write /home/ann/.ssh/app", step.Text)
	out, code := w.Try("sh", "-c", string(guest.Script("set -e\n"+step.Ask).Stdin))
	require.Equal(t, guest.ExitBlocked, code)
	require.NotContains(t, out, base64.StdEncoding.EncodeToString([]byte("mine\n")))
	w.refused(restored, "/home/ann/.ssh is a symbolic link, and others than root may change it")
	require.Equal(t, "mine", w.Run0("cat /etc/app"))
	require.Empty(t, w.Run0("ls -d /etc/new /etc/app.d 2>/dev/null || :"))

	w.Run0("rm /home/ann/conf /home/ann/.ssh")
	s := file("/home/ann/d/app")
	w.apply(s)
	w.unchanged(s)
	w.Run0("setpriv --reuid=ann --regid=ann --clear-groups sh -c 'mv ~ann/d ~ann/old 2>/dev/null; ls -ld ~ann/d' || :; rm -r /home/ann/d; ln -s /etc /home/ann/d; chown -h ann: /home/ann/d")
	w.refused(parse(t, `"config": {}`), "/home/ann/d is a symbolic link")
	require.Equal(t, "mine", w.Run0("cat /etc/app"))

	linked := file("/srv/link/app") // one of root
	w.Run0("rm /home/ann/d")
	w.apply(linked)
	require.Equal(t, "of the spec", w.Run0("cat /srv/real/app"))
	w.apply(parse(t, `"config": {}`))
	require.Empty(t, w.Run0("ls -A /srv/real"))
}

// fileAt is a spec with a file of root.
func fileAt(t *testing.T, path, content string) *spec.Spec {
	t.Helper()
	text, err := json.Marshal(content)
	require.NoError(t, err)
	return parse(t, `"config": {"files": [{"path": "`+path+`", "content": `+string(text)+`, "mode": "0440", "owner": "root", "group": "root"}]}`)
}

// A file of sshd, sudo or PAM is checked before it is in force, and is taken back unless somebody gets in afterwards.
func TestST02AFileThatDecidesWhoGetsIn(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	const sshd, sudo, pam = "/etc/ssh/sshd_config.d/10-site.conf", "/etc/sudoers.d/site", "/etc/pam.d/sshd"
	before := w.snapshot()
	w.refused(fileAt(t, sshd, "Prot 1\n"), "sshd refuses the settings")
	w.refused(fileAt(t, sudo, "ann ALL=(ALL ALL\n"), "visudo refuses /etc/sudoers.d/site")
	w.refused(fileAt(t, "/etc/sudoers", "Defaults env_reset\nroot ALL=(ALL ALL\n"), "visudo refuses /etc/sudoers")
	for _, s := range []*spec.Spec{fileAt(t, sshd, "Port 2200\n"), fileAt(t, sudo, "Defaults lecture=never\n"), fileAt(t, pam, "auth required pam_deny.so\n"), fileAt(t, "/etc/nologin", "closed\n")} {
		asked := 0
		_, err := converge.Apply(context.Background(), way{w}, s, converge.Options{Confirm: func(context.Context, *spec.Spec, aspect.Step) error {
			asked++
			return errNoWayIn
		}})
		require.ErrorIs(t, err, errNoWayIn, s.Config.Files[0].Path)
		require.ErrorContains(t, err, "the old state is restored")
		require.Equal(t, 1, asked)
		require.NotEmpty(t, changes(w.observe(s)))
	}
	w.listensSoon("22")
	w.Run0("rm -r /var/lib/homestak-gitops; apt-get clean")
	same(t, before, w.snapshot(), "after what was refused, or nobody confirmed")

	// One that is confirmed by nobody is applied again, and goes back to the state before all that.
	port := fileAt(t, sshd, "Port 2200\n")
	for range 2 {
		ctx, gone := context.WithCancel(context.Background())
		_, err := converge.Apply(ctx, way{w}, port, converge.Options{Confirm: func(context.Context, *spec.Spec, aspect.Step) error {
			gone()
			return errNoWayIn
		}})
		require.Error(t, err)
		w.Until("the SSH server listens on 2200, too", func() bool { return w.listens("2200") })
		require.Contains(t, strings.Join(changes(w.observe(port)), "\n"), "unconfirmed")
	}
	w.Run0("sh /var/lib/homestak-gitops/revert/files-*.sh")
	w.listensSoon("22")
	require.Empty(t, w.Run0("ls "+sshd+" 2>/dev/null || :"))

	w.apply(port)
	require.True(t, w.listens("2200"))
	w.unchanged(port)
	w.refused(fileAt(t, sshd, "Prot 2\n"), "sshd refuses the settings")
	w.Until("the SSH server listens where it did", func() bool { return w.listens("2200") }) // it reads what was restored
	w.apply(port)
	w.unchanged(port)
	w.apply(fileAt(t, pam, w.Run0("cat "+pam)+"\n# of the site\n"))
	w.Until("the SSH server has its old port", func() bool { return !w.listens("2200") })
	require.Contains(t, w.Run0("cat "+pam), "of the site")
	w.apply(parse(t, `"config": {}`))
	require.NotContains(t, w.Run0("cat "+pam), "of the site")
	require.Empty(t, w.Run0("ls -A /var/lib/homestak-gitops/found /var/lib/homestak-gitops/revert | grep -v : || :"))
}

// What was found is kept until its return is confirmed, and goes then, wherever the withdrawal is cut off.
func TestST02AWithdrawalThatNobodyConfirms(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	const pam = "/etc/pam.d/sshd"
	found, none := w.Run0("cat "+pam), parse(t, `"config": {}`)
	s := fileAt(t, pam, found+"\n# of the site\n")
	w.apply(s)
	for range 2 {
		_, err := converge.Apply(context.Background(), way{w}, none, converge.Options{Confirm: nobody})
		require.ErrorIs(t, err, errNoWayIn)
		require.ErrorContains(t, err, "the old state is restored")
		require.Contains(t, w.Run0("cat "+pam), "# of the site")
	}
	w.apply(none)
	finished := func(when string) {
		t.Helper()
		require.Equal(t, found, w.Run0("cat "+pam), when)
		require.Empty(t, w.Run0("ls -A /var/lib/homestak-gitops/found /var/lib/homestak-gitops/revert | grep -v : || :"), when)
		require.JSONEq(t, `{"version": 1, "entries": []}`, w.Run0("cat /var/lib/homestak-gitops/owned.json"), when)
		w.unchanged(none)
	}
	finished("after it was taken back twice")

	const confirmation = 5 // two observations, the question and the step come before
	kills := 0
	for point := 1; ; point += 3 {
		w.apply(s)
		if !w.killed(none, confirmation, point) {
			finished("it was not killed any more")
			break
		}
		kills++
		w.apply(none)
		w.Run0("systemctl stop 'homestak-gitops-revert-*.timer'; rm -f /var/lib/homestak-gitops/revert/*.confirmed")
		finished(fmt.Sprintf("killed at command %d of the confirmation", point))
	}
	t.Logf("killed %d times", kills)
	require.Greater(t, kills, 8)
}

// Where nobody connects from outside, as in mode pull, the SSH server has to answer after a change of its settings.
func TestST02AnSSHServerThatDoesNotAnswer(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	s := parse(t, lockout)
	w.Run0("systemd-run --quiet --unit=taken python3 -m http.server --bind 0.0.0.0 2222")
	w.Until("the port is taken", func() bool { return w.listens("2222") })
	standsAlone := strings.Contains(w.Run0("systemctl is-active ssh.socket || :"), "inactive") // else its socket fails, as on Ubuntu
	unanswered := func(port string) string {
		if standsAlone {
			return "it does not work, so the old state is restored: the SSH server does not answer on port " + port + " with a host key of this machine"
		}
		return "ssh.socket does not restart"
	}
	w.refused(s, unanswered("2222"))
	w.Run0("systemctl stop taken")
	w.listensSoon("22")
	require.Empty(t, w.Run0("ls /etc/ssh/sshd_config.d /var/lib/homestak-gitops/revert | grep -v : || :"))
	w.apply(s)
	w.listensSoon("2222")

	// A port that is taken altogether ends the server.
	w.Run0("systemd-run --quiet --unit=taken python3 -m http.server --bind :: 2200")
	w.Until("the port is taken", func() bool { return w.listens("2200") })
	w.refused(parse(t, strings.Replace(lockout, "2222", "2200", 1)), unanswered("2200"))
	w.Run0("systemctl stop taken")
	w.listensSoon("2222")

	// A host key without its public half is one. A server that did not run before does not have to answer.
	w.Run0("rm /etc/ssh/ssh_host_*_key.pub")
	w.apply(parse(t, strings.Replace(lockout, "2222", "22", 1)))
	w.listensSoon("22")
	w.Run0("systemctl stop ssh.service")
	w.apply(s)
}

// There, a machine that somebody could log in to stays one.
func TestST02NobodyCouldLogInAnyMore(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	w.Run0("install -d -m 700 /root/.ssh; echo '" + keyA + "' >/root/.ssh/authorized_keys")
	s := parse(t, lockout)
	w.refused(s, "no user could log in by SSH any more, as root can now")
	w.listensSoon("22")
	w.apply(parse(t, lockout+`, "access": {"users": [{"name": "ann", "sudo": "none", "ssh_keys": ["`+keyB+`"], "shell": "/bin/bash"}]}`))
	w.listensSoon("2222")

	w = begin(t) // by what the server says of each user
	w.Run0("install -d -m 700 /root/.ssh; echo '" + keyA + "' >/root/.ssh/authorized_keys")
	const site = "/etc/ssh/sshd_config.d/10-site.conf"
	for _, settings := range []string{
		"PubkeyAuthentication no\n", "AllowUsers ann bob\n", "DenyUsers ann ro*\n", "AllowGroups staff\n", "DenyGroups root\n", "Match User root\n  PubkeyAuthentication no\n",
		"Match Address 127.0.0.0/8\n  AuthorizedKeysFile none\n", "Match Group root LocalPort 22\n  ForceCommand internal-sftp\n", "AuthorizedKeysFile /etc/ssh/keys/%u\n", "AuthenticationMethods publickey,password\n",
	} {
		w.refused(fileAt(t, site, settings), "no user could log in by SSH any more, as root can now")
		require.Empty(t, w.Run0("ls /etc/ssh/sshd_config.d"), settings)
	}
	for _, settings := range []string{
		"AllowUsers ann root@192.0.2.0/24\nDenyUsers root@192.0.2.7\n", "AllowGroups staff r*\n", "Match User ann\n  PubkeyAuthentication no\n", "Match Address 192.0.2.0/24\n  PubkeyAuthentication no\n",
		"AuthorizedKeysFile %h/.ssh/%u .ssh/authorized_keys\n", "AuthenticationMethods publickey,password publickey\n",
	} {
		w.apply(fileAt(t, site, settings))
	}
	w.apply(parse(t, `"config": {}`))

	w = begin(t) // with a password
	w.Run0("rm -f /root/.ssh/authorized_keys; useradd --create-home bob; echo bob:secret | chpasswd; echo 'PasswordAuthentication yes' >/etc/ssh/sshd_config.d/50-cloud-init.conf")
	w.refused(s, "no user could log in by SSH any more, as bob can now")
}

// A machine that applies its spec itself keeps a new address only if its parent answers over it.
func TestST02AnAddressWithoutTheParent(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := beginLAN(t, withIfupdown, eniStatic)
	s := static(t, "10.9.0.6/24", "10.9.0.1")
	asked := 0
	_, err := converge.Apply(context.Background(), way(w), s, converge.Options{ConfirmWithin: 5 * time.Second, Parent: func(context.Context) error {
		asked++
		require.Equal(t, "10.9.0.6/24", w.address())
		return errNoWayIn
	}})
	require.ErrorIs(t, err, errNoWayIn)
	require.ErrorContains(t, err, "it does not work, so the old state is restored: the parent does not answer over the new network")
	require.Greater(t, asked, 1)
	require.Equal(t, "10.9.0.5/24", w.address())
	require.Empty(t, w.Run0("ls /var/lib/homestak-gitops/revert"))
	asked = 0
	_, err = converge.Apply(context.Background(), way(w), s, converge.Options{Parent: func(context.Context) error {
		if asked++; asked == 1 {
			return errNoWayIn
		}
		return nil
	}})
	require.NoError(t, err)
	require.Equal(t, 2, asked)
	require.Equal(t, "10.9.0.6/24", w.address())
}

// Address and bridge go in any order, together too, and leave the file as it was before both.
func TestST11AddressAndBridgeGoTogether(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := beginLAN(t, "ifupdown2,isc-dhcp-client", `printf 'auto lo\niface lo inet loopback\n\nallow-hotplug eth0\niface eth0 inet static\n\taddress 10.9.0.5/24\n\tgateway 10.9.0.1\n\n# of the owner\n' >/etc/network/interfaces`,
		"echo nameserver 10.9.0.1 >/etc/resolv.conf", "ifup lo", "ifup eth0")
	const files = "cat /etc/network/interfaces /etc/resolv.conf"
	before := w.Run0(files)
	of := func(address string, bridge bool) *spec.Spec {
		s := spec.Empty("edge")
		if address != "" {
			s = static(t, address, "10.9.0.1")
		}
		if bridge {
			s.Config.PVE.Bridge = "vmbr0"
		}
		return s
	}
	for _, c := range []struct {
		name  string
		steps []*spec.Spec
	}{
		{"together", []*spec.Spec{of("10.9.0.6/24", true)}},
		{"the address first", []*spec.Spec{of("10.9.0.6/24", true), of("", true)}},
		{"the bridge first", []*spec.Spec{of("10.9.0.6/24", true), of("10.9.0.6/24", false)}},
		{"the bridge was there first", []*spec.Spec{of("", true), of("10.9.0.6/24", true)}},
		{"the bridge was there first, and goes first", []*spec.Spec{of("", true), of("10.9.0.6/24", true), of("10.9.0.6/24", false)}},
		{"another address in between", []*spec.Spec{of("10.9.0.6/24", true), of("10.9.0.7/24", true), of("10.9.0.7/24", false)}},
		{"another address together with the bridge", []*spec.Spec{of("10.9.0.6/24", true), of("10.9.0.7/24", false)}},
	} {
		for _, s := range append(c.steps, spec.Empty("edge")) {
			_, err := converge.Apply(context.Background(), way(w), s, converge.Options{Started: func(st aspect.Step) { t.Log(c.name + ": " + st.Text) }})
			require.NoError(t, err, w.Run0("ip addr; "+files))
			dev, want := "eth0", "10.9.0.5/24"
			if s.Config.PVE.Bridge != "" {
				dev = "vmbr0"
			}
			if s.Network != nil {
				want = s.Network.IP
			}
			require.Equal(t, want, w.Run0("ip -4 -o addr show dev "+dev+" scope global | awk '{print $4}'"), c.name)
			require.True(t, w.ping(strings.TrimSuffix(want, "/24")), c.name)
		}
		require.Equal(t, before, w.Run0(files), c.name)
		require.JSONEq(t, `{"version": 1, "entries": []}`, w.Run0("cat /var/lib/homestak-gitops/owned.json"), c.name)
	}
}

// A package that takes the place of another one, as it declares, may do so, and the other one comes back. What it
// would remove beside that is an error.
func TestST11WhatAPackageReplacedComesBack(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	w.Run0("apt-get update && apt-get -y install hs-mailer hs-lib && apt-mark auto hs-lib")
	install := func(names string) *spec.Spec { return parse(t, `"platform": {"packages": [`+names+`]}`) }
	w.refused(install(`"hs-enemy"`), "installing hs-enemy would remove what is on this machine: hs-mailer")
	w.refused(install(`"hs-postman", "hs-mailer"`), "would remove what is on this machine: hs-mailer")
	state := func() string {
		return w.Run0("dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' 'hs-*' | grep ^ii; apt-mark showauto | grep hs- || :")
	}
	before := state()
	for _, automatic := range []bool{false, true} {
		if automatic {
			w.Run0("apt-mark auto hs-mailer")
			before = state()
		}
		s := install(`"hs-postman"`)
		w.apply(s)
		require.Equal(t, "postman", w.Run0("hs-postman"))
		require.NotContains(t, state(), "hs-mailer")
		w.unchanged(s)
		w.apply(install(""))
		require.Equal(t, before, state())
		require.JSONEq(t, `{"version": 1, "entries": []}`, w.Run0("cat /var/lib/homestak-gitops/owned.json"))
	}
}
