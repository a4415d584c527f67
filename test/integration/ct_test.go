package integration_test

import (
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/test/released"
)

// ctTemplate is the template that the containers of a story are made from.
const ctTemplate = "template \"debian-ct\" {\n  url      = \"https://images.example/debian-12-standard_12.7-1_amd64.tar.zst\"\n  checksum = \"sha256:" +
	"c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7c7\"\n}\n"

// containers is a story with a container template beside the image of the frame.
func containers(t *testing.T, c pve.Config) *story {
	t.Helper()
	s := begin(t, c)
	s.write("template.hcl", ctTemplate)
	return s
}

// ct is the text of a node that is a container, with further lines of its block.
func ct(name string, lines ...string) string {
	return strings.NewReplacer(`type   = "vm"`, `type   = "ct"`, "image  = image.debian-12", "template = template.debian-ct").Replace(vm(name, lines...))
}

// ST-8 with containers.
func TestContainersTwiceAreOnce(t *testing.T) {
	s := containers(t, pve.Config{TaskTime: 10 * time.Millisecond})
	s.deploy("web", ct("web", "count = 2")+vm("db")+ct("cache",
		"swap = 0", "unprivileged = true", `features = ["nesting"]`, `timezone = "Europe/Berlin"`, `tags = ["db", "Prod"]`, "onboot = true",
		`description = "Asks Anna first: 100 %; a=b"`, "password = \"${secret.passwords.cache}\"",
		"disk \"data\" {\n      size   = 20\n      path   = \"/srv/data\"\n      backup = true\n      options = {\n        mountoptions = \"noatime\"\n      }\n    }",
		"nic \"lan\" {\n      ip       = \"192.0.2.10/24\"\n      ip6      = \"fd00::10/64\"\n      gateway6 = \"fd00::1\"\n      firewall = true\n    }",
		"startup {\n      order = 2\n      down  = 60\n    }", "options = {\n      cpulimit = \"1.5\"\n    }",
	))
	s.write("secrets.yaml", released.Auth+fmt.Sprintf("api_tokens:\n  father: %q\npasswords:\n  cache: \"hunter22\"\n", s.host.Token()))
	s.apply()
	once := s.managed()
	require.Len(t, once, 4)
	require.Equal(t, "Asks Anna first: 100 %; a=b", notes(once["cache"]))
	for _, g := range once {
		require.True(t, g.Running)
		require.NotContains(t, fmt.Sprint(g.Config), "hunter22")
	}
	s.quietly(func() {
		s.inSync()
		require.Empty(t, steps(s.apply()))
	})
	require.Equal(t, once, s.managed(), "the second apply changed something")
	s.destroy("web")
	require.Empty(t, s.names())
	s.quietly(func() { require.Empty(t, steps(s.destroy("web"))) })
}

// ST-10 with containers.
func TestDriftOfContainersIsPutBack(t *testing.T) {
	s := containers(t, pve.Config{TaskTime: 20 * time.Millisecond})
	s.deploy("web", ct("changed", "restart = \"allowed\"")+ct("deleted")+ct("stopped")+ct("untouched"))
	s.apply()
	before := s.managed()
	s.byHand(func(e *pve.Edit) {
		id := before["changed"].VMID
		e.Set(id, "memory", "512")
		e.Set(id, "tags", "homestak;mine")
		e.Set(id, "hostname", "renamed")
		e.Set(id, "nameserver", "9.9.9.9")
		e.Delete(before["deleted"].VMID)
		e.Stop(before["stopped"].VMID)
	})
	require.ElementsMatch(t, []string{
		"update ct.changed: hostname, memory, nameserver, tags",
		"create ct.deleted",
		"update ct.stopped: power",
	}, steps(s.plan()))
	s.apply()
	require.Equal(t, []string{"changed", "deleted", "stopped", "untouched"}, s.names())
	changed := s.guest("changed")
	require.Equal(t, before["changed"].Config, changed.Config)
	require.Empty(t, changed.Pending)
	require.Equal(t, before["deleted"].VMID, s.guest("deleted").VMID)
	require.True(t, s.guest("stopped").Running)
	require.Equal(t, before["untouched"], s.guest("untouched"))
	s.inSync()
}

