package network

// A machine that is, or becomes, a host of Proxmox VE has four aspects more: the repository of its packages,
// the reminder about subscriptions, its bridge, and its kernel. The packages themselves are those of the spec.

import (
	"cmp"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// PVEAspects lists the aspects, in the order of the probe.
func PVEAspects() []aspect.Aspect {
	return []aspect.Aspect{repository.Aspect(), nag.Aspect(), bridge.Aspect(), kernel.Aspect()}
}

const (
	sourcesFile = "/etc/apt/sources.list.d/homestak-pve.sources"
	keyFile     = "/etc/apt/keyrings/homestak-pve.gpg"
)

// key is the public key of Proxmox for a release of Debian, as its documentation gives it
// (pve-docs, pve-package-repos.adoc, SecureApt). Package proxmox-archive-keyring has it, too.
type key struct{ suite, url, sum string }

func keyOf(os aspect.OS) (key, bool) {
	switch {
	case os.ID == "debian" && os.Version == "12":
		return key{
			"bookworm", "https://enterprise.proxmox.com/debian/proxmox-release-bookworm.gpg",
			"SHA512:7da6fe34168adc6e479327ba517796d4702fa2f8b4f0a9833f5ea6e6b48f6507a6da403a274fe201595edc86a84463d50383d07f64bdde2e3658108db7d6dc87",
		}, true
	case os.ID == "debian" && os.Version == "13":
		return key{
			"trixie", "https://enterprise.proxmox.com/debian/proxmox-archive-keyring-trixie.gpg",
			"SHA256:136673be77aba35dcce385b28737689ad64fd785a797e57897589aed08db6e45",
		}, true
	}
	return key{}, false
}

// repository replaces the repositories that need a subscription by the one without. An existing declaration of it
// is enough.
var repository = aspect.Of[repositoryFound]{
	Name: "pverepository", Doc: "The repository of Proxmox VE.",
	Paths: []string{"config.pve.no_subscription"},
	Probe: func(q *aspect.Query) string {
		if !q.Want.Config.PVE.NoSubscription && q.Record.Get("pverepository", sourcesFile) == nil {
			return ":"
		}
		return guest.Lines(
			`for _f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do`,
			`  if [ -f "$_f" ] && grep -q 'proxmox\.com' "$_f"; then row source "$_f" <"$_f"; fi`,
			`done`,
			// Ours first, so that the file does not change when the package with the key comes.
			`for _f in `+keyFile+` /usr/share/keyrings/proxmox-archive-keyring.gpg /etc/apt/trusted.gpg.d/proxmox-release-*.gpg /usr/share/keyrings/proxmox-release-*.gpg; do`,
			`  if [ -s "$_f" ]; then printf '%s' "$_f" | row key; break; fi`,
			`done`)
	},
	Parse: func(_ *aspect.Query, rows [][]string) (repositoryFound, error) {
		f := repositoryFound{files: map[string]string{}}
		for _, r := range rows {
			switch {
			case r[0] == "key":
				f.key = strings.TrimSpace(r[1])
			case r[0] == "source" && len(r) == 3:
				f.names, f.files[r[1]] = append(f.names, r[1]), r[2]
			}
		}
		return f, nil
	},
	Fill: func(q *aspect.Query, f repositoryFound, have *spec.Spec) {
		if q.Want.Config.PVE.NoSubscription {
			have.Config.PVE.NoSubscription = f.declared(q) && !f.changes(disable)
		} else {
			_, ours := f.files[sourcesFile]
			have.Config.PVE.NoSubscription = ours || f.changes(enable)
		}
	},
	Steps: func(q *aspect.Query, f repositoryFound) []aspect.Step {
		e := guest.RecordEntry{Aspect: "pverepository", Item: sourcesFile, Identity: "name"}
		if !q.Want.Config.PVE.NoSubscription {
			drop := "for _f in " + sourcesFile + " " + keyFile + `; do if [ -e "$_f" ]; then drop "$_f"; fi; done`
			return []aspect.Step{{
				Stage: aspect.StageWithdrawSources, Text: "install from the repositories of Proxmox VE that were there", Drop: []guest.RecordKey{e.Key()},
				Script: f.rewrite(enable) + guest.Lines(drop),
			}}
		}
		s := aspect.Step{Stage: aspect.StageSources, Text: "install Proxmox VE from the repository without subscription", Keep: []guest.RecordEntry{e}, Script: f.rewrite(disable)}
		k, known := keyOf(q.OS)
		switch {
		case !known:
			s.Keep, s.Script = nil, "die "+guest.Quote("Proxmox VE is for Debian 12 and 13, and this machine runs "+q.OS.Name+": take no_subscription out of the spec")+"\n"
		case !f.declared(q):
			s.Script, s.Supplies, s.State = aspect.AptGet+s.Script+f.add(k), true, aspect.AptState
		}
		return []aspect.Step{s}
	},
}

type repositoryFound struct {
	names []string          // of files of apt that name Proxmox
	files map[string]string // their texts
	key   string            // file with the key, "" if none
}

// declared reports whether apt installs from the repository.
func (f repositoryFound) declared(q *aspect.Query) bool {
	k, _ := keyOf(q.OS)
	for _, name := range f.names {
		if name == sourcesFile {
			if f.files[name] == f.text(k) {
				return true
			}
			continue
		}
		if active(name, f.files[name], "pve-no-subscription") {
			return true
		}
	}
	return false
}

// changes reports whether a rewrite would change an unmanaged file.
func (f repositoryFound) changes(rewrite func(name, text string) string) bool {
	for _, name := range f.names {
		if name != sourcesFile && rewrite(name, f.files[name]) != f.files[name] {
			return true
		}
	}
	return false
}

func (f repositoryFound) rewrite(rewrite func(name, text string) string) string {
	var lines []string
	for _, name := range f.names {
		if text := rewrite(name, f.files[name]); name != sourcesFile && text != f.files[name] {
			lines = append(lines, guest.FileUnchanged(name, guest.ContentSum(f.files[name]), true), guest.PutFile(name, text, "0644", "root", "root"))
		}
	}
	return guest.Lines(append(lines, ":")...)
}

func (f repositoryFound) text(k key) string {
	signed := cmp.Or(f.key, keyFile)
	return aspect.Heading + "Types: deb\nURIs: http://download.proxmox.com/debian/pve\nSuites: " + k.suite + "\nComponents: pve-no-subscription\nSigned-By: " + signed + "\n"
}

// add reads the repository from a file aside before apt sees it in its folder.
func (f repositoryFound) add(k key) string {
	const beside = "/run/homestak-pve.sources"
	lines, undo := []string{}, ":"
	if f.key == "" {
		undo = "rm -f " + keyFile
		lines = append(lines,
			"[ -d /etc/apt/keyrings ] || mkdir -m 0755 /etc/apt/keyrings",
			"rm -rf /run/homestak-pve-key && mkdir -m 0755 /run/homestak-pve-key",
			"_said=$(cd /run/homestak-pve-key && /usr/lib/apt/apt-helper -q download-file "+k.url+" key "+k.sum+` 2>&1) || { rm -rf /run/homestak-pve-key; die "the key of Proxmox cannot be fetched from `+k.url+` (https needs the package ca-certificates), or is not the one that is known: $(printf '%s' "$_said" | grep '^[EW]:' | head -n 3)"; }`,
			"put "+keyFile+" 0644 root root </run/homestak-pve-key/key",
			"rm -rf /run/homestak-pve-key")
	}
	lines = append(lines,
		guest.PutFile(beside, f.text(k), "0644", "root", "root"),
		"if ! apt_get update -o Dir::Etc::sourcelist="+beside+" -o Dir::Etc::sourceparts=- -o APT::Get::List-Cleanup=0 -o APT::Update::Error-Mode=any; then",
		"  rm -f "+beside, "  "+undo, "  die 'the repository of Proxmox VE cannot be read'",
		"fi",
		guest.PutFile(sourcesFile, f.text(k), "0644", "root", "root"), "rm -f "+beside)
	return guest.Lines(lines...)
}

const (
	enterprise = "enterprise.proxmox.com"
	marker     = "# homestak-gitops: " // before what we disabled
	disabled   = "Enabled: no"
)

// stanzas cuts a file in the form deb822 apart (sources.list(5)), each with the empty lines
// behind it.
func stanzas(text string) []string {
	var out []string
	begin := true
	for line := range strings.Lines(text) {
		empty := strings.TrimSpace(line) == ""
		if begin && !empty {
			out = append(out, "")
		}
		if begin = empty; len(out) == 0 {
			out = append(out, "")
		}
		out[len(out)-1] += line
	}
	return out
}

// off reports whether a stanza is disabled.
func off(stanza string) bool {
	for line := range strings.Lines(stanza) {
		name, value, _ := strings.Cut(line, ":")
		if v := strings.ToLower(strings.TrimSpace(value)); strings.EqualFold(name, "enabled") && (v == "no" || v == "false" || v == "0" || v == "off" || v == "without" || v == "disable") {
			return true
		}
	}
	return false
}

// uses reports whether a line or stanza that counts has a word in it.
func uses(text, word string) bool {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") && strings.Contains(line, word) {
			return true
		}
	}
	return false
}

