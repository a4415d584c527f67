package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/diag"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

const head = "0123456789abcdef0123456789abcdef01234567"

// good is a report of inner with a node, and below that another one.
func good() Report {
	return Report{
		Version: ReportVersion, Identity: "inner", Agent: "0.1.0", Commit: head, LastGood: head, At: noon, Phase: PhaseRun, Ready: true,
		Findings: diag.List{{Severity: diag.Warning, Summary: "image without checksum"}},
		Nodes: []ReportNode{
			{Name: "leaf", Type: "pve", Parent: "inner", Phase: PhaseRun, Ready: true, Since: noon},
			{Name: "app", Type: "vm", Parent: "leaf", Phase: PhaseRun, Ready: true, Since: noon},
		},
	}
}

func read(t *testing.T, r Report) (Report, error) {
	t.Helper()
	data, err := json.Marshal(r)
	require.NoError(t, err)
	return ReadReport(bytes.NewReader(data), "inner", noon)
}

func TestAReportIsReadAsItWasWritten(t *testing.T) {
	got, err := read(t, good())
	require.NoError(t, err)
	require.Equal(t, good(), got)
}

// A document that violates the protocol is refused with the reason.
func TestReportsThatAreRefused(t *testing.T) {
	for want, change := range map[string]func(*Report){
		"version is 2":                              func(r *Report) { r.Version = 2 },
		`it is of "father"`:                         func(r *Report) { r.Identity = "father" },
		"object names of git":                       func(r *Report) { r.Commit = "main" },
		`phase "asleep" is not known`:               func(r *Report) { r.Phase = "asleep" },
		"it has no time":                            func(r *Report) { r.At = time.Time{} },
		"its clock is 6m0s ahead of this machine's": func(r *Report) { r.At = noon.Add(6 * time.Minute) },
		"it is empty, and has nodes":                func(r *Report) { r.Empty = true },
		"names no commit at which it is":            func(r *Report) { r.Empty, r.Nodes, r.Commit = true, nil, "" },
		`node 1 has the name "../x"`:                func(r *Report) { r.Nodes[0].Name = "../x" },
		"node leaf is listed twice":                 func(r *Report) { r.Nodes[1].Name = "leaf" },
		"node inner is listed twice":                func(r *Report) { r.Nodes[1].Name = "inner" },
		`node app is of type "pod"`:                 func(r *Report) { r.Nodes[1].Type = "pod" },
		`parent of node leaf, "app", is not befo`:   func(r *Report) { r.Nodes[0].Parent = "app" },
		"phase \"\" of node app":                    func(r *Report) { r.Nodes[1].Phase = "" },
		"a drift of -1":                             func(r *Report) { r.Nodes[1].Drift = -1 },
		"cut is -1":                                 func(r *Report) { r.Cut = -1 },
		"it comes every -1 seconds":                 func(r *Report) { r.Every = -1 },
		"it comes every 86401 seconds":              func(r *Report) { r.Every = 86401 },
		`severity "fatal"`:                          func(r *Report) { r.Findings[0].Severity = "fatal" },
	} {
		r := good()
		change(&r)
		_, err := read(t, r)
		require.ErrorContains(t, err, want)
		requireInvalid(t, err, false, want)
	}
	for _, text := range []string{"", "null", "[]", "{", `{"version": "1"}`, `{"version": 1} {}`, "\xff", `"x"`} {
		_, err := ReadReport(strings.NewReader(text), "inner", noon)
		requireInvalid(t, err, false, "%q", text)
	}
	_, err := ReadReport(io.MultiReader(strings.NewReader("{"), failing{}), "inner", noon)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// endless is a body without an end.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	e.read += len(p)
	return len(p), nil
}

// requireInvalid wants a ReportError.
func requireInvalid(t *testing.T, err error, tooLarge bool, about ...any) {
	t.Helper()
	var wrong *ReportError
	require.ErrorAs(t, err, &wrong, about...)
	require.Equal(t, tooLarge, wrong.TooLarge, about...)
}

