package aspect

import (
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// repositories are the sources of apt in addition to those of the image: a file in the form of
// sources.list(5), and the key that signs the repository.
var repositories = Of[map[string]source]{
	Name: "repositories", Doc: "Repositories that apt installs from.",
	Paths: []string{"config.repository"},
	Probe: func(q *Query) string {
		var lines []string
		for _, name := range q.Items("repositories", repositoryNames(q.Want)) {
			for _, f := range []string{sourcesFile(name), keyFile(name)} {
				f = guest.Quote(f)
				lines = append(lines, "if [ -f "+f+" ]; then row file "+f+" <"+f+"; fi")
			}
		}
		return script(append(lines, ":")...)
	},
	Parse: func(q *Query, rows [][]string) (map[string]source, error) {
		text := map[string]string{}
		for _, r := range rows {
			if len(r) == 3 {
				text[r[1]] = r[2]
			}
		}
		found := map[string]source{}
		for _, name := range q.Items("repositories", repositoryNames(q.Want)) {
			list, there := text[sourcesFile(name)]
			key, hasKey := text[keyFile(name)] // alone where a removal was cut off
			if there || hasKey {
				found[name] = source{text: list, key: key}
			}
		}
		return found, nil
	},
	Fill: func(q *Query, found map[string]source, have *spec.Spec) {
		for _, name := range q.Items("repositories", repositoryNames(q.Want)) {
			if s, there := found[name]; there {
				have.Config.Repositories = append(have.Config.Repositories, s.repository(name, q.Want.Repository(name)))
			}
		}
	},
	Steps: func(q *Query, found map[string]source) []Step {
		var steps []Step
		for _, name := range q.Items("repositories", repositoryNames(q.Want)) {
			e := guest.RecordEntry{Aspect: "repositories", Item: name, Identity: "name"}
			want := q.Want.Repository(name)
			if want == nil {
				steps = append(steps, Step{
					Stage: StageWithdrawSources, Text: "remove repository " + name, Drop: []guest.RecordKey{e.Key()},
					Script: script("drop "+guest.Quote(sourcesFile(name)), "if [ -d "+keyFolder+" ]; then drop "+guest.Quote(keyFile(name))+"; fi"),
				})
				continue
			}
			s, there := found[name]
			if there && s.text == sourcesText(want) && s.key == keyText(want) {
				continue
			}
			steps = append(steps, Step{Stage: StageSources, Text: "add repository " + name, Wait: aptWait, Supplies: true, State: AptState, Keep: []guest.RecordEntry{e}, Script: addRepository(want, s)})
		}
		return steps
	},
}

// source is the files of a repository.
type source struct{ text, key string }

// repository reads the file if the spec wrote it; a modified one differs.
func (s source) repository(name string, want *spec.Repository) spec.Repository {
	r := spec.Repository{Name: name, Key: s.key}
	for line := range strings.Lines(s.text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch key {
		case "URIs":
			r.URL = value
		case "Suites":
			r.Suites = strings.Fields(value)
		case "Components":
			r.Components = strings.Fields(value)
		}
	}
	if want != nil {
		if s.key == keyText(want) {
			r.Key = want.Key
		}
		if s.text != sourcesText(want) && r.URL == want.URL && slices.Equal(r.Suites, want.Suites) && slices.Equal(r.Components, want.Components) {
			r.URL += " (" + sourcesFile(name) + " was changed)"
		}
	}
	return r
}

const keyFolder = "/etc/apt/keyrings"

func sourcesFile(name string) string {
	return "/etc/apt/sources.list.d/homestak-" + name + ".sources"
}
func keyFile(name string) string { return keyFolder + "/homestak-" + name + ".asc" }

func repositoryNames(s *spec.Spec) []string {
	var out []string
	for _, r := range s.Config.Repositories {
		out = append(out, r.Name)
	}
	return out
}

func keyText(r *spec.Repository) string {
	if r.Key == "" {
		return ""
	}
	return strings.TrimSpace(r.Key) + "\n"
}

func sourcesText(r *spec.Repository) string {
	text := heading + "Types: deb\nURIs: " + r.URL + "\nSuites: " + strings.Join(r.Suites, " ") + "\n"
	if len(r.Components) > 0 {
		text += "Components: " + strings.Join(r.Components, " ") + "\n"
	}
	if r.Key != "" {
		text += "Signed-By: " + keyFile(r.Name) + "\n"
	}
	return text
}

// addRepository reads the repository from a file aside before apt sees it in its folder: a
// wrong address or key there would spoil every later update.
func addRepository(want *spec.Repository, found source) string {
	beside := "/run/homestak-" + want.Name + ".sources"
	key := guest.Quote(keyFile(want.Name))
	restoreKey := "rm -f " + key
	if found.key != "" {
		restoreKey = guest.PutFile(keyFile(want.Name), found.key, "0644", "root", "root")
	}
	lines := []string{}
	if want.Key != "" {
		lines = append(lines, "[ -d "+keyFolder+" ] || mkdir -m 0755 "+keyFolder, guest.PutFile(keyFile(want.Name), keyText(want), "0644", "root", "root"))
	}
	only := " -o Dir::Etc::sourcelist=" + guest.Quote(beside) + " -o Dir::Etc::sourceparts=-"
	lines = append(lines,
		guest.PutFile(beside, sourcesText(want), "0644", "root", "root"),
		"if ! reach"+only+"; then",
		"  rm -f "+guest.Quote(beside), "  "+restoreKey, "  die "+guest.Quote("repository "+want.Name+" cannot be read: ")+`"$_net"`,
		"fi",
		"if ! apt_get update"+only+" -o APT::Get::List-Cleanup=0 -o APT::Update::Error-Mode=any; then",
		"  rm -f "+guest.Quote(beside), "  "+restoreKey, "  die "+guest.Quote("repository "+want.Name+" cannot be read: check url, suites and key"),
		"fi",
		guest.PutFile(sourcesFile(want.Name), sourcesText(want), "0644", "root", "root"), "rm -f "+guest.Quote(beside))
	if want.Key == "" {
		lines = append(lines, "if [ -f "+key+" ]; then drop "+key+"; fi")
	}
	return aptGet + script(lines...)
}
