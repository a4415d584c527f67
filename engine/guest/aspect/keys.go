package aspect

import (
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
)

// keys is the lines of authorized_keys. Lines that no spec ever declared stay. A declared
// one is recorded also if it was there already, since a key must not outlive its removal
// from the files: cloud-init wrote the same keys at birth.
var keys = Of[keysFound]{
	Name: "keys", Doc: "SSH keys that log in.",
	Paths: []string{"access.user.*.ssh_keys"},
	Probe: func(q *Query) string {
		lines := []string{
			theirs + "_keys() {", `  _home=$(getent passwd "$1" | cut -d: -f6)`,
			`  [ -n "$_home" ] || return 0`,
			`  printf '%s' "$_home" | row home "$1"`,
			`  _f=$_home/.ssh/authorized_keys _code=0`,
			`  theirs "$1" test -e "$_f" || _code=$?`,
			`  case $_code in`,
			`  0) { theirs "$1" dd if="$_f" iflag=nonblock,fullblock,count_bytes count=` + strconv.Itoa(mostKeys+1) + ` bs=65536 status=none 2>/dev/null; printf '\n%d\n' "$?"; } | row file "$1" ;;`,
			`  1) ;;`,
			`  *) printf '\n%d\n' "$_code" | row file "$1" ;;`,
			`  esac`, "}",
		}
		for _, name := range keyUsers(q) {
			lines = append(lines, "_keys "+guest.Quote(name))
		}
		return script(lines...)
	},
	Parse: func(_ *Query, rows [][]string) (keysFound, error) {
		f := keysFound{file: map[string]string{}, home: map[string]string{}, odd: map[string]string{}}
		for _, r := range rows {
			switch {
			case len(r) == 3 && r[0] == "file":
				f.take(r[1], r[2])
			case len(r) == 3 && r[0] == "home":
				f.home[r[1]] = r[2]
			}
		}
		return f, nil
	},
	Fill: func(q *Query, f keysFound, have *spec.Spec) {
		for _, name := range keyUsers(q) {
			if f.home[name] == "" {
				continue // the account is made first
			}
			var shown []string
			for _, line := range f.lines(name) {
				id := model.SSHKeyID(line)
				if q.Record.Get("keys", keyItem(name, id)) != nil {
					shown = append(shown, declaredLine(q.Want.User(name), id, line))
				}
			}
			if q.Want.User(name) != nil || len(shown) > 0 {
				userOf(have, name).Shown = spec.ShowKeys(shown)
			}
		}
	},
	Unmanaged: func(q *Query, f keysFound) []string {
		var out []string
		for _, u := range q.Want.Access.Users {
			for _, line := range f.lines(u.Name) {
				id := model.SSHKeyID(line)
				if declaredLine(&u, id, "") == "" && q.Record.Get("keys", keyItem(u.Name, id)) == nil {
					out = append(out, "key "+spec.ShowKey(line)+" of user "+u.Name)
				}
			}
		}
		return out
	},
	Steps: func(q *Query, f keysFound) []Step {
		var steps []Step
		for _, name := range keyUsers(q) {
			if s, needed := f.step(q, name); needed {
				steps = append(steps, s)
			}
		}
		return steps
	},
}

type keysFound struct {
	home map[string]string
	file map[string]string
	odd  map[string]string // why the file of a user is not read
}

// mostKeys is up to how many bytes a file of keys is read and written. A pipe takes as much at once (pipe(7)).
const mostKeys = 64 << 10

// theirs runs a program with the rights of a user, for ten seconds at most. Its real user stays root: so the user may stop it,
// and may neither trace it nor take what it has open (ptrace(2)).
const theirs = `theirs() { _of=$1; shift; timeout -k 1 10 setpriv --euid="$_of" --regid="$(id -g -- "$_of")" --clear-groups -- "$@"; }
`

// take takes what was read of the file of a user, with the exit code of what read it. sshd reads the file as the user, too
// (sshd(8), AUTHORIZED_KEYS FILE FORMAT).
func (f keysFound) take(user, answer string) {
	answer = strings.TrimSuffix(answer, "\n")
	at := strings.LastIndexByte(answer, '\n')
	text, code := answer[:max(at, 0)], answer[at+1:]
	switch {
	case code != "0":
		f.odd[user] = "could not be read as the user"
	case len(text) > mostKeys:
		f.odd[user] = "is larger than 64 KiB"
	default:
		f.file[user] = text
	}
}

