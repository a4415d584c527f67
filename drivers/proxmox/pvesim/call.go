package pvesim

import (
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
)

// call is one request on its way through a handler. It belongs to the
// goroutine that holds Host.mu.
type call struct {
	w   *world
	req *request
	m   *pveapi.Method
	who identity

	values map[string]any    // As they came: of path, query and body.
	in     map[string]string // Scalars, once they were checked; booleans as 0 and 1.
	null   []string          // Parameters that JSON gave as null.
}

// handler does what a method is for. What it returns shares nothing with the
// world, for it is encoded after the world was let go.
type handler func(*world, *call) (any, error)

// gather puts together the parameters of path, query and body. What stands in the path
// may be said again, if it is the same (rest_handler in PVE/HTTPServer.pm).
func (c *call) gather(vars map[string]string) error {
	c.values = maps.Clone(c.req.params)
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		value := vars[name]
		if again, twice := c.req.params[name]; twice && text(again) != value {
			return badParam(name, "duplicate parameter (already defined in URI) with conflicting values!")
		}
		c.values[name] = value
	}
	return nil
}

// settle turns checked values into text. A list for what is one string is
// joined by commas, as PVE/RESTHandler.pm does.
func (c *call) settle() {
	c.in = make(map[string]string, len(c.values))
	for name, value := range c.values {
		if value == nil {
			c.null = append(c.null, name)
			continue
		}
		c.in[name] = text(value)
	}
	slices.Sort(c.null)
}

func (c *call) has(name string) bool {
	_, ok := c.in[name]
	return ok
}

// flag is a boolean parameter; absent is false.
func (c *call) flag(name string) bool { return c.in[name] == "1" }

// num is an integer parameter, or what stands in for it.
func (c *call) num(name string, otherwise int) int {
	if n, err := strconv.Atoi(c.in[name]); err == nil {
		return n
	}
	return otherwise
}

// vmid is that of the path.
func (c *call) vmid() int { return c.num("vmid", 0) }

// take removes a parameter and returns it (extract_param).
func (c *call) take(name string) string {
	value := c.in[name]
	delete(c.in, name)
	return value
}

// list splits a parameter as PVE::Tools::split_list does.
func (c *call) list(name string) []string { return splitList(c.in[name]) }

// root says whether root@pam itself asks, with a ticket. A token of root@pam is
// somebody else.
func (c *call) root() bool { return c.who == identity{user: "root@pam"} }

// can says whether the caller has a privilege.
func (c *call) can(path, priv string) bool { return c.w.allowed(c.who, path, priv) }

// need is the check that fails with a 403 (check in PVE/RPCEnvironment.pm).
func (c *call) need(path string, privs ...string) error {
	for _, priv := range privs {
		if !c.can(path, priv) {
			return forbidden(shownPath(path) + ", " + priv)
		}
	}
	return nil
}

// needAny is need for one of several privileges.
func (c *call) needAny(path string, privs ...string) error {
	for _, priv := range privs {
		if c.can(path, priv) {
			return nil
		}
	}
	return forbidden(shownPath(path) + ", " + strings.Join(privs, "|"))
}

// needModify is the check that somebody may change who has access to a path: by
// Permissions.Modify, or as one who allocates such things (check_perm_modify).
func (c *call) needModify(path string) error {
	privs := []string{"Permissions.Modify"}
	for prefix, priv := range map[string]string{"/storage/": "Datastore.Allocate", "/vms/": "VM.Allocate", "/pool/": "Pool.Allocate"} {
		if strings.HasPrefix(path, prefix) && path != prefix {
			privs = append(privs, priv)
		}
	}
	return c.needAny(path, privs...)
}

// needVM is the check of privileges on a VM that may be about to enter a pool
// (check_vm_perm).
func (c *call) needVM(vmid int, pool string, privs ...string) error {
	if pool != "" && c.need("/pool/"+pool, privs...) == nil {
		return nil
	}
	return c.need(vmPath(vmid), privs...)
}

func vmPath(vmid int) string { return "/vms/" + strconv.Itoa(vmid) }

// aclPath is what the path of a privilege may look like (normalize_path in
// PVE/AccessControl.pm).
var aclPath = regexp.MustCompile(`^[\p{L}\p{N}.\-_/]+$`)

