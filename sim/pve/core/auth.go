package core

import (
	"regexp"
	"time"

	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Identity is the sender of a request: a user, or a token of one.
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

// TokenForm is "user@realm!name=secret".
var TokenForm = regexp.MustCompile(`^([^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+)!([A-Za-z][A-Za-z0-9.\-_]+)=(.*)$`)

// Active says whether a user may log in.
func (u *User) Active(now time.Time) bool {
	return u.Enable && (u.Expire == 0 || int64(u.Expire) >= now.Unix())
}

// ValidUser fails for what cannot be the id of a user.
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

// userForm matches a user id (verify_username in
// PVE/AccessControl.pm).
var userForm = regexp.MustCompile(`^[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+$`)

// Owns says whether a task is the caller's own: a user's are also those of his
// tokens, a token's are only its own.
func (id Identity) Owns(starter Identity) bool {
	return id == starter || id.Token == "" && id.User == starter.User
}
