package aspect

import (
	"cmp"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

const zoneinfo = "/usr/share/zoneinfo/"

// timezone is the link /etc/localtime (localtime(5)), and /etc/timezone where the machine
// has that file: Debian reads the link, some programs the file.
var timezone = Of[timezoneFound]{
	Name: "timezone", Doc: "Time zone of the machine.",
	Paths: []string{"config.timezone"},
	Probe: func(*Query) string {
		return script(
			// Not where the link ends: UTC is itself a link to Etc/UTC.
			`if [ -L /etc/localtime ]; then readlink /etc/localtime | row link; elif [ -f /etc/localtime ]; then printf '%s %s' "$(sum /etc/localtime)" "$(stat -c '%a %U %G' /etc/localtime)" | row copy; fi`,
			`if [ -f /etc/timezone ]; then row file </etc/timezone; fi`)
	},
	Parse: func(_ *Query, rows [][]string) (timezoneFound, error) {
		var f timezoneFound
		for _, r := range rows {
			switch r[0] {
			case "link": // absolute, or relative to /etc
				f.link = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(r[1]), ".."), zoneinfo)
			case "copy":
				f.copied = strings.TrimSpace(r[1])
			case "file":
				f.file, f.hasFile = firstLine(r[1]), true
			}
		}
		return f, nil
	},
	Fill: func(q *Query, f timezoneFound, have *spec.Spec) {
		if q.Want.Config.Timezone == "" && q.Record.Get("timezone", "zone") == nil {
			return
		}
		have.Config.Timezone = f.zone(q.Want.Config.Timezone)
		if f.copied != "" {
			have.Config.Timezone = "(/etc/localtime is a file and no link)"
		}
	},
	Steps: func(q *Query, f timezoneFound) []Step {
		zone := q.Want.Config.Timezone
		if e := q.Record.Get("timezone", "zone"); zone == "" && e != nil {
			s := Step{Stage: StageTimezone, Text: "set the time zone back to " + cmp.Or(e.Found["zone"], "that of the distribution"), Drop: []guest.RecordKey{e.Key()}}
			switch {
			case e.Found["copy"] != "":
				s.Text = "put back what was at /etc/localtime"
				s.Script = restoreCopy(e)
			case e.Found["zone"] == "":
				s.Script = script("drop /etc/localtime")
			default:
				s.Script = setZone(e.Found["zone"], e.Found["file"] != "")
			}
			return []Step{s}
		}
		e := guest.RecordEntry{Aspect: "timezone", Item: "zone", Identity: "name", Found: map[string]string{"zone": f.link}, Put: map[string]string{"zone": zone}}
		s := Step{Stage: StageTimezone, Text: "set the time zone to " + zone, Needs: "[ -f " + guest.Quote(zoneinfo+zone) + " ]", Script: setZone(zone, f.hasFile)}
		if f.hasFile {
			e.Found["file"] = f.file
		}
		if f.copied != "" && q.Record.Get("timezone", "zone") == nil {
			e.Found["copy"] = f.copied
			sum, _, _ := strings.Cut(f.copied, " ")
			s.Script = keepAside(localtime, sum) + s.Script
		}
		s.Keep = []guest.RecordEntry{e}
		return []Step{s}
	},
}

const localtime = "/etc/localtime"

// restoreCopy puts back a file in the place of the link.
func restoreCopy(e *guest.RecordEntry) string {
	fields := strings.Fields(e.Found["copy"])
	if len(fields) != 4 {
		return "die " + guest.Quote(guest.RecordFile+" does not say what "+localtime+" was") + "\n"
	}
	const beside = "/etc/.localtime.homestak"
	var lines []string
	if e.Found["file"] != "" {
		lines = append(lines, guest.PutFile("/etc/timezone", e.Found["file"]+"\n", "0644", "root", "root"))
	}
	lines = append(lines,
		"if [ -f "+aside(localtime)+" ]; then",
		"  put "+beside+" "+guest.QuoteWords(fields[1:])+" <"+aside(localtime),
		"  mv -fT "+beside+" "+localtime,
		"  sync /etc/",
		"  rm -f "+aside(localtime),
		"elif [ \"$(sum "+localtime+")\" != "+guest.Quote(fields[0])+" ]; then", // an earlier run was cut off behind it
		"  die "+guest.Quote("what was at "+localtime+" is not in "+asideFolder+" any more: put it back, or remove the entry from "+guest.RecordFile),
		"fi")
	return script(lines...)
}

type timezoneFound struct {
	link, file string
	hasFile    bool
	copied     string // of /etc/localtime that is a file of its own: checksum, mode, owner and group
}

// zone is the time zone, with what disagrees. A zone that goes by several names counts as
// the wanted one only by that name: programs read the name from the link.
func (f timezoneFound) zone(want string) string {
	if f.hasFile && f.file != f.link && f.file != want {
		return strings.TrimSpace(f.link + " (/etc/timezone: " + f.file + ")")
	}
	if f.hasFile && f.file == want && f.link != want {
		return f.link
	}
	if f.hasFile && f.file != f.link {
		return f.link + " (/etc/timezone: " + f.file + ")"
	}
	return f.link
}

// setZone writes the file first: the link is what counts, so a run that is cut off before
// it is seen as not done.
func setZone(zone string, file bool) string {
	target := zoneinfo + zone
	lines := []string{"[ -f " + guest.Quote(target) + " ] || die " + guest.Quote("time zone "+zone+" is not on this machine: check its spelling, and that the package tzdata is installed (add it to packages)")}
	if file {
		lines = append(lines, guest.PutFile("/etc/timezone", zone+"\n", "0644", "root", "root"))
	}
	lines = append(lines, "ln -sfT "+guest.Quote(target)+" /etc/.localtime.homestak-new", "mv -fT /etc/.localtime.homestak-new /etc/localtime", "sync /etc/")
	return script(lines...)
}