func TestReportsThatAreTooLarge(t *testing.T) {
	body := &endless{}
	_, err := ReadReport(body, "inner", noon)
	requireInvalid(t, err, true)
	require.LessOrEqual(t, body.read, 2*MaxReport, "no more than that was read")
	long := strings.Repeat("x", maxText+1)
	for want, change := range map[string]func(*Report){
		"the error of node leaf": func(r *Report) { r.Nodes[0].Error = long },
		"finding 1 has a text":   func(r *Report) { r.Findings[0].Detail = long },
		"its version of the":     func(r *Report) { r.Agent = long },
		"20001 nodes":            func(r *Report) { r.Nodes = make([]ReportNode, maxNodes+1) },
		"1001 findings":          func(r *Report) { r.Findings = make(diag.List, maxReportFindings+1) },
	} {
		r := good()
		change(&r)
		_, err := read(t, r)
		require.ErrorContains(t, err, want)
		requireInvalid(t, err, true)
	}
}

// A newer child may add members.
func TestMembersOfANewerChild(t *testing.T) {
	data, err := json.Marshal(good())
	require.NoError(t, err)
	data = append(bytes.TrimSuffix(data, []byte("}")), `,"color":"red"}`...)
	_, err = ReadReport(bytes.NewReader(data), "inner", noon)
	require.NoError(t, err)
}

func TestTheStoreKeepsTheNewest(t *testing.T) {
	s := &ReportStore{}
	_, there := s.Get("inner")
	require.False(t, there)
	newer, older := good(), good()
	newer.At, older.At = noon, noon.Add(-time.Second)
	older.Ready = false
	require.True(t, s.Put(newer, noon))
	require.False(t, s.Put(older, noon.Add(time.Second)), "a request that was overtaken")
	got, _ := s.Get("inner")
	require.True(t, got.Ready)
	require.True(t, s.Put(older, noon.Add(time.Hour)), "the clock of the child was set back")

	other := good()
	other.Identity = "annex"
	s.Put(other, noon)
	require.Len(t, s.All(), 2)
	require.Equal(t, "annex", s.All()[0].Identity)
	s.Keep(func(identity string) bool { return identity == "inner" })
	require.Len(t, s.All(), 1)
}

// A child is stale after three of its own periods, whatever is usual.
func TestPeriodOfTheChild(t *testing.T) {
	for _, c := range []struct {
		says          int
		usual, period time.Duration
	}{
		{0, time.Minute, time.Minute}, {0, 0, 0}, {300, time.Minute, 5 * time.Minute}, {5, time.Minute, 5 * time.Second}, {300, 0, 5 * time.Minute},
	} {
		r := ReceivedReport{Report: good(), ReceivedAt: noon}
		r.Every = c.says
		require.Equal(t, c.period, r.Period(c.usual))
		require.False(t, r.Stale(noon.Add(3*c.period), c.usual))
		require.Equal(t, c.period > 0, r.Stale(noon.Add(3*c.period+1), c.usual), "%v", c)
	}
	slow := good()
	slow.Every = 300
	folded := own("inner").Fold([]ReceivedReport{{Report: slow, ReceivedAt: noon}}, every, noon.Add(15*time.Minute))
	require.False(t, folded.Nodes[0].Stale)
	require.True(t, folded.Ready)
	folded = own("inner").Fold([]ReceivedReport{{Report: slow, ReceivedAt: noon}}, every, noon.Add(15*time.Minute+1))
	require.True(t, folded.Nodes[0].Stale)
	data, err := json.Marshal(slow)
	require.NoError(t, err)
	require.Contains(t, string(data), `"every_seconds":300`)
}

// claims is a report of a child with a node of its own, and one that this one has.
func claims(identity, child, below string, ready bool) ReceivedReport {
	return ReceivedReport{ReceivedAt: noon, Report: Report{
		Version: ReportVersion, Identity: identity, At: noon, Phase: PhaseRun, Ready: true, Nodes: []ReportNode{
			{Name: child, Type: "pve", Parent: identity, Phase: PhaseRun, Ready: ready},
			{Name: below, Type: "vm", Parent: child, Phase: PhaseRun, Ready: ready},
		},
	}}
}

