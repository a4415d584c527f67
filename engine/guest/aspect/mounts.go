package aspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// mounts is disks of the node with a file system and a line in /etc/fstab. A disk is found by
// the label of its file system; one without any by its serial number, which the host gives to
// the disks that it makes. See docs/decisions/0015-specs-inside-guests.md.
var mounts = Of[mountsFound]{
	Name: "mounts", Doc: "Disks that are formatted and mounted.",
	Paths: []string{"config.mount"},
	Probe: func(q *Query) string {
		paths := q.Items("mounts", mountPaths(q.Want))
		if len(paths) == 0 {
			return ":"
		}
		return guest.Lines(append([]string{
			probeDisks,
			"if [ -f /etc/fstab ]; then row fstab </etc/fstab; fi",
			"for _p in " + guest.QuoteWords(paths) + "; do",
			`  _line=$(while read -r _a _b _c _d _e _f; do if [ "$_e" = "$_p" ]; then printf '%s\n' "$_a $_b $_c $_d $_e $_f"; fi; done </proc/self/mountinfo | tail -n 1)`,
			`  if [ -n "$_line" ]; then`,
			`    printf '%s' "$_line" | row mounted "$_p"`,
			`    case $_line in *" - xfs "*) xfs_info "$_p" 2>/dev/null | awk '$1 == "data" {print $3 $4}' | tr -dc '0-9=a-z' | row xfs "$_p" ;; esac`,
			"  fi",
			// Which of its folders a mount would have to make.
			`  _made=; _d=$_p; while [ -n "$_d" ] && [ ! -e "$_d" ]; do _made=$_d; _d=${_d%/*}; done`,
			`  printf '%s' "$_made" | row lacks "$_p"`,
			"done",
		}, probeLogins(paths, q.Want)...)...)
	},
	Parse: func(_ *Query, rows [][]string) (mountsFound, error) { return parseMounts(rows), nil },
	Fill: func(q *Query, f mountsFound, have *spec.Spec) {
		for _, path := range q.Items("mounts", mountPaths(q.Want)) {
			if m, there := f.mount(path, q.Want.Mount(path)); there {
				have.Config.Mounts = append(have.Config.Mounts, m)
			}
		}
	},
	Steps: func(q *Query, f mountsFound) []Step {
		var steps []Step
		gone := []string{}
		for _, path := range q.Record.Items("mounts") {
			if q.Want.Mount(path) == nil {
				gone = append(gone, path)
			}
		}
		slices.Reverse(gone) // what is mounted below another one goes first
		for _, path := range gone {
			steps = append(steps, unmount(q.Record.Get("mounts", path), f))
		}
		for i := range q.Want.Config.Mounts {
			want := &q.Want.Config.Mounts[i]
			if have, there := f.mount(want.Path, want); !there || have.Differs(want) {
				steps = append(steps, mountDisk(want, q.Record.Get("mounts", want.Path), f))
			}
		}
		return steps
	},
}

type mountsFound struct {
	devices []blockDevice
	fstab   []fstabLine
	mounted map[string][]string // the line of mountinfo, by mount point
	logins  map[string]string   // the sum of the file with credentials, by mount point
	lacks   map[string]string   // the first folder that is missing, by mount point
	blocks  map[string]int64    // bytes of mounted xfs file systems
}

func parseMounts(rows [][]string) mountsFound {
	f := mountsFound{mounted: map[string][]string{}, lacks: map[string]string{}, logins: map[string]string{}, blocks: map[string]int64{}}
	for _, r := range rows {
		switch {
		case r[0] == "fstab":
			f.fstab = readFstab(r[1])
		case len(r) != 3:
		case r[0] == "disk":
			f.devices = append(f.devices, readDevice(r[1], r[2]))
		case r[0] == "login":
			f.logins[r[1]], _, _ = strings.Cut(r[2], " ")
		case r[0] == "lacks":
			f.lacks[r[1]] = r[2]
		case r[0] == "xfs":
			size, count, _ := strings.Cut(strings.TrimPrefix(r[2], "bsize="), "blocks=")
			f.blocks[r[1]] = number(size) * number(count)
		case r[0] == "mounted":
			// 36 35 98:0 /root /point rw,noatime master:1 - ext4 /dev/sdb rw (proc(5))
			head, tail, _ := strings.Cut(r[2], " - ")
			if a, b := strings.Fields(head), strings.Fields(tail); len(a) >= 6 && len(b) >= 2 {
				options := a[5]
				if len(b) > 2 && slices.Contains(strings.Split(b[2], ","), "sync") { // which is one of the file system
					options += ",sync"
				}
				f.mounted[r[1]] = []string{a[2], options, b[0], b[1]}
			}
		}
	}
	return f
}

