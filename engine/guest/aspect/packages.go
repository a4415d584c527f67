package aspect

import (
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// packages are installed by apt. A package that was there before us stays when the spec drops it; one that we
// installed is removed unless something else needs it, with the dependencies that came with it.
var packages = Of[packagesFound]{
	Name: "packages", Doc: "Packages that are installed.",
	Paths: []string{"platform.packages"},
	Probe: func(q *Query) string {
		names := slices.DeleteFunc(q.Items("packages", q.Want.Platform.Packages), func(n string) bool {
			return !slices.Contains(q.Want.Platform.Packages, n) && !asked(q, n) // apt knows what of them is unneeded
		})
		if len(names) == 0 {
			return ":"
		}
		// It fails for names that dpkg does not know, and still prints the others.
		return script(
			`if ! command -v apt-get >/dev/null; then say "apt-get is missing"; exit 3; fi`,
			`dpkg-query -W -f='${Package}\t${Architecture}\t${db:Status-Status}\n' -- `+guest.QuoteWords(names)+` 2>/dev/null || :`,
			// A package that only came with another one would go with it (apt-mark(8)).
			`if [ -f /var/lib/apt/extended_states ]; then`,
			`  sed -n -e 's/^Package: /state\t/p' -e 's/^Auto-Installed: /auto\t/p' /var/lib/apt/extended_states`,
			`fi`)
	},
	Parse: func(_ *Query, rows [][]string) (packagesFound, error) {
		f := packagesFound{installed: map[string]bool{}, present: map[string]bool{}, auto: map[string]bool{}}
		state := "" // the package that the paragraph of extended_states is about
		for _, r := range rows {
			switch {
			case len(r) == 2 && r[0] == "state":
				state = r[1]
			case len(r) == 2 && r[0] == "auto":
				f.auto[state] = r[1] == "1"
			}
			if len(r) != 3 || r[2] == "not-installed" || r[2] == "config-files" {
				continue
			}
			f.present[r[0]], f.present[r[0]+":"+r[1]] = true, true
			if r[2] == "installed" || r[2] == "triggers-awaited" || r[2] == "triggers-pending" {
				f.installed[r[0]], f.installed[r[0]+":"+r[1]] = true, true
			}
		}
		return f, nil
	},
	Fill: func(q *Query, f packagesFound, have *spec.Spec) {
		for _, name := range q.Items("packages", q.Want.Platform.Packages) {
			wanted := slices.Contains(q.Want.Platform.Packages, name)
			if wanted && f.kept(name) || !wanted && f.present[name] && asked(q, name) {
				have.Platform.Packages = append(have.Platform.Packages, name)
			}
		}
	},
	Steps: func(q *Query, f packagesFound) []Step {
		var missing, dropped []string
		for _, name := range q.Want.Platform.Packages {
			if !f.kept(name) {
				missing = append(missing, name)
			}
		}
		var ours []string                             // everything that came by us and is not wanted for itself
		replaced := map[string][]*guest.RecordEntry{} // by the name of what took its place
		for _, name := range q.Record.Items("packages") {
			e := q.Record.Get("packages", name)
			if e.Identity == byReplacement {
				replaced[e.Put["by"]] = append(replaced[e.Put["by"]], e)
			}
			if slices.Contains(q.Want.Platform.Packages, name) {
				continue
			}
			if e.Found == nil {
				ours = append(ours, name)
			}
			if asked(q, name) {
				dropped = append(dropped, name)
			}
		}
		var steps []Step
		if len(missing) > 0 {
			steps = append(steps, install(q, missing, f))
		}
		if len(dropped) > 0 {
			steps = append(steps, uninstall(dropped, ours, replaced))
		}
		return steps
	},
}

type packagesFound struct {
	installed map[string]bool // by name, and by name:architecture
	present   map[string]bool // so, or half way there
	auto      map[string]bool // by name: came with another one
}

// kept reports whether a package is there for its own sake.
func (f packagesFound) kept(name string) bool {
	plain, _, _ := strings.Cut(name, ":")
	return f.installed[name] && !f.auto[plain]
}

// byDependency is the identity of a package that came with another one.
const byDependency = "dependency"

// byReplacement is the identity of a package that was there, and that a declared one took the place of.
const byReplacement = "replaced"

// asked reports whether a package was installed because a spec named it.
func asked(q *Query, name string) bool {
	e := q.Record.Get("packages", name)
	return e != nil && e.Identity != byDependency && e.Identity != byReplacement
}

// aptWait waits for the holder of a lock of apt or dpkg: a process that has a lock on a file and one of these files
// open. Locks are not compared by inode, which an overlay shows otherwise than /proc/locks.
const aptWait = `for _n in 5 4 3 2 1 0; do
  _who=
  for _p in $(sed -nE 's/^[0-9]+: POSIX +[A-Z]+ +WRITE +([1-9][0-9]*) .*/\1/p' /proc/locks 2>/dev/null | sort -u); do
    if readlink /proc/"$_p"/fd/* 2>/dev/null | grep -qxF -e /var/lib/dpkg/lock-frontend -e /var/lib/dpkg/lock -e /var/lib/apt/lists/lock -e /var/cache/apt/archives/lock; then
      _who="$(cat /proc/"$_p"/comm 2>/dev/null) (process $_p)"
    fi
  done
  if [ -z "$_who" ]; then exit 0; fi
  if [ "$_n" -gt 0 ]; then sleep 1; fi
done
say "another program holds the lock of apt: $_who"
exit 76
`

// install makes the step that installs packages. Which dependencies come with them is
// known by simulating it, so that all are recorded before one of them is unpacked.
func install(q *Query, names []string, f packagesFound) Step {
	words, listed := guest.QuoteWords(names), guest.Quote(strings.Join(names, ", "))
	s := Step{Stage: StagePackages, Text: "install " + list(names), Wait: aptWait, Supplies: true, State: AptState}
	for _, n := range names {
		e := guest.RecordEntry{Aspect: "packages", Item: n, Identity: "package"}
		if f.installed[n] {
			e.Found = map[string]string{"state": "automatic"}
		}
		s.Keep = append(s.Keep, e)
	}
	s.Ask = aptGet + aptLists(words, len(names)) + aptReplaces + script(
		// apt-cache prints nothing here for a name that it does not know.
		`_known=" $(apt-cache show --no-all-versions -- `+words+` 2>/dev/null | sed -n 's/^Package: //p' | tr '\n' ' ')"`,
		`_bad=; for _p in `+words+`; do case $_known in *" ${_p%%:*} "*) ;; *) _bad="$_bad $_p" ;; esac; done`,
		`if [ -n "$_bad" ] && [ -n "$_net" ]; then die "$_net"; fi`,
		`if [ -n "$_bad" ]; then`,
		`  die "no repository of this machine has a package of this name:$_bad (check the spelling; a virtual package cannot be asked for, name one that provides it)"`,
		`fi`,
		`_said=$(apt-get -s -q -y install -- `+words+` 2>&1) || { printf '%s\n' "$_said" | grep -E '^(E:| )' | tail -n 8 >&2; die "apt cannot install "`+listed+`; }`,
		// Packages in the cache of apt, or on a disk, need no mirror.
		`if [ -n "$_net" ] && apt-get -q -y --print-uris install -- `+words+` 2>/dev/null | grep -q "^'http"; then die "$_net"; fi`,
		`_gone=`,
		`for _r in $(printf '%s\n' "$_said" | sed -nE 's/^Remv ([^ ]+).*/\1/p'); do`,
		`  _by=$(replaces "$_r" `+words+`)`,
		`  case `+guest.Quote(" "+strings.Join(q.Want.Platform.Packages, " ")+" ")+` in *" $_r "*) _by= ;; esac`,
		`  if [ -z "$_by" ]; then _gone="$_gone $_r"; continue; fi`,
		`  printf '%s %s %s\n' "$_r" "$_by" "$(apt-mark showmanual -- "$_r" 2>/dev/null | grep -c .)"`,
		`done`,
		`[ -z "$_gone" ] || die "installing "`+listed+`" would remove what is on this machine:$_gone (remove it by hand first, or take the package out of the spec)"`,
		// Behind the name of one that is only upgraded stands its version in brackets.
		`printf '%s\n' "$_said" | sed -nE -e '/^Inst [^ ]+ \[/d' -e 's/^Inst ([^ ]+).*/\1/p'`)
	s.Learn = func(answer string, s *Step) {
		for line := range strings.Lines(answer) {
			words := strings.Fields(line)
			switch {
			case len(words) == 1 && !slices.Contains(names, words[0]):
				s.Keep = append(s.Keep, guest.RecordEntry{Aspect: "packages", Item: words[0], Identity: byDependency})
			case len(words) == 3 && q.Record.Get("packages", words[0]) == nil: // the spec knows of a declared one that goes
				state := "automatic"
				if words[2] == "1" {
					state = "manual"
				}
				s.Keep = append(s.Keep, guest.RecordEntry{Aspect: "packages", Item: words[0], Identity: byReplacement, Found: map[string]string{"state": state}, Put: map[string]string{"by": words[1]}})
			}
		}
	}
	s.Script = aptGet + script(
		// Finish what dpkg left incomplete when it was killed.
		`if [ -n "$(dpkg --audit 2>/dev/null)" ]; then dpkg --force-confdef --force-confold --configure -a >/dev/null 2>&1 || :; fi`,
		`apt_get install -- `+words+` || die "installing "`+listed+`" failed"`,
		`apt-mark manual -- `+words+` >/dev/null 2>&1 || :`,
		`_there=$(dpkg-query -W -f='${db:Status-Status} ${Package} ${Package}:${Architecture} \n' -- `+words+` 2>/dev/null | grep '^installed ')`,
		`for _p in `+words+`; do`,
		`  case $_there in *" $_p "*) ;; *) die "$_p is not installed although apt reports success" ;; esac`,
		`done`)
	return s
}

// aptLists brings the lists of apt up to date. They are good for an hour, if they know all the packages.
func aptLists(words string, n int) string {
	return script(
		`if [ "$(apt-cache policy -- `+words+` 2>/dev/null | grep -c '^  Candidate: [^(]')" -lt `+itoa(n)+` ] || [ -z "$(find /var/lib/apt/lists -maxdepth 1 -name '*_Packages*' -mmin -60 2>/dev/null | head -n1)" ]; then`,
		// Without that mode apt reports success although a list could not be fetched.
		`  if reach; then apt_get update -o APT::Update::Error-Mode=any || say "the lists of apt could not be brought up to date"; fi`,
		`else`,
		`  reach || :`,
		`fi`)
}

// aptReplaces is the function replaces PACKAGE NEW...: which of the new packages replaces an installed one, as
// packages that do so declare it (Debian Policy, 7.6.2): Conflicts and Replaces name it, or a name that it provides.
const aptReplaces = `replaces() {
  _names=" $1 $(dpkg-query -W -f='${Provides}' -- "$1" 2>/dev/null | sed -e 's/([^)]*)//g' -e 's/,/ /g') "
  shift
  for _n; do
    _both=
    for _field in Conflicts Replaces; do
      for _m in $(apt-cache show --no-all-versions -- "$_n" 2>/dev/null | sed -n "s/^$_field://p" | sed -e 's/([^)]*)//g' -e 's/,/ /g'); do
        case $_names in *" $_m "*) _both="$_both $_field"; break ;; esac
      done
    done
    if [ "$_both" = " Conflicts Replaces" ]; then printf %s "$_n"; return 0; fi
  done
}
`

// uninstall makes the step that removes packages no longer needed. Those that others depend on become automatic, as
// in apt, and stay ours if they were: they go with the last one that needs them. Replaced packages are reinstalled in
// the same run of apt, so that nothing is missing in between.
func uninstall(dropped, ours []string, replaced map[string][]*guest.RecordEntry) Step {
	s := Step{Stage: StageWithdrawPackages, Text: "remove " + list(dropped) + " unless something else needs it", Wait: aptWait, State: AptState}
	for _, n := range dropped {
		if slices.Contains(ours, n) {
			s.After = append(s.After, guest.RecordEntry{Aspect: "packages", Item: n, Identity: byDependency})
		} else {
			s.Drop = append(s.Drop, guest.RecordKey{Aspect: "packages", Item: n})
		}
	}
	returned, names, automatic := "", []string{}, ""
	for _, n := range slices.Sorted(maps.Keys(replaced)) {
		if !slices.Contains(dropped, n) || !slices.Contains(ours, n) {
			continue
		}
		for _, e := range replaced[n] {
			names = append(names, e.Item)
			if e.Found["state"] == "automatic" {
				automatic += script(`  case "$_back " in *" ` + e.Item + ` "*) apt-mark auto ` + guest.Quote(e.Item) + ` >/dev/null || : ;; esac`)
			}
			returned += `if [ "$_p" = ` + guest.Quote(n) + ` ]; then _back="$_back ` + e.Item + `"; fi; `
		}
	}
	lists := ""
	if len(names) > 0 {
		s.Text = "remove " + list(dropped) + " unless something else needs it, and put back " + list(names)
		lists = aptLists(guest.QuoteWords(names), len(names))
	}
	s.Script = aptGet + lists + script(
		`if [ -n "$(dpkg --audit 2>/dev/null)" ]; then dpkg --force-confdef --force-confold --configure -a >/dev/null 2>&1 || :; fi`,
		`there() { dpkg-query -W -f='${db:Status-Abbrev}' -- "$1" 2>/dev/null | grep -q '^.[^nc]'; }`,
		`for _p in `+guest.QuoteWords(dropped)+`; do`,
		`  if there "$_p"; then apt-mark auto "$_p" >/dev/null || die "apt-mark cannot write its list"; fi`,
		`done`,
		`_unneeded=$(apt-get -s -q autoremove 2>/dev/null | sed -nE 's/^Remv ([^ ]+).*/\1/p')`,
		`set --`,
		`_back=`,
		`for _p in `+guest.QuoteWords(ours)+`; do`,
		`  _was=$_back`,
		`  `+returned+`:`,
		`  if [ "$_was" != "$_back" ] || printf '%s\n' "$_unneeded" | grep -qxF -e "${_p%%:*}" -e "$_p"; then set -- "$@" "$_p"; fi`,
		`done`,
		`if [ $# -gt 0 ]; then`,
		`  _do="remove $*"`,
		`  if [ -n "$_back" ]; then _do="install$_back"; for _p; do _do="$_do $_p-"; done; fi`,
		`  _also=$(apt-get -s -q -y $_do 2>/dev/null | sed -nE 's/^Remv ([^ ]+).*/\1/p' | while read -r _r; do case " $* " in *" $_r "*) ;; *) printf ' %s' "$_r" ;; esac; done)`,
		`  [ -z "$_also" ] || die "removing $* would also remove what was there before:$_also"`,
		`  apt_get $_do || die "removing $* failed${_back:+, and putting back$_back, which it took the place of}"`,
		strings.TrimSuffix(automatic, "\n"),
		`  printf '%s\n' $_back`,
		`fi`,
		`for _p in `+guest.QuoteWords(ours)+`; do there "$_p" || printf '%s\n' "$_p"; done`)
	s.Done = func(out string, s *Step) {
		gone := strings.Fields(out)
		for _, n := range gone {
			s.Drop = append(s.Drop, guest.RecordKey{Aspect: "packages", Item: n})
		}
		s.After = slices.DeleteFunc(s.After, func(e guest.RecordEntry) bool { return slices.Contains(gone, e.Item) })
	}
	return s
}
