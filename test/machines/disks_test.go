package machines_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// disks are the disks of a machine: files that the kernel shows as block devices. In the
// machine they are /dev/sdX, with the folder in /sys that a disk of QEMU has there; that
// folder is made up, since a loop device has no serial number.
type disks struct {
	*world
	files, loops []string
}

// withDisks boots a machine with empty disks of so many MiB, in the order of the serials.
func withDisks(t *testing.T, mib int, serials ...string) *disks {
	t.Helper()
	nspawn.Need(t)
	d := &disks{}
	binds := []nspawn.Bind{}
	for i := range serials {
		name := filepath.Join(t.TempDir(), fmt.Sprintf("disk-%d.img", i))
		require.NoError(t, os.WriteFile(name, nil, 0o600))
		require.NoError(t, os.Truncate(name, int64(mib)<<20))
		out, err := exec.Command("losetup", "--find", "--show", name).CombinedOutput()
		if err != nil {
			nspawn.Without(t, "this machine has no loop devices: "+string(out))
		}
		loop := strings.TrimSpace(string(out))
		t.Cleanup(func() { _ = exec.Command("losetup", "--detach", loop).Run() }) // once the machine is off
		d.files, d.loops = append(d.files, name), append(d.loops, loop)
		binds = append(binds, nspawn.Bind{From: loop, To: loop, Write: true})
	}
	d.world = begin(t, binds...)
	// nspawn gives /sys to nobody; who puts a folder over it does so for this machine alone.
	d.Run0("mkdir -p /run/block && mount --bind /run/block /sys/block")
	for i, serial := range serials {
		var at syscall.Stat_t
		require.NoError(t, syscall.Stat(d.loops[i], &at))
		minor := at.Rdev&0xff | at.Rdev>>12&^0xff
		dev := d.dev(i)
		d.Run0(fmt.Sprintf("mknod /dev/%[1]s b 7 %[2]d && mkdir -p /run/block/%[1]s/device /run/block/%[1]s/holders && echo 7:%[2]d >/run/block/%[1]s/dev && printf '\\000\\200\\000\\020%[3]s' >/run/block/%[1]s/device/vpd_pg80", dev, minor, serial))
		d.size(i, mib)
	}
	return d
}

func (*disks) dev(i int) string { return fmt.Sprintf("sd%c", 'b'+i) }

func (d *disks) size(i, mib int) {
	d.Run0(fmt.Sprintf("echo %d >/run/block/%s/size", mib*2048, d.dev(i)))
}

// grow makes a disk larger, as the host does.
func (d *disks) grow(i, mib int) {
	d.t.Helper()
	require.NoError(d.t, os.Truncate(d.files[i], int64(mib)<<20))
	said, err := exec.Command("losetup", "--set-capacity", d.loops[i]).CombinedOutput()
	require.NoError(d.t, err, string(said))
	d.size(i, mib)
}

func mounting(path, disk, more string) string {
	return fmt.Sprintf(`{"path": %q, "disk": %q, "fstype": "ext4"%s}`, path, disk, more)
}

func mountSpec(t *testing.T, mounts ...string) *spec.Spec {
	t.Helper()
	return parse(t, `"config": {"mounts": [`+strings.Join(mounts, ", ")+`]}`)
}

// refused requires that a spec cannot be applied, for a reason.
func (w *world) refused(s *spec.Spec, why string) {
	w.t.Helper()
	_, err := converge.Apply(context.Background(), way{w}, s, converge.Options{})
	require.ErrorContains(w.t, err, why)
}

