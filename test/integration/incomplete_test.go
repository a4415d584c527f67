package integration_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gogit "github.com/go-git/go-git/v5"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/apply"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// ST-15: an incomplete view is never evidence of absence. While the host is not visible, nodes that left the site are not
// destroyed and new ones are not created; once it is visible again, both happen.
func TestAnIncompleteViewIsNotAbsence(t *testing.T) {
	t.Parallel()
	onlyOf := func(path, text string) func(string, string) string {
		return func(asked, answer string) string {
			if asked == path {
				return text
			}
			return answer
		}
	}
	const page = "<!DOCTYPE html><html><body>Please log in.</body></html>"
	for _, c := range []struct {
		name    string
		faults  []string
		lie     func(path, answer string) string
		edit    func(*pve.Edit)
		mend    func(*pve.Edit)
		because string
	}{
		{name: "no quorum", edit: func(e *pve.Edit) { e.Quorum(false) }, mend: func(e *pve.Edit) { e.Quorum(true) }, because: "quorum"},
		{name: "403 for the list", faults: []string{"GET /cluster/resources status=403"}, because: "403"},
		{name: "403 for everything", faults: []string{"* /** status=403"}, because: "403"},
		{name: "595 for everything", faults: []string{"* /** status=595"}, because: "595"},
		{name: "595 for the list of the node", faults: []string{"GET /nodes/*/qemu status=595"}, because: "595"},
		{name: "596 for every guest", faults: []string{"GET /nodes/*/qemu/** status=596"}, because: "596"},
		{name: "no answer at all", faults: []string{"* /** status=-1"}, because: "EOF"},
		{name: "list is null", lie: onlyOf("/cluster/resources", `{"data":null}`), because: "no node"},
		{name: "list is empty", lie: onlyOf("/cluster/resources", `{"data":[]}`), because: "no node"},
		{name: "list of another host", lie: func(path, answer string) string {
			if path == "/cluster/resources" {
				return strings.ReplaceAll(answer, "father", "uncle")
			}
			return answer
		}, because: "uncle"},
		{name: "the node's list is null", lie: onlyOf("/nodes/father/qemu", `{"data":null}`), because: "null"},
		{name: "list is HTML", lie: onlyOf("/cluster/resources", page), because: "JSON"},
		{name: "everything is HTML", lie: func(string, string) string { return page }, because: "JSON"},
		{name: "list is cut off", lie: onlyOf("/cluster/resources", `{"data":[{"type":"node","node":"father","sta`), because: "JSON"},
		{name: "status of the cluster is null", lie: onlyOf("/cluster/status", `{"data":null}`), because: "status"},
		{name: "no rights on guests", lie: onlyOf("/access/permissions", `{"data":{"/storage":{"Datastore.Audit":1}}}`), because: "VM.Audit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := begin(t, pve.Config{Nodes: []string{"mother"}})
			between := s.behindAFront()
			s.deploy("web", vm("leaves")+vm("stays"))
			s.apply()
			before := s.managed()
			s.deploy("web", vm("stays")+vm("comes"))

			s.breaks(c.faults...)
			if c.lie != nil {
				between.lies(c.lie)
			}
			if c.edit != nil {
				s.byHand(c.edit)
			}
			s.quietly(func() {
				r := s.try()
				require.NotEqual(t, engine.Done, r.Outcome, describe(r))
				require.NotNil(t, r.Plan)
				require.Empty(t, steps(r.Plan))
				require.NotEmpty(t, r.Plan.Unknown)
				require.Contains(t, describe(r), c.because)
			})
			require.Equal(t, before, s.managed())

			s.heals()
			between.tellsTheTruth()
			if c.mend != nil {
				s.byHand(c.mend)
			}
			s.apply()
			require.Equal(t, []string{"comes", "stays"}, s.names())
			s.inSync()
		})
	}
}

