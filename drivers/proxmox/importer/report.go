package importer

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Report says what was written, and what was not and why.
type Report struct {
	Host      string          `json:"host"`
	Files     []string        `json:"files"`
	Imported  []importedGuest `json:"imported"`
	Skipped   []skippedGuest  `json:"skipped"`
	Templates int             `json:"templates"`
	Objects   int             `json:"objects"`  // pools and IP sets
	Managed   int             `json:"managed"`  // guests with an ownership tag
	Declared  int             `json:"declared"` // guests whose VMID a node of the site has
	Unknown   []model.Unknown `json:"unknown"`  // what could not be seen
}

// importedGuest is a guest that is written.
type importedGuest struct {
	Type     string `json:"type"`
	VMID     int    `json:"vmid"`
	Node     string `json:"node"`
	Manifest string `json:"manifest"`
	Left     []Left `json:"left,omitempty"`
	Password bool   `json:"password,omitempty"` // its notes look as if they hold one; they are written
	Secret   string `json:"secret,omitempty"`   // the name under passwords of the one that its node uses; the host does not show the value
}

// password is how notes of guests name what should be in no file.
var password = regexp.MustCompile(`(?i)(password|passwd|token|secret)\s*[:=]`)

// skippedGuest is a guest or another object that is not written.
type skippedGuest struct {
	Type string `json:"type"`
	VMID int    `json:"vmid,omitempty"`
	Name string `json:"name"`
	Why  string `json:"why"`
	Fix  string `json:"fix"`
}

// Secrets are the names of the passwords that the nodes use.
func (r *Report) Secrets() []string {
	var out []string
	for _, i := range r.Imported {
		if i.Secret != "" {
			out = append(out, i.Secret)
		}
	}
	return out
}

// mostNamed is how many guests a line of the report names.
const mostNamed = 6

// Text writes the report for people: a line for what several guests have in common.
func (r *Report) Text(w io.Writer) {
	fmt.Fprintf(w, "host %s: %s written", r.Host, diag.Count(len(r.Imported), "guest"))
	for _, part := range []struct {
		n    int
		text string
	}{{r.Templates, "templates written"}, {r.Objects, "pools and IP sets written"}, {len(r.Skipped), "not written"}, {r.Managed, "managed already"}, {r.Declared, "declared already"}} {
		if part.n > 0 {
			fmt.Fprintf(w, ", %d %s", part.n, part.text)
		}
	}
	fmt.Fprintln(w)
	for _, name := range r.Files {
		fmt.Fprintf(w, "  %s\n", name)
	}
	var skipped, left, notes, secrets groups
	for _, s := range r.Skipped {
		words := []string{s.Type, s.Name}
		if s.VMID > 0 {
			words = []string{s.Type, strconv.Itoa(s.VMID), s.Name}
		}
		skipped.add(s.Why+"\x00"+s.Fix, diag.Line(strings.TrimSpace(strings.Join(words, " "))))
	}
	for _, i := range r.Imported {
		if i.Password {
			why, fix := "they may hold a password, and are in the files", "remove it from description before the files go to git"
			notes.add(why+"\x00"+fix, i.Node)
		}
		if i.Secret != "" {
			why, fix := "Proxmox VE does not show the password of a guest, and only a new guest needs it", "fill it in under passwords before the guest is created again"
			secrets.add(why+"\x00"+fix, i.Secret)
		}
		for _, l := range i.Left {
			left.add(l.Why+"\x00", i.Node+" "+l.Key)
		}
	}
	skipped.text(w, "not written")
	left.text(w, "left as it is")
	notes.text(w, "notes")
	secrets.text(w, "secret without a value")
	for _, u := range r.Unknown {
		fmt.Fprintf(w, "not seen: %s: %s\n", u.Scope, diag.Line(u.Why))
	}
}

// groups are names by what they have in common, in the order in which that came up.
type groups struct {
	reasons []string
	names   map[string][]string
}

func (g *groups) add(reason, name string) {
	if g.names == nil {
		g.names = map[string][]string{}
	}
	if g.names[reason] == nil {
		g.reasons = append(g.reasons, reason)
	}
	g.names[reason] = append(g.names[reason], name)
}

func (g *groups) text(w io.Writer, head string) {
	slices.SortStableFunc(g.reasons, func(a, b string) int { return len(g.names[b]) - len(g.names[a]) })
	for _, reason := range g.reasons {
		names := g.names[reason]
		more := ""
		if n := len(names) - mostNamed; n > 0 {
			names, more = names[:mostNamed], fmt.Sprintf(" and %d more", n)
		}
		why, fix, _ := strings.Cut(reason, "\x00")
		fmt.Fprintf(w, "%s: %s%s: %s\n", head, strings.Join(names, ", "), more, diag.Line(why))
		if fix != "" {
			fmt.Fprintf(w, "  %s\n", diag.FirstLine(fix))
		}
	}
}
