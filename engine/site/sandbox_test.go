package site

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/hcl/sops/sopstest"
	"github.com/homestak/homestak-gitops/policy"
)

// The tasks of a child of the tests: its work, or a crash.
const (
	inChild = "evaluate-for-a-test"
	inCrash = "crash-for-a-test"
	inTwice = "fail-the-second-time-for-a-test"
)

// oneLoad ends the process at the second request to load a tree, as the runtime does when it gets no memory.
type oneLoad struct {
	io.Reader
	loads int
}

func (o *oneLoad) Read(b []byte) (int, error) {
	n, err := o.Reader.Read(b)
	if o.loads += bytes.Count(b[:n], []byte(`"Load":`)); o.loads > 1 {
		_, _ = os.Stderr.WriteString("fatal error: runtime: out of memory\n")
		os.Exit(2)
	}
	return n, err
}

func overflow(n int) int { return overflow(n+1) + n } //nolint:staticcheck // it is to end so

func TestMain(m *testing.M) {
	if os.Args[len(os.Args)-1] == inCrash {
		debug.SetMaxStack(1 << 20)
		os.Exit(overflow(0))
	}
	if task := os.Args[len(os.Args)-1]; task == inChild || task == inTwice {
		if len(os.Args) > 2 {
			note(os.Args[1])
		}
		in := io.Reader(os.Stdin)
		if task == inTwice {
			in = &oneLoad{Reader: in}
		}
		if err := RunSandbox(proxmox.Kinds(), in, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// note adds a byte to a file.
func note(file string) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, _ = f.WriteString(".")
		_ = f.Close()
	}
}

// sandboxed is a sandbox whose children are this test binary. HOMESTAK_FULL_LIMITS=1 gives them what they have in use.
func sandboxed(t *testing.T) *Sandbox {
	s := &Sandbox{Command: []string{"/proc/self/exe", "site.test", inChild}}
	if os.Getenv("HOMESTAK_FULL_LIMITS") == "" {
		s.Limits = limits{CPU: 1500 * time.Millisecond, Memory: 256 << 20}
	}
	t.Cleanup(s.Close)
	return s
}

func loaderIn(s *Sandbox) *Loader {
	l := NewLoader(proxmox.Kinds())
	l.Sandbox = s
	return l
}

const soundSite = "site \"home\" {\n}\nhost \"father\" {\n  api = \"https://192.0.2.10:8006\"\n}\n"

func soundTree(more ...string) fstest.MapFS {
	t := fstest.MapFS{"site.hcl": {Data: []byte(soundSite)}}
	for i := 0; i < len(more); i += 2 {
		t[more[i]] = &fstest.MapFile{Data: []byte(more[i+1])}
	}
	return t
}

func load(t *testing.T, l *Loader, tree fs.FS, name string) engine.Desired {
	return l.Load(t.Context(), tree, Input{Tree: name, Commit: model.Commit{ID: name}})
}

// The file of the report: it took 2.9 GB and never ended. The finding names the place.
func TestS2ALoadThatTakesTooMuchIsEnded(t *testing.T) {
	s := sandboxed(t)
	starts := filepath.Join(t.TempDir(), "starts")
	s.Command = []string{s.Command[0], s.Command[1], starts, inChild}
	l := loaderIn(s)
	good := load(t, l, soundTree(), "good")
	require.NotNil(t, good.Site)
	require.False(t, good.Findings.HasErrors(), "%v", good.Findings)

	const bomb = "locals {\n  fine = 1\n  a = length([for i in range(1000): length([for j in range(1000): length([for k in range(1000): 1])])])\n}\n"
	d := load(t, l, soundTree("bomb.hcl", bomb), "bomb")
	require.Nil(t, d.Site)
	require.True(t, d.Harmful)
	require.Len(t, d.Findings, 1)
	require.Equal(t, "bomb.hcl:3:7", d.Findings[0].At.String())
	require.Contains(t, d.Findings[0].Code, "for k in range(1000)")
	require.Contains(t, d.Findings[0].Summary, "the site takes too much to evaluate: it ")
	got, err := os.ReadFile(starts)
	require.NoError(t, err)
	require.Equal(t, ".", string(got), "processor time is counted for each request, so no second process tries it")

	again := load(t, l, soundTree(), "good")
	require.Same(t, good.Site, again.Site, "what was loaded before is kept")
}

// A child that was stopped while it waited goes on with the next request.
func TestAStoppedChildIsContinued(t *testing.T) {
	s := sandboxed(t)
	starts := filepath.Join(t.TempDir(), "starts")
	s.Command = []string{s.Command[0], s.Command[1], starts, inChild}
	l := loaderIn(s)
	require.False(t, load(t, l, soundTree(), "one").Findings.HasErrors())
	require.NoError(t, syscall.Kill(s.waiting.child.cmd.Process.Pid, syscall.SIGSTOP))
	require.False(t, load(t, l, soundTree("more.hcl", "locals {\n}\n"), "two").Findings.HasErrors())
	got, err := os.ReadFile(starts)
	require.NoError(t, err)
	require.Equal(t, ".", string(got), "no other child replaced it")
}

// A text that overflows the stack of the parser ends its process only.
func TestS2ACrashOfTheChildDoesNotCrashTheAgent(t *testing.T) {
	s := sandboxed(t)
	s.Command[2] = inCrash
	d := load(t, loaderIn(s), soundTree(), "a")
	require.True(t, d.Harmful)
	require.Contains(t, d.Findings[0].Summary, "it is nested too deeply")
}

// A commit is tried once, and a pass with nothing new starts no process.
func TestS2ATreeIsTriedOnce(t *testing.T) {
	s := sandboxed(t)
	l := loaderIn(s)
	wrong := soundTree("wrong.hcl", "nonsense {\n}\n")
	require.True(t, load(t, l, wrong, "wrong").Findings.HasErrors())
	s.Command = []string{"/nonexistent", "x"}
	for range 3 {
		d := load(t, l, wrong, "wrong")
		require.True(t, d.Findings.HasErrors())
		require.Contains(t, d.Findings[0].Summary, "nonsense")
	}
	d := load(t, l, soundTree(), "new")
	require.Nil(t, d.Site, "without a process nothing is evaluated")
	require.False(t, d.Harmful, "and it is not the fault of the commit")
	require.True(t, d.Findings.HasErrors())
}

// The rules of a site are evaluated once while it is loaded: no second process evaluates them. Another load asks them
// again, in the process that waits.
func TestS3TheRulesOfATreeAreEvaluatedOnce(t *testing.T) {
	s := sandboxed(t)
	starts := filepath.Join(t.TempDir(), "starts")
	s.Command = []string{s.Command[0], s.Command[1], starts, inChild}
	l := loaderIn(s)
	tree := soundTree("policy/own.rego", "package homestak.site\nwarn contains \"own\" if input.site.name == \"home\"\n")
	for range 2 {
		d := load(t, l, tree, "a")
		require.Contains(t, d.Findings[len(d.Findings)-1].Summary, "own")
		got, err := os.ReadFile(starts)
		require.NoError(t, err)
		require.Equal(t, ".", string(got), "a byte for each process")
	}
}

// A child waits for the next tree. If it lacks memory then, that may be due to the trees before, so another one tries the
// tree. A child that refused a tree gets no other one.
func TestS2AChildWithAPastIsNotTheJudgeOfMemory(t *testing.T) {
	for _, c := range []struct{ task, want string }{{inChild, "..."}, {inTwice, "........"}} {
		s := sandboxed(t)
		starts := filepath.Join(t.TempDir(), "starts")
		s.Command = []string{s.Command[0], s.Command[1], starts, c.task}
		l := loaderIn(s)
		for i, text := range []string{"", "a = 1", "a = 2", "a = none.x", "a = 3", "a = range(1, 2000000)", "a = 4", "a = 5"} {
			d := load(t, l, soundTree("more.hcl", "locals {\n  "+text+"\n}\n"), fmt.Sprint(i))
			bad := i == 3 || i == 5
			require.Equal(t, bad, d.Findings.HasErrors(), "%s: %v", text, d.Findings)
		}
		got, err := os.ReadFile(starts)
		require.NoError(t, err)
		require.Equal(t, c.want, string(got), "a byte for each process of %s", c.task)
	}
}

// The kernel takes a child that waits before the agent. Then another one tries the next tree, and answers the next question.
// Questions that come at once have one child, since another one would have to compile the rules.
func TestS2AChildThatEndedWhileItWaitedIsReplaced(t *testing.T) {
	s := sandboxed(t)
	starts := filepath.Join(t.TempDir(), "starts")
	s.Command = []string{s.Command[0], s.Command[1], starts, inChild}
	l := loaderIn(s)
	kill := func() {
		s.waiting.mutex.Lock()
		defer s.waiting.mutex.Unlock()
		killGroup(s.waiting.child.cmd.Process.Pid)
	}
	own := "package homestak.guard\nwarn contains \"own\" if input.plan\n"
	require.False(t, load(t, l, soundTree("policy/own.rego", own), "a").Findings.HasErrors())
	kill()
	d := load(t, l, soundTree("policy/own.rego", own, "more.hcl", "locals {\n}\n"), "b")
	require.False(t, d.Findings.HasErrors(), "%v", d.Findings)
	kill()
	found := make(chan diag.List)
	for range 4 {
		go func() { found <- d.PolicyCheck(t.Context(), engine.Question{Site: d.Site, Plan: &plan.Plan{}}) }()
	}
	for range 4 {
		list := <-found
		require.False(t, list.HasErrors(), "%v", list)
		require.Len(t, list, 1)
	}
	got, err := os.ReadFile(starts)
	require.NoError(t, err)
	require.Equal(t, "...", string(got), "a byte for each process")
}

// A child that works while the sandbox is closed ends with its request, and does not wait for another one.
func TestS2AChildAtWorkEndsAfterClose(t *testing.T) {
	s := sandboxed(t)
	s.Close()
	_, err := s.try(t.Context(), soundTree(), Input{})
	require.NoError(t, err)
	require.Nil(t, s.waiting.child)
}

// The names of trees belong to a loader: another one may mean another folder of the same commit.
func TestS2AChildGoesByContentsNotByNames(t *testing.T) {
	s := sandboxed(t)
	in := Input{Tree: "a", Commit: model.Commit{ID: "a"}}
	for range 2 {
		good, err := s.try(t.Context(), soundTree(), in)
		require.NoError(t, err)
		require.False(t, good.refused.HasErrors(), "%v", good.refused)
		bad, err := s.try(t.Context(), soundTree("more.hcl", "nonsense {\n}\n"), in)
		require.NoError(t, err)
		require.True(t, bad.refused.HasErrors())
	}
}

// A child knows its limit of memory as it grows with the text, and collects its garbage within it.
func TestS2AChildKnowsItsLimitOfMemory(t *testing.T) {
	w := &watch{known: sandboxMemory}
	require.Zero(t, w.add(60<<10))
	require.EqualValues(t, sandboxMemory+8<<20, w.add(4<<10))
	require.Zero(t, w.add(0))
}

// A position is said once a request, and none after its end.
func TestS2APositionIsOfTheRequestUnderWay(t *testing.T) {
	var out bytes.Buffer
	c := &childWork{border: &border{out: &out}}
	at := diag.Range{File: "a.hcl", Start: diag.Pos{Line: 3}}
	for range 2 {
		c.at(func() diag.Range { return at })
		c.sayNow()
		require.NotZero(t, out.Len())
		out.Reset()
		c.sayNow()
		c.at()
		c.sayNow()
		require.Zero(t, out.Len())
	}
}

// A question does not wait for the trees of other loaders.
func TestS2LoadsDoNotDelayQuestions(t *testing.T) {
	s := sandboxed(t)
	s.init()
	for range mostLoads {
		s.loads <- struct{}{}
	}
	got, err := s.render(t.Context(), renderRequest{map[string]string{"a": "b"}, map[string]any{}})
	require.NoError(t, err)
	require.Equal(t, "b", got["a"].Text)
}

// Findings and sites are the same with a sandbox and without, links and files that expressions read included.
func TestS2TheSandboxChangesNoResult(t *testing.T) {
	tree := soundTree("data/key.pub", "ssh-ed25519 AAAA\n", "more.hcl", "locals {\n  k = file(\"data/key.pub\")\n}\n",
		"policy/own.rego", "package homestak.site\nwarn contains \"own\" if input.site.name == \"home\"\n")
	tree["link"] = &fstest.MapFile{Data: []byte("data"), Mode: fs.ModeSymlink}
	in := load(t, loaderIn(sandboxed(t)), tree, "a")
	out := load(t, NewLoader(proxmox.Kinds()), tree, "a")
	same := func() {
		require.Len(t, in.Findings, len(out.Findings))
		for i := range in.Findings {
			require.Equal(t, out.Findings[i].String()+out.Findings[i].Detail+out.Findings[i].Code, in.Findings[i].String()+in.Findings[i].Detail+in.Findings[i].Code)
		}
	}
	same()
	require.Equal(t, out.Site.SourceHash, in.Site.SourceHash)

	tree["wrong.hcl"] = &fstest.MapFile{Data: []byte("locals {\n  n = file(\"data/none\")\n  m = file(\"link/key.pub\")\n}\n")}
	in, out = load(t, loaderIn(sandboxed(t)), tree, "b"), load(t, NewLoader(proxmox.Kinds()), tree, "b")
	require.True(t, in.Findings.HasErrors())
	same()
}

// The rules of a site are asked about plans in a child, and one that does not end denies where it stands.
func TestS3ARuleAboutPlansIsEndedToo(t *testing.T) {
	const rule = `package homestak.guard
a := {"l": 1, "r": 2}
b := {"l": a, "r": a, "m": a, "n": a, "o": a, "p": a, "q": a, "s": a}
c := {"l": b, "r": b, "m": b, "n": b, "o": b, "p": b, "q": b, "s": b}
d := {"l": c, "r": c, "m": c, "n": c, "o": c, "p": c, "q": c, "s": c}
e := {"l": d, "r": d, "m": d, "n": d, "o": d, "p": d, "q": d, "s": d}
f := {"l": e, "r": e, "m": e, "n": e, "o": e, "p": e, "q": e, "s": e}
g := {"l": f, "r": f, "m": f, "n": f, "o": f, "p": f, "q": f, "s": f}
h := {"l": g, "r": g, "m": g, "n": g, "o": g, "p": g, "q": g, "s": g}
i := {"l": h, "r": h, "m": h, "n": h, "o": h, "p": h, "q": h, "s": h}
j := {"l": i, "r": i, "m": i, "n": i, "o": i, "p": i, "q": i, "s": i}
k := {"l": i, "r": i, "m": i, "n": i, "o": i, "p": i, "q": i, "s": [i]}
deny contains "no" if object.union(j, k) == input.plan
`
	s := sandboxed(t)
	d := load(t, loaderIn(s), soundTree("policy/x.rego", rule), "a")
	require.False(t, d.Findings.HasErrors(), "%v", d.Findings)
	before := runtime.NumGoroutine()
	for range 3 {
		p := &plan.Plan{}
		found := d.PolicyCheck(t.Context(), engine.Question{Site: d.Site, Plan: p})
		require.True(t, found.HasErrors())
		require.Equal(t, diag.FromGuard, found[0].Source, "%v %s", found, found[0].Detail)
		require.Equal(t, "policy/x.rego:13:23", found[0].At.String(), "%v", found)
	}
	s.Close() // the child that waits for another question
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+1 }, 5*time.Minute, time.Millisecond, "nothing is left behind; the condition has a goroutine")
}

