package machines_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// What cannot be done is said clearly, and nothing is half written: the machine is as it
// was, and once the cause is gone the same spec is applied.
func TestST13WhatCannotBeDone(t *testing.T) {
	nspawn.Need(t)
	const file = `"config": {"files": [{"path": "/srv/small/file", "content": "` + "0123456789abcdef" + `BIG", "mode": "0644", "owner": "root", "group": "root"}]}`
	big := strings.Replace(file, "BIG", strings.Repeat("x", 200_000), 1)
	for _, c := range []struct{ name, before, document, says, after string }{
		{"a wrong package", "", `"platform": {"packages": ["hs-tool", "hs-tol"]}`, "no repository of this machine has a package of this name: hs-tol (check the spelling", ""},
		{"a package that cannot be configured", "", `"platform": {"packages": ["hs-broken"]}`, "it cannot be configured", ""},
		{"the lock of apt", "export APT_WAIT=1; systemd-run --unit=holder python3 -c 'import fcntl,time; f=open(\"/var/lib/dpkg/lock-frontend\",\"w\"); fcntl.lockf(f,fcntl.LOCK_EX); time.sleep(1000)' && until fuser -s /var/lib/dpkg/lock-frontend 2>/dev/null || grep -q . /proc/locks; do :; done", `"platform": {"packages": ["hs-tool"]}`, "another program holds the lock of apt: E: ", "systemctl stop holder"},
		{"a full disk", "mkdir -p /srv/small && mount -t tmpfs -o size=64k tmpfs /srv/small", big, "/srv/small/file could not be written", "mount -o remount,size=1m /srv/small"},
		{"a read-only file system", "mkdir -p /srv/small && mount -t tmpfs tmpfs /srv/small && mount -o remount,ro /srv/small", file, "Read-only file system", "mount -o remount,rw /srv/small"},
		{"broken sudoers", "echo 'nonsense here' >/etc/sudoers.d/broken; chmod 440 /etc/sudoers.d/broken", strings.Replace(user("ann", ""), `"none"`, `"nopasswd"`, 1), "sudo does not work since another file is broken: /etc/sudoers.d/broken:1:", "rm /etc/sudoers.d/broken"},
		{"an unknown unit", "", `"platform": {"services": {"hs-nothing": "enabled"}}`, "this machine has no unit hs-nothing.service", ""},
		{"a unit that does not start", "printf '[Service]\\nType=oneshot\\nExecStart=/bin/sh -c \"echo out of order; exit 3\"\\n[Install]\\nWantedBy=multi-user.target\\n' >/etc/systemd/system/bad.service; systemctl daemon-reload", `"platform": {"services": {"bad": "enabled"}}`, "out of order", "printf '[Service]\\nType=oneshot\\nExecStart=/bin/true\\n[Install]\\nWantedBy=multi-user.target\\n' >/etc/systemd/system/bad.service; systemctl daemon-reload"},
		{"an unknown time zone", "", `"config": {"timezone": "Europe/Atlantis"}`, "time zone Europe/Atlantis is not on this machine", ""},
		{"an unknown shell", "", strings.Replace(user("ann", ""), "/bin/bash", "/bin/fish", 1), "the shell /bin/fish is not on this machine", ""},
		{"an unknown parameter", "", `"config": {"sysctl": {"net.ipv4.nonsense": "1"}}`, "this kernel has no parameter net.ipv4.nonsense", ""},
		{"a value that the kernel refuses", "", `"config": {"sysctl": {"net.ipv4.ip_forward": "many"}}`, "the kernel does not take net.ipv4.ip_forward = many", ""},
		{"a link where a file shall be", "ln -s /etc/passwd /etc/link", `"config": {"files": [{"path": "/etc/link", "content": "x", "mode": "0644", "owner": "root", "group": "root"}]}`, "/etc/link is a symbolic link", "rm /etc/link"},
		{"an owner that is unknown", "", `"config": {"files": [{"path": "/etc/f", "content": "x", "mode": "0644", "owner": "nemo", "group": "root"}]}`, "/etc/f: this machine has no user nemo", "useradd nemo"},
		{"a damaged record", "mkdir -p /var/lib/homestak-gitops; echo '{' >/var/lib/homestak-gitops/owned.json", user("ann", ""), "owned.json is damaged", "rm /var/lib/homestak-gitops/owned.json"},
		{"another system", "cp /etc/os-release /run/os; printf 'ID=alpine\\nPRETTY_NAME=\"Alpine Linux v3.20\"\\n' >/run/other; rm /etc/os-release; cp /run/other /etc/os-release", user("ann", ""), "the machine runs Alpine Linux v3.20: specs are applied on Debian 12, Debian 13 and Ubuntu only", "cp /run/os /etc/os-release"},
		{"an old Debian", "sed 's/VERSION_ID=.*/VERSION_ID=\"11\"/;s/^PRETTY_NAME=.*/PRETTY_NAME=\"Debian 11\"/' /etc/os-release >/run/os; rm /etc/os-release; cp /run/os /etc/os-release", user("ann", ""), "the machine runs Debian 11:", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := begin(t)
			w.Run0("apt-get update; : ; " + c.before)
			if strings.Contains(c.before, "APT_WAIT") {
				w.environment = []string{"APT_WAIT=1"}
			}
			s := parse(t, c.document)
			before := w.snapshot()
			_, err := converge.Apply(context.Background(), way{w}, s, converge.Options{})
			require.ErrorContains(t, err, c.says)
			require.Empty(t, w.Run0("find / -xdev -name '*homestak-new*'; ls /srv/small 2>/dev/null || :"))
			if c.document == file || c.document == big || strings.Contains(c.name, "value") || strings.Contains(c.name, "lock") {
				same(t, before, strings.Replace(w.snapshot(), "owned.json\n", "", 1), "after the error")
			}
			if c.after != "" {
				w.Run0(c.after)
				w.apply(s)
				w.unchanged(s)
			}
		})
	}
}

// A package that came half way goes when the spec drops it.
func TestST11AHalfInstalledPackageIsWithdrawn(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	_, err := converge.Apply(context.Background(), way{w}, parse(t, `"platform": {"packages": ["hs-broken"]}`), converge.Options{})
	require.Error(t, err)
	require.Contains(t, w.Run0("dpkg-query -W -f='${db:Status-Status}' hs-broken"), "half-configured")
	none := parse(t, `"config": {}`)
	w.apply(none)
	w.unchanged(none)
	require.Empty(t, w.Run0("dpkg-query -W -f='${db:Status-Status}' hs-broken 2>/dev/null || :"))
	w.apply(parse(t, `"platform": {"packages": ["hs-tool"]}`))
}

// Two that apply at once do not mix: one of them notices, reads again and finds it done.
func TestST14TwoAtOnce(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	s := w.whole()
	results := make(chan error, 2)
	for range 2 {
		other := &world{Machine: w.Machine, t: t}
		go func() {
			_, err := converge.Apply(context.Background(), way{other}, s, converge.Options{})
			results <- err
		}()
	}
	var failed []error
	for range 2 {
		if err := <-results; err != nil {
			failed = append(failed, err)
		}
	}
	require.LessOrEqual(t, len(failed), 1)
	for _, err := range failed {
		require.ErrorContains(t, err, "changed since it was read")
	}
	w.apply(s)
	w.unchanged(s)
}
