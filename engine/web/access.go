package web

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Access says who may see the page, and who may operate. Its methods may be called from any goroutine.
type Access struct {
	// Keys are those of readers and operators, as they are now. A nil key admits no one.
	Keys func() (read, operator []byte)
	// Token admits one person once, without a key; nil: people sign in.
	Token *Token
	// Secure marks the cookie for https alone.
	Secure bool
}

// Token is in the address that a program opens in a browser. It is good for one use.
type Token struct {
	Operator bool // whom it admits

	text string
	name string     // of its cookie: browsers send cookies to every port of this machine
	mu   sync.Mutex // guards used
	used bool
}

// NewToken makes a token.
func NewToken(operator bool) *Token {
	return &Token{Operator: operator, text: rand.Text(), name: cookieName + "-" + rand.Text()[:8]}
}

// Path is the address with the token.
func (t *Token) Path() string { return "/sign-in?token=" + t.text }

// take reports whether a text is the token, for the first time.
func (t *Token) take(text string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	good := !t.used && subtle.ConstantTimeCompare([]byte(text), []byte(t.text)) == 1
	t.used = t.used || good
	return good
}

// RandomKeys are keys that no person has, for access by a token.
func RandomKeys() func() (read, operator []byte) {
	read, operator := []byte(rand.Text()), []byte(rand.Text())
	return func() ([]byte, []byte) { return read, operator }
}

const (
	cookieName = "homestak-gitops"
	cookieTime = 7 * 24 * time.Hour
	roleRead   = "read"
	roleOper   = "operator"
)

// visitor is a person who is signed in.
type visitor struct {
	Operator bool
	CSRF     string // that forms of this person have
}

// cookieName is the name of the cookie here.
func (a *Access) cookieName() string {
	if a.Token != nil {
		return a.Token.name
	}
	return cookieName
}

// key is that of a role.
func (a *Access) key(role string) []byte {
	read, operator := a.Keys()
	switch role {
	case roleRead:
		return read
	case roleOper:
		return operator
	default:
		return nil
	}
}

// seal authenticates a text by a key, for one purpose.
func seal(key []byte, purpose, text string) string {
	m := hmac.New(sha256.New, key)
	m.Write([]byte("homestak-gitops page " + purpose + "\n" + text)) // it never fails
	return hex.EncodeToString(m.Sum(nil))
}

// cookie is what a browser shows from now on: role, expiry, and a seal by the key of the role. So it survives a restart, and a
// replaced key ends it.
func (a *Access) cookie(role string, now time.Time) *http.Cookie {
	end := now.Add(cookieTime)
	text := role + "." + strconv.FormatInt(end.Unix(), 10)
	c := &http.Cookie{
		Name: a.cookieName(), Value: text + "." + seal(a.key(role), "cookie", text), Path: "/",
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: a.Secure,
	}
	if a.Token == nil {
		c.Expires = end // that of a token ends with the browser, as its program does
	}
	return c
}

// visitor reads the cookie of a request.
func (a *Access) visitor(r *http.Request, now time.Time) (visitor, bool) {
	for _, c := range r.CookiesNamed(a.cookieName()) {
		role, rest, _ := strings.Cut(c.Value, ".")
		end, sum, _ := strings.Cut(rest, ".")
		key := a.key(role)
		unix, err := strconv.ParseInt(end, 10, 64)
		if len(key) == 0 || err != nil || !hmac.Equal([]byte(sum), []byte(seal(key, "cookie", role+"."+end))) || !now.Before(time.Unix(unix, 0)) {
			continue
		}
		return visitor{Operator: role == roleOper, CSRF: seal(key, "form", c.Value)}, true
	}
	return visitor{}, false
}

// role is the role of a key; "" for none.
func (a *Access) role(given string) string {
	read, operator := a.Keys()
	sum := sha256.Sum256([]byte(given)) // so that the time says nothing of the length
	is := func(key []byte) bool {
		want := sha256.Sum256(key)
		return len(key) > 0 && subtle.ConstantTimeCompare(sum[:], want[:]) == 1
	}
	switch {
	case is(operator):
		return roleOper
	case is(read):
		return roleRead
	default:
		return ""
	}
}

// failures limits how often keys are tried: many people share one limit, since behind a proxy all have one address.
type failures struct {
	mu    sync.Mutex
	since time.Time
	n     int
}

const (
	mostFailures = 20
	failuresTime = time.Minute
)

// allowed reports whether one more key may be tried; failed counts one that was wrong.
func (f *failures) allowed(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.since) > failuresTime {
		f.since, f.n = now, 0
	}
	return f.n < mostFailures
}

func (f *failures) failed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
}

// signedIn serves people who are signed in, and leads the others to the page where they can.
func (s *site) signedIn(do func(x *request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		now := s.o.Now()
		who, ok := s.o.Access.visitor(r, now)
		switch {
		case ok:
			do(&request{Request: r, site: s, w: w, who: who, now: now})
		case r.Method == http.MethodGet && r.URL.Path != "/events":
			http.Redirect(w, r, "/sign-in?to="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
		default:
			http.Error(w, "sign in first", http.StatusUnauthorized)
		}
	}
}

// signInPage takes a token, or asks for a key.
func (s *site) signInPage(w http.ResponseWriter, r *http.Request) {
	t := s.o.Access.Token
	if text := r.URL.Query().Get("token"); t != nil && text != "" && t.take(text) {
		role := roleRead
		if t.Operator {
			role = roleOper
		}
		http.SetCookie(w, s.o.Access.cookie(role, s.o.Now()))
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	if t != nil {
		s.askToSignIn(w, r, http.StatusUnauthorized, "The address that the program printed is good for one use. Run it again for another.")
		return
	}
	s.askToSignIn(w, r, http.StatusOK, "")
}

func (s *site) askToSignIn(w http.ResponseWriter, r *http.Request, status int, problem string) {
	to := r.FormValue("to")
	if !local(to) {
		to = "/"
	}
	write(r.Context(), w, status, signInPage(frame{Title: "Sign in"}, problem, to, s.o.Access.Token == nil)) //nolint:contextcheck // Render has it
}

// signIn takes a key.
func (s *site) signIn(w http.ResponseWriter, r *http.Request) {
	now := s.o.Now()
	role := ""
	switch {
	case s.o.Access.Token != nil:
	case !s.failed.allowed(now):
		w.Header().Set("Retry-After", strconv.Itoa(int(failuresTime/time.Second)))
		s.askToSignIn(w, r, http.StatusTooManyRequests, "Too many wrong keys. Try again in a minute.")
		return
	default:
		role = s.o.Access.role(strings.TrimSpace(r.PostFormValue("key")))
	}
	if role == "" {
		s.failed.failed()
		s.askToSignIn(w, r, http.StatusUnauthorized, "This is neither the read key nor the operator key.")
		return
	}
	http.SetCookie(w, s.o.Access.cookie(role, now))
	to := r.PostFormValue("to")
	if !local(to) {
		to = "/"
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// signOut forgets the cookie.
func (s *site) signOut(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, &http.Cookie{Name: s.o.Access.cookieName(), Path: "/", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: s.o.Access.Secure})
	http.Redirect(w, r, "/sign-in", http.StatusSeeOther)
}

var (
	errNotOperator = errors.New("this needs the operator key\nsign out, and sign in with it")
	errForm        = errors.New("this form was made before you signed in\ngo back, load the page again, and repeat it")
)