// ST-15: a part of the cluster is down. What lives there is unknown; all else goes on.
func TestANodeThatIsDown(t *testing.T) {
	s := begin(t, pve.Config{Nodes: []string{"mother"}, TaskTime: 20 * time.Millisecond})
	s.edit("host.hcl", "node        =", "nodes       = [\"father\", \"mother\"]\n  node        =")
	s.deploy("web", vm("leaves")+vm("stays")+vm("here"))
	s.apply()
	moved := []pve.Guest{s.guest("leaves"), s.guest("stays")}
	s.byHand(func(e *pve.Edit) {
		for i := range moved {
			e.Delete(moved[i].VMID)
			moved[i].Node, moved[i].Running = "mother", moved[i].Name() == "stays"
			e.Add(moved[i])
		}
		e.Offline("mother", true)
	})
	before := s.host.Snapshot().Guests

	s.deploy("web", vm("stays")+vm("here", "onboot = true")+vm("comes"))
	r := s.try()

	// Whether vm.comes is one of the guests that cannot be seen is not known either.
	require.Equal(t, []string{"update vm.here: onboot"}, steps(r.Plan))
	require.Equal(t, "1", s.guest("here").Config["onboot"])
	require.NotEqual(t, engine.Done, r.Outcome, describe(r))
	require.Contains(t, describe(r), "mother")
	require.Contains(t, describe(r), "offline")
	for _, g := range before {
		if g.Node == "mother" {
			s.unchanged([]pve.Guest{g})
		}
	}

	s.byHand(func(e *pve.Edit) { e.Offline("mother", false) })
	s.apply()
	require.Equal(t, []string{"comes", "here", "stays"}, s.names())
	require.Equal(t, "mother", s.guest("stays").Node)
	s.inSync()
}

// ST-15: the node where new guests are made is down itself, and another one of its
// cluster answers.
func TestNothingIsMadeOnANodeThatIsDown(t *testing.T) {
	s := begin(t, pve.Config{Nodes: []string{"mother"}})
	template := s.template()
	s.edit("host.hcl", `node        = "father"`, `node        = "mother"`)
	s.deploy("web", vm("from-image")+clone("from-template"))
	s.byHand(func(e *pve.Edit) { e.Offline("mother", true) })

	s.quietly(func() {
		r := s.try()
		require.Empty(t, steps(r.Plan))
		require.NotEqual(t, engine.Done, r.Outcome, describe(r))
		require.Contains(t, describe(r), "mother")
	})
	require.Equal(t, []string{template}, s.names())
}

// ST-15: one guest cannot be read. It is not taken for gone, whatever it is.
func TestAGuestThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"403", "500", "595", "596", "-1"} {
		t.Run(status, func(t *testing.T) {
			s := begin(t, pve.Config{})
			s.deploy("web", vm("dark")+vm("bright"))
			s.apply()
			before := s.managed()
			s.breaks("GET /nodes/father/qemu/" + strconv.Itoa(before["dark"].VMID) + "/** status=" + status)

			s.quietly(func() {
				r := s.try()
				require.Empty(t, steps(r.Plan))
				require.NotEqual(t, engine.Done, r.Outcome, describe(r))
			})

			// Neither is it destroyed, nor made again, when it is not wanted any more.
			s.deploy("web", vm("bright", "onboot = true"))
			r := s.try()
			require.Equal(t, []string{"update vm.bright: onboot"}, steps(r.Plan))
			s.heals()
			require.Equal(t, before["dark"], s.guest("dark"))

			s.apply()
			require.Equal(t, []string{"bright"}, s.names())
		})
	}
}

// ST-15: the list of a cluster is short by one guest; its node still shows it.
func TestAShortListHidesNoGuest(t *testing.T) {
	s := begin(t, pve.Config{})
	between := s.behindAFront()
	s.deploy("web", vm("web", "count = 2"))
	s.apply()
	hidden := `"vmid":` + strconv.Itoa(s.vmidOf("web-2"))
	between.lies(func(path, answer string) string {
		if path != "/cluster/resources" {
			return answer
		}
		return withoutEntry(s.t, answer, hidden)
	})

	s.quietly(func() {
		require.Empty(t, steps(s.try().Plan))
	})
	require.Equal(t, []string{"web-1", "web-2"}, s.names())
}

// PVE answers about 1 of 100 parallel writes with "got no worker upid - start worker
// failed". These stories are about that: a run continues without help.

// hundred is a manifest of so many VMs.
func hundred(n int) string {
	return strings.Replace(vm("web"), "{\n", fmt.Sprintf("{\n    count = %d\n", n), 1)
}

