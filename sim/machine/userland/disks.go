package userland

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// The tables of mounts and swap, as in proc(5); there is no other record.
const (
	mountTable = "/proc/self/mountinfo"
	swapTable  = "/proc/swaps"
	swapHeader = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
)

const blockSize = 4096

// Disks are the disks of a machine that runs: the volumes of its file system.
type Disks struct{ FS *machine.FS }

// Programs are those that read and change disks.
func (d Disks) Programs() map[string]machine.Program {
	const failed = 1
	return map[string]machine.Program{
		"blkid":     Program("p s: o:", 1, 4, d.blkid),
		"wipefs":    Program("n", 1, failed, d.wipefs),
		"mkfs.ext4": Program("q F L:", 1, failed, d.mkfs),
		"dumpe2fs":  Program("h", 1, failed, d.dumpe2fs),
		"resize2fs": Program("", 1, failed, d.resize2fs),
		"mount":     Program("o:", 1, failed, d.mountProgram),
		"umount":    Program("", 1, failed, d.umount),
		"mkswap":    Program("", 1, failed, d.mkswap),
		"swapon":    Program("", 1, failed, d.swapon),
		"swapoff":   Program("", 1, failed, d.swapoff),
		"fallocate": Program("l:", 1, failed, d.fallocate),
	}
}

// Boot shows the disks, and applies /etc/fstab. Failed mounts are ignored.
func (d Disks) Boot() error {
	d.FS.Volumes.Unmount("")
	all := map[string]string{mountTable: "1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n", swapTable: swapHeader}
	for name, v := range d.FS.Volumes.All() {
		sys := "/sys/block/" + name
		all[sys+"/dev"], all[sys+"/size"] = number(name)+"\n", fmt.Sprintf("%d\n", v.Bytes/512)
		all[sys+"/device/vpd_pg80"] = "\x00\x80\x00" + string(rune(len(v.Serial))) + v.Serial // of SCSI
		if err := d.FS.SetSpecial("/dev/"+name, 0o660, machine.BlockDevice, nil); err != nil {
			return err
		}
	}
	for name, text := range all {
		if err := d.FS.WriteFile(name, text, 0o444, 0, 0); err != nil {
			return err
		}
	}
	for _, line := range d.fstab() {
		switch {
		case line[2] == "swap":
			_ = d.swap(machine.Cred{}, line[0])
		case !strings.Contains(line[3], "noauto"):
			_ = d.mount(line[0], line[1], line[3])
		}
	}
	return nil
}

// number is the number of the device of a disk: sdb is 8:16.
func number(name string) string { return fmt.Sprintf("8:%d", int(name[len(name)-1]-'a')*16) }

func (d Disks) fstab() (out [][]string) {
	text, _ := d.FS.ReadFile("/etc/fstab")
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 3 && !strings.HasPrefix(f[0], "#") {
			out = append(out, append(f, "defaults"))
		}
	}
	return out
}

// find is the disk that a name or a label means.
func (d Disks) find(source string) (name string, v machine.Volume, there bool) {
	all := d.FS.Volumes.All()
	label, labelled := strings.CutPrefix(source, "LABEL=")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if v := all[name]; labelled && v.Type != "" && v.Label == label || source == "/dev/"+name {
			return name, v, true
		}
	}
	return "", v, false
}

func (d Disks) blkid(p *machine.Process, o Options) int {
	_, v, there := d.find(o.Args[0])
	if !there || v.Type == "" {
		return 2
	}
	if o.Text("o") == "export" {
		p.Printf("DEVNAME=%s\n", o.Args[0])
	}
	for _, f := range [][2]string{{"LABEL", v.Label}, {"TYPE", v.Type}, {"USAGE", "filesystem"}} {
		switch {
		case f[1] == "" || o.Has("s") && o.Text("s") != f[0]:
		case o.Text("o") == "value":
			p.Printf("%s\n", f[1])
		default:
			p.Printf("%s=%s\n", f[0], f[1])
		}
	}
	return 0
}

// wipefs shows the signatures on a disk.
func (d Disks) wipefs(p *machine.Process, o Options) int {
	name, v, there := d.find(o.Args[0])
	switch {
	case !there:
		return p.Failf("error: %s: probing initialization failed: No such file or directory", o.Args[0])
	case v.Type != "":
		p.Printf("DEVICE OFFSET TYPE UUID LABEL\n%s 0x438 %s - %s\n", name, v.Type, v.Label)
	}
	return 0
}

