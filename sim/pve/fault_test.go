package pve_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/sim/pve/core"
)

func TestParseFault(t *testing.T) {
	for text, want := range map[string]pve.Fault{
		"GET /version status=500":                     {Method: "GET", Pattern: "/version", Status: 500},
		"post /nodes/*/qemu nth=2 status=596 apply":   {Method: "POST", Pattern: "/nodes/*/qemu", Nth: 2, Status: 596, Apply: true},
		"* /cluster/** status=-1":                     {Method: "*", Pattern: "/cluster/**", Status: -1},
		"DELETE /nodes/**  apply  status=503  nth=10": {Method: "DELETE", Pattern: "/nodes/**", Nth: 10, Status: 503, Apply: true},
		"POST /nodes/*/qemu nth=3 no-worker":          {Method: "POST", Pattern: "/nodes/*/qemu", Nth: 3, Status: core.NoWorker, NoWorker: true},
	} {
		got, err := pve.ParseFault(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
	}
	for _, text := range []string{
		"", "GET /version", "GET version status=500", "GET /version status=x", "GET /version status=200", "GET /version nth=0 status=500",
		"GET /version apply", "GET /version status=500 often", "GET /version status=600",
		"POST /pools no-worker apply", "POST /pools no-worker status=500",
	} {
		_, err := pve.ParseFault(text)
		require.ErrorContains(t, err, text)
	}
}

// FuzzParseFault: no text makes it panic, and what it takes can be used.
func FuzzParseFault(f *testing.F) {
	f.Add("GET /nodes/*/qemu nth=1 status=595 apply")
	f.Fuzz(func(t *testing.T, text string) {
		rule, err := pve.ParseFault(text)
		if err != nil {
			return
		}
		r, err := http.NewRequest(http.MethodGet, "https://pve/api2/json/nodes/father/qemu", nil)
		require.NoError(t, err)
		status, _ := pve.Faults(rule)(r)
		require.Contains(t, []int{0, rule.Status}, status)
	})
}

// TestFaults: with and without effect, by count, and as a dropped connection.
func TestFaults(t *testing.T) {
	var rules []pve.Fault
	for _, text := range []string{
		"POST /pools nth=1 status=596 apply", "POST /pools nth=2 status=500", "POST /pools nth=3 status=-1 apply", "GET /nodes/*/qemu/** status=595",
	} {
		rule, err := pve.ParseFault(text)
		require.NoError(t, err)
		rules = append(rules, rule)
	}
	type seen struct {
		path, body string
		status     int
	}
	var record []seen
	c := newClient(t, pve.Config{Fault: pve.Faults(rules...), Record: func(r *http.Request, body []byte, status int) {
		again, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Equal(t, string(body), string(again))
		record = append(record, seen{r.URL.Path, string(body), status})
	}})
	a := c.ask("POST", "/pools", form{"poolid": "one"})
	require.Equal(t, 596, a.status)
	require.Equal(t, "Connection timed out", a.reason)
	require.Empty(t, a.raw)
	require.Equal(t, 500, c.ask("POST", "/pools", form{"poolid": "two"}).status)
	r, err := http.NewRequest(http.MethodPost, "https://pve/api2/json/pools?poolid=three", nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "PVEAPIToken="+c.token)
	response, err := c.h.RoundTrip(r)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	if response != nil {
		require.NoError(t, response.Body.Close())
		require.Fail(t, "an answer from a dropped connection")
	}
	require.Equal(t, 595, c.ask("GET", vmURL("100", "/config"), nil).status)
	require.Equal(t, 595, c.ask("GET", vmURL("100", "/status/current"), nil).status)
	require.Equal(t, 595, c.ask("GET", "/nodes/father/qemu", nil).status, "the rest may be nothing")
	c.ok("GET", "/nodes/father/version", nil)

	s := c.h.Snapshot()
	require.Equal(t, []string{"one", "three"}, []string{s.Pools[0].Name, s.Pools[1].Name})
	require.Len(t, s.Pools, 2)
	require.Equal(t, 3, s.Requests["POST /pools"])
	require.Equal(t, []seen{
		{"/api2/json/pools", "poolid=one", 596},
		{"/api2/json/pools", "poolid=two", 500},
		{"/api2/json/pools", "", -1},
		{"/api2/json/nodes/father/qemu/100/config", "", 595},
		{"/api2/json/nodes/father/qemu/100/status/current", "", 595},
		{"/api2/json/nodes/father/qemu", "", 595},
		{"/api2/json/nodes/father/version", "", 200},
	}, record)
}

// TestNoWorker: a request goes as far as the start of its task. What is written before
// that stays (create_and_lock_config in PVE/API2/Qemu.pm and PVE/API2/LXC.pm).
func TestNoWorker(t *testing.T) {
	rule, err := pve.ParseFault("* /nodes/** no-worker")
	require.NoError(t, err)
	c := newClient(t, pve.Config{Guests: 1, Fault: pve.Faults(rule)})
	before := c.h.Snapshot()
	failed := func(method, path string, f form) {
		t.Helper()
		a := c.ask(method, path, f)
		require.Equal(t, 500, a.status, a.raw)
		require.Equal(t, "got no worker upid - start worker failed", a.reason)
	}
	failed("POST", "/nodes/father/qemu", form{"vmid": "200", "name": "web", "cores": "2"})
	failed("POST", "/nodes/father/qemu/200/status/start", nil)
	failed("DELETE", "/nodes/father/qemu/200", nil)
	failed("POST", "/nodes/father/storage/local/download-url", form{"content": "iso", "filename": "a.iso", "url": "https://images.example/a.iso"})
	c.ok("GET", "/nodes/father/qemu/200/config", nil)

	after := c.h.Snapshot()
	require.Len(t, after.Guests, len(before.Guests)+1)
	for _, g := range after.Guests {
		if g.VMID == 200 {
			require.Equal(t, map[string]string{"lock": "create"}, g.Config)
		}
	}
	require.Equal(t, before.Volumes, after.Volumes)
	require.Empty(t, c.ok("GET", "/nodes/father/tasks?source=all", nil))
}

// clauses are what a stand-in for PVE must do as PVE does, because real tools broke on
// it, each with the tests that show it. TestReplay and TestRecordings stand for what
// was recorded of a real host.
var clauses = map[string]string{
	"resources lag behind; a new guest is unknown and has no name":            "TestLag TestReplay",
	"a guest of a node that is down is known for five minutes":                "TestOfflineNode",
	"pending values beside those in force":                                    "TestPending TestReplay",
	"the digest is that of the whole file":                                    "TestDigest TestReplay",
	"an order to allocate is no name of a volume: repeated, it makes another": "TestDrives",
	"MACs and uuids are invented":                                             "TestInventions TestReplay",
	"tags and drives are stored in one form":                                  "TestDrives TestReplay",
	"an id that is taken: at once at creation, in the task of a clone":        "TestTaskLife TestCloneToOneID",
	"a guest is locked while a task works on it":                              "TestTaskLife TestLockFile",
	"a worker that died leaves its lock":                                      "TestDeaths TestStoppedTask",
	"tasks that warn":                                                         "TestWarnings",
	"tasks without a verdict":                                                 "TestStoppedTask TestDeaths",
	"creates that die without a trace":                                        "TestDeaths TestStoppedTask",
	"403 for a member of a pool that is gone":                                 "TestLeastPrivilege TestGoneMember",
	"lists show what the caller may see, and say nothing of the rest":         "TestLeastPrivilege TestReplay",
	"596 after a write took effect":                                           "TestFaults",
	"the connection closes after every failure":                               "TestConnections",
	"the connection closes after a call that ran in pvedaemon":                "TestConnections",
	"a connection is for 100 requests, or 5 s of silence":                     "TestConnections TestIdleConnection",
	"cpulimit comes as a string":                                              "TestTextNumbers TestReplay",
	"tasks about managed guests end before anything happened":                 "TestManaged",
	"cipassword is never told":                                                "TestTextNumbers TestReplay",
	"401 takes three seconds and has no JSON":                                 "TestLogin TestReplay",
	"forms: a bare = or ; in a value cuts it":                                 "TestRequestForms TestRecordings",
	"DELETE with a body, HEAD, OPTIONS and PATCH are 501":                     "TestVerbsAndPaths",
	"failures that only the task tells":                                       "TestStartFailures TestReplay",
	"what does not exist is a 500 that names the file":                        "TestConnections TestReplay",
	"a stale digest: one text for VMs, another for containers":                "TestDigest TestContainerLocks",
	"a token of root@pam is not root@pam":                                     "TestRootToken",
	"a token without rights sees empty lists":                                 "TestLeastPrivilege TestReplay",
	"a running task's status is RUNNING in the list":                          "TestTaskLife TestRecordings",
	"the log of an unknown task is an object":                                 "TestDeaths TestRecordings",
	"596 of a program that the agent does not find":                           "TestAgentRuns",
	"sshkeys are encoded twice":                                               "TestReplay TestRecordings",
	"shrinking fails in the task of a VM, at once of a container":             "TestReplay TestRecordings",
	"old tasks are rotated away":                                              "TestRotation",
	"three workers for each node":                                             "TestLatencyAndWorkers",
	"nothing is written without quorum":                                       "TestQuorum TestTasksWithoutQuorum",
	"8.4 and 9.1 differ":                                                      "TestVersions TestVersionParameters",
	"same seed and requests, same answers":                                    "TestSameSurface TestSameAnswers",
}

// TestClauses: the tests that are named are there, or among those of test/sim.
func TestClauses(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	beside, err := filepath.Glob("../../test/sim/*_test.go")
	require.NoError(t, err)
	there := map[string]bool{}
	for _, file := range append(files, beside...) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			there[found[1]] = true
		}
	}
	for clause, tests := range clauses {
		for name := range strings.FieldsSeq(tests) {
			require.True(t, there[name], "%s: there is no %s", clause, name)
		}
	}
}

