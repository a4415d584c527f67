package pveapi

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Perm says who may call a method, as far as PVE declares it.
type Perm struct {
	// User is "world" (no login needed), "all" (any login) or empty: then Check
	// decides. With neither, only root@pam may call.
	User  string `json:"user"`
	Check *Rule  `json:"check"`
	// More means that PVE's code checks further privileges, which no table has.
	More bool `json:"more"`
}

// Rule is a node of PVE's nested form of a permission check.
type Rule struct {
	// Kind is "and" or "or" (over Rules), "perm" (Privs on Path),
	// "userid-param", "userid-group" or "perm-modify".
	Kind  string
	Rules []*Rule

	Path  string   // With placeholders that parameters fill: "/vms/{vmid}".
	Privs []string // All are needed, or one of them if Any.
	Any   bool
	// RequireParam names a parameter without which the rule does not hold.
	RequireParam string
	// GroupsParam is "create" or "update" in a "userid-group" rule that looks at
	// the parameter groups.
	GroupsParam string
}

// UnmarshalJSON reads PVE's form: ["and", rule, ...], ["or", rule, ...],
// ["perm", path, [privilege, ...], "any", 1], and so on.
func (r *Rule) UnmarshalJSON(text []byte) error {
	var parts []json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil {
		return err
	}
	if len(parts) == 0 {
		return fmt.Errorf("permission check %s has no kind", text)
	}
	if err := json.Unmarshal(parts[0], &r.Kind); err != nil {
		return err
	}
	var err error
	switch rest := parts[1:]; r.Kind {
	case "and", "or":
		r.Rules = make([]*Rule, len(rest))
		for i := range rest {
			r.Rules[i] = new(Rule)
			if err = json.Unmarshal(rest[i], r.Rules[i]); err != nil {
				return err
			}
		}
	case "perm":
		err = r.unmarshal(rest, &r.Path, &r.Privs)
	case "userid-group":
		err = r.unmarshal(rest, &r.Privs)
	case "userid-param":
		var what string
		err = r.unmarshal(rest, &what)
		r.Privs = []string{what}
	case "perm-modify":
		err = r.unmarshal(rest, &r.Path)
	default:
		err = fmt.Errorf("permission check %s is of unknown kind", text)
	}
	return err
}

// unmarshal reads the fixed parts of a rule and the options behind them.
func (r *Rule) unmarshal(parts []json.RawMessage, fixed ...any) error {
	if len(parts) < len(fixed) || (len(parts)-len(fixed))%2 != 0 {
		return fmt.Errorf("permission check of kind %s has %d parts", r.Kind, len(parts))
	}
	for i, to := range fixed {
		if err := json.Unmarshal(parts[i], to); err != nil {
			return err
		}
	}
	for options := parts[len(fixed):]; len(options) > 0; options = options[2:] {
		var (
			name string
			err  error
		)
		if err := json.Unmarshal(options[0], &name); err != nil {
			return err
		}
		switch name {
		case "any":
			r.Any = string(options[1]) != "0"
		case "require_param":
			err = json.Unmarshal(options[1], &r.RequireParam)
		case "groups_param":
			err = json.Unmarshal(options[1], &r.GroupsParam)
		default:
			err = fmt.Errorf("permission check of kind %s has unknown option %q", r.Kind, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Permitted evaluates the declared check for a caller whose privileges has knows; values are the parameters of the
// request and of its path, which fill the placeholders. If it is denied, the path and the privileges are those that
// PVE's 403 names ("Permission check failed (/vms/100, VM.Audit)"; several privileges mean any of them); both are
// empty if PVE names none, as behind an "or".
//
// A Perm without Check permits every caller if User is set, and otherwise none. has knows neither the user nor the
// members of groups: a rule about the caller's own user counts as not met, and one about the groups of a user is
// evaluated for /access/groups as a whole.
func (p Perm) Permitted(values map[string]any, has func(path, priv string) bool) (ok bool, failedPath string, failedPrivs []string) {
	if p.Check == nil {
		return p.User != "", "", nil
	}
	return p.Check.permitted(values, has)
}

func (r *Rule) permitted(values map[string]any, has func(path, priv string) bool) (ok bool, failedPath string, failedPrivs []string) {
	switch r.Kind {
	case "and":
		for _, rule := range r.Rules {
			if ok, path, privs := rule.permitted(values, has); !ok {
				return false, path, privs
			}
		}
		return true, "", nil
	case "or":
		for _, rule := range r.Rules {
			ok, path, privs := rule.permitted(values, has)
			// An "and" that fails ends the whole check, even inside an "or".
			if ok || rule.Kind == "and" {
				return ok, path, privs
			}
		}
		return false, "", nil
	case "perm":
		if _, given := values[r.RequireParam]; r.RequireParam != "" && !given {
			return false, "", nil
		}
		return check(fill(r.Path, values), r.Privs, r.Any, has)
	case "userid-param":
		if r.Privs[0] == "self" {
			return false, "", nil
		}
		_, realm, _ := cutLast(Text(values["userid"]), "@")
		return check("/access/realm/"+realm, r.Privs, false, has)
	case "userid-group":
		return r.groups(values, has)
	case "perm-modify":
		return modify(fill(r.Path, values), has)
	default:
		return false, "", nil
	}
}

// groups evaluates a rule about the groups of a user (userid-group in
// PVE/RPCEnvironment.pm): of the groups a request names each must be allowed.
func (r *Rule) groups(values map[string]any, has func(path, priv string) bool) (ok bool, failedPath string, failedPrivs []string) {
	named := splitList(Text(values["groups"]))
	if r.GroupsParam == "" || len(named) == 0 {
		return check("/access/groups", r.Privs, true, has)
	}
	for _, group := range named {
		if ok, path, privs := check("/access/groups/"+group, r.Privs, true, has); !ok {
			return false, path, privs
		}
	}
	return true, "", nil
}

// modify says who may change the access list of a path: a privilege of its own,
// or the one that allocates its volume (check_perm_modify in
// PVE/RPCEnvironment.pm).
func modify(path string, has func(path, priv string) bool) (ok bool, failedPath string, failedPrivs []string) {
	privs := []string{"Permissions.Modify"}
	switch first, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/"); {
	case path == "":
		return false, "", nil
	case rest == "":
	case first == "storage":
		privs = append(privs, "Datastore.Allocate")
	case first == "vms":
		privs = append(privs, "VM.Allocate")
	case first == "pool":
		privs = append(privs, "Pool.Allocate")
	}
	return check(path, privs, true, has)
}

func check(path string, privs []string, anyOf bool, has func(path, priv string) bool) (ok bool, failedPath string, failedPrivs []string) {
	for _, priv := range privs {
		switch granted := path != "" && has(path, priv); {
		case granted && anyOf:
			return true, "", nil
		case !granted && !anyOf:
			return false, path, []string{priv}
		}
	}
	if anyOf {
		return false, path, privs
	}
	return true, "", nil
}

var isACLPath = expression(`[\p{L}\p{N}.\-_/]+`)

// fill puts the parameters into the placeholders of a path and normalizes it, as normalize_path in
// PVE/AccessControl.pm; a path with characters that ACL paths cannot have becomes empty, which denies everything.
func fill(path string, values map[string]any) string {
	var parts []string
	for segment := range strings.SplitSeq(path, "/") {
		if name, ok := placeholder(segment); ok {
			segment = Text(values[name])
		}
		parts = append(parts, strings.FieldsFunc(segment, func(r rune) bool { return r == '/' })...)
	}
	filled := "/" + strings.Join(parts, "/")
	if !isACLPath(filled) {
		return ""
	}
	return filled
}