// The report of an agent about its own nodes counts, and no claim of another child about nodes further down.
func TestTheNearestAgentCounts(t *testing.T) {
	lines := func(r Report) (out []string) {
		for _, n := range r.Nodes {
			out = append(out, fmt.Sprint(n.Name, " below ", n.Parent, " ", n.Ready))
		}
		return out
	}
	// The first child says of two nodes of the second one, and of a node of the parent, that they are its own.
	first, second := claims("annex", "store", "app", false), claims("inner", "app", "leaf", true)
	first.Nodes = append(first.Nodes, ReportNode{Name: "inner", Type: "vm", Parent: "store", Phase: PhaseRun}, ReportNode{Name: "deep", Type: "vm", Parent: "app", Phase: PhaseRun})
	folded := own("annex", "inner").Fold([]ReceivedReport{first, second}, every, noon)
	require.Equal(t, []string{"annex below father true", "store below annex false", "inner below father true", "app below inner true", "leaf below app true"}, lines(folded))
	require.Equal(t, 3, folded.Cut, "app, inner and what annex says to be below app")
	require.False(t, folded.Ready)

	s := &ReportStore{}
	s.Put(first.Report, noon)
	s.Put(second.Report, noon)
	for node, through := range map[string]string{"store": "annex", "app": "inner", "leaf": "inner", "deep": "annex", "annex": "", "nobody": ""} {
		require.Equal(t, through, s.Through(node), node)
	}
}

// The parent's own nodes and those of all children have room before what is further down.
func TestRoomForTheNearest(t *testing.T) {
	long := strings.Repeat("x", maxText)
	wide := ReceivedReport{ReceivedAt: noon, Report: Report{Version: ReportVersion, Identity: "annex", Commit: head, At: noon, Phase: PhaseRun, Ready: true}}
	wide.Nodes = []ReportNode{{Name: "store", Type: "pve", Parent: "annex", Phase: PhaseRun}}
	for i := range 4000 {
		wide.Nodes = append(wide.Nodes, ReportNode{Name: fmt.Sprintf("n%d", i), Type: "vm", Parent: "store", Phase: PhaseRun, Error: long})
	}
	parent := own("annex", "inner", "last")
	folded := parent.Fold([]ReceivedReport{wide, claims("inner", "app", "leaf", true), claims("last", "one", "two", true)}, every, noon)
	require.Positive(t, folded.Cut)
	there := map[string]bool{}
	for _, n := range folded.Nodes {
		there[n.Name] = true
	}
	for _, name := range []string{"annex", "inner", "last", "store", "app", "one"} {
		require.True(t, there[name], name)
	}
	require.Greater(t, len(folded.Nodes), 1000, "the rest of the room is used")
	require.Equal(t, 3+4001+4, len(folded.Nodes)+folded.Cut)
}

const period = time.Minute

// own is what the parent knows of its children by its host.
func own(names ...string) Report {
	r := Report{Version: ReportVersion, Identity: "father", Commit: head, At: noon, Phase: PhaseRun, Ready: true}
	for _, name := range names {
		r.Nodes = append(r.Nodes, ReportNode{Name: name, Type: "pve", Parent: "father", Phase: PhaseRun, Ready: true})
	}
	return r
}

func TestReportsFoldUpward(t *testing.T) {
	from := own("inner", "other")
	folded := from.Fold([]ReceivedReport{{Report: good(), ReceivedAt: noon}}, every, noon.Add(3*period))
	var names []string
	for _, n := range folded.Nodes {
		names = append(names, n.Name+" below "+n.Parent)
	}
	require.Equal(t, []string{"inner below father", "leaf below inner", "app below leaf", "other below father"}, names)
	require.True(t, folded.Nodes[0].Ready)
	require.Equal(t, noon, folded.Nodes[2].Reported)
	require.Equal(t, "has not reported yet", folded.Nodes[3].Error)
	require.False(t, folded.Ready, "one child has not reported")
	require.Equal(t, own("inner", "other"), from, "it is not changed")

	stale := own("inner").Fold([]ReceivedReport{{Report: good(), ReceivedAt: noon}}, every, noon.Add(3*period+1))
	require.False(t, stale.Nodes[0].Ready)
	require.Equal(t, "last reported 2026-01-02T12:00:00Z: its state since then is unknown", stale.Nodes[0].Error)
	require.Len(t, stale.Nodes, 3, "what was in it is still shown")
	require.Equal(t, good().Commit, stale.Nodes[0].Commit)
	for _, n := range stale.Nodes {
		require.True(t, n.Stale, n.Name)
		require.False(t, n.Ready, "the state of %s is not known any more", n.Name)
	}
	atBoot := own("inner").Fold([]ReceivedReport{{Report: good(), ReceivedAt: noon}}, func(string) time.Duration { return 0 }, noon.Add(100*period))
	require.False(t, atBoot.Nodes[0].Stale, "one that reports only when it boots is never stale")

	failed := good()
	failed.Ready = false
	r := own("inner").Fold([]ReceivedReport{{Report: failed, ReceivedAt: noon}}, every, noon)
	require.Equal(t, "image without checksum", r.Nodes[0].Error)
	require.False(t, r.Ready)
	r = own("inner").Fold([]ReceivedReport{{Report: good(), ReceivedAt: noon}}, every, noon)
	require.True(t, r.Ready)
}