// tenAtOnce is the width at which a real host showed this; notes takes the notes of the run.
func tenAtOnce(notes *[]string) func(*engine.Pass) {
	return func(p *engine.Pass) {
		p.Width = 10
		p.Observer = engine.StepFunc(func(e apply.Event) {
			if e.What == apply.Note {
				*notes = append(*notes, e.Text)
			}
		})
	}
}

// unfinished are the guests that hold nothing but the lock of their creation.
func (s *story) unfinished() []int {
	var out []int
	for _, g := range s.host.Snapshot().Guests {
		if len(g.Config) == 1 && g.Config["lock"] == "create" {
			out = append(out, g.VMID)
		}
	}
	return out
}

// clears does at the node what the program says: unlock and destroy.
func (s *story) clears(vmids ...int) {
	s.byHand(func(e *pve.Edit) {
		for _, id := range vmids {
			e.Set(id, "lock", "")
			e.Delete(id)
		}
	})
}

func TestWorkersThatDoNotStart(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 20 * time.Millisecond})
	s.deploy("many", hundred(100))
	s.breaks(
		"POST /nodes/father/storage/local/download-url nth=1 no-worker",
		"POST /nodes/father/qemu nth=1 no-worker", "POST /nodes/father/qemu nth=17 no-worker", "POST /nodes/father/qemu nth=18 no-worker", "POST /nodes/father/qemu nth=100 no-worker",
		"PUT /nodes/father/qemu/*/resize nth=5 no-worker",
		"POST /nodes/father/qemu/*/status/start nth=1 no-worker", "POST /nodes/father/qemu/*/status/start nth=60 no-worker",
	)
	var notes []string
	r := s.pass("apply", tenAtOnce(&notes))
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Len(t, notes, 8, "%v", notes)
	require.Contains(t, notes[0], "image.debian-12: the outcome is unknown; checking the host and retrying in")
	require.Contains(t, notes[0], "(try 2 of 4)")

	left := s.unfinished()
	require.Len(t, left, 4)
	var names []string
	for _, g := range s.host.Snapshot().Guests {
		if strings.HasPrefix(g.Config["name"], "web-") {
			names = append(names, g.Config["name"])
			require.True(t, g.Running, g.Config["name"])
			require.NotContains(t, left, g.VMID)
		}
	}
	slices.Sort(names)
	require.Len(t, slices.Compact(names), 100, "each once")
	for _, n := range r.Nodes {
		require.NotContains(t, left, n.VMID, "the report names the VMID that the guest has")
		require.Equal(t, n.Name, guestIn(s.host.Snapshot(), n.VMID).Config["name"])
	}
	for _, id := range left {
		require.True(t, slices.ContainsFunc(r.Findings, func(f diag.Finding) bool {
			return strings.Contains(f.Summary, fmt.Sprintf("vm %d is unfinished, since PVE aborted the creation of %s", id, f.Address)) &&
				strings.Contains(f.Detail, fmt.Sprintf("`qm unlock %d && qm destroy %d` on node father", id, id))
		}), "%d: %v", id, r.Findings)
	}

	sent := s.requests()
	writes := 0
	for _, q := range sent {
		if q.method == http.MethodPost && q.path == "/nodes/father/qemu" {
			writes++
		}
	}
	require.Equal(t, 104, writes, "no creation is sent again but those that were broken off")
	s.heals()
	s.inSync()

	s.breaks("DELETE /nodes/father/qemu/* nth=3 no-worker", "DELETE /nodes/father/qemu/* nth=50 no-worker", "POST /nodes/father/qemu/*/status/shutdown nth=2 no-worker")
	notes = nil
	r = s.pass("destroy", func(p *engine.Pass) {
		tenAtOnce(&notes)(p)
		p.Manifest, p.Destroy = "many", true
	})
	require.Equal(t, engine.Done, r.Outcome, describe(r))
	require.Len(t, notes, 3)
	require.Equal(t, left, s.unfinished(), "an interrupted creation is unmanaged, and stays")
	for _, g := range s.host.Snapshot().Guests {
		require.False(t, strings.HasPrefix(g.Config["name"], "web-"), g.Config["name"])
	}
}

