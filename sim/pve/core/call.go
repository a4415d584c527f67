package core

import (
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Call is one request on its way through a handler. It belongs to the
// goroutine that holds Host.mu.
type Call struct {
	W   *World
	Req *Request
	M   *pveapi.Method
	Who Identity

	Values map[string]any    // As they came: of path, query and body.
	In     map[string]string // Scalars, once they were checked; booleans as 0 and 1.
	Null   []string          // Parameters that JSON gave as null.
}

// Handler implements a method. Its result shares nothing with the world, because it is encoded after the lock is
// released.
type Handler func(*World, *Call) (any, error)

// On makes a handler of what is done with the thing that a call is about, once it is found.
func On[T any](find func(*Call) (T, error), do func(*World, *Call, T) (any, error)) Handler {
	return func(w *World, c *Call) (any, error) {
		found, err := find(c)
		if err != nil {
			return nil, err
		}
		return do(w, c, found)
	}
}

// Gather collects the parameters of path, query and body. A parameter of the path may be repeated with the same
// value (rest_handler in PVE/HTTPServer.pm).
func (c *Call) Gather(vars map[string]string) error {
	c.Values = maps.Clone(c.Req.Params)
	for name, value := range perl.Sorted(vars) {
		if again, twice := c.Req.Params[name]; twice && perl.Text(again) != value {
			return perl.BadParam(name, "duplicate parameter (already defined in URI) with conflicting values!")
		}
		c.Values[name] = value
	}
	return nil
}

// Stringify turns checked values into text. A list for what is one string is
// joined by commas, as PVE/RESTHandler.pm does.
func (c *Call) Stringify() {
	c.In = make(map[string]string, len(c.Values))
	for name, value := range c.Values {
		if value == nil {
			c.Null = append(c.Null, name)
			continue
		}
		c.In[name] = perl.Text(value)
	}
	slices.Sort(c.Null)
}

// Has says whether a parameter was given.
func (c *Call) Has(name string) bool {
	_, ok := c.In[name]
	return ok
}

// Flag is a boolean parameter; absent is false.
func (c *Call) Flag(name string) bool { return c.In[name] == "1" }

// Num is an integer parameter, or its default.
func (c *Call) Num(name string, otherwise int) int {
	if n, err := strconv.Atoi(c.In[name]); err == nil {
		return n
	}
	return otherwise
}

// Vmid is that of the path.
func (c *Call) Vmid() int { return c.Num("vmid", 0) }

// Take removes a parameter and returns it (extract_param).
func (c *Call) Take(name string) string {
	value := c.In[name]
	delete(c.In, name)
	return value
}

// List splits a parameter as PVE::Tools::split_list does.
func (c *Call) List(name string) []string { return perl.SplitList(c.In[name]) }

// Root reports whether the caller is root@pam with a ticket. A token of root@pam does not count.
func (c *Call) Root() bool { return c.Who == Identity{User: "root@pam"} }

// Can says whether the caller has a privilege.
func (c *Call) Can(path, priv string) bool { return c.W.Access.Allowed(c.Who, path, priv) }

// Need is the check that fails with a 403 (check in PVE/RPCEnvironment.pm).
func (c *Call) Need(path string, privs ...string) error {
	for _, priv := range privs {
		if !c.Can(path, priv) {
			return perl.Forbidden(ShownPath(path) + ", " + priv)
		}
	}
	return nil
}

// NeedAny is need for one of several privileges.
func (c *Call) NeedAny(path string, privs ...string) error {
	for _, priv := range privs {
		if c.Can(path, priv) {
			return nil
		}
	}
	return perl.Forbidden(ShownPath(path) + ", " + strings.Join(privs, "|"))
}

// NeedModify checks the right to change access to a path: by Permissions.Modify, or by the right to allocate such
// things (check_perm_modify).
func (c *Call) NeedModify(path string) error {
	privs := []string{"Permissions.Modify"}
	for prefix, priv := range map[string]string{"/storage/": "Datastore.Allocate", "/vms/": "VM.Allocate", "/pool/": "Pool.Allocate"} {
		if strings.HasPrefix(path, prefix) && path != prefix {
			privs = append(privs, priv)
		}
	}
	return c.NeedAny(path, privs...)
}

// NeedVM is the check of privileges on a VM that may be about to enter a pool
// (check_vm_perm).
func (c *Call) NeedVM(vmid int, pool string, privs ...string) error {
	if pool != "" && c.Need("/pool/"+pool, privs...) == nil {
		return nil
	}
	return c.Need(VMPath(vmid), privs...)
}

// VMPath is the path of a guest in the access list.
func VMPath(vmid int) string { return "/vms/" + strconv.Itoa(vmid) }

// ACLPath matches the path of a privilege (normalize_path in
// PVE/AccessControl.pm).
var ACLPath = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[\p{L}\p{N}.\-_/]+$`) })

// ShownPath is a path as a 403 names it: one that cannot be is left out.
func ShownPath(path string) string {
	if !ACLPath().MatchString(path) {
		return ""
	}
	return path
}

// Permitted makes the check that the API table declares (check_api2_permissions
// and exec_api2_perm_check in PVE/RPCEnvironment.pm).
func (c *Call) Permitted() error {
	perm := c.M.PermFor(c.W.Cfg.Version)
	switch {
	case perm.User == "world", c.Root():
		return nil
	case perm.Check == nil && perm.User == "":
		return perl.Forbidden("user != root@pam")
	case perm.Check == nil || perm.User == "all":
		return nil
	}
	_, err := c.meets(perm.Check, false)
	return err
}

// meets evaluates a rule; if quiet, an unmet rule is not a failure (exec_api2_perm_check). PVE ignores the result
// of a rule that is not met without a failure.
func (c *Call) meets(r *pveapi.Rule, quiet bool) (bool, error) {
	userid, _ := c.Values["userid"].(string)
	refused := func(what string) (bool, error) {
		if quiet {
			return false, nil
		}
		return false, perl.Forbidden(what)
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
		if err := ValidUser(userid); err != nil {
			return false, err
		}
		if r.Privs[0] != "self" {
			break
		}
		if c.W.Access.Users[userid] == nil {
			return noSuchUser(userid, quiet)
		}
		if c.Who == (Identity{User: userid}) {
			return true, nil
		}
		return refused("")
	}
	ok, path, privs := pveapi.Perm{Check: r}.Permitted(c.Values, c.Can)
	switch {
	case ok, r.Kind == "perm-modify" && path == "": // A path that cannot be is the handler's matter.
		return ok, nil
	case path == "" && len(privs) == 0:
		return refused("")
	default:
		return refused(ShownPath(path) + ", " + strings.Join(privs, "|"))
	}
}

func noSuchUser(userid string, quiet bool) (bool, error) {
	if quiet {
		return false, nil
	}
	return false, perl.Fail("no such user ('%s')", userid)
}

// meetsForGroups evaluates a rule about a user: the caller may manage all of them, or those of some groups, and
// then only puts them into such groups.
func (c *Call) meetsForGroups(r *pveapi.Rule, userid string, quiet bool) (bool, error) {
	exists := r.GroupsParam != "create"
	if exists && c.W.Access.Users[userid] == nil {
		return noSuchUser(userid, quiet)
	}
	if c.NeedAny("/access/groups", r.Privs...) == nil {
		return true, nil
	}
	if r.GroupsParam != "" {
		groups, _ := c.Values["groups"].(string)
		named := perl.SplitList(groups)
		if len(named) == 0 {
			return false, perl.Forbidden("/access/groups, " + strings.Join(r.Privs, "|"))
		}
		for _, name := range named {
			if c.W.Access.Groups[name] == nil || c.NeedAny("/access/groups/"+name, r.Privs...) != nil {
				return false, perl.Forbidden("/access/groups/" + name + ", " + strings.Join(r.Privs, "|"))
			}
		}
	}
	if !exists {
		return true, nil
	}
	for name, g := range c.W.Access.Groups {
		if g.Users[userid] && c.NeedAny("/access/groups/"+name, r.Privs...) == nil {
			return true, nil
		}
	}
	if quiet {
		return false, nil
	}
	return false, perl.Forbidden("")
}

// Unimplemented fails a call that the simulator does not know how to make, and
// notes it for Snapshot. It never pretends.
func (c *Call) Unimplemented(why string) error {
	name := c.Req.Method + " " + c.M.Path
	c.W.Count.Unimplemented[name] = struct{}{}
	text := "the simulator does not implement " + name
	if why != "" {
		text += ": " + why
	}
	return &perl.APIError{Status: http.StatusNotImplemented, Message: text}
}

// Words is a parameter that is a list.
func (c *Call) Words(name string) []string {
	switch value := c.Values[name].(type) {
	case []any:
		list := make([]string, len(value))
		for i := range value {
			list[i] = perl.Text(value[i])
		}
		return list
	case nil:
		return nil
	default:
		return strings.Split(perl.Text(value), "\x00")
	}
}

// Modified fails when a call names another digest than that in force.
func (c *Call) Modified(digest string) error {
	if c.Has("digest") && c.In["digest"] != digest {
		return perl.Fail("detected modified configuration - file changed by other user? Try again.")
	}
	return nil
}

// Section is update for a file of sections, which has no line for an option without a
// value (format_config_line in PVE/SectionConfig.pm): sent empty, it is gone.
func (c *Call) Section(conf perl.Config, but ...string) {
	c.Update(conf, but...)
	maps.DeleteFunc(conf, func(_, value string) bool { return value == "" })
}

// Subdirs is the answer of an index: a list of one key each.
func Subdirs(key string, names ...string) []map[string]any {
	list := make([]map[string]any, len(names))
	for i, name := range names {
		list[i] = map[string]any{key: name}
	}
	return list
}

// APINone is a list without entries, for what a host never has here.
func APINone(*World, *Call) (any, error) { return []any{}, nil }

// Paged is data together with what a list answers beside it.
type Paged struct {
	Data  any
	Total int
}

// Beside is data with something else beside it (set_result_attrib).
type Beside struct {
	Data       any
	Attributes map[string]any
}

// Node is the node of the path.
func (c *Call) Node() *Node { return c.W.Nodes[c.In["node"]] }

// Update takes over what a call sets in a section and removes what it deletes.
func (c *Call) Update(conf perl.Config, but ...string) {
	for key, value := range c.In {
		if key != "digest" && key != "delete" && !slices.Contains(but, key) {
			conf[key] = value
		}
	}
	for _, key := range c.List("delete") {
		delete(conf, key)
	}
}

// MayDrop fails when a call deletes an option that a section does not have, or must.
func (c *Call) MayDrop(optional, required string) error {
	for _, option := range c.List("delete") {
		if slices.Contains(strings.Fields(required), option) {
			return perl.Fail("unable to delete required option '%s'", option)
		} else if !slices.Contains(strings.Fields(optional), option) {
			return perl.Fail("no such option '%s'", option)
		}
	}
	return nil
}

// LogPage is a page of a log: numbered lines from the parameter start on, at most as many
// as the parameter limit says (50; 0 for all).
func (c *Call) LogPage(lines []string) Paged {
	start, limit := c.Num("start", 0), c.Num("limit", 50)
	page := []map[string]any{}
	for n := start; n < len(lines) && (limit == 0 || len(page) < limit); n++ {
		page = append(page, map[string]any{"n": n + 1, "t": lines[n]})
	}
	if len(page) == 0 {
		page = append(page, map[string]any{"n": 1, "t": "no content"})
	}
	return Paged{Data: page, Total: len(lines)}
}