// Entries without room are counted, and the sent document can be read.
func TestALargeTreeIsCut(t *testing.T) {
	wide := good()
	wide.Nodes = nil
	for i := range maxNodes {
		wide.Nodes = append(wide.Nodes, ReportNode{Name: fmt.Sprintf("n%d", i), Type: "vm", Parent: "inner", Phase: PhaseRun, Ready: true, Since: noon})
	}
	folded := own("inner").Fold([]ReceivedReport{{Report: wide, ReceivedAt: noon}}, every, noon)
	require.Len(t, folded.Nodes, maxNodes)
	require.Equal(t, 1, folded.Cut)
	require.False(t, folded.Ready)
	data, err := json.Marshal(folded)
	require.NoError(t, err)
	require.LessOrEqual(t, len(data), MaxReport, "nodes with short names have room")
}

// The size of a line is the length of its document, whichever member has a value, and whichever characters it has.
func TestSizeOfALine(t *testing.T) {
	for i := range reflect.TypeFor[ReportNode]().NumField() {
		for _, text := range []string{"x", "", `a "b" \`, "<&>", "é\u2028", "\xff\x00", "\x7f\t", strings.Repeat("y", 300)} {
			n := ReportNode{Ready: i%2 == 0}
			switch f := reflect.ValueOf(&n).Elem().Field(i); f.Interface().(type) {
			case bool:
				f.SetBool(true)
			case int:
				f.SetInt(int64(-len(text)))
			case time.Time:
				f.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, len(text)*1000, time.FixedZone("", 60*len(text)))))
			default:
				f.SetString(text)
			}
			require.Equal(t, size(n), lineSize(&n), "%+v", n)
		}
	}
}

// Long texts do not make a report that the parent refuses.
func TestLongTextsAreCut(t *testing.T) {
	long := strings.Repeat("\x01", maxText) // which JSON writes with six bytes each
	from, child := own("inner"), good()
	for range 2 * maxReportFindings {
		from.Findings = append(from.Findings, diag.Finding{Severity: diag.Error, Summary: long + "x", Detail: long})
	}
	child.Nodes = nil
	for i := range 1000 {
		child.Nodes = append(child.Nodes, ReportNode{Name: fmt.Sprintf("n%d", i), Type: "vm", Parent: "inner", Phase: PhaseRun, Error: long, Since: noon})
	}
	folded := from.Fold([]ReceivedReport{{Report: child, ReceivedAt: noon}}, every, noon)
	require.NotEmpty(t, folded.Findings)
	require.Positive(t, folded.Cut)
	require.Equal(t, 1001, len(folded.Nodes)+folded.Cut)
	data, err := json.Marshal(folded)
	require.NoError(t, err)
	require.LessOrEqual(t, len(data), MaxReport)
	_, err = ReadReport(bytes.NewReader(data), "father", noon)
	require.NoError(t, err)
}

// Whatever trees children report, the fold of them is a report that the next parent accepts.
func TestAFoldIsAReport(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-d][0-9]?`)
		tree := func(identity string) Report {
			r := Report{Version: ReportVersion, Identity: identity, Commit: head, At: noon, Phase: PhaseRun, Ready: rapid.Bool().Draw(t, "ready")}
			above := []string{identity}
			for range rapid.IntRange(0, 6).Draw(t, "nodes") {
				n := name.Draw(t, "name")
				if slices.Contains(above, n) {
					continue
				}
				r.Nodes = append(r.Nodes, ReportNode{
					Name: n, Parent: rapid.SampledFrom(above).Draw(t, "parent"), Type: rapid.SampledFrom([]string{"vm", "pve"}).Draw(t, "type"),
					Phase: rapid.SampledFrom([]Phase{PhaseCreate, PhaseRun, PhaseDestroy}).Draw(t, "phase"), Error: strings.Repeat("é", rapid.SampledFrom([]int{0, 3, 1500}).Draw(t, "error")),
				})
				above = append(above, n)
			}
			return r
		}
		parent := tree("father")
		for i := range parent.Nodes {
			parent.Nodes[i].Parent = "father"
		}
		var children []ReceivedReport
		for _, n := range parent.Nodes {
			if rapid.Bool().Draw(t, "reports") {
				children = append(children, ReceivedReport{Report: tree(n.Name), ReceivedAt: noon.Add(-time.Duration(rapid.IntRange(0, 10).Draw(t, "age")) * period)})
			}
		}
		total := len(parent.Nodes)
		for _, c := range children {
			total += len(c.Nodes)
		}
		folded := parent.Fold(children, every, noon)
		if len(folded.Nodes)+folded.Cut != total {
			t.Fatalf("%d nodes and %d cut of %d", len(folded.Nodes), folded.Cut, total)
		}
		data, err := json.Marshal(folded)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadReport(bytes.NewReader(data), "father", noon); err != nil {
			t.Fatal(err)
		}
	})
}

