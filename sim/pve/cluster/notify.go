package cluster

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// notificationArea is notifications.
func notificationArea() core.Area {
	return core.Area{
		Files: notificationFiles(),
		Begin: func(w *core.World) { restoreBuiltin(w) },
	}
}

// Notifications (PVE/API2/Cluster/Notifications.pm, which calls the Rust crate proxmox-notify): endpoints, and
// matchers that select them. Notifications are not sent.

const notifications = "/mapping/notifications"

// targetKinds are the types of endpoints.
var targetKinds = []string{"gotify", "sendmail", "smtp", "webhook"}

// builtinTargets returns the targets that are there from the start, and again when it is deleted
// (PVE/Notify.pm).
func builtinTargets() map[string]map[string]perl.Config {
	return map[string]map[string]perl.Config{
		"notifications/sendmail": {"mail-to-root": {"type": "sendmail", "mailto-user": "root@pam", "comment": "Send mails to root@pam's email address"}},
		"notifications/matchers": {"default-matcher": {"type": "matchers", "mode": "all", "target": "mail-to-root", "comment": "Route all notifications to mail-to-root"}},
	}
}

func notificationFiles() []core.SectionFile {
	const mail = " mailto? mailto-user? author? comment? disable?"
	options := map[string]string{
		"sendmail": "from-address?" + mail,
		"gotify":   "server token comment? disable?",
		"smtp":     "server from-address port? mode? username? password?" + mail,
		"webhook":  "url method header? body? secret? comment? disable?",
		"matchers": "match-field? match-severity? match-calendar? target? mode? invert-match? comment? disable?",
	}
	modify := allOf(notifications, "Mapping.Modify")
	reach := both(modify, either(allOf("/", "Sys.Audit", "Sys.Modify"), allOf("/", "Sys.AccessNetwork")))
	var all []core.SectionFile
	for _, kind := range slices.Sorted(maps.Keys(options)) {
		mode := "insecure|starttls|tls"
		f := core.SectionFile{
			Name: "notifications/" + kind, Family: "notifications/", Lock: "notifications_cfg", Path: "/cluster/notifications/endpoints/" + kind, Key: "name", ID: "pve-configid",
			Only: kind, Untyped: true, Kinds: map[string]string{kind: options[kind]}, Secret: []string{"token", "password"},
			Read:  either(modify, allOf(notifications, "Mapping.Audit")),
			Write: reach, Change: reach,
			Twice: "400 Cannot create '%s', an entity with the same name already exists", Missing: "404 endpoint '%s' not found",
			Check: checkTarget(kind), Show: showTarget(kind), Drop: dropTarget(kind), After: func(w *core.World) { restoreBuiltin(w) },
		}
		if kind == "matchers" {
			f.Path, f.Missing, mode = "/cluster/notifications/matchers", "404 matcher '%s' not found", "all|any"
			f.Write, f.Change = modify, modify
			f.Read = either(modify, allOf(notifications, "Mapping.Audit"), allOf(notifications, "Mapping.Use"))
		}
		f.Props = `mailto: array
			mailto-user: array pve-userid
			from-address: string
			author: string
			comment: string
			disable: boolean
			server: string
			token: string
			port: integer
			username: string
			password: string
			url: string
			method: string post|put|get
			header: array
			body: string
			secret: array
			match-field: array
			match-severity: array
			match-calendar: array
			target: array pve-configid
			invert-match: boolean
			mode: string ` + mode
		known := f.Options(kind)
		var lines []string
		for line := range strings.Lines(f.Props) {
			if name, _, _ := strings.Cut(strings.TrimSpace(line), ":"); known[name] != "" || strings.Contains(" "+options[kind]+" ", " "+name+" ") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		f.Props = strings.Join(lines, "\n")
		all = append(all, f)
	}
	return all
}

// matchField is a condition of a matcher on a field (FieldMatcher in the crate).
var matchField = regexp.MustCompile(`^(?:exact|regex):[A-Za-z0-9_][A-Za-z0-9._\-]*=`)

func noEndpoint(name string) error {
	return &perl.APIError{Status: http.StatusNotFound, Message: "endpoint '" + name + "' does not exist"}
}

// badRequest is a failure of the crate with a status of its own.
func badRequest(format string, args ...any) error {
	return &perl.APIError{Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

// checkTarget makes the checks of add_… and update_… of the crate.
func checkTarget(kind string) func(*core.World, *core.Call, string, perl.Config, perl.Config) error {
	return func(w *core.World, _ *core.Call, id string, conf, old perl.Config) error {
		if old == nil {
			for name, sections := range w.Sections {
				if strings.HasPrefix(name, "notifications/") && sections[id] != nil {
					return badRequest("Cannot create '%s', an entity with the same name already exists", id)
				}
			}
		}
		switch kind {
		case "sendmail", "smtp":
			if conf["mailto"] == "" && conf["mailto-user"] == "" {
				return badRequest("must at least provide one recipient, either in mailto or in mailto-user")
			}
		case "matchers":
			for target := range strings.SplitSeq(conf["target"], "\n") {
				if target != "" && targetOf(w, target) == nil {
					return noEndpoint(target)
				}
			}
			for field := range strings.SplitSeq(conf["match-field"], "\n") {
				if field != "" && !matchField.MatchString(field) {
					return perl.Fail("could not apply filter: invalid match-field statement: %s", field)
				}
			}
		}
		return nil
	}
}

// targetOf finds an endpoint of whatever type.
func targetOf(w *core.World, name string) perl.Config {
	for _, kind := range targetKinds {
		if conf := w.Sections["notifications/"+kind][name]; conf != nil {
			return conf
		}
	}
	return nil
}

// dropTarget: what a matcher names stays, unless it was there from the start and so
// comes back as it was (ensure_safe_to_delete in the crate).
func dropTarget(kind string) func(*core.World, *core.Call, string) error {
	return func(w *core.World, _ *core.Call, id string) error {
		if kind == "matchers" || originOf(w, "notifications/"+kind, id) != "user-created" {
			return nil
		}
		var users []string
		for name, matcher := range w.Sections["notifications/matchers"] {
			if slices.Contains(strings.Split(matcher["target"], "\n"), id) {
				users = append(users, name)
			}
		}
		if slices.Sort(users); len(users) > 0 {
			return badRequest("cannot delete '%s', referenced by: %s", id, strings.Join(users, ", "))
		}
		return nil
	}
}

// showTarget says where an entry comes from.
func showTarget(kind string) func(*core.World, *core.Call, string, map[string]any) {
	return func(w *core.World, c *core.Call, id string, entry map[string]any) {
		delete(entry, "type")
		if secrets, ok := entry["secret"].([]string); ok { // Their values are not told.
			for i, secret := range secrets {
				secrets[i] = "name=" + perl.OptionOf(secret, "name")
			}
		}
		if c.In["name"] == "" {
			entry["origin"] = originOf(w, "notifications/"+kind, id)
		}
	}
}

func originOf(w *core.World, file, id string) string {
	switch builtin := builtinTargets()[file][id]; {
	case builtin == nil:
		return "user-created"
	case maps.Equal(builtin, w.Sections[file][id]):
		return "builtin"
	default:
		return "modified-builtin"
	}
}

// restoreBuiltin brings back what cannot be away.
func restoreBuiltin(w *core.World) {
	for file, sections := range builtinTargets() {
		for id, conf := range sections {
			if w.Sections[file] == nil {
				w.Sections[file] = map[string]perl.Config{}
			}
			if w.Sections[file][id] == nil {
				w.Sections[file][id] = conf
			}
		}
	}
}

// either is the rule that one of several rules is met.
func either(rules ...*pveapi.Rule) *pveapi.Rule { return &pveapi.Rule{Kind: "or", Rules: rules} }