// TestDeaths: of five creates one dies without a trace and one crashes; both leave a
// guest that has a lock and nothing else, which no token can remove. The others are
// well.
func TestDeaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{TaskTime: time.Second, Deaths: []pve.Death{
			{Type: "qmcreate", Nth: 2, Silent: true}, {Type: "qmcreate", Nth: 4}, {Type: "qmsnapshot"},
		}})
		var upids []string
		for id := range 5 {
			upids = append(upids, fmt.Sprint(c.ok("POST", "/nodes/father/qemu", form{"vmid": fmt.Sprint(101 + id), "name": "x", "scsi0": "local-lvm:1"})))
		}
		time.Sleep(30 * time.Second)
		for id, upid := range upids {
			vmid, path := fmt.Sprint(101+id), "/nodes/father/tasks/"+url.PathEscape(upid)
			config := c.object(vmURL(vmid, "/config"))
			switch id {
			case 1:
				require.Equal(t, map[string]string{"upid": "no such task"}, c.ask("GET", path+"/status", nil).errors)
				require.Equal(t, "unable to open file - No such file or directory", c.object(path + "/log")["t"])
				require.Equal(t, "unable to open file - No such file or directory", c.list("/nodes/father/tasks?vmid=102")[0]["status"])
			case 3:
				require.Equal(t, "unexpected status", c.object(path + "/status")["exitstatus"])
			default:
				require.Equal(t, "OK", c.object(path + "/status")["exitstatus"])
				require.Equal(t, "x", config["name"])
				continue
			}
			require.Len(t, config, 2, "lock and digest alone")
			require.Equal(t, "create", config["lock"])
			require.Equal(t, "VM is locked (create)", c.task("DELETE", vmURL(vmid, ""), nil))
			require.Equal(t, "only root can set 'lock' config", c.ask("PUT", vmURL(vmid, "/config"), form{"delete": "lock"}).reason)
		}
		for _, entry := range c.list("/cluster/resources?type=vm") {
			if entry["vmid"] == 102.0 {
				require.Equal(t, []any{"VM 102", "create"}, []any{entry["name"], entry["lock"]})
			}
		}
		for range 2 { // Each of a type may die.
			if snapshot := c.ask("POST", vmURL("101", "/snapshot"), form{"snapname": "one"}); snapshot.status == 200 {
				require.Contains(t, []string{"unexpected status", "VM is locked (snapshot)"}, c.wait(fmt.Sprint(snapshot.data)))
			}
		}
		require.Equal(t, "snapshot", c.object(vmURL("101", "/config"))["lock"])
	})
}