// The rest of an interrupted creation has the VMID that the files declare: only an administrator
// can clear it.
func TestNoWorkerForADeclaredVMID(t *testing.T) {
	s := containers(t, pve.Config{})
	s.deploy("one", vm("a", "vmid = 10500")+ct("c", "vmid = 10501"))
	s.breaks("POST /nodes/father/qemu nth=1 no-worker", "POST /nodes/father/lxc nth=1 no-worker")
	r := s.pass("apply", nil)
	require.Equal(t, engine.Partly, r.Outcome, describe(r))
	require.Equal(t, []int{10500, 10501}, s.unfinished())
	require.Contains(t, nodeOf(r, "a").Error, "got no worker upid - start worker failed")
	require.Contains(t, nodeOf(r, "a").Error, "`qm unlock 10500 && qm destroy 10500` on node father")
	require.Contains(t, nodeOf(r, "c").Error, "`pct unlock 10501 && pct destroy 10501` on node father")

	s.clears(10500, 10501)
	s.apply()
	require.Empty(t, s.unfinished())
	s.inSync()
}

// A copy of a container whose task does not start leaves two locks: that of the copy, and
// that of the template, which no token may take away. The run says how to clear both.
func TestNoWorkerForACopyOfAContainer(t *testing.T) {
	t.Parallel()
	for _, version := range pve.Versions() {
		t.Run(version, func(t *testing.T) {
			s := begin(t, pve.Config{Version: version})
			s.write("template.hcl", ctTemplate)
			s.deploy("base", ct("base", "vmid = 10090", "power = \"stopped\""))
			s.apply()
			s.remove("manifests/base.hcl")
			s.byHand(func(e *pve.Edit) { e.Set(10090, "description", ""); e.Set(10090, "template", "1") })
			s.write("golden.hcl", "template \"golden\" {\n  vmid = 10090\n}\n")
			s.deploy("one", strings.ReplaceAll(ct("a"), "template.debian-ct", "template.golden"))
			s.breaks("POST /nodes/father/lxc/10090/clone nth=1 no-worker")
			r := s.try()
			require.NotEqual(t, engine.Done, r.Outcome, describe(r))
			require.Contains(t, nodeOf(r, "a").Error, "CT 10090 is locked (disk)")
			require.Contains(t, nodeOf(r, "a").Error, "`pct unlock 10090` on node father clears it")
			require.Contains(t, describe(r), "`pct unlock 10000 && pct destroy 10000` on node father")
			require.Equal(t, "create", guestIn(s.host.Snapshot(), 10000).Lock)

			s.byHand(func(e *pve.Edit) { e.Set(10090, "lock", "") })
			s.clears(10000)
			s.apply()
			s.inSync()
		})
	}
}