// ST-11 with containers: what leaves the files leaves the host, and nothing else does.
func TestWithdrawnContainersGo(t *testing.T) {
	s := containers(t, pve.Config{TaskTime: 10 * time.Millisecond})
	s.deploy("web", ct("goes")+ct("stays", "tags = [\"old\"]", "onboot = true", "options = {\n      tty = \"4\"\n    }"))
	s.apply()
	stays := s.guest("stays")
	s.byHand(func(e *pve.Edit) { e.Set(stays.VMID, "cpuunits", "77") }) // of no file, ever
	s.deploy("web", ct("stays"))
	s.apply()
	require.Equal(t, []string{"stays"}, s.names())
	after := s.guest("stays").Config
	require.Equal(t, []string{"homestak", "0", "77"}, []string{after["tags"], after["onboot"], after["cpuunits"]})
	require.Len(t, s.plan().Pending, 1, "tty waits for a restart, which is not allowed")
	s.remove("manifests/web.hcl")
	s.apply()
	require.Empty(t, s.names())
	require.Contains(t, volumes(s), "vztmpl/homestak.home.debian-ct.c7c7c7c7c7c7.tar.zst", "it is declared still")
	s.remove("template.hcl")
	s.apply()
	require.NotContains(t, volumes(s), "homestak.home.debian-ct")
	s.inSync()
}

func volumes(s *story) string {
	var out []string
	for _, list := range s.host.Snapshot().Volumes {
		for _, v := range list {
			out = append(out, v.ID)
		}
	}
	return strings.Join(out, " ")
}

// ST-12 with containers: without a mark; with a copied one; with a VMID of ours; two
// of one identity. None is touched, each is named.
func TestUnmanagedContainersStay(t *testing.T) {
	s := containers(t, pve.Config{TaskTime: 10 * time.Millisecond})
	s.withoutKey()
	lxc := func(vmid int, name string, c map[string]string) pve.Guest {
		g := pve.Guest{VMID: vmid, Kind: "lxc", Running: true, Config: map[string]string{"memory": "512", "swap": "512", "net0": fmt.Sprintf("name=eth0,bridge=vmbr0,hwaddr=AA:00:00:00:00:%02d,type=veth", vmid%100)}}
		maps.Copy(g.Config, c)
		g.Config["hostname"] = name
		return g
	}
	s.byHand(func(e *pve.Edit) { e.Add(lxc(10000, "web-1", map[string]string{"tags": "homestak"})) })
	s.deploy("web", ct("web-1")+ct("web-2")+ct("fixed", "vmid = 10050")+ct("twin"))
	r := s.try()
	require.NotContains(t, steps(r.Plan), "create ct.web-1")
	requireFinding(t, r.Findings, "ct.web-1", "10000", "is unmanaged")
	web2, twin := s.guest("web-2"), s.guest("twin")
	s.byHand(func(e *pve.Edit) {
		e.Delete(10050)
		e.Add(lxc(10050, "theirs", nil))
		// PVE's clone takes the description over, and gives the card another address.
		e.Add(lxc(10777, "copy", map[string]string{"description": web2.Config["description"], "tags": "homestak"}))
		e.Add(unmanagedGuest(10778, "vm-copy", "description", web2.Config["description"]))
		e.Add(lxc(10900, "twin", twin.Config))
		e.Set(10900, "hostname", "twin-restored")
	})
	before := s.host.Snapshot().Guests

	r = s.try()
	require.Empty(t, steps(r.Plan))
	requireFinding(t, r.Findings, "ct.fixed", "10050")
	requireFinding(t, r.Findings, "ct.twin", "neither is changed")
	require.Contains(t, why(r.Plan, 10777), "copy")
	require.Contains(t, why(r.Plan, 10778), "copied")
	require.Contains(t, why(r.Plan, 10900), "identity of ct.twin")
	s.unchanged(before)

	// This site has no key, so nothing proves that a guest is its own to remove.
	s.remove("manifests/web.hcl")
	s.try()
	snap := s.host.Snapshot()
	for _, vmid := range []int{10000, 10050, 10777, 10778, 10900, twin.VMID, web2.VMID} {
		require.NotNil(t, guestIn(snap, vmid), vmid)
	}
}