// A rule about requests that does not end for some of them refuses these, and answers the others.
func TestS3ARuleAboutRequestsIsEndedToo(t *testing.T) {
	const rule = `package homestak.auth
deny contains "no" if {
	input.path == "/bomb"
	t := concat("", [x | some i in numbers.range(1, 60000); x := "0123456789abcdef"])
	every i in numbers.range(1, 1000) { count(regex.split(sprintf("(a|b|%d)*", [i]), t)) > 0 }
}
`
	l := loaderIn(sandboxed(t))
	d := load(t, l, soundTree("policy/x.rego", rule), "a")
	require.False(t, d.Findings.HasErrors(), "%v", d.Findings)
	ask := func(path string) policy.Decision {
		return l.Policies().Authorize(t.Context(), policy.AuthInput{
			Method: "GET", Path: path, Identity: "web-1", Remote: "192.0.2.1", Posture: &model.Posture{Name: "dev", Auth: &model.Auth{Method: "site_token"}},
			Credential: policy.Credential{Kind: policy.SiteToken, Valid: true},
		})
	}
	for range 2 {
		require.True(t, ask("/spec/web-1").Allow, "%v", ask("/spec/web-1"))
		bomb := ask("/bomb")
		require.Equal(t, policy.Forbidden, bomb.Code)
		require.Contains(t, bomb.Reason, "policy/x.rego")
	}
}