func mountPaths(s *spec.Spec) []string {
	var out []string
	for _, m := range s.Config.Mounts {
		out = append(out, m.Path)
	}
	return out
}

// flags are the options of the kernel that any file system has, with what takes each back.
var flags = map[string]string{"ro": "rw", "nosuid": "suid", "nodev": "dev", "noexec": "exec", "noatime": "relatime", "nodiratime": "diratime", "sync": "async"}

// mount returns a mount of the machine; false if it has none.
func (f mountsFound) mount(path string, want *spec.Mount) (spec.Mount, bool) {
	line, kept := lineOf(f.fstab, 1, path)
	now, mounted := f.mounted[path]
	m := spec.Mount{Path: path, Size: spec.WholeDisk}
	if !kept && !mounted {
		return m, false
	}
	var options []string
	if kept {
		m.Disk, _ = strings.CutPrefix(line.fields[0], "LABEL=")
		m.FSType = line.fields[2]
		if len(line.fields) > 3 {
			options = spec.Declared(strings.Split(line.fields[3], ","))
		}
	}
	if mounted {
		source := now[3]
		if i := slices.IndexFunc(f.devices, func(d blockDevice) bool { return d.number == now[0] }); i >= 0 {
			d := f.devices[i]
			source = cmp.Or(d.label(), d.path())
			m.Size = f.size(d, path)
		}
		if want != nil && slices.Contains(want.Options, "ro") {
			m.Size = spec.WholeDisk // it grows once it may be written
		}
		m.Disk, m.FSType = source, strings.TrimSuffix(now[2], "4")
		if now[2] == "ext4" {
			m.FSType = now[2]
		}
		inForce := strings.Split(now[1], ",")
		for flag := range flags {
			switch {
			case !slices.Contains(inForce, flag):
				options = slices.DeleteFunc(options, func(o string) bool { return o == flag })
			case !slices.Contains(options, flag):
				options = append(options, flag)
			}
		}
	}
	switch {
	case !mounted:
		m.Disk += " (not mounted)"
	case !kept:
		m.Disk += " (until the next restart)"
	case want != nil && !slices.Equal(line.fields, want.Line()):
		if line.fields[0] != want.Line()[0] {
			m.Disk += " (" + line.fields[0] + " in /etc/fstab)"
		} else if slices.Equal(sorted(options), sorted(want.Options)) {
			options = append(options, "otherwise in /etc/fstab")
		}
	}
	if want != nil && want.Credentials != "" && f.logins[path] != guest.ContentSum(want.LoginText()) {
		options = append(options, "other credentials")
	}
	m.Options = sorted(options)
	return m, true
}

// probeLogins reads the sums of the files with credentials that are wanted.
func probeLogins(paths []string, want *spec.Spec) []string {
	var lines []string
	for _, path := range paths {
		if m := want.Mount(path); m != nil && m.Credentials != "" {
			file := guest.Quote(spec.LoginFile(path))
			lines = append(lines, "if [ -f "+file+" ]; then sha256sum <"+file+" | row login "+guest.Quote(path)+"; fi")
		}
	}
	return lines
}

// size reports whether the file system fills its disk. The space that a file system reserves is below the
// threshold.
func (f mountsFound) size(d blockDevice, path string) string {
	const least = 64 << 20
	has := number(d.fields["Block count"]) * number(d.fields["Block size"])
	if n, xfs := f.blocks[path]; xfs {
		has = n
	}
	if has == 0 || d.bytes-has < least {
		return spec.WholeDisk
	}
	return fmt.Sprintf("%d of %d MiB", has>>20, d.bytes>>20)
}

func sorted(list []string) []string {
	out := slices.Clone(list)
	slices.Sort(out)
	return slices.Compact(out)
}