// ST-13 with containers: one cannot be made; on_error says what becomes of the rest.
func TestAContainerFails(t *testing.T) {
	t.Parallel()
	for policy, there := range map[string][]string{"stop": {"a"}, "rollback": {}, "continue": {"a", "c"}} {
		t.Run(policy, func(t *testing.T) {
			s := containers(t, pve.Config{})
			s.deploy("three", "  on_error = \""+policy+"\"\n"+ct("a")+ct("b")+ct("c"))
			s.breaks("POST /nodes/father/lxc nth=2 status=500")
			r := s.pass("apply", oneAtATime)
			require.Equal(t, engine.Partly, r.Outcome, describe(r))
			s.heals()
			require.ElementsMatch(t, there, s.names())
			s.apply()
			require.Equal(t, []string{"a", "b", "c"}, s.names())
			s.inSync()
		})
	}
}

// ST-14 with containers, over the wire: each write of making, changing, replacing and
// destroying is lost once, done and not done. The driver's tests do the same with
// every read.
func TestLostAnswersOfContainers(t *testing.T) {
	life := func(t *testing.T, at int64, apply bool) int64 {
		t.Helper()
		s := containers(t, pve.Config{})
		var n atomic.Int64
		lose := func(r *http.Request) (int, bool) {
			if r.Method != http.MethodGet && n.Add(1) == at {
				return 596, apply
			}
			return 0, false
		}
		s.fault.Store(&lose)
		settled := func(text string) {
			t.Helper()
			if s.deploy("web", text); text == "" {
				s.remove("manifests/web.hcl")
			}
			if s.try().Outcome != engine.Done {
				s.apply()
			}
			s.inSync()
		}
		settled(ct("a") + ct("b"))
		settled(ct("a", "restart = \"allowed\"", "cores = 1", "timezone = \"host\"", "disk = 12", "disk \"more\" {\n      size = 2\n      path = \"/more\"\n    }"))
		settled(ct("a", "unprivileged = false"))
		settled("")
		require.Empty(t, s.names())
		return n.Load()
	}
	writes := life(t, 0, false)
	require.Greater(t, writes, int64(12))
	for at := int64(1); at <= writes; at++ {
		for _, apply := range []bool{false, true} {
			if everySecond() > 1 && apply == (at%2 == 0) {
				continue
			}
			t.Run(strconv.FormatInt(at, 10)+fmt.Sprint(apply), func(t *testing.T) { life(t, at, apply) })
		}
	}
}

// ST-15 with containers: while their list, their node or one of them cannot be read,
// nothing of them is made or removed.
func TestUnseenContainersAreUnknown(t *testing.T) {
	s := containers(t, pve.Config{TaskTime: 10 * time.Millisecond})
	s.deploy("web", ct("a")+ct("b"))
	s.apply()
	before := s.host.Snapshot().Guests
	a := s.vmidOf("a")
	s.deploy("web", ct("b")+ct("c"))
	for _, fault := range []string{"GET /nodes/father/lxc status=595", "GET /cluster/resources status=500", fmt.Sprintf("GET /nodes/father/lxc/%d/pending status=403", a)} {
		s.breaks(fault)
		r := s.try()
		require.NotEqual(t, engine.Done, r.Outcome, "%s: %s", fault, describe(r))
		s.unchanged(before)
		s.heals()
	}
	s.deploy("web", ct("b")+ct("c")+ct("d"))
	s.breaks("GET /nodes/father/storage/local/content status=595")
	r := s.try()
	require.NotContains(t, s.names(), "d", describe(r)+"whether its template is there cannot be seen")
	s.heals()
	s.apply()
	require.Equal(t, []string{"b", "c", "d"}, s.names())
	s.inSync()
}