// Any document is refused, or is a report that can be written and read again.
func FuzzRead(f *testing.F) {
	data, err := json.Marshal(good())
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte(`{"version":1,"identity":"inner","at":"2026-01-02T12:00:00Z","phase":"run","nodes":[{}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := ReadReport(bytes.NewReader(body), "inner", noon)
		if err != nil {
			return
		}
		again, err := json.Marshal(r)
		require.NoError(t, err)
		got, err := ReadReport(bytes.NewReader(again), "inner", noon)
		require.NoError(t, err)
		require.Len(t, got.Nodes, len(r.Nodes))
	})
}

func every(string) time.Duration { return period }

// A report is the same as another one that says nothing else, whenever that was.
func TestSame(t *testing.T) {
	one := Report{Identity: "inner", Commit: "a", At: time.Unix(1, 0), Nodes: []ReportNode{{Name: "app", Ready: true, Reported: time.Unix(1, 0)}}}
	two := one
	two.At, two.Nodes = time.Unix(2, 0), []ReportNode{{Name: "app", Ready: true, Reported: time.Unix(2, 0)}}
	require.True(t, one.Same(two))
	require.Equal(t, time.Unix(1, 0), one.Nodes[0].Reported, "neither is changed")
	two.Nodes[0].Ready = false
	require.False(t, one.Same(two))
	two.Nodes, two.Commit = one.Nodes, "b"
	require.False(t, one.Same(two))
	require.False(t, one.Same(Report{}))
}

// A parent sees which commit a child refuses, and that it was changed by hand, at any depth.
func TestRefusedAndDrifted(t *testing.T) {
	r := good()
	r.Ready, r.Refused, r.Drifted = false, head, true
	r.Nodes[0].Refused = head
	r, err := read(t, r)
	require.NoError(t, err)
	folded := own("inner").Fold([]ReceivedReport{{Report: r, ReceivedAt: noon}}, every, noon)
	require.Equal(t, head, folded.Nodes[0].Refused)
	require.True(t, folded.Nodes[0].Drifted)
	require.Equal(t, head, folded.Nodes[1].Refused)
	require.False(t, folded.Nodes[1].Drifted)
	r.Refused = "main"
	_, err = read(t, r)
	require.ErrorContains(t, err, "refused are object names of git")
	r.Refused, r.Nodes[0].Refused = "", "main"
	_, err = read(t, r)
	require.ErrorContains(t, err, "refused of node leaf are object names of git")
}
