package host

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// apiCreateTicket is POST /access/ticket: a login, or a new ticket for an old one.
func apiCreateTicket(w *core.World, c *core.Call) (any, error) {
	username := c.In["username"]
	if realm := c.In["realm"]; realm != "" {
		username += "@" + realm
	}
	u := w.Access.Users[username]
	password := c.In["password"]
	renewed, byTicket := userOfTicket(w, password)
	good := u != nil && u.Active(w.Now) &&
		(byTicket && renewed == username || u.Password != "" && subtle.ConstantTimeCompare([]byte(u.Password), []byte(password)) == 1)
	if path, privs := c.In["path"], c.In["privs"]; path != "" && privs != "" {
		return verified(w, c, username, good)
	}
	if !good {
		return nil, &perl.APIError{Status: http.StatusUnauthorized, Message: "authentication failure"}
	}
	return map[string]any{
		"username":            username,
		"ticket":              ticket(w, username),
		"CSRFPreventionToken": csrf(w, username),
		"cap":                 capabilities(w, core.Identity{User: username}),
	}, nil
}

// verified tells a program whether a user with a password or ticket has privileges on a path ($verify_auth in
// PVE/API2/AccessControl.pm).
func verified(w *core.World, c *core.Call, username string, good bool) (any, error) {
	if !good || !hasAll(w, username, c.In["path"], c.List("privs")) {
		return nil, &perl.APIError{Status: http.StatusUnauthorized, Message: "authentication failure"}
	}
	return map[string]any{"username": username, "cap": capabilities(w, core.Identity{User: username})}, nil
}

func hasAll(w *core.World, username, path string, privs []string) bool {
	has := w.Access.Privileges(core.Identity{User: username}, path)
	return !slices.ContainsFunc(privs, func(priv string) bool { return !has[priv] })
}

// apiGetTicket is GET /access/ticket, a dummy also in PVE.
func apiGetTicket(*core.World, *core.Call) (any, error) { return nil, nil }

// capabilities says roughly what a user may do, for the menus of a user
// interface (compute_api_permission in PVE/API2/AccessControl.pm).
func capabilities(w *core.World, id core.Identity) map[string]map[string]int {
	families := map[string]func(priv string) bool{
		"vms":     prefixed("VM."),
		"access":  prefixed("User.", "Group."),
		"storage": prefixed("Datastore."),
		"nodes":   prefixed("Sys."),
		"sdn":     prefixed("SDN."),
		"dc":      func(p string) bool { return p == "Sys.Audit" || p == "Sys.Modify" || strings.HasPrefix(p, "SDN.") },
		"mapping": prefixed("Mapping."),
	}
	result := map[string]map[string]int{}
	for family := range families {
		result[family] = map[string]int{}
	}
	paths := []string{"/", "/nodes", "/access/groups", "/vms", "/storage", "/sdn", "/mapping"}
	for _, path := range append(paths, w.Access.ACLPaths()...) {
		family := "dc"
		if parts := perl.Segments(path); len(parts) > 0 {
			family = parts[0]
		}
		for priv := range w.Access.Privileges(id, path) {
			switch {
			case family == "pool" && strings.HasPrefix(priv, "VM."):
				result["vms"][priv] = 1
			case family == "pool" && strings.HasPrefix(priv, "Datastore."):
				result["storage"][priv] = 1
			case families[family] != nil && families[family](priv),
				families[family] != nil && family != "dc" && priv == "Permissions.Modify":
				result[family][priv] = 1
			}
		}
	}
	return result
}

func prefixed(prefixes ...string) func(string) bool {
	return func(priv string) bool {
		for _, p := range prefixes {
			if strings.HasPrefix(priv, p) {
				return true
			}
		}
		return false
	}
}

// Authenticate knows who asks: by the ticket in the cookie, else by that in the header
// Authorization, else by the API token there (unshift_read_header in
// APIServer/AnyEvent.pm): who shows both a ticket and a token comes by the ticket.
func Authenticate(w *core.World, req *core.Request) (core.Identity, error) {
	shown := req.HTTP.Header.Get("Authorization")
	ticket := ""
	if cookie, err := req.HTTP.Cookie("PVEAuthCookie"); err == nil {
		ticket = unescaped(cookie.Value)
	}
	if ticket == "" {
		ticket = shownAs(shown, "PVEAuthCookie")
	}
	if ticket == "" {
		if token := shownAs(shown, "PVEAPIToken"); token != "" {
			return byToken(w, token)
		}
		return core.Identity{}, unauthorized("No ticket")
	}
	user, ok := userOfTicket(w, ticket)
	if !ok {
		return core.Identity{}, unauthorized("Authentication failed!")
	}
	if req.Method != http.MethodGet && !checkCSRF(w, user, req.HTTP.Header.Get("CSRFPreventionToken")) {
		return core.Identity{}, unauthorized("Permission denied - invalid csrf token")
	}
	return core.Identity{User: user}, nil
}

