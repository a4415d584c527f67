package guest

// Scripts for POSIX shells run inside a machine, and print answers that are read here. A
// script is the standard input of `sh -s`: nothing of it shows in the list of processes. It is one compound
// command, which the shell parses to its end before it runs any of it, so a connection that breaks while the
// script is sent runs nothing.

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Quote writes a word so that the shell takes it as it is.
func Quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// QuoteWords quotes words and joins them by spaces.
func QuoteWords(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = Quote(s)
	}
	return strings.Join(quoted, " ")
}

// Lines joins commands, one a line.
func Lines(lines ...string) string { return strings.Join(lines, "\n") + "\n" }

// PrintBytes writes a command that prints bytes, whatever they are. printf is built into the
// shell, so the bytes are in no argument of a process.
func PrintBytes(b string) string {
	return "printf %s " + Quote(base64.StdEncoding.EncodeToString([]byte(b))) + " | base64 -d"
}

// PutFile writes a command that replaces a file by this content, atomically. The mode is
// octal. It does nothing if the file is the same already.
func PutFile(name, content, mode, owner, group string) string {
	return PrintBytes(content) + " | put " + QuoteWords([]string{name, mode, owner, group})
}

// FileUnchanged writes a command that fails unless a file still has the content that was
// read; found is false for a file that was not there.
func FileUnchanged(name, sum string, found bool) string {
	if !found {
		sum = ""
	}
	return "unchanged " + QuoteWords([]string{name, sum})
}

const (
	// OpenLock opens the lock of a machine as descriptor 9 of a script, and of what that starts.
	OpenLock = "exec 9>/run/homestak-gitops.lock\n"
	// Lock keeps other programs from changing the machine as long as the script runs, even after its connection is lost.
	Lock = OpenLock + `if ! flock -w 600 9; then
  die "another program is changing this machine, and has been for ten minutes"
fi
`
)