// An empty disk is formatted once and mounted; what is on it stays whatever happens to the
// spec, and a larger disk gets a larger file system.
func TestST02ADiskIsFormattedAndMounted(t *testing.T) {
	t.Parallel()
	d := withDisks(t, 512, "other", "data")
	d.Run0("printf '# static\\nproc /proc proc defaults 0 0\\n' >/etc/fstab")
	s := mountSpec(t, mounting("/srv/a/data", "data", `, "options": ["noatime", "nodev"]`))
	require.Contains(t, d.observe(s).Steps()[0].Text, "format disk data as ext4 and mount it at /srv/a/data")
	d.apply(s)
	require.Equal(t, "/srv/a/data ext4 data", d.Run0("echo $(findmnt -no TARGET,FSTYPE,LABEL /srv/a/data)"))
	require.Equal(t, "# static\nproc /proc proc defaults 0 0\nLABEL=data /srv/a/data ext4 nofail,nodev,noatime 0 2", strings.ReplaceAll(d.Run0("cat /etc/fstab"), "noatime,nodev", "nodev,noatime"))
	require.Contains(t, d.Run0("findmnt -no OPTIONS /srv/a/data"), "nodev,noatime")
	d.Run0("[ -z \"$(blkid -p /dev/sdb)\" ] && echo kept >/srv/a/data/file && umount /srv/a/data && mount -a && [ -e /srv/a/data/file ]")
	d.unchanged(s)

	// Drift, as people make it.
	for _, c := range []struct{ do, change string }{
		{"umount /srv/a/data", `config.mount./srv/a/data.disk "data (not mounted)" → data`},
		{"sed -i /data/d /etc/fstab", `config.mount./srv/a/data.disk "data (until the next restart)" → data`},
		{"mount -o remount,ro,noatime,nodev /srv/a/data", `config.mount./srv/a/data.options -ro`},
		{"sed -i s/noatime,// /etc/fstab", `config.mount./srv/a/data.options -"otherwise in /etc/fstab"`},
		{"sed -i s/LABEL=data/\\\\/dev\\\\/sdc/ /etc/fstab", `config.mount./srv/a/data.disk "data (/dev/sdc in /etc/fstab)" → data`},
	} {
		d.Run0(c.do)
		require.Contains(t, changes(d.observe(s)), c.change, c.do)
		d.apply(s)
		require.Equal(t, "kept", d.Run0("cat /srv/a/data/file"), c.do)
		d.unchanged(s)
	}

	other := mountSpec(t, mounting("/srv/a/data", "data", `, "options": ["nosuid"]`))
	require.Contains(t, changes(d.observe(other)), "config.mount./srv/a/data.options +nosuid -noatime -nodev")
	d.apply(other)
	require.Regexp(t, `^rw,nosuid,relatime`, d.Run0("findmnt -no OPTIONS /srv/a/data"))

	d.grow(1, 1024)
	// The kernel lets only who has CAP_SYS_RESOURCE (24) grow a mounted file system. Where the
	// tests lack it, the disk is unmounted for as long as it takes.
	d.Run0("if [ $((0x$(awk '/CapEff/ {print $2}' /proc/self/status) >> 24 & 1)) = 0 ]; then printf '#!/bin/sh\\numount $1 && e2fsck -fp $1 && /usr/sbin/resize2fs $1 && mount /srv/a/data\\n' >/usr/local/sbin/resize2fs; chmod 755 /usr/local/sbin/resize2fs; fi")
	require.Contains(t, changes(d.observe(other)), `config.mount./srv/a/data.size "512 of 1024 MiB" → "whole disk"`)
	d.apply(other)
	d.Run0("[ $(df -m --output=size /srv/a/data | tail -n1) -gt 900 ] && [ -e /srv/a/data/file ]")
	d.unchanged(other)

	// What is in use stays mounted, and the message says who uses it.
	d.Run0("systemd-run --quiet --unit=user --working-directory=/srv/a/data sleep infinity")
	d.refused(spec.Empty("edge"), "/srv/a/data is in use by sleep (")
	require.Contains(t, d.Run0("cat /etc/fstab"), "LABEL=data")
	d.Run0("systemctl stop user")
	d.apply(spec.Empty("edge"))
	d.Run0("! findmnt /srv/a/data && [ ! -e /srv/a ] && [ -d /srv ] && [ \"$(cat /etc/fstab)\" = \"$(printf '# static\\nproc /proc proc defaults 0 0')\" ]")

	// The disk comes back with its data.
	require.Equal(t, "mount disk data at /srv/a/data", d.observe(s).Steps()[0].Text)
	d.apply(s)
	require.Equal(t, "kept", d.Run0("cat /srv/a/data/file"))
	d.apply(mountSpec(t, mounting("/srv/elsewhere", "data", "")))
	require.Equal(t, "kept", d.Run0("cat /srv/elsewhere/file && [ ! -e /srv/a ]"))
}

