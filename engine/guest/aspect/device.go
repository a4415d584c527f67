package aspect

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
)

// probeDisks shows the disks and their partitions, without those that no host attaches. It
// reads the kernel and not udev, which some images lack.
const probeDisks = diskSerial + `_disk() {
  [ -b "/dev/$2" ] || return 0
  {
    printf 'DISK=%s\nDEV=%s\nBYTES=%s\n' "$3" "$(cat "$1/dev")" "$(($(cat "$1/size") * 512))"
    printf 'SERIAL=%s\n' "$(_serial "$1")"
    for _f in "$1"/holders/* "$1"/*/partition; do if [ -e "$_f" ]; then printf 'USED=%s\n' "$_f"; fi; done
    blkid -p -o export "/dev/$2" 2>&1 | tr -dc '[:print:]\n'
    case $(blkid -p -s TYPE -o value "/dev/$2" 2>/dev/null) in ext4) dumpe2fs -h "/dev/$2" 2>/dev/null | grep -E '^Block (count|size):' ;; esac
  } | row disk "$2"
}
for _s in /sys/block/*; do
  _n=${_s##*/}
  case $_n in loop*|ram*|zram*|sr*|fd*|dm-*|md*) continue ;; esac
  _disk "$_s" "$_n" "$_n"
  for _q in "$_s/$_n"*; do if [ -e "$_q/partition" ]; then _disk "$_q" "${_q##*/}" "$_n"; fi; done
done`

// diskSerial prints the serial number of a disk: of virtio, NVMe, and SCSI or SATA, where it
// follows the four bytes of a header (SPC-4, 7.8.18).
const diskSerial = `_serial() {
  if [ -r "$1/serial" ]; then tr -dc '!-~' <"$1/serial"
  elif [ -r "$1/device/serial" ]; then tr -dc '!-~' <"$1/device/serial"
  elif [ -r "$1/device/vpd_pg80" ]; then tail -c +5 "$1/device/vpd_pg80" | tr -dc '!-~'; fi
}
`

// blockDevice is a disk or a partition.
type blockDevice struct {
	name   string // in /dev
	disk   string // that it is a part of, or is itself
	number string // 8:16
	serial string
	bytes  int64
	fields map[string]string // of blkid
	used   bool              // it has partitions, or is a part of something else
}

func (d blockDevice) path() string  { return "/dev/" + d.name }
func (d blockDevice) label() string { return d.fields["LABEL"] }

// holds says in words what is on a disk; "" if nothing is.
func (d blockDevice) holds() string {
	switch {
	case d.fields["TYPE"] != "" && d.label() != "":
		return d.fields["TYPE"] + " with label " + d.label()
	case d.fields["TYPE"] != "":
		return d.fields["TYPE"] + " without a label"
	case d.fields["PTTYPE"] != "":
		return "a partition table (" + d.fields["PTTYPE"] + ")"
	case d.used:
		return "partitions, or parts of something else"
	case len(d.fields) > 0:
		return "signatures that contradict each other"
	}
	return ""
}

// fstabLine is a line of /etc/fstab (fstab(5)).
type fstabLine struct {
	text   string
	fields []string
}

func number(s string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func readDevice(name, text string) blockDevice {
	d := blockDevice{name: name, fields: map[string]string{}}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		switch key {
		case "DISK":
			d.disk = value
		case "DEV":
			d.number = value
		case "SERIAL":
			d.serial = value
		case "BYTES":
			d.bytes = number(value)
		case "USED":
			d.used = true
		case "DEVNAME":
		default:
			if word, n, ok := strings.Cut(line, ":"); ok && value == "" {
				key, value = word, strings.TrimSpace(n)
			}
			d.fields[key] = value
		}
	}
	return d
}

func readFstab(text string) []fstabLine {
	var out []fstabLine
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if fields := strings.Fields(line); len(fields) >= 3 && !strings.HasPrefix(fields[0], "#") {
			out = append(out, fstabLine{line, fields})
		}
	}
	return out
}

// line finds the line of a mount point, or of a swap file by the other column.
func lineOf(lines []fstabLine, column int, value string) (fstabLine, bool) {
	i := slices.IndexFunc(lines, func(l fstabLine) bool { return l.fields[column] == value })
	if i < 0 {
		return fstabLine{}, false
	}
	return lines[i], true
}

// setFstab writes the line of /etc/fstab with this value in a column, or takes it away. It
// works on the file as it is then: other lines are other people's.
func setFstab(column int, value, line string) string {
	return fmt.Sprintf(`if [ -e /etc/fstab ] || [ -n %[1]s ]; then
  _new=$(if [ -e /etc/fstab ]; then cat /etc/fstab; fi | {
    set -f
    _line=%[1]s
    while IFS= read -r _l || [ -n "$_l" ]; do
      set -- $_l
      case ${1:-#} in
      '#'*) printf '%%s\n' "$_l" ;;
      *) if [ "${%[3]d:-}" != %[2]s ]; then printf '%%s\n' "$_l"; elif [ -n "$_line" ]; then printf '%%s\n' "$_line"; _line=; fi ;;
      esac
    done
    if [ -n "$_line" ]; then printf '%%s\n' "$_line"; fi
  } && echo .) || die "/etc/fstab cannot be read"
  printf '%%s' "${_new%%.}" | put /etc/fstab 0644 root root
  if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
fi
`, guest.Quote(line), guest.Quote(value), column)
}
