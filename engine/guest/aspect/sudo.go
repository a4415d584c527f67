package aspect

import (
	"path"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// sudoersFile comes last, since the last rule that matches counts (sudoers(5)); it must
// have no dot in its name. cloud-init gives its user all rights in 90-cloud-init-users.
const sudoersFile = "/etc/sudoers.d/zz-homestak-gitops"

// cloudInitSudoers is the file in which cloud-init allows sudo to the users that it creates.
const cloudInitSudoers = "/etc/sudoers.d/90-cloud-init-users"

// sudo decides who may become root. A user without sudo gets a rule that says so: otherwise a rule of the image
// would hold.
var sudo = Of[sudoFound]{
	Name: "sudo", Doc: "Who may become root.",
	Paths: []string{"access.user.*.sudo", "access.sudoers"},
	Probe: func(*Query) string {
		return script(
			"if [ -f "+sudoersFile+" ]; then row file <"+sudoersFile+"; stat -c '%a %U %G' "+sudoersFile+" | row mode; fi",
			`for _f in /etc/sudoers.d/*; do if [ -f "$_f" ]; then printf %s "$_f" | row other; fi; done`,
			"if command -v visudo >/dev/null; then echo sudo; fi")
	},
	Parse: func(_ *Query, rows [][]string) (sudoFound, error) {
		var f sudoFound
		for _, r := range rows {
			switch {
			case r[0] == "sudo":
				f.installed = true
			case r[0] == "file":
				f.text, f.there = r[1], true
			case r[0] == "mode":
				f.mode = strings.TrimSpace(r[1])
			case r[0] == "other" && r[1] != sudoersFile:
				f.others = append(f.others, r[1])
			}
		}
		return f, nil
	},
	Fill: func(q *Query, f sudoFound, have *spec.Spec) {
		for _, u := range q.Want.Access.Users {
			got := have.User(u.Name)
			switch {
			case u.Name == "root" || got == nil: // who is not there yet gets all at once
			case !f.installed && u.Sudo == spec.SudoNone:
				got.Sudo = spec.SudoNone
			default:
				got.Sudo = f.rule(u.Name)
			}
		}
		for line := range strings.Lines(f.text) {
			line = strings.TrimSpace(line)
			if line != "" && !strings.HasPrefix(line, "# ") && !slices.ContainsFunc(q.Want.Access.Users, func(u spec.User) bool { return isRule(line, u.Name) }) {
				have.Access.Sudoers = append(have.Access.Sudoers, line)
			}
		}
		if f.there && f.mode != "440 root root" {
			have.Access.Sudoers = append(have.Access.Sudoers, "mode "+f.mode)
		}
		if f.there && len(sudoRules(q.Want)) == 0 && len(have.Access.Sudoers) == 0 {
			have.Access.Sudoers = []string{"an empty file"}
		}
	},
	Unmanaged: func(q *Query, f sudoFound) []string {
		var out []string
		for _, name := range f.others {
			ofFirst := name == cloudInitSudoers && q.Want.Access.FirstUser != ""
			if path.Base(name) != "README" && !ofFirst { // that one is of the package itself
				out = append(out, "sudoers file "+name)
			}
		}
		return out
	},
	Steps: func(q *Query, f sudoFound) []Step {
		rules := sudoRules(q.Want)
		e := guest.RecordEntry{Aspect: "sudo", Item: sudoersFile, Identity: "name"}
		if len(rules) == 0 {
			return []Step{{
				Stage: StageWithdrawSudo, Text: "remove the sudo rules", Drop: []guest.RecordKey{e.Key()},
				Restore: f.restore(q), Script: script("drop " + sudoersFile),
			}}
		}
		text := heading + strings.Join(rules, "\n") + "\n"
		// The rules are checked in a folder that sudo does not read: one broken file in its own would disable sudo
		// for all.
		return []Step{{
			Stage: StageSudo, Text: "set the sudo rules", Needs: "command -v visudo >/dev/null", Keep: []guest.RecordEntry{e}, Restore: f.restore(q),
			Script: script(
				"if ! command -v visudo >/dev/null; then die 'sudo is not installed'; fi",
				"_check=$(mktemp /run/homestak-sudoers.XXXXXX)",
				guest.PrintBytes(text)+` >"$_check"`,
				`_said=$(visudo -c -f "$_check" 2>&1) || { rm -f "$_check"; die "visudo refuses the sudo rules: $_said"; }`,
				`rm -f "$_check"`,
				guest.PutFile(sudoersFile, text, "0440", "root", "root"),
				`_said=$(visudo -c 2>&1) || case $_said in *rror*) die "the rules are set, but sudo does not work since another file is broken: $(printf '%s\n' "$_said" | grep rror)" ;; esac`),
		}}
	},
}

type sudoFound struct {
	installed, there bool
	text, mode       string
	others           []string // other files in the folder
}

// restore is the script that sets the rules back. It is empty where we do not become root by
// them, or still do so afterwards.
func (f sudoFound) restore(q *Query) string {
	u := q.Want.User(q.Login)
	switch {
	case q.Login == "root", u != nil && u.Sudo == spec.SudoNoPasswd:
		return ""
	case u == nil && f.rule(q.Login) == "":
		return "" // no declared rule is about that user, before or after
	case f.there:
		return script(guest.PutFile(sudoersFile, f.text, "0440", "root", "root"))
	default:
		return script("drop " + sudoersFile)
	}
}

func sudoRules(s *spec.Spec) []string {
	var out []string
	for _, u := range s.Access.Users {
		if u.Name != "root" {
			out = append(out, sudoRule(u.Name, u.Sudo))
		}
	}
	return out
}

func sudoRule(user string, sudo spec.Sudo) string {
	switch sudo {
	case spec.SudoNoPasswd:
		return user + " ALL=(ALL:ALL) NOPASSWD: ALL"
	case spec.SudoPassword:
		return user + " ALL=(ALL:ALL) PASSWD: ALL"
	default:
		return user + " ALL=(ALL:ALL) !ALL"
	}
}

func isRule(line, user string) bool {
	return slices.ContainsFunc([]spec.Sudo{spec.SudoNone, spec.SudoPassword, spec.SudoNoPasswd}, func(s spec.Sudo) bool { return line == sudoRule(user, s) })
}

// rule is the rule of our file for a user; "" if none.
func (f sudoFound) rule(user string) spec.Sudo {
	var got spec.Sudo
	for line := range strings.Lines(f.text) {
		for _, s := range []spec.Sudo{spec.SudoNone, spec.SudoPassword, spec.SudoNoPasswd} {
			if strings.TrimSpace(line) == sudoRule(user, s) {
				got = s
			}
		}
	}
	return got
}