// find gives the device with the file system of a disk, or the one to format, or says why
// there is none that may be used.
func (f mountsFound) find(want *spec.Mount) (d blockDevice, format bool, problem string) {
	var labelled, serial []blockDevice
	empty := []string{}
	for _, d := range f.devices {
		if d.label() == want.Disk && d.fields["TYPE"] != "" {
			labelled = append(labelled, d)
		}
		if d.name == d.disk && d.serial == want.Disk {
			serial = append(serial, d)
		}
		if d.name == d.disk && d.holds() == "" {
			empty = append(empty, fmt.Sprintf("%s of %d MiB", d.path(), d.bytes>>20))
		}
	}
	name := "disk " + want.Disk
	switch {
	case len(labelled) > 1:
		return d, false, fmt.Sprintf("two file systems have the label %s: %s and %s. Give one of them another label", want.Disk, labelled[0].path(), labelled[1].path())
	case len(serial) > 1:
		return d, false, fmt.Sprintf("two disks have the serial number %s: %s and %s", want.Disk, serial[0].path(), serial[1].path())
	case len(labelled) == 1 && len(serial) == 1 && labelled[0].disk != serial[0].name:
		return d, false, fmt.Sprintf("%s is %s by its serial number, but the file system with the label %s is on %s. Give that another label, or detach it", name, serial[0].path(), want.Disk, labelled[0].path())
	case len(labelled) == 1 && labelled[0].fields["TYPE"] != want.FSType:
		return d, false, fmt.Sprintf("%s (%s) contains %s, and fstype is %s: a disk with data is never formatted. Set fstype to what it has, or save the data and run wipefs -a %s", name, labelled[0].path(), labelled[0].fields["TYPE"], want.FSType, labelled[0].path())
	case len(labelled) == 1:
		return labelled[0], false, ""
	case len(serial) == 1 && serial[0].holds() != "":
		return d, false, fmt.Sprintf("%s (%s) contains %s: a disk with data is never formatted. If the data are those of the disk, give the file system the label %s (e2label, xfs_admin -L); if they are not needed, run wipefs -a %s", name, serial[0].path(), serial[0].holds(), want.Disk, serial[0].path())
	case len(serial) == 1:
		return serial[0], true, ""
	}
	problem = "no file system of this machine has the label " + want.Disk + ", and no disk that serial number, so nothing is formatted"
	if len(empty) > 0 {
		problem += fmt.Sprintf(": empty are %s. If one of them is the disk, run mkfs.%s -L %s on it", strings.Join(empty, ", "), want.FSType, want.Disk)
	}
	return d, false, problem
}

// record is the entry of a mount, with the line and the folder found before the first one.
func (f mountsFound) record(want *spec.Mount, e *guest.RecordEntry) guest.RecordEntry {
	entry := guest.RecordEntry{Aspect: "mounts", Item: want.Path, Identity: "label", Put: map[string]string{"disk": want.Disk, "made": f.lacks[want.Path]}}
	if e != nil {
		entry.Found, entry.Put["made"] = e.Found, e.Put["made"]
	} else if found, there := lineOf(f.fstab, 1, want.Path); there {
		entry.Found = map[string]string{"line": found.text}
	}
	return entry
}

// mountDisk formats a disk that is empty, and mounts it.
func mountDisk(want *spec.Mount, e *guest.RecordEntry, f mountsFound) Step {
	s := Step{Stage: StagePackages, Text: "mount disk " + want.Disk + " at " + want.Path}
	if want.IsNetwork() {
		return mountNetwork(want, e, f)
	}
	d, format, problem := f.find(want)
	if problem != "" {
		s.Script = "die " + guest.Quote(want.Path+": "+problem) + "\n"
		return s
	}
	path, line := guest.Quote(want.Path), strings.Join(want.Line(), " ")
	s.Keep = []guest.RecordEntry{f.record(want, e)}
	lines := []string{}
	if format {
		s.Text = fmt.Sprintf("format disk %s as %s and mount it at %s", want.Disk, want.FSType, want.Path)
		s.Needs = "command -v mkfs." + want.FSType + " >/dev/null"
		lines = append(lines,
			s.Needs+" || die "+guest.Quote("mkfs."+want.FSType+" is missing: name its package in packages"),
			diskSerial+"_dev="+guest.Quote(d.path()),
			// Names of disks may change when the machine restarts, and what was empty may be so no longer.
			`_said=$(blkid -p "$_dev" 2>&1) && _code=0 || _code=$?`,
			`if [ "$_code" -ne 2 ] || [ -n "$(wipefs -n "$_dev" 2>&1)" ] || [ "$(_serial `+guest.Quote("/sys/block/"+d.name)+`)" != `+guest.Quote(want.Disk)+` ]; then stale "$_dev"; fi`,
			"mkfs."+want.FSType+" -q -L "+guest.Quote(want.Disk)+` "$_dev" >&2 || die "$_dev cannot be formatted"`,
			"if command -v udevadm >/dev/null; then udevadm settle --timeout=10 || :; fi")
	}
	now, mounted := f.mounted[want.Path]
	if mounted && now[0] != d.number {
		lines = append(lines, umount(want.Path))
		mounted = false
	}
	lines = append(lines, setFstab(2, want.Path, line))
	if mounted {
		lines = append(lines, "mount -o "+guest.Quote(strings.Join(want.Remount(flags), ","))+" -- "+path+" || die "+guest.Quote(want.Path+" cannot be mounted again with these options"))
	} else {
		lines = append(lines,
			"mkdir -p -- "+path,
			`[ -z "$(ls -A -- `+path+`)" ] || die `+guest.Quote(want.Path+" is not empty, and a mount would hide what is in it: move that away"),
			"mount -- "+path+" || die "+guest.Quote("disk "+want.Disk+" cannot be mounted at "+want.Path))
	}
	if f.size(d, want.Path) != spec.WholeDisk && !slices.Contains(want.Options, "ro") {
		grow := "resize2fs " + guest.Quote(d.path())
		if want.FSType == "xfs" {
			grow = "xfs_growfs " + path
		}
		s.Text += ", grow its file system"
		lines = append(lines, `_said=$(`+grow+` 2>&1) || die "the file system of `+want.Path+` does not grow: $_said"`)
	}
	s.Script = guest.Lines(lines...)
	return s
}