// keyUsers are the users whose keys are wanted or recorded.
func keyUsers(q *Query) []string {
	var names []string
	for _, u := range q.Want.Access.Users {
		names = append(names, u.Name)
	}
	for _, item := range q.Record.Items("keys") {
		name, _, _ := strings.Cut(item, " ")
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func keyItem(user, id string) string { return user + " " + id }

// lines are those with a key in them.
func (f keysFound) lines(user string) []string {
	var out []string
	for line := range strings.Lines(f.file[user]) {
		if line = strings.TrimSpace(line); model.SSHKeyID(line) != "" {
			out = append(out, line)
		}
	}
	return out
}

// declaredLine returns the line of a key in the spec, or another text if it has no such key. The
// comment on the machine may be another one, and options count as a part of the line.
func declaredLine(u *spec.User, id, other string) string {
	if u != nil {
		for _, line := range u.Keys {
			if model.SSHKeyID(line) == id {
				return line
			}
		}
	}
	return other
}

// step gives one user the file that is wanted. Lines that are not in the record stay.
func (f keysFound) step(q *Query, user string) (Step, bool) {
	want := q.Want.User(user)
	s := Step{Stage: StageKeys, Text: "set the keys of " + user, Needs: "id -u -- " + guest.Quote(user) + " >/dev/null 2>&1"}
	var out strings.Builder
	there, withdrawn := map[string]bool{}, false
	for line := range strings.Lines(f.file[user]) {
		id := model.SSHKeyID(line)
		declared := declaredLine(want, id, "")
		switch {
		case id == "":
		case declared != "":
			there[id] = true
		case q.Record.Get("keys", keyItem(user, id)) != nil:
			withdrawn = true
			continue
		}
		out.WriteString(strings.TrimSuffix(line, "\n") + "\n")
	}
	if want != nil {
		for _, line := range want.Keys {
			id := model.SSHKeyID(line)
			s.Keep = append(s.Keep, guest.RecordEntry{Aspect: "keys", Item: keyItem(user, id), Identity: "key"})
			if !there[id] {
				out.WriteString(line + "\n")
			}
		}
	}
	for _, item := range q.Record.Items("keys") {
		if name, id, _ := strings.Cut(item, " "); name == user && declaredLine(want, id, "") == "" {
			s.Drop = append(s.Drop, guest.RecordKey{Aspect: "keys", Item: item})
		}
	}
	if len(s.Keep)+len(s.Drop) == 0 {
		return s, false
	}
	if want == nil {
		s.Stage, s.Text, s.Needs = StageWithdrawKeys, "withdraw the keys of "+user, ""
		if f.home[user] == "" { // the account is gone, and its keys with it
			s.Script = ":\n"
			return s, true
		}
	}
	now, had := f.file[user]
	switch why := f.odd[user]; {
	case why != "":
		s.Script = "blocked " + guest.Quote(f.home[user]+"/.ssh/authorized_keys "+why) + "\n"
		return s, true
	case out.Len() > mostKeys:
		s.Script = "die " + guest.Quote(f.home[user]+"/.ssh/authorized_keys would be larger than 64 KiB") + "\n"
		return s, true
	case out.String() == now:
		s.Script = ":\n"
		return s, true
	case withdrawn && q.isLogin(user):
		s.Restore = writeKeys(user, anySum, now)
	}
	before := ""
	if had {
		before = fileSum(now)
	}
	s.Script = writeKeys(user, before, out.String())
	return s, true
}

// anySum is in place of a checksum where a file is written whatever it holds.
const anySum = "any"

// writeKeys replaces the file, which has the checksum sum ("" if it does not exist yet). It runs as the user, so
// that a link of the user leads only to files that the user may write. The user may stop and trace the process, so
// it gets only the keys and half a minute: not the descriptor of the lock (9), and for errors a pipe that is read
// for a limited time.
func writeKeys(user, sum, content string) string {
	name := guest.Quote(user)
	const inner = `umask 077
mkdir -p "$1/.ssh" || exit
_f=$1/.ssh/authorized_keys
if [ -L "$_f" ] || { [ -e "$_f" ] && [ ! -f "$_f" ]; }; then echo "$_f is not a plain file" >&2; exit 1; fi
_now=; if [ -f "$_f" ]; then _now=$(sha256sum <"$_f" | cut -c1-64); fi
[ "$2" = any ] || [ "$_now" = "$2" ] || { echo "$_f has changed since it was read" >&2; exit 1; }
cat >"$1/.ssh/.authorized_keys.homestak-new" && sync "$1/.ssh/.authorized_keys.homestak-new" && mv -fT "$1/.ssh/.authorized_keys.homestak-new" "$_f" || { rm -f "$1/.ssh/.authorized_keys.homestak-new"; echo "$_f could not be written" >&2; exit 1; }
sync "$1/.ssh/"`
	return script(
		`_home=$(getent passwd `+name+` | cut -d: -f6)`,
		`[ -d "$_home" ] || die `+guest.Quote("user "+user+" has no home folder for keys"),
		`_code=$( { { `+guest.PrintBytes(content)+` | timeout -k 1 30 cat | timeout -k 1 30 setpriv --reuid=`+name+` --regid="$(id -g -- `+name+`)" --init-groups sh -c `+guest.Quote(inner)+` sh "$_home" `+guest.Quote(sum)+` 2>&1 >/dev/null 4>&- 9>&- || echo $? >&4; } | timeout -k 1 40 head -c 1500 >&2; } 4>&1 ) || :`,
		`[ -z "$_code" ] || [ "$(stat -f -c %a "$_home")" -gt 0 ] || die "there is no room on the disk of $_home"`,
		`[ -z "$_code" ] || blocked "the keys are not written (exit code $_code)"`)
}

// emptySum is the SHA-256 of an empty file.
const emptySum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