// byToken verifies an API token (verify_token in PVE/AccessControl.pm).
func byToken(w *core.World, value string) (core.Identity, error) {
	refused := unauthorized("Authentication failed!")
	if w.Token.Value != value { // Most requests have the one of the request before.
		w.Token.Value, w.Token.Parts = value, core.TokenForm.FindStringSubmatch(value)
	}
	parts := w.Token.Parts
	if parts == nil {
		return core.Identity{}, refused
	}
	u := w.Access.Users[parts[1]]
	if u == nil || !u.Active(w.Now) {
		return core.Identity{}, refused
	}
	t := u.Tokens[parts[2]]
	if t == nil || t.Expire > 0 && int64(t.Expire) < w.Now.Unix() ||
		subtle.ConstantTimeCompare([]byte(t.Secret), []byte(parts[3])) != 1 {
		return core.Identity{}, refused
	}
	return core.Identity{User: parts[1], Token: parts[2]}, nil
}

// sign makes the signature of tickets and CSRF tokens.
func sign(w *core.World, text string) string {
	mac := hmac.New(sha256.New, []byte(w.Access.Key))
	mac.Write([]byte(text))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// ticket makes a ticket for a user, in PVE's form.
func ticket(w *core.World, user string) string {
	plain := fmt.Sprintf("PVE:%s:%08X", user, w.Now.Unix())
	return plain + "::" + sign(w, plain)
}

// userOfTicket verifies a ticket.
func userOfTicket(w *core.World, ticket string) (user string, ok bool) {
	plain, signature, found := strings.Cut(ticket, "::")
	parts := strings.Split(plain, ":")
	if !found || len(parts) != 3 || parts[0] != "PVE" || !hmac.Equal([]byte(signature), []byte(sign(w, plain))) {
		return "", false
	}
	u := w.Access.Users[parts[1]]
	return parts[1], u != nil && u.Active(w.Now) && fresh(w, parts[2])
}

// fresh says whether a stamp in hexadecimal seconds is within a ticket's life.
func fresh(w *core.World, stamp string) bool {
	seconds, err := strconv.ParseInt(stamp, 16, 64)
	if err != nil {
		return false
	}
	age := w.Now.Sub(time.Unix(seconds, 0))
	return age > -clockSkew && age < ticketLife
}

// csrf makes the token that calls which write show beside a ticket.
func csrf(w *core.World, user string) string {
	stamp := fmt.Sprintf("%08X", w.Now.Unix())
	return stamp + ":" + strings.TrimRight(sign(w, stamp+":"+user), "=")
}

func checkCSRF(w *core.World, user, token string) bool {
	stamp, signature, _ := strings.Cut(token, ":")
	want := strings.TrimRight(sign(w, stamp+":"+user), "=")
	return fresh(w, stamp) && hmac.Equal([]byte(signature), []byte(want))
}

// shownAs returns the value of a name in a header Authorization.
func shownAs(header, name string) string {
	value, ok := strings.CutPrefix(header, name)
	if ok && value != "" && (value[0] == '=' || value[0] == ' ') {
		return unescaped(value[1:])
	}
	return ""
}

// unauthorized is a 401 before the API is reached: it has no body at all.
func unauthorized(why string) error {
	return &perl.APIError{Status: http.StatusUnauthorized, Message: why, Plain: true}
}

// ticketLife is the lifetime of a ticket ($ticket_lifetime in
// PVE/AccessControl.pm); clocks may differ by five minutes.
const (
	ticketLife = 2 * time.Hour
	clockSkew  = 5 * time.Minute
)

// unescaped takes back what clients percent-encode, as browsers do.
func unescaped(value string) string {
	if plain, err := url.PathUnescape(value); err == nil {
		return plain
	}
	return value
}