func (d Disks) mkfs(p *machine.Process, o Options) int {
	name, v, there := d.find(o.Args[0])
	switch {
	case !there:
		return p.Failf("The file %s does not exist and no size was specified.", o.Args[0])
	case d.mountedOn(name) != "":
		return p.Failf("%s is mounted; will not make a filesystem here!", o.Args[0])
	}
	d.FS.Volumes.Set(name, machine.Volume{Serial: v.Serial, Bytes: v.Bytes, Type: "ext4", Label: o.Text("L"), Formatted: v.Bytes / blockSize * blockSize})
	return 0
}

func (d Disks) dumpe2fs(p *machine.Process, o Options) int {
	_, v, there := d.find(o.Args[0])
	if !there || v.Type != "ext4" {
		return p.Failf("Bad magic number in super-block while trying to open %s", o.Args[0])
	}
	p.Printf("Block count:              %d\nBlock size:               %d\n", v.Formatted/blockSize, blockSize)
	return 0
}

// resize2fs lets a file system fill its disk.
func (d Disks) resize2fs(p *machine.Process, o Options) int {
	name, v, there := d.find(o.Args[0])
	if !there || v.Type != "ext4" {
		return p.Failf("Bad magic number in super-block while trying to open %s", o.Args[0])
	}
	v.Formatted = v.Bytes / blockSize * blockSize
	d.FS.Volumes.Set(name, v)
	return 0
}

// mounted are the lines of the table.
func (d Disks) mounted() (out [][]string) {
	text, _ := d.FS.ReadFile(mountTable)
	for line := range strings.Lines(text) {
		out = append(out, strings.Fields(line))
	}
	return out
}

func (d Disks) mountedOn(disk string) string {
	for _, m := range d.mounted() {
		if m[2] == number(disk) {
			return m[4]
		}
	}
	return ""
}

func (d Disks) setMounted(lines [][]string) error {
	var b strings.Builder
	for _, m := range lines {
		b.WriteString(strings.Join(m, " ") + "\n")
	}
	return d.FS.WriteText(mountTable, b.String())
}

// inForce are the options that a mount has after it had others, in the order of the kernel, and those of its file system
// (mount(8), FILESYSTEM-INDEPENDENT MOUNT OPTIONS).
func inForce(before, asked string) (mount, super string, err error) {
	now := map[string]bool{}
	for o := range strings.SplitSeq(before, ",") {
		now[o] = true
	}
	flags := [][2]string{{"ro", "rw"}, {"nosuid", "suid"}, {"nodev", "dev"}, {"noexec", "exec"}, {"noatime", "relatime"}, {"nodiratime", "diratime"}, {"sync", "async"}}
	for o := range strings.SplitSeq(asked, ",") {
		i := slices.IndexFunc(flags, func(f [2]string) bool { return o == f[0] || o == f[1] })
		switch {
		case i >= 0:
			now[flags[i][0]] = o == flags[i][0]
		case !slices.Contains([]string{"defaults", "nofail", "remount", "auto", "noauto"}, o):
			return "", "", fmt.Errorf("wrong fs type, bad option, bad superblock: %s", o)
		}
	}
	var out []string
	for _, f := range flags {
		switch {
		case f[0] == "sync":
			super = out[0]
			if now["sync"] {
				super += ",sync"
			}
		case now[f[0]]:
			out = append(out, f[0])
		case f[0] == "ro" || f[0] == "noatime":
			out = append(out, f[1])
		}
	}
	return strings.Join(out, ","), super, nil
}

// mount mounts a disk at a folder.
func (d Disks) mount(source, dir, asked string) error {
	name, v, there := d.find(source)
	options, super, err := inForce("", asked)
	switch {
	case !there:
		return fmt.Errorf("can't find %s", source)
	case err != nil:
		return err
	case v.Type == "":
		return fmt.Errorf("wrong fs type, bad option, bad superblock on /dev/%s", name)
	case d.mountedOn(name) != "":
		return fmt.Errorf("/dev/%s already mounted on %s", name, d.mountedOn(name))
	}
	if err := d.FS.Volumes.Mount(name, dir); err != nil {
		return fmt.Errorf("mount point does not exist: %w", err)
	}
	lines := d.mounted()
	id := strconv.Itoa(len(lines) + 30)
	return d.setMounted(append(lines, []string{id, "1", number(name), "/", dir, options, "shared:" + id, "-", v.Type, "/dev/" + name, super}))
}