// mountNetwork mounts a folder of another machine.
func mountNetwork(want *spec.Mount, e *guest.RecordEntry, f mountsFound) Step {
	s := Step{Stage: StagePackages, Text: "mount " + want.Disk + " at " + want.Path, Needs: "command -v mount." + want.FSType + " >/dev/null"}
	path, entry := guest.Quote(want.Path), f.record(want, e)
	s.Keep = []guest.RecordEntry{entry}
	lines := []string{s.Needs + " || die " + guest.Quote("mount."+want.FSType+" is missing: its package could not be installed")}
	if text := want.LoginText(); text != "" {
		entry.Put["login"] = spec.LoginFile(want.Path)
		lines = append(lines, guest.PutFile(spec.LoginFile(want.Path), text, "0600", "root", "root"))
	}
	if _, mounted := f.mounted[want.Path]; mounted { // options of the network cannot be changed on a mount
		lines = append(lines, umount(want.Path))
	}
	s.Script = guest.Lines(append(lines,
		setFstab(2, want.Path, strings.Join(want.Line(), " ")), "mkdir -p -- "+path,
		`[ -z "$(ls -A -- `+path+`)" ] || die `+guest.Quote(want.Path+" is not empty, and a mount would hide what is in it: move that away"),
		`_said=$(mount -- `+path+` 2>&1) || die `+guest.Quote(want.Disk+" cannot be mounted at "+want.Path+": ")+`"$_said"`)...)
	return s
}

// unmount takes a mount away; the data stay on the disk. One that was there before us gets
// its line back, and stays mounted.
func unmount(e *guest.RecordEntry, f mountsFound) Step {
	path := e.Item
	s := Step{Stage: StageWithdrawPackages, Text: "unmount " + path + ", its data stay", Drop: []guest.RecordKey{e.Key()}}
	if e.Found != nil {
		s.Text = "put back what /etc/fstab said of " + path
		s.Script = setFstab(2, path, e.Found["line"])
		return s
	}
	lines := []string{setFstab(2, path, "")}
	if _, mounted := f.mounted[path]; mounted {
		lines = slices.Insert(lines, 0, umount(path))
	}
	if login := e.Put["login"]; login != "" {
		lines = append(lines, "rm -f -- "+guest.Quote(login))
	}
	if made := e.Put["made"]; made != "" { // rmdir removes empty folders only
		lines = append(lines, "_d="+guest.Quote(path), `while rmdir -- "$_d" 2>/dev/null && [ "$_d" != `+guest.Quote(made)+` ]; do _d=${_d%/*}; done`)
	}
	s.Script = guest.Lines(lines...)
	return s
}

// umount unmounts, or says who uses the file system.
func umount(path string) string {
	return `_p=` + guest.Quote(path) + `
if ! _said=$(umount -- "$_p" 2>&1); then
  _by=$(for _q in /proc/[0-9]*; do
    for _l in "$_q"/cwd "$_q"/root "$_q"/exe "$_q"/fd/*; do
      case $(readlink "$_l" 2>/dev/null) in "$_p"|"$_p"/*) printf '%s (%s)\n' "$(cat "$_q/comm")" "${_q##*/}"; break ;; esac
    done
  done | head -n 5
  cut -d' ' -f5 /proc/self/mountinfo | while read -r _at; do case $_at in "$_p"/*) echo "the mount $_at" ;; esac; done | head -n 5)
  die "$_p is in use by $(printf '%s' "${_by:-the kernel}" | tr '\n' ',' | sed 's/,/, /g'): stop that, or restart the machine ($_said)"
fi`
}
