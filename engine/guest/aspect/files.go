package aspect

import (
	"maps"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
)

// mostShown is up to which size the present content of a file is read, so that a plan can
// compare it; of a larger one it shows the checksum.
const mostShown = "16384"

// mostRead is up to which size a file is read that is in place of a declared one: what content of guest.Script reads.
const mostRead = "67108864"

// tooLarge stands for such a file.
const tooLarge = "a file of more than 64 MiB"

// files is files with a given content. One that was there before us is kept aside, and is
// restored when the spec drops the file.
var files = Of[map[string]file]{
	Name: "files", Doc: "Files with a given content.",
	Paths: []string{"config.file"},
	Probe: func(q *Query) string {
		lines := []string{
			"_file() (", `  _dir=${1%/*} _name=./${1##*/}`,
			`  _why=$(enter "${_dir:-/}" 2>&1) || { if [ -n "$_why" ]; then printf %s "$_why" | row beyond "$1"; fi; exit 0; }`, `  enter "${_dir:-/}" || exit 0`,
			`  if [ -L "$_name" ]; then echo link | row odd "$1"; exit 0; fi`, `  if [ -e "$_name" ] && [ ! -f "$_name" ]; then echo "no plain file" | row odd "$1"; exit 0; fi`,
			`  [ -f "$_name" ] || exit 0`, `  _size=$(stat -c %s -- "$_name")`, `  if [ "$_size" -gt ` + mostRead + ` ]; then echo "` + tooLarge + `" | row odd "$1"; exit 0; fi`,
			`  stat -c '%a %U %G' -- "$_name" | row stat "$1"`, `  _sum=$(content "$_name" | sha256sum | cut -c1-64)`, `  printf %s "$_sum" | row sum "$1"`,
			`  if [ -n "$2" ] && [ "$_sum" != "$2" ] && [ "$_size" -le ` + mostShown + ` ]; then content "$_name" ` + mostShown + ` | row content "$1"; fi`, ")",
		}
		for _, name := range q.Items("files", filePaths(q.Want)) {
			sum := ""
			if f := q.Want.File(name); f != nil && !secretFile(q, name) {
				sum = fileSum(f.Bytes())
			}
			lines = append(lines, "_file "+guest.QuoteWords([]string{name, sum}))
		}
		return script(lines...)
	},
	Parse: func(_ *Query, rows [][]string) (map[string]file, error) {
		found := map[string]file{}
		for _, r := range rows {
			if len(r) != 3 {
				continue
			}
			f := found[r[1]]
			switch r[0] {
			case "odd":
				f.odd = strings.TrimSpace(r[2])
			case "beyond":
				f.beyond = firstLine(r[2])
			case "sum":
				f.sum = r[2]
			case "content":
				f.content, f.read = r[2], true
			case "stat":
				if words := strings.Fields(r[2]); len(words) == 3 {
					f.mode, f.owner, f.group = spec.FourDigits(words[0]), words[1], words[2]
				}
			}
			found[r[1]] = f
		}
		return found, nil
	},
	Fill: func(q *Query, found map[string]file, have *spec.Spec) {
		for _, name := range q.Items("files", filePaths(q.Want)) {
			f, there := found[name]
			want, e := q.Want.File(name), q.Record.Get("files", name)
			if !there && (want != nil || e.Found == nil) {
				continue
			}
			got := spec.File{Path: name, Mode: f.mode, Owner: f.owner, Group: f.group, Content: f.shown()}
			if want != nil {
				if f.sum == fileSum(want.Bytes()) {
					got.Content = want.Content
				}
				got.Restart = slices.Clone(want.Restart)
				if secretFile(q, name) && got.Content != want.Content {
					got.Content = model.Sensitive
				}
				if e != nil && e.Put["restart"] != "" {
					got.Restart = nil // it was written, and the units were not restarted yet
				}
				if e != nil && e.Put["unconfirmed"] != "" {
					got.Mode += " (unconfirmed)"
				}
			}
			have.Config.Files = append(have.Config.Files, got)
		}
	},
	Steps: func(q *Query, found map[string]file) []Step {
		var steps []Step
		for _, name := range q.Items("files", filePaths(q.Want)) {
			want, e := q.Want.File(name), q.Record.Get("files", name)
			f, there := found[name]
			switch {
			case want == nil:
				steps = append(steps, withdrawFile(e, f))
			case !there || f.differs(want) || e != nil && (e.Put["restart"] != "" || e.Put["unconfirmed"] != ""):
				steps = append(steps, writeFile(q, want, e, f, there))
			}
		}
		return steps
	},
}

