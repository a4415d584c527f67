package aspect

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

const swapFile = "/swapfile"

// swap is one swap file. Other swap of the machine, such as a partition, is not looked at.
var swap = Of[swapFound]{
	Name: "swap", Doc: "The swap file.",
	Paths: []string{"config.swap"},
	Probe: func(q *Query) string {
		if q.Want.Config.Swap == 0 && q.Record.Get("swap", swapFile) == nil {
			return ":"
		}
		return guest.Lines(
			// All containers of a host see its swap.
			"if _c=$(systemd-detect-virt -c 2>/dev/null); then printf '%s' \"$_c\" | row container; exit 0; fi",
			"row swaps </proc/swaps", "if [ -f /etc/fstab ]; then row fstab </etc/fstab; fi",
			"if [ -e "+swapFile+" ]; then stat -c '%s %a' "+swapFile+" | row file; fi")
	},
	Parse: func(_ *Query, rows [][]string) (swapFound, error) {
		var f swapFound
		for _, r := range rows {
			switch r[0] {
			case "container":
				f.container = r[1]
			case "swaps":
				for line := range strings.Lines(r[1]) { // Filename Type Size Used Priority, in KiB without the header of 4
					if fields := strings.Fields(line); len(fields) >= 3 && fields[0] == swapFile {
						f.on = number(fields[2])/1024 + 1
					}
				}
			case "fstab":
				l, _ := lineOf(readFstab(r[1]), 0, swapFile)
				f.line = l.text
				f.kept = len(l.fields) > 2 && l.fields[2] == "swap"
			case "file":
				size, mode, _ := strings.Cut(strings.TrimSpace(r[1]), " ")
				f.size, f.open, f.there = number(size)>>20, mode != "600", true
			}
		}
		return f, nil
	},
	Fill: func(q *Query, f swapFound, have *spec.Spec) {
		switch want := q.Want.Config.Swap; {
		case f.there || f.kept:
			have.Config.SwapFile = f.shown()
		case want > 0:
			have.Config.SwapFile = "0"
		}
	},
	Steps: func(q *Query, f swapFound) []Step {
		e := guest.RecordEntry{Aspect: "swap", Item: swapFile, Identity: "path"}
		want := int64(q.Want.Config.Swap)
		if want > 0 {
			s := Step{Stage: StagePackages, Text: fmt.Sprintf("make %s of %d MiB", swapFile, want), Keep: []guest.RecordEntry{e}, Script: f.set(want)}
			if f.container != "" {
				s.Keep, s.Script = nil, "die "+guest.Quote("this machine is a container ("+f.container+"), and its swap is that of its host: take swap out of the spec")+"\n"
			} else if f.there && q.Record.Get("swap", swapFile) == nil {
				s.Keep[0].Found = map[string]string{"size": strconv.FormatInt(f.size, 10), "line": f.line, "on": strconv.FormatBool(f.on > 0)}
			}
			return []Step{s}
		}
		s := Step{Stage: StageWithdrawPackages, Text: "remove " + swapFile, Drop: []guest.RecordKey{e.Key()}}
		if found := q.Record.Get("swap", swapFile).Found; found != nil {
			s.Text = "set " + swapFile + " back to what was found"
			s.Script = f.set(number(found["size"])) + setFstab(1, swapFile, found["line"])
			if found["on"] != "true" {
				s.Script += "swapoff " + swapFile + " || :\n"
			}
			return []Step{s}
		}
		s.Script = guest.Lines(swapOff, setFstab(1, swapFile, ""), "if [ -e "+swapFile+" ]; then drop "+swapFile+"; fi")
		return []Step{s}
	},
}

type swapFound struct {
	container string // which kind, if the machine is one
	there     bool
	size, on  int64 // MiB of the file, and of what the kernel uses of it
	open      bool  // others may read it
	kept      bool  // the machine uses it when it starts
	line      string
}

func (f swapFound) shown() string {
	text := strconv.FormatInt(f.size, 10)
	switch {
	case f.on == 0:
		text += " (off)"
	case f.on != f.size:
		text += fmt.Sprintf(" (%d of it in use)", f.on)
	case !f.kept:
		text += " (until the next restart)"
	case f.open:
		text += " (others may read it)"
	}
	return text
}

// swapOff is the part of a script that takes the file out of use: what is in it must fit
// into the memory.
const swapOff = `if grep -q '^` + swapFile + ` ' /proc/swaps; then
  _said=$(swapoff ` + swapFile + ` 2>&1) || { rm -f "${_swap:-/nothing}"; die "` + swapFile + ` stays in use, since what is in it does not fit into the memory: stop something first ($_said)"; }
fi`

// set gives the file a size. The new file is tried before the old one goes.
func (f swapFound) set(mib int64) string {
	line := setFstab(1, swapFile, swapFile+" none swap sw 0 0")
	if f.there && f.size == mib && (f.on == 0 || f.on == mib) {
		lines := []string{"chmod 0600 " + swapFile}
		if f.on == 0 {
			lines = append(lines, "mkswap "+swapFile+" >/dev/null && swapon "+swapFile+` || die "`+swapFile+` cannot be used"`)
		}
		return guest.Lines(append(lines, line)...)
	}
	return guest.Lines(
		"_swap=/.swapfile.homestak-new",
		`swapoff "$_swap" 2>/dev/null || :`,
		`rm -f "$_swap"; (umask 077 && : >"$_swap")`,
		// btrfs takes no file that it would copy on write.
		`chattr +C "$_swap" 2>/dev/null || :`,
		fmt.Sprintf(`_said=$({ fallocate -l %[1]dM "$_swap" || dd if=/dev/zero of="$_swap" bs=1M count=%[1]d status=none; } 2>&1) || { rm -f "$_swap"; die "there is no room for a swap file of %[1]d MiB: $_said"; }`, mib),
		`_said=$({ mkswap "$_swap" && swapon "$_swap" && swapoff "$_swap"; } 2>&1) || { rm -f "$_swap"; die "the file system of / takes no swap file: $_said"; }`,
		swapOff,
		`mv -fT "$_swap" `+swapFile+" && swapon "+swapFile+` || die "`+swapFile+` cannot be used"`,
		line)
}