// Nothing that holds anything is ever formatted, and nothing that is not declared.
func TestST13ADiskWithDataIsNeverFormatted(t *testing.T) {
	t.Parallel()
	d := withDisks(t, 64, "data", "part", "more")
	s := mountSpec(t, mounting("/srv/data", "data", ""))
	sum := func() string { return d.Run0("cat /dev/sdb /dev/sdc /dev/sdd | sha256sum") }
	for _, c := range []struct{ do, says string }{
		{"mkfs.ext4 -q -L old /dev/sdb", "disk data (/dev/sdb) holds ext4 with label old: a disk with data is never formatted"},
		{"mkfs.ext4 -q -F /dev/sdb", "disk data (/dev/sdb) holds ext4 without a label"},
		{"mkswap /dev/sdb", "disk data (/dev/sdb) holds swap without a label"},
		{"wipefs -qa /dev/sdb; mkfs.ext3 -q -F -L data /dev/sdb", "disk data (/dev/sdb) holds ext3, and fstype is ext4"},
		{"wipefs -qa /dev/sdb; printf '\\000\\000\\002\\000\\203\\000\\000\\000\\000\\010\\000\\000\\000\\100\\000\\000' | dd of=/dev/sdb bs=1 seek=446 conv=notrunc; printf '\\125\\252' | dd of=/dev/sdb bs=1 seek=510 conv=notrunc", "disk data (/dev/sdb) holds a partition table (dos)"},
		{"wipefs -qa /dev/sdb; mkdir /run/block/sdb/holders/dm-0", "disk data (/dev/sdb) holds partitions, or parts of something else"},
		{"rmdir /run/block/sdb/holders/dm-0; mkfs.ext4 -q -F -L data /dev/sdc; mkfs.ext4 -q -F -L data /dev/sdd", "two file systems have the label data: /dev/sdc and /dev/sdd"},
		{"wipefs -qa /dev/sdd", "disk data is /dev/sdb by its serial number, but the file system with the label data is on /dev/sdc"},
		{"wipefs -qa /dev/sdc; printf '\\000\\200\\000\\000' >/run/block/sdb/device/vpd_pg80", "no file system of this machine has the label data, and no disk that serial number, so nothing is formatted: empty are /dev/sdb of 64 MiB, /dev/sdc of 64 MiB, /dev/sdd of 64 MiB. If one of them is the disk, run mkfs.ext4 -L data on it"},
	} {
		d.Run0(c.do)
		before := sum()
		d.refused(s, c.says)
		require.Equal(t, before, sum(), c.do)
		d.Run0("! findmnt /srv/data; [ ! -e /srv/data ] && ! grep -q data /etc/fstab")
	}
	// By hand, as the message says.
	d.Run0("mkfs.ext4 -q -L data /dev/sdd && mkdir /srv/data && echo x >/srv/data/hidden")
	d.refused(s, "/srv/data is not empty, and a mount would hide what is in it")
	d.Run0("rm /srv/data/hidden")
	d.apply(s)
	d.unchanged(s)
	d.apply(spec.Empty("edge"))
	d.Run0("[ -d /srv/data ] && ! findmnt /srv/data") // the folder was there
}

// What somebody put on the disk between the look and the format is seen.
func TestST13ADiskThatIsFilledInBetween(t *testing.T) {
	t.Parallel()
	d := withDisks(t, 64, "data")
	s := mountSpec(t, mounting("/srv/data", "data", ""))
	state := d.observe(s)
	d.Run0("mkfs.ext4 -q -L precious /dev/sdb")
	err := state.Apply(context.Background(), way{d.world}, state.Steps(), converge.Options{})
	require.ErrorContains(t, err, "/dev/sdb has changed since it was read")
	require.Equal(t, "precious", d.Run0("blkid -p -s LABEL -o value /dev/sdb"))
}

// A line that was there before us comes back.
func TestST11AMountThatWasThere(t *testing.T) {
	t.Parallel()
	d := withDisks(t, 64, "data")
	d.Run0("mkfs.ext4 -q -L data /dev/sdb && mkdir /srv/data && echo '/dev/sdb	/srv/data	ext4	ro	0	0' >/etc/fstab && mount /srv/data")
	s := mountSpec(t, mounting("/srv/data", "data", ""))
	d.apply(s)
	d.unchanged(s)
	require.Equal(t, "LABEL=data /srv/data ext4 nofail 0 2", d.Run0("cat /etc/fstab"))
	require.Regexp(t, "^rw,", d.Run0("findmnt -no OPTIONS /srv/data"))
	d.apply(spec.Empty("edge"))
	require.Equal(t, "/dev/sdb	/srv/data	ext4	ro	0	0", d.Run0("cat /etc/fstab"))
	d.Run0("findmnt /srv/data")
}