// shownPath is a path as a 403 names it: one that cannot be is left out.
func shownPath(path string) string {
	if !aclPath.MatchString(path) {
		return ""
	}
	return path
}

// permitted makes the check that the API table declares (check_api2_permissions
// and exec_api2_perm_check in PVE/RPCEnvironment.pm).
func (c *call) permitted() error {
	perm := c.m.PermFor(c.w.cfg.Version)
	switch {
	case perm.User == "world", c.root():
		return nil
	case perm.Check == nil && perm.User == "":
		return forbidden("user != root@pam")
	case perm.Check == nil || perm.User == "all":
		return nil
	}
	_, err := c.meets(perm.Check, false)
	return err
}

// meets evaluates a rule; a quiet one that does not hold is no failure
// (exec_api2_perm_check). Of a rule that is not met without one PVE takes no notice.
func (c *call) meets(r *pveapi.Rule, quiet bool) (bool, error) {
	userid, _ := c.values["userid"].(string)
	refused := func(what string) (bool, error) {
		if quiet {
			return false, nil
		}
		return false, forbidden(what)
	}
	switch r.Kind {
	case "and":
		for _, rule := range r.Rules {
			if _, err := c.meets(rule, false); err != nil {
				return false, err
			}
		}
		return true, nil
	case "or":
		for _, rule := range r.Rules {
			if ok, err := c.meets(rule, true); ok || err != nil {
				return ok, err
			}
		}
		return refused("")
	case "userid-group":
		return c.meetsForGroups(r, userid, quiet)
	case "userid-param":
		if err := validUser(userid); err != nil {
			return false, err
		}
		if r.Privs[0] != "self" {
			break
		}
		if c.w.access.users[userid] == nil {
			return noSuchUser(userid, quiet)
		}
		if c.who == (identity{user: userid}) {
			return true, nil
		}
		return refused("")
	}
	ok, path, privs := pveapi.Perm{Check: r}.Permitted(c.values, c.can)
	switch {
	case ok, r.Kind == "perm-modify" && path == "": // A path that cannot be is the handler's matter.
		return ok, nil
	case path == "" && len(privs) == 0:
		return refused("")
	default:
		return refused(shownPath(path) + ", " + strings.Join(privs, "|"))
	}
}

func noSuchUser(userid string, quiet bool) (bool, error) {
	if quiet {
		return false, nil
	}
	return false, fail("no such user ('%s')", userid)
}

// meetsForGroups evaluates a rule about a user: somebody may manage all of them, or those
// of some groups, and then only puts them into such groups.
func (c *call) meetsForGroups(r *pveapi.Rule, userid string, quiet bool) (bool, error) {
	exists := r.GroupsParam != "create"
	if exists && c.w.access.users[userid] == nil {
		return noSuchUser(userid, quiet)
	}
	if c.needAny("/access/groups", r.Privs...) == nil {
		return true, nil
	}
	if r.GroupsParam != "" {
		groups, _ := c.values["groups"].(string)
		named := splitList(groups)
		if len(named) == 0 {
			return false, forbidden("/access/groups, " + strings.Join(r.Privs, "|"))
		}
		for _, name := range named {
			if c.w.access.groups[name] == nil || c.needAny("/access/groups/"+name, r.Privs...) != nil {
				return false, forbidden("/access/groups/" + name + ", " + strings.Join(r.Privs, "|"))
			}
		}
	}
	if !exists {
		return true, nil
	}
	for name, g := range c.w.access.groups {
		if g.users[userid] && c.needAny("/access/groups/"+name, r.Privs...) == nil {
			return true, nil
		}
	}
	if quiet {
		return false, nil
	}
	return false, forbidden("")
}

// unimplemented fails a call that the simulator does not know how to make, and
// notes it for Snapshot. It never pretends.
func (c *call) unimplemented(why string) error {
	name := c.req.method + " " + c.m.Path
	c.w.count.unimplemented[name] = struct{}{}
	text := "the simulator does not implement " + name
	if why != "" {
		text += ": " + why
	}
	return &apiError{status: http.StatusNotImplemented, message: text}
}
