package core

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/perl"
)

// Identity is who asks: a user, or a token of one.
type Identity struct {
	User  string // user@realm.
	Token string // Its name, or empty.
}

// String is the form of PVE's user ids and UPIDs.
func (id Identity) String() string {
	if id.Token == "" {
		return id.User
	}
	return id.User + "!" + id.Token
}

// ticketLife is how long a ticket is good for ($ticket_lifetime in
// PVE/AccessControl.pm); clocks may differ by five minutes.
const (
	ticketLife = 2 * time.Hour
	clockSkew  = 5 * time.Minute
)

// unauthorized is a 401 before the API is reached: it has no body at all.
func unauthorized(why string) error {
	return &perl.APIError{Status: http.StatusUnauthorized, Message: why, Bare: true}
}

// Authenticate knows who asks: by the ticket in the cookie, else by that in the header
// Authorization, else by the API token there (unshift_read_header in
// APIServer/AnyEvent.pm): who shows both a ticket and a token comes by the ticket.
func (w *World) Authenticate(req *Request) (Identity, error) {
	shown := req.HTTP.Header.Get("Authorization")
	ticket := ""
	if cookie, err := req.HTTP.Cookie("PVEAuthCookie"); err == nil {
		ticket = perl.Unescaped(cookie.Value)
	}
	if ticket == "" {
		ticket = shownAs(shown, "PVEAuthCookie")
	}
	if ticket == "" {
		if token := shownAs(shown, "PVEAPIToken"); token != "" {
			return w.byToken(token)
		}
		return Identity{}, unauthorized("No ticket")
	}
	user, ok := w.ByTicket(ticket)
	if !ok {
		return Identity{}, unauthorized("Authentication failed!")
	}
	if req.Method != http.MethodGet && !w.checkCSRF(user, req.HTTP.Header.Get("CSRFPreventionToken")) {
		return Identity{}, unauthorized("Permission denied - invalid csrf token")
	}
	return Identity{User: user}, nil
}

// shownAs is what a header Authorization shows under a name.
func shownAs(header, name string) string {
	value, ok := strings.CutPrefix(header, name)
	if ok && value != "" && (value[0] == '=' || value[0] == ' ') {
		return perl.Unescaped(value[1:])
	}
	return ""
}

// tokenForm is "user@realm!name=secret".
var tokenForm = regexp.MustCompile(`^([^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+)!([A-Za-z][A-Za-z0-9.\-_]+)=(.*)$`)

// byToken verifies an API token (verify_token in PVE/AccessControl.pm).
func (w *World) byToken(value string) (Identity, error) {
	refused := unauthorized("Authentication failed!")
	if w.token.value != value { // Most requests have the one of the request before.
		w.token.value, w.token.parts = value, tokenForm.FindStringSubmatch(value)
	}
	parts := w.token.parts
	if parts == nil {
		return Identity{}, refused
	}
	u := w.Access.Users[parts[1]]
	if u == nil || !u.Active(w.Now) {
		return Identity{}, refused
	}
	t := u.Tokens[parts[2]]
	if t == nil || t.Expire > 0 && int64(t.Expire) < w.Now.Unix() ||
		subtle.ConstantTimeCompare([]byte(t.Secret), []byte(parts[3])) != 1 {
		return Identity{}, refused
	}
	return Identity{User: parts[1], Token: parts[2]}, nil
}

// Active says whether a user may log in.
func (u *User) Active(now time.Time) bool {
	return u.Enable && (u.Expire == 0 || int64(u.Expire) >= now.Unix())
}

// Sign makes the signature of tickets and CSRF tokens.
func (w *World) Sign(text string) string {
	mac := hmac.New(sha256.New, []byte(w.Access.key))
	mac.Write([]byte(text))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// Ticket makes a ticket for a user, in PVE's form.
func (w *World) Ticket(user string) string {
	plain := fmt.Sprintf("PVE:%s:%08X", user, w.Now.Unix())
	return plain + "::" + w.Sign(plain)
}

// ByTicket verifies a ticket.
func (w *World) ByTicket(ticket string) (user string, ok bool) {
	plain, signature, found := strings.Cut(ticket, "::")
	parts := strings.Split(plain, ":")
	if !found || len(parts) != 3 || parts[0] != "PVE" || !hmac.Equal([]byte(signature), []byte(w.Sign(plain))) {
		return "", false
	}
	u := w.Access.Users[parts[1]]
	return parts[1], u != nil && u.Active(w.Now) && w.fresh(parts[2])
}

// fresh says whether a stamp in hexadecimal seconds is within a ticket's life.
func (w *World) fresh(stamp string) bool {
	seconds, err := strconv.ParseInt(stamp, 16, 64)
	if err != nil {
		return false
	}
	age := w.Now.Sub(time.Unix(seconds, 0))
	return age > -clockSkew && age < ticketLife
}

func (w *World) Csrf(user string) string {
	stamp := fmt.Sprintf("%08X", w.Now.Unix())
	return stamp + ":" + strings.TrimRight(w.Sign(stamp+":"+user), "=")
}

func (w *World) checkCSRF(user, token string) bool {
	stamp, signature, _ := strings.Cut(token, ":")
	want := strings.TrimRight(w.Sign(stamp+":"+user), "=")
	return w.fresh(stamp) && hmac.Equal([]byte(signature), []byte(want))
}

func ValidUser(userid string) error {
	if len(userid) < 3 {
		return perl.Fail("user name '%s' is too short", userid)
	}
	if len(userid) > 64 {
		return perl.Fail("user name '%s' is too long (%d > 64)", userid, len(userid))
	}
	if !userForm.MatchString(userid) {
		return perl.Fail("value '%s' does not look like a valid user name", userid)
	}
	return nil
}

// userForm is what a user id looks like (verify_username in
// PVE/AccessControl.pm).
var userForm = regexp.MustCompile(`^[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+$`)

// Owns says whether a task is the caller's own: a user's are also those of his
// tokens, a token's are only its own.
func (id Identity) Owns(starter Identity) bool {
	return id == starter || id.Token == "" && id.User == starter.User
}
