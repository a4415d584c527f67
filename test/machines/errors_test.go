package machines_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// mirror serves the repository by HTTP, and refuses as many requests as /run/refuse says.
const mirror = `cat >/run/mirror.py <<'END'
import http.server, os
class H(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        left = int(open("/run/refuse").read() or 0)
        if left > 0:
            open("/run/refuse", "w").write(str(left - 1))
            self.send_error(503)
            return
        super().do_GET()
    def log_message(self, *a): pass
os.chdir("/srv/apt")
http.server.HTTPServer(("127.0.0.1", 8000), H).serve_forever()
END
echo 0 >/run/refuse; systemd-run --quiet --unit=mirror python3 /run/mirror.py
for n in 1 2 3 4 5 6 7 8 9; do if ss -tln | grep -q :8000; then break; fi; sleep 0.5; done
echo 'deb [trusted=yes] http://127.0.0.1:8000 ./' >/etc/apt/sources.list; rm -rf /var/lib/apt/lists/*; `

// What cannot be done is said clearly, and nothing is half written: the machine is as it
// was, and once the cause is gone the same spec is applied.
func TestST13WhatCannotBeDone(t *testing.T) {
	nspawn.Need(t)
	const file = `"config": {"files": [{"path": "/srv/small/file", "content": "` + "0123456789abcdef" + `BIG", "mode": "0644", "owner": "root", "group": "root"}]}`
	big := strings.Replace(file, "BIG", strings.Repeat("x", 200_000), 1)
	const tool = `"platform": {"packages": ["hs-tool"]}`
	const mount = "mount -t tmpfs -o size=%s,mode=0755 tmpfs %s"
	for _, c := range []struct{ name, before, document, says, after string }{
		{"an unmet dependency", "", `"platform": {"packages": ["hs-unmet"]}`, "hs-unmet : Depends: hs-missing (>= 2) but it is not installable", ""},
		{"a mirror that does not answer", mirror + "echo 1000 >/run/refuse", tool, "503", "echo 0 >/run/refuse"},
		{"a package that the mirror does not give", mirror + "apt-get update; echo 1000 >/run/refuse", tool, "503", "echo 0 >/run/refuse"},
		{"a source of apt that is broken", "echo 'deb nonsense' >/etc/apt/sources.list.d/broken.list", tool, "/etc/apt/sources.list.d/broken.list", "rm /etc/apt/sources.list.d/broken.list"},
		{"a full disk for packages", "mkdir -p /usr/share/hs-big && " + fmt.Sprintf(mount, "64k", "/usr/share/hs-big"), `"platform": {"packages": ["hs-big"]}`, "No space left on device", "umount /usr/share/hs-big"},
		{"a full disk for the archives of apt", mirror + fmt.Sprintf(mount, "64k", "/var/cache/apt/archives") + " && mkdir /var/cache/apt/archives/partial && { head -c 70000 /dev/zero >/var/cache/apt/archives/x 2>/dev/null || :; }", `"platform": {"packages": ["hs-big"]}`, "installing hs-big failed", "umount /var/cache/apt/archives"},
		{"a full disk for the record", "mkdir -p /var/lib/homestak-gitops && " + fmt.Sprintf(mount, "4k", "/var/lib/homestak-gitops") + " && head -c 4096 /dev/zero >/var/lib/homestak-gitops/x", user("ann", ""), "/var/lib/homestak-gitops/owned.json could not be written", "umount /var/lib/homestak-gitops"},
		{"a record that cannot be written", "mkdir -p /var/lib/homestak-gitops && " + fmt.Sprintf(mount, "1m", "/var/lib/homestak-gitops") + " && mount -o remount,ro /var/lib/homestak-gitops", user("ann", ""), "Read-only file system", "umount /var/lib/homestak-gitops"},
		{"a full disk for /etc", "cp -a /etc /run/etc && " + fmt.Sprintf(mount, "8m", "/etc") + " && cp -a /run/etc/. /etc && { head -c 16m /dev/zero >/etc/fill 2>/dev/null || :; }", strings.Replace(big, "/srv/small/file", "/etc/file", 1), "could not be written", "rm /etc/fill"},
		{"a read-only /etc", "mount --bind /etc /etc && mount -o remount,ro,bind /etc", strings.Replace(file, "/srv/small/file", "/etc/file", 1), "Read-only file system", "umount /etc"},
		{"a broken sshd_config", "echo 'Nonsense yes' >>/etc/ssh/sshd_config", lockout, "Bad configuration option: Nonsense", "sed -i /^Nonsense/d /etc/ssh/sshd_config"},
		{"a Fedora", "cp /etc/os-release /run/os; printf 'ID=fedora\nVERSION_ID=41\nPRETTY_NAME=\"Fedora Linux 41\"\n' >/run/other; rm /etc/os-release; cp /run/other /etc/os-release", user("ann", ""), "the machine runs Fedora Linux 41: specs are applied on Debian 12, Debian 13 and Ubuntu only", "cp /run/os /etc/os-release"},
		{"a system without a name", "rm /etc/os-release", user("ann", ""), "the machine runs a system without /etc/os-release: specs are applied on Debian 12, Debian 13 and Ubuntu only", ""},
		{"no systemd", "mv /usr/bin/systemctl /usr/bin/systemctl.away", `"platform": {"services": {"cron": "disabled"}}`, "systemd does not run", "mv /usr/bin/systemctl.away /usr/bin/systemctl"},
		{"a wrong package", "", `"platform": {"packages": ["hs-tool", "hs-tol"]}`, "no repository of this machine has a package of this name: hs-tol (check the spelling", ""},
		{"a package that cannot be configured", "", `"platform": {"packages": ["hs-broken"]}`, "it cannot be configured", ""},
		{"the lock of apt", "systemd-run --unit=holder python3 -c 'import fcntl,time; f=open(\"/var/lib/dpkg/lock-frontend\",\"w\"); fcntl.lockf(f,fcntl.LOCK_EX); time.sleep(1000)' && until fuser -s /var/lib/dpkg/lock-frontend 2>/dev/null || grep -q . /proc/locks; do :; done", `"platform": {"packages": ["hs-tool"]}`, "another program holds the lock of apt: python3 (process ", "systemctl stop holder"},
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
			waited := 0
			o := converge.Options{WaitFor: 6 * time.Second, Progress: func(_ aspect.Step, state string) {
				if strings.HasPrefix(state, "waiting, since ") {
					waited++
					require.Contains(t, state, "python3 (process ")
				}
			}}
			s := parse(t, c.document)
			before := w.snapshot()
			_, err := converge.Apply(context.Background(), way{w}, s, o)
			require.ErrorContains(t, err, c.says)
			require.Equal(t, c.name == "the lock of apt", waited > 0)
			require.Empty(t, w.Run0("find / /etc /srv /var/lib/homestak-gitops -xdev -name '*homestak-new*' 2>/dev/null; ls /srv/small 2>/dev/null; ls /etc/file 2>/dev/null || :"))
			if c.document == file || c.document == big || strings.Contains(c.name, "value") || strings.Contains(c.name, "lock") {
				same(t, before, regexp.MustCompile(`(?m)^.*/var/lib/homestak-gitops.*\n`).ReplaceAllString(w.snapshot(), ""), "after the error")
			}
			if c.after != "" {
				w.Run0(c.after)
				w.apply(s)
				w.unchanged(s)
			}
		})
	}
}

// A mirror that refuses more requests than apt repeats by itself, and then works, stops nothing.
func TestST13AMirrorThatComesBack(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	w := begin(t)
	for _, c := range []struct{ name, before string }{{"hs-tool", ""}, {"hs-other", "apt-get update; "}} { // lists, and packages
		w.Run0("systemctl stop mirror 2>/dev/null; " + mirror + c.before + "echo 6 >/run/refuse")
		s := parse(t, `"platform": {"packages": ["`+c.name+`"]}`)
		w.apply(s)
		require.Equal(t, "0", w.Run0("cat /run/refuse"))
		w.Run0(c.name)
		w.unchanged(s)
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