type file struct {
	mode, owner, group string
	sum                string
	content            string
	read               bool   // content is that of the file
	odd                string // what it is, if no plain file
	beyond             string // why its folder is not entered, and the rest is not known
}

func (f file) shown() string {
	switch {
	case f.odd != "", f.beyond != "":
		return "(" + f.odd + f.beyond + ")"
	case f.read:
		var shown spec.File
		shown.SetContent([]byte(f.content))
		return shown.Content
	default:
		return "sha256:" + f.sum
	}
}

// secretFile reports whether the content is made from a secret, now or when it was written.
func secretFile(q *Query, name string) bool {
	e := q.Record.Get("files", name)
	return q.Want.IsSensitive("config.file."+name+".content") || e != nil && e.Put["sensitive"] != ""
}

func (f file) differs(want *spec.File) bool {
	return f.sum != fileSum(want.Bytes()) || f.mode != want.Mode || f.owner != want.Owner || f.group != want.Group
}

func filePaths(s *spec.Spec) []string {
	var out []string
	for _, f := range s.Config.Files {
		out = append(out, f.Path)
	}
	return out
}

func fileSum(content string) string {
	if content == "" {
		return emptySum
	}
	return guest.ContentSum(content)
}

// asideFolder keeps what was found where we put a file. Only root may read it.
const asideFolder = guest.RecordFolder + "/found"

func aside(name string) string { return asideFolder + "/" + guest.ContentSum(name) }

// keepAside keeps what is found in place of a file, if it still has that checksum.
func keepAside(name, sum string) string {
	return script("[ -d "+asideFolder+" ] || mkdir -m 0700 "+asideFolder,
		"[ -f "+aside(name)+" ] || keep "+guest.QuoteWords([]string{name, aside(name), sum}))
}

// writeFile is done when the units that use the file have restarted: the record says that
// they wait for it before the file changes.
func writeFile(q *Query, want *spec.File, e *guest.RecordEntry, f file, there bool) Step {
	s := Step{Stage: StageFiles, Text: "write " + want.Path}
	entry := guest.RecordEntry{Aspect: "files", Item: want.Path, Identity: "path"}
	var lines []string
	switch {
	case e != nil:
		entry.Found = e.Found
	case there && f.odd == "" && f.beyond == "":
		entry.Found = map[string]string{"mode": f.mode, "owner": f.owner, "group": f.group, "sha256": f.sum}
	}
	if entry.Found != nil { // also if an earlier run was cut off before it kept it
		lines = append(lines, strings.TrimSuffix(keepAside(want.Path, entry.Found["sha256"]), "\n"))
	}
	after := entry
	after.Put = map[string]string{}
	if secretFile(q, want.Path) {
		after.Put["sensitive"] = "true"
	}
	if len(want.Restart) > 0 {
		after.Put["units"] = strings.Join(want.Restart, " ")
	}
	g := gateOf(want.Path)
	if len(want.Restart) > 0 || g != noGate {
		entry.Put = maps.Clone(after.Put)
	}
	if len(want.Restart) > 0 {
		entry.Put["restart"] = strings.Join(want.Restart, " ")
	}
	if g != noGate {
		entry.Put["unconfirmed"] = "true"
	}
	s.Keep, s.After = []guest.RecordEntry{entry}, []guest.RecordEntry{after}
	needs := []string{"id -u -- " + guest.Quote(want.Owner) + " >/dev/null 2>&1", "getent group " + guest.Quote(want.Group) + " >/dev/null"}
	if f.odd == tooLarge {
		lines = append(lines, "( enter "+guest.Quote(folder(want.Path))+"; failed "+guest.QuoteWords([]string{want.Path, "is " + tooLarge + ", which is not kept: move it away, and apply again"})+" )")
	}
	lines = append(lines,
		needs[0]+" || die "+guest.Quote(want.Path+": this machine has no user "+want.Owner),
		needs[1]+" || die "+guest.Quote(want.Path+": this machine has no group "+want.Group),
		g.candidate(want.Path, want.Bytes())+"folder "+guest.Quote(folder(want.Path)), guest.PutFile(want.Path, want.Bytes(), want.Mode, want.Owner, want.Group))
	if text := g.enforce(want.Path); text != "" {
		lines = append(lines, strings.TrimSuffix(text, "\n"))
	}
	for _, u := range want.Restart {
		s.Text += ", restart " + u
		lines = append(lines, restartUnit(u))
		needs = append(needs, unitThere(u))
	}
	s.Script = script(lines...)
	s.Needs = all(append(needs, "[ -d "+guest.Quote(folder(want.Path))+" ]", q.onDisk(want.Path))...)
	g.guard(&s, want.Path, want.Restart)
	return s
}