// mountProgram mounts what /etc/fstab has, or changes the options of what is mounted.
func (d Disks) mountProgram(p *machine.Process, o Options) int {
	fail := func(dir string, err error) int {
		p.Failf("%s: %v.", dir, err)
		return 32
	}
	lines := d.mounted()
	dir := o.Args[0]
	if slices.Contains(strings.Split(o.Text("o"), ","), "remount") {
		for _, m := range lines {
			if m[4] == dir {
				var err error
				if m[5], m[10], err = inForce(m[5]+","+m[10], o.Text("o")); err == nil {
					err = d.setMounted(lines)
				}
				if err != nil {
					return fail(dir, err)
				}
				return 0
			}
		}
		return fail(dir, errors.New("mount point not mounted or bad option"))
	}
	for _, f := range d.fstab() {
		if f[1] == dir {
			if err := d.mount(f[0], dir, f[3]); err != nil {
				return fail(dir, err)
			}
			return 0
		}
	}
	return p.Failf("%s: can't find in /etc/fstab.", dir)
}

func (d Disks) umount(p *machine.Process, o Options) int {
	lines, dir := d.mounted(), o.Args[0]
	i := slices.IndexFunc(lines, func(m []string) bool { return m[4] == dir })
	switch {
	case i <= 0:
		p.Failf("%s: not mounted.", dir)
		return 32
	case slices.ContainsFunc(lines, func(m []string) bool { return strings.HasPrefix(m[4], lines[i][4]+"/") }):
		p.Failf("%s: target is busy.", dir)
		return 32
	}
	d.FS.Volumes.Unmount(path.Base(lines[i][9]))
	if err := d.setMounted(slices.Delete(lines, i, i+1)); err != nil {
		return p.Failf("%v", err)
	}
	return 0
}

func (Disks) fallocate(p *machine.Process, o Options) int {
	text := o.Text("l")
	shift := max(strings.IndexByte(" KMG", text[len(text)-1]), 0) * 10
	n, err := strconv.ParseInt(strings.TrimRight(text, "KMG"), 10, 32)
	if err != nil || n < 1 {
		return p.Failf("invalid length value specified")
	}
	h, err := p.K.FS.Open(p.Cred, p.Path(o.Args[0]), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return p.Failf("cannot open %s: %s", o.Args[0], machine.ErrorText(err))
	}
	h.Truncate(n << shift)
	return 0
}

// swapMagic is at the end of the first page of swap (mkswap(8)).
const swapMagic = "SWAPSPACE2"

func (Disks) mkswap(p *machine.Process, o Options) int {
	const least = 40 << 10
	h, err := p.K.FS.Open(p.Cred, p.Path(o.Args[0]), os.O_RDWR, 0)
	switch {
	case err != nil:
		return p.Failf("cannot open %s: %s", o.Args[0], machine.ErrorText(err))
	case h.Stat().Kind != machine.PlainFile || h.Stat().Size < least:
		return p.Failf("error: swap area needs to be at least 40 KiB, and a file")
	}
	if _, err := h.Write([]byte(strings.Repeat("\x00", blockSize-len(swapMagic)) + swapMagic)); err != nil {
		return p.Failf("%s: %s", o.Args[0], machine.ErrorText(err))
	}
	p.Printf("Setting up swapspace version 1, size = %d bytes\n", h.Stat().Size-blockSize)
	return 0
}

// swap uses a file.
func (d Disks) swap(c machine.Cred, name string) error {
	h, err := d.FS.Open(c, name, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	page := make([]byte, blockSize)
	if _, err := io.ReadFull(h, page); err != nil || !strings.HasSuffix(string(page), swapMagic) {
		return errors.New("read swap header failed")
	}
	table, err := d.FS.ReadFile(swapTable)
	switch {
	case err != nil:
		return err
	case strings.Contains(table, "\n"+name+" "):
		return errors.New("swapon failed: Device or resource busy")
	}
	return d.FS.WriteText(swapTable, table+fmt.Sprintf("%-39s file\t\t%d\t\t0\t\t-2\n", name, (h.Stat().Size-blockSize)>>10))
}

func (d Disks) swapon(p *machine.Process, o Options) int {
	name := p.Path(o.Args[0])
	if err := d.swap(p.Cred, name); err != nil {
		p.Failf("%s: %s", name, machine.ErrorText(err))
		return 255
	}
	return 0
}

func (d Disks) swapoff(p *machine.Process, o Options) int {
	name := p.Path(o.Args[0])
	table, _ := d.FS.ReadFile(swapTable)
	var b strings.Builder
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, name+" ") {
			b.WriteString(line)
		}
	}
	if b.String() == table {
		return p.Failf("%s: swapoff failed: Invalid argument", name)
	}
	if err := d.FS.WriteText(swapTable, b.String()); err != nil {
		return p.Failf("%v", err)
	}
	return 0
}
