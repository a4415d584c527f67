package aspect

import (
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// PullService is the unit that fetches the spec of a node, and applies it.
const PullService = "homestak-gitops-pull.service"

// The units by which a node applies its own spec.
const (
	pullService = "/etc/systemd/system/" + PullService
	pullTimer   = "/etc/systemd/system/homestak-gitops-pull.timer"
	pullUnit    = "homestak-gitops-pull.timer"
	waitService = "/etc/systemd/system/homestak-gitops-wait.service"
	waitUnit    = "homestak-gitops-wait.service"
	// parentFile says who the parent of the node is, and by which token that knows it.
	parentFile = "/etc/homestak-gitops/node.json"
	// The first run of a node leads to the units above, and then removes itself.
	firstUnit   = "homestak-gitops-firstboot.service"
	firstFile   = "/etc/systemd/system/" + firstUnit
	firstScript = "/var/lib/homestak-gitops/firstboot.py"
)

// EndPull is a script that ends what a node does for its parent, before another machine applies its spec: a run that goes on would
// make the units again, and so would a later one of the spec that was fetched; its secrets do not stay. It waits for the step that such a run makes. So it
// must not hold the lock of the record, which that step takes.
const EndPull = "if [ -d /run/systemd/system ]; then\n" +
	"  for _u in " + pullUnit + " " + waitUnit + " " + firstUnit + " " + PullService + "; do systemctl stop -- \"$_u\" >/dev/null 2>&1 || :; done\n" +
	"fi\n" +
	"rm -f -- /var/lib/homestak-gitops/spec.json /var/lib/homestak-gitops/spec.prev.json\n"

// pull makes a node fetch its spec and apply it, or take its commands alone: a service and its timer, and a second service that
// starts the first when the parent has news, and takes commands. The second exists only while the parent knows the node by a token,
// which long polls require. The service may be what runs the steps, so none of them stops it.
var pull = Of[pullFound]{
	Name: "pull", Doc: "Units that fetch the spec and apply it.",
	Paths: []string{"run"},
	Probe: func(q *Query) string {
		if q.Want.Run == nil && len(q.Record.Items("pull")) == 0 {
			return "if [ -f " + firstFile + " ]; then printf yes | row first; fi\n"
		}
		return script(
			"for _f in "+pullService+" "+pullTimer+" "+waitService+"; do if [ -f \"$_f\" ]; then row file \"$_f\" <\"$_f\"; fi; done",
			"if [ -d /run/systemd/system ]; then for _u in "+pullUnit+" "+waitUnit+"; do systemctl show -p UnitFileState,ActiveState,NeedDaemonReload -- \"$_u\" | row unit \"$_u\"; done; fi",
			`if grep -q '"token": *"[^"]' `+parentFile+` 2>/dev/null; then printf yes | row token; fi`)
	},
	Parse: func(_ *Query, rows [][]string) (pullFound, error) {
		f := pullFound{files: map[string]string{}, runs: map[string]bool{}}
		for _, r := range rows {
			switch {
			case r[0] == "file" && len(r) == 3:
				f.files[r[1]] = r[2]
			case r[0] == "token":
				f.token = true
			case r[0] == "first":
				f.first = true
			case r[0] == "unit" && len(r) == 3:
				enabled := strings.Contains(r[2], "UnitFileState=enabled\n") && strings.Contains(r[2], "NeedDaemonReload=no")
				f.runs[r[1]] = enabled && (strings.Contains(r[2], "ActiveState=active\n") || strings.Contains(r[2], "ActiveState=activating\n"))
			}
		}
		return f, nil
	},
	Fill: func(q *Query, f pullFound, have *spec.Spec) {
		want := q.Want.Run
		switch {
		case want == nil && len(q.Record.Items("pull")) > 0:
			have.Run = &spec.Run{Timer: "units of an earlier spec"}
		case want == nil && f.first:
			have.Run = &spec.Run{Timer: "a first run that is not over"}
		case want == nil, len(f.files) == 0:
		case want.Pushed && !f.token:
			have.Run = &spec.Run{Timer: "without a parent"}
		case f.files[pullService] != pullServiceText, f.files[pullTimer] != pullTimerText(want.Every()), f.files[waitService] != f.waitText(want):
			have.Run = &spec.Run{Timer: "otherwise"}
		case !f.runs[pullUnit]:
			have.Run = &spec.Run{Timer: "never: the timer is stopped"}
		case f.waits(want) && !f.runs[waitUnit]:
			have.Run = &spec.Run{Timer: "without its parent: " + waitUnit + " is stopped"}
		default:
			have.Run = &spec.Run{Timer: want.Timer}
		}
	},
	Steps: func(q *Query, f pullFound) []Step {
		e := guest.RecordEntry{Aspect: "pull", Item: pullUnit, Identity: "name"}
		if q.Want.Run == nil {
			return []Step{{
				Stage: StageWithdrawFiles, Text: "remove the units that fetch the spec, and the token", Drop: []guest.RecordKey{e.Key()},
				Script: script(
					"if [ -d /run/systemd/system ]; then",
					"  systemctl disable --now -- "+pullUnit+" "+waitUnit+" >/dev/null 2>&1 || :",
					"  if [ -f "+firstFile+" ]; then systemctl disable -- "+firstUnit+" >/dev/null 2>&1 || :; systemctl stop --no-block -- "+firstUnit+" >/dev/null 2>&1 || :; fi",
					"fi",
					"drop "+pullTimer+" "+pullService+" "+waitService+" "+firstFile+" "+firstScript+" "+parentFile,
					"if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi"),
			}}
		}
		what := "fetch and apply the spec "
		if q.Want.Run.Pushed {
			what = "ask the parent "
		}
		waiting := script(
			"if [ -f "+waitService+" ]; then systemctl disable --now -- "+waitUnit+" >/dev/null 2>&1 || :; drop "+waitService+"; fi",
			"systemctl daemon-reload")
		if f.waits(q.Want.Run) {
			waiting = script(
				"systemctl unmask -- "+waitUnit+" >/dev/null 2>&1 || :",
				guest.PutFile(waitService, f.waitText(q.Want.Run), "0644", "root", "root"),
				"systemctl daemon-reload",
				"systemctl enable -- "+waitUnit+" >/dev/null 2>&1 || die '"+waitUnit+" cannot be enabled'",
				"unit restart "+waitUnit)
		}
		return []Step{{
			// Early, so that a machine on which another step fails recovers on its own.
			Stage: StageIdentity, Text: what + q.Want.Run.Timer, Keep: []guest.RecordEntry{e},
			Script: script(
				"[ -d /run/systemd/system ] || die 'systemd does not run here, and a node in mode pull needs its timers'",
				"systemctl unmask -- "+pullUnit+" "+PullService+" >/dev/null 2>&1 || :",
				guest.PutFile(pullService, pullServiceText, "0644", "root", "root"),
				guest.PutFile(pullTimer, pullTimerText(q.Want.Run.Every()), "0644", "root", "root"),
				waiting,
				"systemctl enable -- "+pullUnit+" >/dev/null 2>&1 || die '"+pullUnit+" cannot be enabled'",
				"unit restart "+pullUnit),
		}}
	},
}

type pullFound struct {
	files map[string]string
	runs  map[string]bool // units that are enabled and active, as their files say
	token bool            // the parent knows the node by one
	first bool            // its first run is not over; only looked for where nothing is wanted
}

// waits reports whether the node waits for news.
func (f pullFound) waits(r *spec.Run) bool { return r.Notified() && f.token }

// pullServiceText is the service. It has no sandbox: it makes the whole machine what the spec says.
const pullServiceText = heading + `[Unit]
Description=homestak-gitops: fetch the spec of this node, and apply it
Documentation=https://github.com/homestak/homestak-gitops/blob/main/docs/inside.md
Wants=network-online.target
After=network-online.target nss-lookup.target time-sync.target

[Service]
Type=oneshot
ExecStart=homestak-gitops config apply --fetch
# A stop finishes the step that runs, and gives 130.
SuccessExitStatus=130
TimeoutStartSec=1h
TimeoutStopSec=15min
KillMode=mixed
# Memory holds secrets, so no core dump is written to disk.
LimitCORE=0
`

// waitText is the service that waits for news; "" for none.
func (f pullFound) waitText(r *spec.Run) string {
	if !f.waits(r) {
		return ""
	}
	return heading + `[Unit]
Description=homestak-gitops: apply the spec of this node when its parent has news
Documentation=https://github.com/homestak/homestak-gitops/blob/main/docs/inside.md
Wants=network-online.target
After=network-online.target nss-lookup.target time-sync.target

[Service]
ExecStart=homestak-gitops config wait
# A stop gives 130.
SuccessExitStatus=130
Restart=on-failure
RestartSec=30s
LimitCORE=0

[Install]
WantedBy=multi-user.target
`
}

// pullTimerText is the timer. Nodes of one parent do not all come at the same second: the delay is a
// tenth of the interval, and a minute at most.
func pullTimerText(every time.Duration) string {
	delay := 10 * time.Second
	repeat := ""
	if every > 0 {
		delay = min(every/10, time.Minute)
		repeat = fmt.Sprintf("OnUnitInactiveSec=%ds\n", int(every.Seconds()))
	}
	return heading + `[Unit]
Description=homestak-gitops: apply the spec of this node at boot, and now and then
Documentation=https://github.com/homestak/homestak-gitops/blob/main/docs/inside.md

[Timer]
Unit=` + PullService + `
OnBootSec=10s
` + repeat + fmt.Sprintf("RandomizedDelaySec=%ds\n", int(delay.Seconds())) + `
[Install]
WantedBy=timers.target
`
}