// TestRotation: the oldest tasks are forgotten, running ones never.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{KeepTasks: 3, TaskTimes: map[string]time.Duration{"qmstart": time.Hour}})
		c.done("POST", "/nodes/father/qemu", form{"vmid": "100"})
		slow := fmt.Sprint(c.ok("POST", vmURL("100", "/status/start"), nil))
		var upids []string
		for range 5 {
			upids = append(upids, fmt.Sprint(c.ok("POST", "/nodes/father/qemu/101/status/start", nil)))
			time.Sleep(2 * time.Hour)
		}
		require.Len(t, c.list("/nodes/father/tasks"), 3)
		status := func(upid string) answer {
			return c.ask("GET", "/nodes/father/tasks/"+url.PathEscape(upid)+"/status", nil)
		}
		require.Equal(t, map[string]string{"upid": "no such task"}, status(upids[0]).errors)
		require.Equal(t, 200, status(upids[4]).status)
		require.Equal(t, map[string]string{"upid": "no such task"}, status(slow).errors, "once it is over and old")
	})
}

// TestGoneMember: whose rights come from a pool hears of a guest that is gone that it
// is forbidden, not that it is missing.
func TestGoneMember(t *testing.T) {
	c := newClient(t, pve.Config{})
	c.ok("POST", "/pools", form{"poolid": "ours"})
	c.done("POST", "/nodes/father/qemu", form{"vmid": "100", "pool": "ours"})
	c.ok("POST", "/access/users", form{"userid": "u@pve"})
	c.ok("PUT", "/access/acl", form{"path": "/pool/ours", "roles": "PVEVMAdmin", "users": "u@pve"})
	token := c.ok("POST", "/access/users/u@pve/token/full", form{"privsep": "0"}).(map[string]any)["value"]
	u := c.as(fmt.Sprint("u@pve!full=", token))
	u.ok("GET", vmURL("100", "/config"), nil)
	u.done("DELETE", vmURL("100", ""), nil)
	gone := u.ask("GET", vmURL("100", "/config"), nil)
	require.Equal(t, 403, gone.status)
	require.Equal(t, "Permission check failed (/vms/100, VM.Audit)", gone.reason)
	require.Equal(t, 500, c.ask("GET", vmURL("100", "/config"), nil).status, "who may see all hears that it is missing")
}
