package network

import (
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

const (
	webLibrary = "/usr/share/javascript/proxmox-widget-toolkit/proxmoxlib.js"
	nagProgram = "/usr/local/lib/homestak-pve-nag"
	nagHook    = "/etc/dpkg/dpkg.cfg.d/homestak-gitops-pve"
)

// The check of checked_command (proxmox-widget-toolkit, src/Utils.js), in the form of Proxmox VE 8 and of 9. The
// same comparison in APTRepositories.js stays: that page rightly says that the subscription is missing.
const (
	nagRange  = `/checked_command: /,/No valid subscription/`
	nagAsks   = `\.data\.status\.toLowerCase() !== 'active'`
	nagSilent = `.data.status.toLowerCase() === 'silenced by homestak-gitops'`
	// nagState prints asks, silent, or unknown; nothing without the library.
	nagState = `nag_state() {
  [ -f ` + webLibrary + ` ] || return 0
  case $(sed -n '` + nagRange + `p' ` + webLibrary + `) in
  *"=== 'silenced by homestak-gitops'"*) echo silent ;;
  *"status.toLowerCase() !== 'active'"*) echo asks ;;
  *) echo unknown ;;
  esac
}
`
	nagSilence = `sed -i "` + nagRange + `s/` + nagAsks + `/` + nagSilent + `/" ` + webLibrary + "\n"
)

// nagText is the program that dpkg starts, so that a new version of the library is silent, too.
const nagText = "#!/bin/sh\n" + aspect.Heading + nagState + `if [ "$(nag_state)" = asks ]; then
  ` + nagSilence + "fi\n"

// nagHookText runs it after every dpkg (dpkg(1), --post-invoke). dpkg does not fail if the program fails or is
// missing.
const nagHookText = aspect.Heading + `post-invoke="if [ -x ` + nagProgram + ` ]; then ` + nagProgram + ` || :; fi"` + "\n"

// nag is the reminder about subscriptions in the web interface.
var nag = aspect.Of[nagFound]{
	Name: "pvenag", Doc: "The reminder about subscriptions of Proxmox VE.",
	Paths: []string{"config.pve.remove_subscription_nag"},
	Probe: func(q *aspect.Query) string {
		if !q.Want.Config.PVE.RemoveSubscriptionNag && q.Record.Get("pvenag", nagProgram) == nil {
			return ":"
		}
		return nagState + guest.Lines(
			"nag_state | row state",
			"if [ -x "+nagProgram+" ]; then row program <"+nagProgram+"; fi",
			"if [ -f "+nagHook+" ]; then row hook <"+nagHook+"; fi")
	},
	Parse: func(_ *aspect.Query, rows [][]string) (nagFound, error) {
		f := nagFound{}
		for _, r := range rows {
			f[r[0]] = r[1]
		}
		return f, nil
	},
	Fill: func(q *aspect.Query, f nagFound, have *spec.Spec) {
		state := f["state"]
		if q.Want.Config.PVE.RemoveSubscriptionNag {
			have.Config.PVE.RemoveSubscriptionNag = f["program"] == nagText && f["hook"] == nagHookText && (state == "" || state == "silent\n")
		} else {
			have.Config.PVE.RemoveSubscriptionNag = state == "silent\n" || f["program"] != "" || f["hook"] != ""
		}
	},
	Steps: func(q *aspect.Query, _ nagFound) []aspect.Step {
		e := guest.RecordEntry{Aspect: "pvenag", Item: nagProgram, Identity: "name"}
		if !q.Want.Config.PVE.RemoveSubscriptionNag {
			return []aspect.Step{{
				Stage: aspect.StageWithdrawFiles, Text: "let Proxmox VE remind of subscriptions again", Drop: []guest.RecordKey{e.Key()},
				Script: nagState + guest.Lines(
					"for _f in "+nagHook+" "+nagProgram+`; do if [ -e "$_f" ]; then drop "$_f"; fi; done`,
					`if [ "$(nag_state)" = silent ]; then`,
					`  sed -i "`+nagRange+`s/`+nagSilent+`/.data.status.toLowerCase() !== 'active'/" `+webLibrary,
					"fi"),
			}}
		}
		return []aspect.Step{{
			Stage: aspect.StageCommands, Text: "silence the reminder about subscriptions", Needs: "[ -f " + webLibrary + " ]", Keep: []guest.RecordEntry{e},
			Script: nagState + guest.Lines(
				guest.PutFile(nagProgram, nagText, "0755", "root", "root"),
				"mkdir -p /etc/dpkg/dpkg.cfg.d",
				guest.PutFile(nagHook, nagHookText, "0644", "root", "root"),
				nagProgram,
				`if [ "$(nag_state)" = unknown ]; then die "this version of `+webLibrary+` asks for a subscription in a way that is not known here: take remove_subscription_nag out of the spec until a newer homestak-gitops knows it"; fi`),
		}}
	},
}

// nagFound has the state, and the texts of program and hook.
type nagFound map[string]string