var (
	repeated = regexp.MustCompile(`(?s)@\{(\d+):(.*?)\}@`)
	heading  = regexp.MustCompile(`(?m)^-- (.+) --\n`)
)

// hostile is one text of a corpus.
type hostile struct{ name, text string }

// corpus reads a file of hostile texts.
func corpus(t *testing.T, name string) (out []hostile) {
	data, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	names, texts := heading.FindAllStringSubmatch(string(data), -1), heading.Split(string(data), -1)
	for i, n := range names {
		text := repeated.ReplaceAllStringFunc(texts[i+1], func(s string) string {
			m := repeated.FindStringSubmatch(s)
			n, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			return strings.Repeat(m[2], n)
		})
		out = append(out, hostile{n[1], text})
	}
	return out
}

// sweep loads each of a corpus, with a good commit after it, and says what became of it. Children may take so much, or with
// HOMESTAK_FULL_LIMITS=1 what they have in use.
func sweep(t *testing.T, name string, most int, may limits, tree func(text string) fs.FS) map[string]int {
	files := corpus(t, name)
	require.GreaterOrEqual(t, len(files), most)
	s := sandboxed(t)
	l := loaderIn(s)
	require.NotNil(t, load(t, l, soundTree(), "good").Site)
	if os.Getenv("HOMESTAK_FULL_LIMITS") == "" {
		s.Limits = may
	}
	base, peak := heapNow(), uint64(0)
	outcomes := map[string]int{}
	for _, f := range files {
		began := time.Now()
		d := load(t, l, tree(f.text), f.name)
		took := time.Since(began)
		now := heapNow()
		peak = max(peak, now)
		require.Less(t, now, base+64<<20, "%s: how far the heap grew", f.name)
		end := "harmless"
		switch {
		case d.Harmful:
			end = "ended"
		case d.Findings.HasErrors():
			end = "refused"
		}
		outcomes[end]++
		if why := slices.IndexFunc(d.Findings, func(f diag.Finding) bool { return f.Severity == diag.Error }); why >= 0 {
			t.Logf("%-22s %-9s %6.2fs %s", f.name, end, took.Seconds(), d.Findings[why])
		} else {
			t.Logf("%-22s %-9s %6.2fs", f.name, end, took.Seconds())
		}
		require.NotNil(t, load(t, l, soundTree(), "good").Site, "a good commit after %s", f.name)
	}
	t.Logf("outcomes %v; the heap of the agent grew by at most %d MiB", outcomes, (peak-min(base, peak))>>20)
	return outcomes
}

