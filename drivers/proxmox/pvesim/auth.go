package pvesim

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
)

// identity is who asks: a user, or a token of one.
type identity struct {
	user  string // user@realm.
	token string // Its name, or empty.
}

// String is the form of PVE's user ids and UPIDs.
func (id identity) String() string {
	if id.token == "" {
		return id.user
	}
	return id.user + "!" + id.token
}

// ticketLife is how long a ticket is good for ($ticket_lifetime in
// PVE/AccessControl.pm); clocks may differ by five minutes.
const (
	ticketLife = 2 * time.Hour
	clockSkew  = 5 * time.Minute
)

// unauthorized is a 401 before the API is reached: it has no body at all.
func unauthorized(why string) error {
	return &apiError{status: http.StatusUnauthorized, message: why, bare: true}
}

// authenticate knows who asks: by the ticket in the cookie, else by that in the header
// Authorization, else by the API token there (unshift_read_header in
// APIServer/AnyEvent.pm): who shows both a ticket and a token comes by the ticket.
func (w *world) authenticate(req *request) (identity, error) {
	shown := req.http.Header.Get("Authorization")
	ticket := ""
	if cookie, err := req.http.Cookie("PVEAuthCookie"); err == nil {
		ticket = unescaped(cookie.Value)
	}
	if ticket == "" {
		ticket = shownAs(shown, "PVEAuthCookie")
	}
	if ticket == "" {
		if token := shownAs(shown, "PVEAPIToken"); token != "" {
			return w.byToken(token)
		}
		return identity{}, unauthorized("No ticket")
	}
	user, ok := w.byTicket(ticket)
	if !ok {
		return identity{}, unauthorized("Authentication failed!")
	}
	if req.method != http.MethodGet && !w.checkCSRF(user, req.http.Header.Get("CSRFPreventionToken")) {
		return identity{}, unauthorized("Permission denied - invalid csrf token")
	}
	return identity{user: user}, nil
}

// shownAs is what a header Authorization shows under a name.
func shownAs(header, name string) string {
	value, ok := strings.CutPrefix(header, name)
	if ok && value != "" && (value[0] == '=' || value[0] == ' ') {
		return unescaped(value[1:])
	}
	return ""
}

// tokenForm is "user@realm!name=secret".
var tokenForm = regexp.MustCompile(`^([^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+)!([A-Za-z][A-Za-z0-9.\-_]+)=(.*)$`)

// byToken verifies an API token (verify_token in PVE/AccessControl.pm).
func (w *world) byToken(value string) (identity, error) {
	refused := unauthorized("Authentication failed!")
	if w.token.value != value { // Most requests have the one of the request before.
		w.token.value, w.token.parts = value, tokenForm.FindStringSubmatch(value)
	}
	parts := w.token.parts
	if parts == nil {
		return identity{}, refused
	}
	u := w.access.users[parts[1]]
	if u == nil || !u.active(w.now) {
		return identity{}, refused
	}
	t := u.tokens[parts[2]]
	if t == nil || t.expire > 0 && int64(t.expire) < w.now.Unix() ||
		subtle.ConstantTimeCompare([]byte(t.secret), []byte(parts[3])) != 1 {
		return identity{}, refused
	}
	return identity{user: parts[1], token: parts[2]}, nil
}

// active says whether a user may log in.
func (u *user) active(now time.Time) bool {
	return u.enable && (u.expire == 0 || int64(u.expire) >= now.Unix())
}

// sign makes the signature of tickets and CSRF tokens.
func (w *world) sign(text string) string {
	mac := hmac.New(sha256.New, []byte(w.access.key))
	mac.Write([]byte(text))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// ticket makes a ticket for a user, in PVE's form.
func (w *world) ticket(user string) string {
	plain := fmt.Sprintf("PVE:%s:%08X", user, w.now.Unix())
	return plain + "::" + w.sign(plain)
}

// byTicket verifies a ticket.
func (w *world) byTicket(ticket string) (user string, ok bool) {
	plain, signature, found := strings.Cut(ticket, "::")
	parts := strings.Split(plain, ":")
	if !found || len(parts) != 3 || parts[0] != "PVE" || !hmac.Equal([]byte(signature), []byte(w.sign(plain))) {
		return "", false
	}
	u := w.access.users[parts[1]]
	return parts[1], u != nil && u.active(w.now) && w.fresh(parts[2])
}

// fresh says whether a stamp in hexadecimal seconds is within a ticket's life.
func (w *world) fresh(stamp string) bool {
	seconds, err := strconv.ParseInt(stamp, 16, 64)
	if err != nil {
		return false
	}
	age := w.now.Sub(time.Unix(seconds, 0))
	return age > -clockSkew && age < ticketLife
}

func (w *world) csrf(user string) string {
	stamp := fmt.Sprintf("%08X", w.now.Unix())
	return stamp + ":" + strings.TrimRight(w.sign(stamp+":"+user), "=")
}

func (w *world) checkCSRF(user, token string) bool {
	stamp, signature, _ := strings.Cut(token, ":")
	want := strings.TrimRight(w.sign(stamp+":"+user), "=")
	return w.fresh(stamp) && hmac.Equal([]byte(signature), []byte(want))
}

func validUser(userid string) error {
	if len(userid) < 3 {
		return fail("user name '%s' is too short", userid)
	}
	if len(userid) > 64 {
		return fail("user name '%s' is too long (%d > 64)", userid, len(userid))
	}
	if !userForm.MatchString(userid) {
		return fail("value '%s' does not look like a valid user name", userid)
	}
	return nil
}

// userForm is what a user id looks like (verify_username in
// PVE/AccessControl.pm).
var userForm = regexp.MustCompile(`^[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+$`)

// owns says whether a task is the caller's own: a user's are also those of his
// tokens, a token's are only its own.
func (id identity) owns(starter identity) bool {
	return id == starter || id.token == "" && id.user == starter.user
}
