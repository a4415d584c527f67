package aspect

import (
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest/record"
	"github.com/homestak/homestak-gitops/engine/guest/shell"
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
			`if [ -L /etc/localtime ]; then readlink /etc/localtime | row link; elif [ -e /etc/localtime ]; then row copy </dev/null; fi`,
			`if [ -f /etc/timezone ]; then row file </etc/timezone; fi`)
	},
	Parse: func(_ *Query, rows [][]string) (timezoneFound, error) {
		var f timezoneFound
		for _, r := range rows {
			switch r[0] {
			case "link": // absolute, or relative to /etc
				f.link = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(r[1]), ".."), zoneinfo)
			case "copy":
				f.copied = true
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
		if f.copied {
			have.Config.Timezone = "(/etc/localtime is a file and no link)"
		}
	},
	Steps: func(q *Query, f timezoneFound) []Step {
		zone := q.Want.Config.Timezone
		if e := q.Record.Get("timezone", "zone"); zone == "" && e != nil {
			s := Step{Stage: StageTimezone, Text: "set the time zone back to " + or(e.Found["zone"], "that of the distribution"), Drop: []record.Key{e.Key()}}
			if e.Found["zone"] == "" {
				s.Script = script("drop /etc/localtime")
			} else {
				s.Script = setZone(e.Found["zone"], e.Found["file"] != "")
			}
			return []Step{s}
		}
		e := record.Entry{Aspect: "timezone", Item: "zone", Identity: "name", Found: map[string]string{"zone": f.link}, Put: map[string]string{"zone": zone}}
		if f.hasFile {
			e.Found["file"] = f.file
		}
		return []Step{{Stage: StageTimezone, Text: "set the time zone to " + zone, Keep: []record.Entry{e}, Script: setZone(zone, f.hasFile)}}
	},
}

type timezoneFound struct {
	link, file string
	hasFile    bool
	copied     bool // /etc/localtime is a file of its own
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
	lines := []string{"[ -f " + shell.Quote(target) + " ] || die " + shell.Quote("time zone "+zone+" is not on this machine: check its spelling, and that the package tzdata is installed (add it to packages)")}
	if file {
		lines = append(lines, shell.Put("/etc/timezone", zone+"\n", "0644", "root", "root"))
	}
	lines = append(lines, "ln -sfT "+shell.Quote(target)+" /etc/.localtime.homestak-new", "mv -fT /etc/.localtime.homestak-new /etc/localtime", "sync /etc/")
	return script(lines...)
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