// heapNow is what the heap keeps. How far a whole process grows meanwhile, test/integration looks at.
func heapNow() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

func TestS2HostileSites(t *testing.T) {
	got := sweep(t, "hcl-bombs.txtar", 70, limits{CPU: 200 * time.Millisecond, Memory: 256 << 20}, func(text string) fs.FS { return soundTree("bomb.hcl", text) })
	require.Greater(t, got["ended"], 15, "the texts are as hostile as they are meant to be")
}

func TestS3HostileRules(t *testing.T) {
	got := sweep(t, "rego-bombs.txtar", 50, limits{CPU: 100 * time.Millisecond, Memory: 128 << 20}, func(text string) fs.FS { return soundTree("policy/bomb.rego", "package homestak.site\n"+text) })
	require.Greater(t, got["ended"], 15, "the rules are as hostile as they are meant to be")
}

func TestInClear(t *testing.T) {
	const plain = "passwords:\n  root: x\n"
	_, recipient, err := sopstest.NewKey()
	require.NoError(t, err)
	encrypted, err := sopstest.Encrypt(plain, sopstest.Options{Recipients: []string{recipient}})
	require.NoError(t, err)
	for want, tree := range map[string]fstest.MapFS{
		"":                       {"site.hcl": {}, "secrets.sops.yaml": {Data: encrypted}, "secrets.yaml/x": {}, "a/secrets.yaml": {Mode: fs.ModeSymlink, Data: []byte("x")}},
		"secrets.yaml":           {"secrets.yaml": {Data: []byte(plain)}},
		"work/secrets.yaml":      {"home/site.hcl": {}, "work/secrets.yaml": {Data: []byte(plain)}},
		"work/secrets.sops.yaml": {"work/secrets.sops.yaml": {Data: []byte(plain)}},
		"mix/secrets.sops.yaml":  {"mix/secrets.sops.yaml": {Data: []byte(plain + "sops: {}\n")}},
		"add/secrets.sops.yaml":  {"add/secrets.sops.yaml": {Data: bytes.Replace(encrypted, []byte("passwords:\n"), []byte("passwords:\n    admin: hunter2\n"), 1)}},
	} {
		found, err := new(Clear).find(tree)
		require.NoError(t, err)
		require.Equal(t, want, found.File)
	}
}

