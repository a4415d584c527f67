package notify

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// mostLines is the number of incidents in the text of a message.
const mostLines = 20

// mostText is the length of these lines, in bytes. Discord takes 2,000 characters with title and end, ntfy 4,096 bytes; they reject
// what is longer.
const mostText = 1500

// words returns a message as text: a title of one line, and a body.
func words(m message) (title, text string) {
	if m.Kind == kindTest {
		return "homestak: test", m.Text
	}
	title = what(m)
	switch m.Kind {
	case kindResolved:
		title = "recovered: " + title
	case kindReminder:
		title = "still: " + title
	default:
	}
	var b strings.Builder
	named := 0
	for _, i := range m.Members[:min(len(m.Members), mostLines)] {
		line := place(i) + ": " + i.Text + "\n"
		if named > 0 && b.Len()+len(line) > mostText {
			break
		}
		b.WriteString(line)
		named++
	}
	if more := len(m.Members) + m.More - named; more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	switch since := m.Since.Format("2006-01-02 15:04 UTC"); m.Kind {
	case kindResolved:
		fmt.Fprintf(&b, "It lasted from %s to %s.\n", since, m.At.Format("2006-01-02 15:04 UTC"))
	case kindReminder:
		fmt.Fprintf(&b, "Since %s.\n", since)
	default:
	}
	if m.Flaps && m.Kind != kindResolved {
		b.WriteString("It is flapping: recovery is reported once it stays away.\n")
	}
	return title, strings.TrimRight(b.String(), "\n")
}

// place names the object of an incident.
func place(i incident) string {
	if i.Address == hostAddress(i.Host) {
		return i.Host
	}
	return i.Address + " on " + i.Host
}

// what summarizes a message: what happened, and where.
func what(m message) string {
	if len(m.Members) == 0 {
		return "homestak"
	}
	one := m.Members[0]
	verb := map[condition]string{failed: "failed", drifted: "changed by hand", refused: "refused a commit", expiring: "expires soon"}[one.Condition]
	n := len(m.Members) + m.More
	hosts := []string{}
	for _, i := range m.Members {
		if !slices.Contains(hosts, i.Host) {
			hosts = append(hosts, i.Host)
		}
	}
	alone := slices.ContainsFunc(m.Members, func(i incident) bool { return i.Address != hostAddress(i.Host) }) || len(hosts) < n && m.More == 0
	switch {
	case n == 1:
		return place(one) + ": " + verb
	case len(hosts) == 1:
		return fmt.Sprintf("%s: %d %s", one.Host, n, verb)
	case alone:
		return fmt.Sprintf("%d on %s: %s", n, diag.Count(len(hosts), "host"), verb)
	default:
		return fmt.Sprintf("%s: %s", diag.Count(n, "host"), verb)
	}
}

// document is a message for programs: the body of a webhook. Its title, body and type are those that an apprise server
// takes.
type document struct {
	Version   int          `json:"version"` // 1
	ID        string       `json:"id"`      // kept when it is resent
	Notify    string       `json:"notify"`
	State     kind         `json:"state"`    // firing, reminder, resolved or test
	Incident  string       `json:"incident"` // the same one in all messages about it
	At        time.Time    `json:"at"`
	Since     time.Time    `json:"since,omitzero"`
	Flaps     bool         `json:"flaps"`
	Incidents []documented `json:"incidents"`
	More      int          `json:"more"` // incidents that are not listed
	Title     string       `json:"title"`
	Body      string       `json:"body"`
	Type      string       `json:"type"` // info, success, warning or failure
}

// documented is an incident.
type documented struct {
	Fingerprint string    `json:"fingerprint"` // of condition, host and address
	Condition   condition `json:"condition"`
	Host        string    `json:"host"`
	Address     string    `json:"address"`
	Text        string    `json:"text"`
}

// severity is the type of a message for apprise.
func severity(m message) string {
	switch {
	case m.Kind == kindTest:
		return "info"
	case m.Kind == kindResolved:
		return "success"
	case len(m.Members) > 0 && (m.Members[0].Condition == failed || m.Members[0].Condition == refused):
		return "failure"
	default:
		return "warning"
	}
}
