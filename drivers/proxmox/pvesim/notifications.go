package pvesim

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// Notifications (PVE/API2/Cluster/Notifications.pm; what it calls is Rust, the crate
// proxmox-notify): endpoints that could be told, matchers that say which. Nobody is told.

const notifications = "/mapping/notifications"

// targetKinds are the types of endpoints.
var targetKinds = []string{"gotify", "sendmail", "smtp", "webhook"}

// builtinTargets is what is there from the start, and again when it is deleted
// (PVE/Notify.pm).
func builtinTargets() map[string]map[string]config {
	return map[string]map[string]config{
		"notifications/sendmail": {"mail-to-root": {"type": "sendmail", "mailto-user": "root@pam", "comment": "Send mails to root@pam's email address"}},
		"notifications/matchers": {"default-matcher": {"type": "matchers", "mode": "all", "target": "mail-to-root", "comment": "Route all notifications to mail-to-root"}},
	}
}

func notificationFiles() []sectionFile {
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
	var all []sectionFile
	for _, kind := range slices.Sorted(maps.Keys(options)) {
		mode := "insecure|starttls|tls"
		f := sectionFile{
			name: "notifications/" + kind, family: "notifications/", lock: "notifications_cfg", path: "/cluster/notifications/endpoints/" + kind, key: "name", id: "pve-configid",
			only: kind, untyped: true, kinds: map[string]string{kind: options[kind]}, secret: []string{"token", "password"},
			read:  either(modify, allOf(notifications, "Mapping.Audit")),
			write: reach, change: reach,
			twice: "400 Cannot create '%s', an entity with the same name already exists", missing: "404 endpoint '%s' not found",
			check: checkTarget(kind), show: showTarget(kind), drop: dropTarget(kind), after: (*world).restoreBuiltin,
		}
		if kind == "matchers" {
			f.path, f.missing, mode = "/cluster/notifications/matchers", "404 matcher '%s' not found", "all|any"
			f.write, f.change = modify, modify
			f.read = either(modify, allOf(notifications, "Mapping.Audit"), allOf(notifications, "Mapping.Use"))
		}
		f.props = `mailto: array
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
		known := f.options(kind)
		var lines []string
		for line := range strings.Lines(f.props) {
			if name, _, _ := strings.Cut(strings.TrimSpace(line), ":"); known[name] != "" || strings.Contains(" "+options[kind]+" ", " "+name+" ") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		f.props = strings.Join(lines, "\n")
		all = append(all, f)
	}
	return all
}

// matchField is what a matcher may say of a field (FieldMatcher in the crate).
var matchField = regexp.MustCompile(`^(?:exact|regex):[A-Za-z0-9_][A-Za-z0-9._\-]*=`)

func noEndpoint(name string) error {
	return &apiError{status: http.StatusNotFound, message: "endpoint '" + name + "' does not exist"}
}

// badRequest is a failure of the crate with a status of its own.
func badRequest(format string, args ...any) error {
	return &apiError{status: http.StatusBadRequest, message: fmt.Sprintf(format, args...)}
}

// checkTarget is what add_… and update_… of the crate look at.
func checkTarget(kind string) func(*world, *call, string, config, config) error {
	return func(w *world, _ *call, id string, conf, old config) error {
		if old == nil {
			for name, sections := range w.sections {
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
				if target != "" && w.target(target) == nil {
					return noEndpoint(target)
				}
			}
			for field := range strings.SplitSeq(conf["match-field"], "\n") {
				if field != "" && !matchField.MatchString(field) {
					return fail("could not apply filter: invalid match-field statement: %s", field)
				}
			}
		}
		return nil
	}
}

// target finds an endpoint of whatever type.
func (w *world) target(name string) config {
	for _, kind := range targetKinds {
		if conf := w.sections["notifications/"+kind][name]; conf != nil {
			return conf
		}
	}
	return nil
}

// dropTarget: what a matcher names stays, unless it was there from the start and so
// comes back as it was (ensure_safe_to_delete in the crate).
func dropTarget(kind string) func(*world, *call, string) error {
	return func(w *world, _ *call, id string) error {
		if kind == "matchers" || w.originOf("notifications/"+kind, id) != "user-created" {
			return nil
		}
		var users []string
		for name, matcher := range w.sections["notifications/matchers"] {
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
func showTarget(kind string) func(*world, *call, string, map[string]any) {
	return func(w *world, c *call, id string, entry map[string]any) {
		delete(entry, "type")
		if secrets, ok := entry["secret"].([]string); ok { // Their values are not told.
			for i, secret := range secrets {
				secrets[i] = "name=" + optionOf(secret, "name")
			}
		}
		if c.in["name"] == "" {
			entry["origin"] = w.originOf("notifications/"+kind, id)
		}
	}
}

func (w *world) originOf(file, id string) string {
	switch builtin := builtinTargets()[file][id]; {
	case builtin == nil:
		return "user-created"
	case maps.Equal(builtin, w.sections[file][id]):
		return "builtin"
	default:
		return "modified-builtin"
	}
}

// restoreBuiltin brings back what cannot be away.
func (w *world) restoreBuiltin() {
	for file, sections := range builtinTargets() {
		for id, conf := range sections {
			if w.sections[file] == nil {
				w.sections[file] = map[string]config{}
			}
			if w.sections[file][id] == nil {
				w.sections[file][id] = conf
			}
		}
	}
}

// apiTargets is GET /cluster/notifications/targets.
func apiTargets(w *world, _ *call) (any, error) {
	list := []map[string]any{}
	for _, kind := range targetKinds {
		file := "notifications/" + kind
		for _, name := range slices.Sorted(maps.Keys(w.sections[file])) {
			entry := map[string]any{"name": name, "type": kind, "origin": w.originOf(file, name)}
			conf := w.sections[file][name]
			if conf["comment"] != "" {
				entry["comment"] = conf["comment"]
			}
			if conf["disable"] != "" {
				entry["disable"] = atoi(conf["disable"])
			}
			list = append(list, entry)
		}
	}
	return list, nil
}

// apiTestTarget is POST /cluster/notifications/targets/{name}/test.
func apiTestTarget(w *world, c *call) (any, error) {
	if w.target(c.in["name"]) == nil {
		return nil, noEndpoint(c.in["name"])
	}
	return nil, nil
}

// apiMatcherFields and apiMatcherValues are GET …/matcher-fields and
// matcher-field-values: what rules may match.
func apiMatcherFields(*world, *call) (any, error) {
	return subdirs("name", "type", "hostname", "job-id"), nil
}

func apiMatcherValues(w *world, c *call) (any, error) {
	list := []map[string]any{}
	for _, kind := range []string{"package-updates", "fencing", "replication", "vzdump", "system-mail"} {
		list = append(list, map[string]any{"field": "type", "value": kind})
	}
	add := func(field, value, comment string) {
		entry := map[string]any{"field": field, "value": value}
		if comment != "" {
			entry["comment"] = comment
		}
		list = append(list, entry)
	}
	if c.can("/", "Sys.Audit") {
		for _, id := range slices.Sorted(maps.Keys(w.sections["jobs"])) {
			add("job-id", id, w.sections["jobs"][id]["comment"])
		}
	}
	for _, name := range w.nodeNames() {
		add("hostname", name, "")
	}
	return list, nil
}

func notificationCalls() []pastCall {
	read := either(allOf(notifications, "Mapping.Modify"), allOf(notifications, "Mapping.Audit"))
	use := either(read, allOf(notifications, "Mapping.Use"))
	words := listOf(props("name: string\nfield: string\nvalue: string\ncomment: string\ntype: string\ndisable: boolean\norigin: string"))
	return []pastCall{
		{name: "GET /cluster/notifications/matcher-fields", perm: read, returns: words, handle: apiMatcherFields},
		{name: "GET /cluster/notifications/matcher-field-values", perm: read, returns: words, handle: apiMatcherValues},
		{name: "GET /cluster/notifications/targets", perm: use, returns: words, handle: apiTargets},
		{
			name: "POST /cluster/notifications/targets/{name}/test", perm: use, params: "name: string pve-configid",
			returns: &pveapi.Value{Type: "null"}, handle: apiTestTarget,
		},
	}
}