// keyOf is a private key in the form that ssh-keygen writes, with a cipher; none protects nothing.
func keyOf(cipher string) string {
	key := append([]byte("openssh-key-v1\x00\x00\x00\x00"), byte(len(cipher)))
	key = append(append(key, cipher...), make([]byte, 200)...)
	return string(pem.EncodeToMemory(&pem.Block{Type: "OPENSSH PRIVATE KEY", Bytes: key}))
}

// A private key is found in any file, whatever is around it. One that a password protects is none, nor is a text about keys.
func TestS7APrivateKeyIsASecretInTheClear(t *testing.T) {
	key := keyOf("none")
	identity, _, err := sopstest.NewKey()
	require.NoError(t, err)
	body := base64.StdEncoding.EncodeToString(make([]byte, 99))
	block := func(kind, more string) string {
		return "-----BEGIN " + kind + "-----\n" + more + body + "\n-----END " + kind + "-----\n"
	}
	for text, want := range map[string]string{
		key:                                   "a private key in plain text: keys/id_ed25519",
		strings.ReplaceAll(key, "\n", "\r\n"): "a private key in plain text: keys/id_ed25519",
		"key = <<-EOT\n    " + strings.ReplaceAll(key, "\n", "\n    ") + "EOT\n":                      "a private key in plain text: keys/id_ed25519",
		`{"key": "` + strings.ReplaceAll(key, "\n", `\n`) + `"}`:                                      "a private key in plain text: keys/id_ed25519",
		block("RSA PRIVATE KEY", ""):                                                                  "a private key in plain text: keys/id_ed25519",
		block("CERTIFICATE", "") + block("EC PRIVATE KEY", ""):                                        "a private key in plain text: keys/id_ed25519",
		block("PRIVATE KEY", ""):                                                                      "a private key in plain text: keys/id_ed25519",
		"# created: 2026\n" + identity + "\n":                                                         "an age identity in plain text: keys/id_ed25519",
		"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\n":                                      "a private key of PuTTY in plain text: keys/id_ed25519",
		"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nxxxx\n=aaaa\n-----END PGP PRIVATE KEY BLOCK-----\n": "a private key of OpenPGP in plain text: keys/id_ed25519",

		keyOf("aes256-ctr"):                "",
		block("ENCRYPTED PRIVATE KEY", ""): "",
		block("RSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n"):                            "",
		block("CERTIFICATE", "") + block("PUBLIC KEY", ""):                                                          "",
		"ssh-ed25519 AAAA ops@laptop\n":                                                                             "",
		"Write the line -----BEGIN OPENSSH PRIVATE KEY----- and the key, then -----END OPENSSH PRIVATE KEY-----.\n": "",
		"-----BEGIN OPENSSH PRIVATE KEY-----\n…\n-----END OPENSSH PRIVATE KEY-----\n":                               "",
		"AGE-SECRET-KEY-1…\n": "",
		"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: aes256-cbc\n": "",
	} {
		found, err := new(Clear).find(fstest.MapFS{"site.hcl": {}, "keys/id_ed25519": {Data: []byte(text)}})
		require.NoError(t, err)
		require.Equal(t, want, found.String(), text)
	}
}