// A host that never starts a worker is not asked for ever.
func TestNoWorkerEver(t *testing.T) {
	s := begin(t, pve.Config{})
	s.deploy("one", vm("a", "power = \"stopped\""))
	s.apply()
	s.edit("manifests/one.hcl", "power = \"stopped\"", "power = \"running\"")
	s.breaks("POST /nodes/father/qemu/*/status/start no-worker")
	before := len(s.requests())
	r := s.try()
	require.Equal(t, engine.Failed, r.Outcome, describe(r))
	require.Contains(t, nodeOf(r, "a").Error, "tried 4 times, checking the host before each retry; the outcome is still unknown: ")
	require.Contains(t, nodeOf(r, "a").Error, "got no worker upid - start worker failed (PVE could not start the process of the task)")
	starts, lists := 0, 0
	for _, q := range s.requests()[before:] {
		starts += boolInt(strings.HasSuffix(q.path, "/status/start"))
		lists += boolInt(q.path == "/cluster/resources")
	}
	require.Equal(t, 4, starts)
	require.Equal(t, 4, lists, "the plan, and one look before each further try")
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A creation that is rolled back takes what was made under the other VMID.
func TestNoWorkerAndRollback(t *testing.T) {
	s := begin(t, pve.Config{})
	s.deploy("two", "  on_error = \"rollback\"\n"+vm("a")+vm("b"))
	s.breaks("POST /nodes/father/qemu nth=1 no-worker", "POST /nodes/father/qemu/10001/status/start status=500")
	r := s.pass("apply", oneAtATime)
	require.Equal(t, engine.Partly, r.Outcome, describe(r)) // the image stays
	require.Equal(t, []int{10000}, s.unfinished())
	require.Empty(t, slices.DeleteFunc(s.names(), func(n string) bool { return n == "" }))
	require.Equal(t, engine.NodeDestroyed, status(r, "a"), describe(r))
}

// The answers of the writes of one update are lost, done or not: the same run finds out.
func TestLostAnswersWithinOneRun(t *testing.T) {
	t.Parallel()
	for _, apply := range []string{"", " apply"} {
		t.Run("effect:"+apply, func(t *testing.T) {
			s := begin(t, pve.Config{})
			s.deploy("one", vm("a"))
			s.breaks(
				"POST /nodes/father/qemu nth=1 status=596"+apply,
				"POST /nodes/father/qemu/*/status/start nth=1 status=-1"+apply,
				"POST /nodes/father/storage/local/download-url nth=1 status=595"+apply,
			)
			s.apply()
			s.edit("manifests/one.hcl", "preset = preset.vm-small", "preset = preset.vm-small\n    disk   = 20\n    description = \"grown\"")
			s.breaks(
				"PUT /nodes/father/qemu/*/config nth=1 status=596"+apply,
				"PUT /nodes/father/qemu/*/resize nth=1 status=599"+apply,
			)
			s.apply()
			require.Contains(t, s.guest("a").Config["scsi0"], "size=20G")
			s.heals()
			s.inSync()
			s.breaks("DELETE /nodes/father/qemu/* nth=1 status=596" + apply)
			s.destroy("one")
			require.Empty(t, s.names())
		})
	}
}

// copies are the files that each commit writes alike, so that a mixture of two would show.
var copies = []string{"one.txt", "dir/two.txt", "dir/sub/three.txt"}

// git clones and fetches, go-git clones and pulls, and others read single files and the spec, before,
// while and after commits come: each sees one commit as a whole, and none sees an older one after a
// newer one.
func TestST09CloneWhileCommitsCome(t *testing.T) {
	t.Parallel()
	p := beginParent(t)
	key, operator := string(p.access().Repository), string(p.access().Operator)
	url := "https://" + p.addr + "/site.git"
	write := func(n int) string {
		for _, name := range copies {
			p.write(name, fmt.Sprintf("%d\n", n))
		}
		p.write("site.hcl", strings.Replace(p.read("site.hcl"), fmt.Sprintf(`"v%d.example"`, n-1), fmt.Sprintf(`"v%d.example"`, n), 1))
		return p.commit(fmt.Sprint("version ", n))
	}
	p.write("site.hcl", strings.Replace(p.read("site.hcl"), "home.example", "v0.example", 1))
	asks := p.child("127.0.0.2")
	served := func(commit string) {
		t.Helper()
		require.Equal(t, "202", asks.ask(http.MethodPost, "/reconcile", operator, http.NoBody).code())
		require.Eventually(t, func() bool { return strings.Contains(asks.get("/health", "").body, commit) }, 5*time.Minute, 100*time.Millisecond)
	}
	served(write(1))

	auth := "http.extraHeader=Authorization: Bearer " + key
	dir := filepath.Join(t.TempDir(), "kept")
	tryClone := func(dir string) error {
		out, err := p.tryGit("clone", "-q", "-c", auth, url, dir) // which keeps it for fetches
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	require.NoError(t, tryClone(dir))
	pulled, err := gogit.PlainClone(filepath.Join(t.TempDir(), "pulled"), false, goClone(url, key))
	require.NoError(t, err)

	// whole is the version of a work tree, which has to be one.
	whole := func(read func(name string) (string, error)) (int, error) {
		version := 0
		for _, name := range copies {
			text, err := read(name)
			if err != nil {
				return 0, err
			}
			var n int
			if _, err := fmt.Sscan(text, &n); err != nil {
				return 0, fmt.Errorf("%s has %q", name, text)
			}
			if version != 0 && n != version {
				return 0, fmt.Errorf("versions %d and %d are mixed", version, n)
			}
			version = n
		}
		return version, nil
	}
	ofGit := func(dir, at string) func(string) (string, error) {
		return func(name string) (string, error) { return p.tryGit("-C", dir, "show", at+":"+name) }
	}
	fresh := t.TempDir()
	clients := map[string]func(n int) (int, error){
		"git clone": func(n int) (int, error) {
			to := filepath.Join(fresh, fmt.Sprint(n))
			if err := tryClone(to); err != nil {
				return 0, err
			}
			return whole(ofGit(to, "HEAD"))
		},
		"git fetch": func(int) (int, error) {
			if out, err := p.tryGit("-C", dir, "fetch", "-q"); err != nil {
				return 0, fmt.Errorf("%w: %s", err, out)
			}
			return whole(ofGit(dir, "origin/main"))
		},
		"go-git clone": func(n int) (int, error) {
			r, err := gogit.PlainClone(filepath.Join(fresh, fmt.Sprint("go-", n)), false, goClone(url, key))
			if err != nil {
				return 0, err
			}
			return whole(ofGoGit(r))
		},
		"go-git pull": func(int) (int, error) {
			tree, err := pulled.Worktree()
			if err != nil {
				return 0, err
			}
			o := goClone(url, key)
			err = tree.PullContext(t.Context(), &gogit.PullOptions{Auth: o.Auth, InsecureSkipTLS: true})
			if err != nil && err != gogit.NoErrAlreadyUpToDate { //nolint:errorlint // it is returned as it is
				return 0, err
			}
			return whole(ofGoGit(pulled))
		},
		"raw files": func(int) (int, error) {
			r, err := asks.tryAsk(http.MethodGet, "/site.git/raw/HEAD/"+copies[0], key, http.NoBody)
			if err != nil || r.status != http.StatusOK {
				return 0, fmt.Errorf("%s: %w", r.code(), err)
			}
			return whole(func(string) (string, error) { return r.body, nil })
		},
		"specs": func(int) (int, error) {
			r, err := asks.tryAsk(http.MethodGet, "/spec/alpha", alphaToken, http.NoBody)
			if err != nil || r.status != http.StatusOK {
				return 0, fmt.Errorf("%s: %w", r.code(), err)
			}
			_, rest, _ := strings.Cut(r.body, `"domain":"v`)
			number, _, _ := strings.Cut(rest, ".")
			return whole(func(string) (string, error) { return number, nil })
		},
	}
	stop := make(chan struct{})
	var all sync.WaitGroup
	var mutex sync.Mutex // the clients count side by side
	seen := map[string]map[int]int{}
	for name, look := range clients {
		seen[name] = map[int]int{}
		all.Go(func() {
			last := 0
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				version, err := look(n)
				if err != nil || version < last {
					t.Errorf("%s: version %d after %d: %v", name, version, last, err)
					return
				}
				last = version
				mutex.Lock()
				seen[name][version]++
				mutex.Unlock()
			}
		})
	}
	const versions = 5
	last := ""
	for n := 2; n <= versions; n++ {
		last = write(n)
		served(last)
	}
	saw := func() bool { // afterwards, too
		mutex.Lock()
		defer mutex.Unlock()
		for name := range clients {
			if seen[name][versions] == 0 {
				return false
			}
		}
		return true
	}
	require.Eventually(t, saw, 5*time.Minute, 100*time.Millisecond, "%v", seen)
	close(stop)
	all.Wait()
	require.Equal(t, last, p.gitIn(dir, "rev-parse", "origin/main"))
	require.Empty(t, p.gitIn(dir, "fsck", "--strict", "--full", "--no-dangling", "--no-progress"))
	t.Logf("seen: %v", seen)
}

func goClone(url, key string) *gogit.CloneOptions {
	return &gogit.CloneOptions{URL: url, Auth: &githttp.BasicAuth{Username: "git", Password: key}, InsecureSkipTLS: true}
}

func ofGoGit(r *gogit.Repository) func(name string) (string, error) {
	return func(name string) (string, error) {
		head, err := r.Head()
		if err != nil {
			return "", err
		}
		commit, err := r.CommitObject(head.Hash())
		if err != nil {
			return "", err
		}
		file, err := commit.File(name)
		if err != nil {
			return "", err
		}
		return file.Contents()
	}
}