// library has the functions for scripts. They are internal.
const library = `set -u
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive
export PATH LC_ALL DEBIAN_FRONTEND
unset CDPATH ENV BASH_ENV IFS
umask 022
say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
# sum FILE: its SHA-256, nothing for a file that is not there
sum() { if [ -f "$1" ]; then sha256sum <"$1" | cut -c1-64; fi; }
stale() { say "$1 has changed since it was read"; exit 75; }
# blocked REASON: ends, since a user other than root put something in the way
blocked() { say "$*"; exit 77; }
# content FILE [BYTES]: the beginning of a plain file where others than root may write. Whatever they put there instead,
# this follows no link, never blocks, and ends.
content() { dd if="$1" iflag=nofollow,nonblock,fullblock,count_bytes count="${2:-67108864}" bs=65536 status=none 2>/dev/null; }
unchanged() { [ "$(sum "$1")" = "$2" ] || stale "$1"; }
# rootly: whether only root may write in this folder
rootly() { case $(stat -c '%u %A' .) in 0\ d????-??-?) ;; *) false ;; esac; }
# failed FILE REASON: ends; with the reason that others than root had a hand in it, if they write in a folder above the file
failed() {
  cd / && _rest=${1#/}
  while rootly; do
    case $_rest in */*) cd "./${_rest%%/*}" 2>/dev/null || die "$*" ;; *) die "$*" ;; esac
    _rest=${_rest#*/}
  done
  blocked "$*"
}
# enter FOLDER [make]: goes there, and fails if it is not there; with make it makes what is missing. It follows links
# only in folders where only root may write: another one may lead anywhere. A folder that was entered cannot be moved.
enter() {
  if cd -P -- "$1" 2>/dev/null && [ "$(pwd -P)" = "$1" ]; then return 0; fi
  cd / || return
  _rest=$1/ _links=0
  while [ -n "$_rest" ]; do
    _part=${_rest%%/*} _rest=${_rest#*/}
    case $_part in ''|.) continue ;; ..) cd -P .. || return; continue ;; esac
    _at=$(pwd -P)
    if [ -L "./$_part" ]; then
      rootly || blocked "${_at%/}/$_part is a symbolic link, and others than root may change it"
      _links=$((_links + 1))
      [ "$_links" -le 40 ] || die "too many symbolic links in $1"
      _to=$(readlink "./$_part")
      case $_to in /*) cd / ;; esac
      _rest=$_to/$_rest
      continue
    fi
    if [ ! -e "./$_part" ] && [ -n "${2:-}" ]; then mkdir "./$_part" || return; fi
    cd -P "./$_part" 2>/dev/null && [ "$(pwd -P)" = "${_at%/}/$_part" ] || return
  done
}
# folder FOLDER: makes it, with those above it
folder() ( enter "$1" make || failed "$1" "could not be created" )
# put FILE MODE OWNER GROUP <content. The new file is made in a folder that only root enters: where others may write,
# they can put a link in place of any file.
put() (
  _dir=${1%/*} _name=${1##*/} _new=.${1##*/}.homestak-new
  enter "${_dir:-/}" || failed "$1" "could not be written: its folder is missing"
  [ ! -L "./$_name" ] || failed "$1" "is a symbolic link"
  [ ! -d "./$_name" ] || failed "$1" "is a folder"
  _at=$(pwd -P)
  rm -rf "./$_new" && mkdir -m 0700 "./$_new" && cd -P "./$_new" && [ "$(pwd -P)" = "${_at%/}/$_new" ] && [ -O . ] && [ "$(stat -c %a .)" = 700 ] || failed "$1" "could not be written"
  _same=
  if cat >new && chown "$3:$4" new && chmod "$2" new; then
    if [ -f "../$_name" ] && content "../$_name" | cmp -s - new && [ "$(stat -c '%a %u %g' "../$_name")" = "$(stat -c '%a %u %g' new)" ]; then
      _same=yes
    else
      sync new && mv -fT new "../$_name" && sync .. && _same=yes
    fi
  fi
  rm -f new
  cd -P .. && rmdir "./$_new"
  [ -n "$_same" ] || failed "$1" "could not be written"
)
# keep FILE COPY SHA256: copies the file, if it has that content, to where only root writes
keep() (
  _dir=${1%/*} _new=$2.homestak-new
  enter "${_dir:-/}" || exit 0
  [ -f "./${1##*/}" ] || exit 0
  rm -f "$_new"
  content "./${1##*/}" >"$_new" || { rm -f "$_new"; failed "$1" "could not be kept"; }
  if [ "$(sum "$_new")" = "$3" ]; then
    chmod 0600 "$_new" && sync "$_new" && mv -fT "$_new" "$2" || { rm -f "$_new"; die "$1 could not be kept"; }
  fi
  rm -f "$_new"
)
# drop FILE...: removes files, and says so to the disk
drop() {
  for _f; do
    _dir=${_f%/*}
    [ ! -d "${_dir:-/}" ] || ( enter "${_dir:-/}" && rm -f "./${_f##*/}" && sync . || failed "$_f" "could not be removed" ) || exit
  done
}
# unit VERB UNIT: does that to a unit, and ends with the reason if the unit does not run then
unit() { _said=$(systemctl "$1" -- "$2" 2>&1) || unit_failed "$2" "$_said"; }
# unit_failed UNIT [WHAT SYSTEMCTL SAID]: the reason is what the unit wrote last, else what systemd says
unit_failed() {
  _run=$(systemctl show --property=InvocationID --value -- "$1" 2>/dev/null) _own=
  [ -z "$_run" ] || journalctl --sync >/dev/null 2>&1 || : # lines of a moment ago may not be there yet
  [ -z "$_run" ] || _own=$(journalctl --quiet --no-pager --output=cat --lines=3 "_SYSTEMD_INVOCATION_ID=$_run" 2>/dev/null | tr '\n' ' ')
  # the journal does not know the invocation of a program that ended before it was looked up
  [ -n "$_own" ] || _own=$(journalctl --quiet --no-pager --output=cat --lines=3 --since=-1min "_SYSTEMD_UNIT=$1" 2>/dev/null | tr '\n' ' ')
  [ -n "$_own" ] || _own=$(printf '%s\n' "${2:-}" | head -n 1)
  [ -n "$_own" ] || _own="systemd says $(systemctl show --property=Result --value -- "$1")"
  die "$1 does not start: ${_own% } (journalctl -u $1 has more)"
}
# row KEY... <content: one line of an answer
row() { printf '%s\t' "$@"; printf =; base64 -w0; echo; }
`