// A commit is withheld for a private key, with what and why in the log, and no file or folder is read twice.
func TestS7ACommitWithAPrivateKeyIsWithheld(t *testing.T) {
	r := sourcetest.New(t)
	before := r.Commit(map[string]string{"site.hcl": "1", "a/b/c": "2"}, "before")
	with := r.Commit(map[string]string{"keys/id_ed25519": keyOf("none")}, "with")
	after := r.Commit(map[string]string{"keys/id_ed25519": sourcetest.Gone, "site.hcl": "3"}, "after")
	repo, err := source.OpenRepository(source.Options{URL: r.URL(), Dir: t.TempDir()})
	require.NoError(t, err)
	_, err = repo.Head(t.Context())
	require.NoError(t, err)
	var log strings.Builder
	var read []string
	c := Clear{Log: slog.New(slog.NewTextHandler(&log, nil)), Files: func(id string) (fs.FS, error) {
		tree, err := repo.Tree(id)
		return noted{tree, &read}, err
	}}
	require.False(t, c.Withheld(before))
	require.Equal(t, []string{"a/b/c", "site.hcl"}, read)
	require.Empty(t, log.String())
	read = nil
	require.True(t, c.Withheld(with))
	require.Equal(t, []string{"keys/id_ed25519"}, read)
	require.Contains(t, log.String(), "a private key in plain text: keys/id_ed25519")
	require.Contains(t, log.String(), with)
	read = nil
	require.False(t, c.Withheld(after))
	require.True(t, c.Withheld(with))
	require.Equal(t, []string{"site.hcl"}, read)
}

// noted notes which files are read.
type noted struct {
	fs.FS
	read *[]string
}

func (n noted) ReadFile(name string) ([]byte, error) {
	*n.read = append(*n.read, name)
	return fs.ReadFile(n.FS, name)
}