// restartUnit restarts a unit that runs; one that does not reads the file when it starts.
func restartUnit(name string) string {
	return "unit try-restart " + guest.Quote(unitFile(name))
}

// withdrawFile puts back what was found, or removes the file.
func withdrawFile(e *guest.RecordEntry, f file) Step {
	name := guest.Quote(e.Item)
	s := Step{Stage: StageWithdrawFiles, Text: "remove " + e.Item, Drop: []guest.RecordKey{e.Key()}}
	switch {
	case f.beyond != "":
		s.Script = "blocked " + guest.Quote(f.beyond) + "\n"
		if e.Found == nil { // perhaps the spec never wrote it
			s.Script = "if [ -e " + name + " ] || [ -L " + name + " ]; then " + strings.TrimSpace(s.Script) + "; fi\n"
		}
		return s
	case f.odd != "":
		s.Text, s.Script = "leave "+e.Item+" as it is: "+f.odd, ":\n"
	case e.Found == nil:
		s.Script = script("if [ -e " + name + " ]; then drop " + name + "; fi")
	default:
		s.Text = "put back what was at " + e.Item
		s.Script = script(
			"if [ -f "+aside(e.Item)+" ]; then",
			"  put "+name+" "+guest.QuoteWords([]string{e.Found["mode"], e.Found["owner"], e.Found["group"]})+" <"+aside(e.Item),
			"elif [ \"$(sum "+name+")\" != "+guest.Quote(e.Found["sha256"])+" ]; then", // an earlier run was cut off while it finished
			"  die "+guest.Quote("what was at "+e.Item+" is not in "+asideFolder+" any more: put it back, or remove the entry from "+guest.RecordFile),
			"fi")
		s.Finish = script("drop " + aside(e.Item))
	}
	for u := range strings.FieldsSeq(e.Put["units"]) { // one that went with its package needs nothing
		s.Script += "if [ \"$(systemctl show -p LoadState --value -- " + guest.Quote(unitFile(u)) + ")\" = loaded ]; then " + restartUnit(u) + "; fi\n"
	}
	if g := gateOf(e.Item); f.odd == "" {
		s.Script += g.enforce(e.Item)
		g.guard(&s, e.Item, strings.Fields(e.Put["units"]))
	}
	return s
}

// folder is the folder that a file is in.
func folder(name string) string {
	if i := strings.LastIndexByte(name, '/'); i > 0 {
		return name[:i]
	}
	return "/"
}