// ExitStale is the exit code of a script that found the machine otherwise than it was read
// (EX_TEMPFAIL of sysexits.h).
const ExitStale = 75

// ExitBusy is the exit code of a script that waited for another program in vain, and changed nothing.
const ExitBusy = 76

// ExitBlocked is the exit code of a script that a user other than root blocks (EX_NOPERM of sysexits.h).
const ExitBlocked = 77

// Script is one run of a script: library, then the lines given, as one command.
func Script(body string) Command {
	return Command{Args: []string{"sh", "-s"}, Stdin: []byte("{\n" + library + body + "\nexit 0\n} </dev/null\n")}
}

// Fragment is one part of a probe, with a result of its own.
type Fragment struct {
	Name string // letters only
	Body string
}

// Probe is a script that answers all fragments. The boundary is random for each run.
func Probe(boundary, first string, fragments []Fragment) Command {
	var b strings.Builder
	b.WriteString(first)
	b.WriteString("frame() { printf '%s %s ' " + Quote(boundary) + " \"$1\"; { ( \"probe_$1\" ); printf '\\n%d\\n' \"$?\"; } | base64 -w0; echo; }\n")
	for _, f := range fragments {
		fmt.Fprintf(&b, "probe_%s() {\n%s\n}\n", f.Name, strings.TrimRight(f.Body, "\n"))
	}
	for _, f := range fragments {
		b.WriteString("frame " + f.Name + "\n")
	}
	fmt.Fprintf(&b, "printf '%%s end\\n' %s", Quote(boundary))
	return Script(b.String())
}

// Answer is the result of one fragment.
type Answer struct {
	Code int // exit code of the fragment
	Text string
}

// ReadProbe takes the answers apart. It fails if one is missing, or there is one too many.
func ReadProbe(boundary, out string, fragments []Fragment) (map[string]Answer, error) {
	answers := map[string]Answer{}
	ended := false
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != boundary {
			continue // text that a login prints is not part of the response
		}
		if words[1] == "end" && len(words) == 2 {
			ended = true
			break
		}
		if len(words) != 3 {
			return nil, fmt.Errorf("the answer of the machine about %q is cut", words[1])
		}
		raw, err := base64.StdEncoding.DecodeString(words[2])
		if err != nil {
			return nil, fmt.Errorf("the answer of the machine about %q: %w", words[1], err)
		}
		text := strings.TrimSuffix(string(raw), "\n")
		at := strings.LastIndexByte(text, '\n')
		if at < 0 {
			return nil, fmt.Errorf("the answer of the machine about %q has no exit code", words[1])
		}
		code, err := strconv.Atoi(text[at+1:])
		if err != nil {
			return nil, fmt.Errorf("the answer of the machine about %q has no exit code", words[1])
		}
		if _, twice := answers[words[1]]; twice {
			return nil, fmt.Errorf("the machine answered twice about %q", words[1])
		}
		answers[words[1]] = Answer{Code: code, Text: text[:at]}
	}
	if !ended {
		return nil, errors.New("the answer of the machine is incomplete")
	}
	for _, f := range fragments {
		if _, ok := answers[f.Name]; !ok {
			return nil, fmt.Errorf("the machine did not answer about %q", f.Name)
		}
	}
	return answers, nil
}

// AnswerRows takes an answer apart: one row a line, fields between tabs. A field that begins
// with "=" is base64, as the function row of a script writes it, and is decoded.
func AnswerRows(text string) ([][]string, error) {
	var rows [][]string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		fields := strings.Split(line, "\t")
		for i, f := range fields {
			if encoded, ok := strings.CutPrefix(f, "="); ok {
				raw, err := base64.StdEncoding.DecodeString(encoded)
				if err != nil {
					return nil, fmt.Errorf("row %q: %w", fields[0], err)
				}
				fields[i] = string(raw)
			}
		}
		rows = append(rows, fields)
	}
	return rows, nil
}