// active reports whether a file of apt has an entry in force with a word.
func active(name, text, word string) bool {
	if !strings.HasSuffix(name, ".sources") {
		return uses(text, word)
	}
	for _, s := range stanzas(text) {
		if uses(s, word) && !off(s) {
			return true
		}
	}
	return false
}

// disable is a file of apt without the entries that need a subscription. They stay as comments.
func disable(name, text string) string {
	var out strings.Builder
	if !strings.HasSuffix(name, ".sources") {
		for line := range strings.Lines(text) {
			if uses(line, enterprise) {
				out.WriteString(marker)
			}
			out.WriteString(line)
		}
		return out.String()
	}
	for _, s := range stanzas(text) {
		if !uses(s, enterprise) || off(s) {
			out.WriteString(s)
			continue
		}
		body := strings.TrimRight(s, "\n")
		rest, done := s[len(body):], false
		for line := range strings.Lines(body + "\n") {
			if name, _, _ := strings.Cut(line, ":"); strings.EqualFold(name, "enabled") {
				line, done = marker+line+disabled+"\n", true
			}
			out.WriteString(line)
		}
		if !done {
			out.WriteString(marker + "\n" + disabled + "\n")
		}
		out.WriteString(strings.TrimPrefix(rest, "\n"))
	}
	return out.String()
}

// enable is a file of apt with what disable took out of it.
func enable(_, text string) string {
	var out strings.Builder
	ours := false
	for line := range strings.Lines(text) {
		before, marked := strings.CutPrefix(line, marker)
		switch {
		case marked:
			if strings.TrimSpace(before) != "" {
				out.WriteString(before)
			}
		case ours && strings.TrimSpace(line) == disabled:
		default:
			out.WriteString(line)
		}
		ours = marked
	}
	return out.String()
}
