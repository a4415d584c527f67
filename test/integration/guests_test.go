package integration_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/test/bench/fleet"
	"github.com/homestak/homestak-gitops/test/released"
)

// ST-8: what is done needs no doing. A second apply and a second destroy find
// nothing, and send nothing that writes.
func TestTwiceIsOnce(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 20 * time.Millisecond})
	s.deploy("web", vm("web", "count = 2")+vm("db",
		"memory = 4096",
		`tags = ["db", "prod"]`,
		"onboot = true",
		`description = "Asks Anna first: 100 %; a=b"`,
		"disk \"data\" {\n      size = 20\n    }",
		"nic \"lan\" {\n      ip = \"192.0.2.10/24\"\n    }",
		"nic \"backup\" {\n      vlan = 20\n    }",
		"startup {\n      order = 2\n      down  = 60\n    }",
		"options = {\n      balloon = \"1024\"\n    }",
	))

	s.apply()
	once := s.managed()
	require.Len(t, once, 3)
	require.Equal(t, "Asks Anna first: 100 %; a=b", notes(once["db"]))

	s.quietly(func() {
		s.inSync()
		require.Empty(t, steps(s.apply()))
	})
	require.Equal(t, once, s.managed(), "the second apply changed something")

	s.destroy("web")
	require.Empty(t, s.names())
	s.quietly(func() {
		require.Empty(t, steps(s.destroy("web")))
	})
	require.Empty(t, s.names())

	// A guest that was removed by hand before a destroy is not an error either.
	s.apply()
	gone := s.vmidOf("web-1")
	s.byHand(func(e *pve.Edit) { e.Delete(gone) })
	s.destroy("web")
	require.Empty(t, s.names())
}

// ST-10: a change by hand on the host is found by the next pass, named, and reverted.
func TestDriftIsPutBack(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 20 * time.Millisecond})
	s.deploy("web", vm("changed", "restart = \"allowed\"")+vm("deleted")+vm("stopped")+vm("untouched"))
	s.apply()
	before := s.managed()

	s.byHand(func(e *pve.Edit) {
		id := before["changed"].VMID
		e.Set(id, "memory", "512")
		e.Set(id, "tags", "homestak;mine")
		e.Set(id, "name", "renamed")
		e.Delete(before["deleted"].VMID)
		e.Stop(before["stopped"].VMID)
	})

	p := s.plan()
	require.ElementsMatch(t, []string{
		"update vm.changed: memory, name, tags",
		"create vm.deleted",
		"update vm.stopped: power",
	}, steps(p))

	s.apply()
	require.Equal(t, []string{"changed", "deleted", "stopped", "untouched"}, s.names())
	changed := s.guest("changed")
	require.Equal(t, "2048", changed.Config["memory"])
	require.Empty(t, changed.Pending)
	require.Equal(t, "homestak", changed.Config["tags"])
	require.Equal(t, before["deleted"].VMID, s.guest("deleted").VMID, "its VMID was free and is the lowest")
	require.True(t, s.guest("stopped").Running)
	require.Equal(t, before["untouched"], s.guest("untouched"))
	s.inSync()
}

// ST-10, where a policy says so: the same is found and told, and left as it is.
func TestDriftMayOnlyBeReported(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 20 * time.Millisecond})
	s.deploy("web", vm("web-1", "drift = \"report\"")+vm("web-2", "drift = \"report\""))
	s.apply()
	first, second := s.vmidOf("web-1"), s.vmidOf("web-2")
	s.byHand(func(e *pve.Edit) {
		e.Set(first, "cores", "8")
		e.Stop(second)
	})
	left := s.managed()

	s.quietly(func() {
		r := s.try()
		require.Empty(t, steps(r.Plan))
		requireFinding(t, r.Findings, "vm.web-1", "drift", "cores")
		requireFinding(t, r.Findings, "vm.web-2", "drift", "power")
	})
	require.Equal(t, left, s.managed())
	s.says(2, "plan", "--detailed-exitcode")
	s.says(0, "apply", "--yes")
	require.Equal(t, left, s.managed())
}

// ST-11: what leaves the files leaves the guest, and what leaves the site leaves the
// host: a tag, a card, a disk, an option, a key, a node, an image, a pool. What was
// never ours stays, beside it and after it.
func TestRemovalsFromTheFilesReachTheHost(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 10 * time.Millisecond})
	s.write("pool.hcl", "pool \"prod\" {\n  host = host.father\n}\n")
	s.edit("host.hcl", "node        =", "pool        = \"prod\"\n  node        =")
	more := []string{
		`restart = "allowed"`, `tags = ["old"]`, "onboot = true", `description = "Asks Anna first"`,
		"disk \"kept\" {\n      size = 2\n    }", "disk \"gone\" {\n      size = 3\n      remove = true\n    }",
		"nic \"lan\" {\n    }", "nic \"dmz\" {\n      vlan = 7\n    }",
		"startup {\n      order = 2\n    }", "options = {\n      cpulimit = \"1.5\"\n      localtime = \"1\"\n    }",
	}
	s.deploy("web", vm("stays", more...)+vm("goes"))
	s.apply()
	stays := s.guest("stays")
	require.Equal(t, "1.5", stays.Config["cpulimit"])
	require.NotEmpty(t, stays.Config["net1"])
	s.byHand(func(e *pve.Edit) {
		e.Set(stays.VMID, "cpuunits", "77") // of no file, ever
		e.Set(stays.VMID, "hotplug", "network,disk")
	})

	s.deploy("web", vm("stays", `restart = "allowed"`))
	s.apply()

	require.Equal(t, []string{"stays"}, s.names())
	g := s.guest("stays")
	for _, key := range []string{"net1", "startup", "cpulimit", "localtime"} {
		require.Empty(t, g.Config[key], key)
	}
	require.Equal(t, []string{"homestak", "", "77", "network,disk"}, []string{g.Config["tags"], notes(g), g.Config["cpuunits"], g.Config["hotplug"]})
	require.NotEqual(t, "1", g.Config["onboot"])
	require.Empty(t, g.Config["scsi1"])
	require.Empty(t, g.Config["scsi2"])
	require.Contains(t, g.Config["unused0"], strings.TrimPrefix(strings.Split(stays.Config["scsi1"], ",")[0], "local-lvm:"), "its data may be all there is: it is let go of, and stays")
	require.Empty(t, g.Config["unused1"], "this one the files said to remove")
	require.Contains(t, volumes(s), strings.Split(stays.Config["scsi1"], ",")[0])
	require.NotContains(t, volumes(s), strings.Split(stays.Config["scsi2"], ",")[0])
	require.Equal(t, stays.Config["smbios1"], g.Config["smbios1"])
	s.inSync()

	s.remove("manifests/web.hcl")
	s.apply()
	require.Empty(t, s.names())
	require.Contains(t, volumes(s), "homestak.home.debian-12.", "it is declared still")

	s.edit("host.hcl", "pool        = \"prod\"\n", "")
	s.remove("pool.hcl")
	_, image, _ := strings.Cut(released.Site, "image \"")
	s.edit("site.hcl", "image \""+image, "")
	s.apply()
	require.NotContains(t, volumes(s), "homestak.home.debian-12.")
	require.Empty(t, s.host.Snapshot().Pools)
	s.inSync()
}

// ST-12: what does not prove to be ours is listed and left alone, however much it
// looks like ours.
func TestGuestsWithoutATagAreUnmanaged(t *testing.T) {
	s := begin(t, pve.Config{Guests: 6})
	s.byHand(func(e *pve.Edit) {
		e.Add(unmanagedGuest(10000, "web-1", "tags", "homestak"))       // our name, our tag, our range
		e.Add(unmanagedGuest(10001, "web-3", "description", "# web-2")) // in our range
	})
	s.deploy("web", vm("web-1")+vm("web-2"))
	before := s.host.Snapshot().Guests

	r := s.try()

	// web-1 may be the guest that already has that name, so no second one is made.
	require.Equal(t, []string{"create image.debian-12", "create vm.web-2"}, steps(r.Plan))
	requireFinding(t, r.Findings, "vm.web-1", "10000", "is unmanaged")
	require.Equal(t, engine.Refused, r.Outcome, describe(r))
	require.Len(t, r.Plan.Unmanaged, len(before))
	require.NotContains(t, []int{10000, 10001}, s.vmidOf("web-2"))
	s.unchanged(before)

	s.destroy("web")
	s.unchanged(before)
}

// ST-12: a guest was destroyed by hand, and an unmanaged one got its VMID.
func TestARecycledVMIDIsUnmanaged(t *testing.T) {
	s := begin(t, pve.Config{})
	s.deploy("web", vm("chosen")+vm("declared", "vmid = 10050"))
	s.apply()
	chosen := s.vmidOf("chosen")
	s.byHand(func(e *pve.Edit) {
		for _, id := range []int{chosen, 10050} {
			e.Delete(id)
			e.Add(unmanagedGuest(id, "theirs"))
		}
	})
	before := s.host.Snapshot().Guests

	r := s.try()

	require.NotEqual(t, chosen, s.vmidOf("chosen"), "another VMID was free")
	requireFinding(t, r.Findings, "vm.declared", "10050")
	require.NotContains(t, s.everyName(), "declared")
	s.unchanged(before)
	s.remove("manifests/web.hcl")
	s.apply()
	s.unchanged(before)
}

// ST-12: a copy has the ownership tag of the guest it was made from, and is another
// machine all the same.
func TestACopiedTagIsNotOwnership(t *testing.T) {
	s := begin(t, pve.Config{})
	s.deploy("web", vm("web-1"))
	s.apply()
	ours := s.guest("web-1")
	copied := maps.Clone(ours.Config)
	copied["smbios1"] = "uuid=5ec0dcb1-0000-4000-8000-000000000001"
	s.byHand(func(e *pve.Edit) { e.Add(pve.Guest{VMID: 10777, Config: copied}) })

	p := s.plan()
	require.Empty(t, steps(p))
	require.Contains(t, why(p, 10777), "copy")

	// Whatever happens to the original, the copy stays as it is.
	s.edit("manifests/web.hcl", "preset = preset.vm-small", "preset = preset.vm-small\n    cores = 4")
	s.apply()
	s.remove("manifests/web.hcl")
	s.apply()
	snap := s.host.Snapshot()
	require.Nil(t, guestIn(snap, ours.VMID))
	require.Equal(t, copied, guestIn(snap, 10777).Config)
}

// ST-12: a backup of a guest was restored beside it. Both have the same tag and identity, so neither is touched until a person
// removes one.
func TestARestoredBackupMakesTwoOfOne(t *testing.T) {
	s := begin(t, pve.Config{TaskTime: 20 * time.Millisecond})
	s.withoutKey()
	s.deploy("web", vm("web-1")+vm("web-2"))
	s.apply()
	backup := pve.Guest{VMID: 10900, Config: s.guest("web-1").Config}
	first := s.vmidOf("web-1")
	s.byHand(func(e *pve.Edit) { e.Add(backup) })
	before := s.host.Snapshot().Guests

	s.edit("manifests/web.hcl", "preset = preset.vm-small", "preset = preset.vm-small\n    onboot = true")
	for range 2 {
		r := s.try()
		require.Empty(t, steps(r.Plan))
		requireFinding(t, r.Findings, "vm.web-1", "neither is changed")
		require.Contains(t, why(r.Plan, first), "identity of vm.web-1")
		require.Contains(t, why(r.Plan, 10900), "identity of vm.web-1")
		s.unchanged(before)
	}

	// Nor is one of them destroyed with its manifest; and without a key, no other guest either.
	r := s.pass("destroy", func(p *engine.Pass) { p.Manifest, p.Destroy = "web", true })
	require.NotEqual(t, engine.Done, r.Outcome, describe(r))
	require.Equal(t, []int{first, 10900}, s.vmidsOf("web-1"))
	require.Len(t, s.vmidsOf("web-2"), 1)

	// Once there is one again, all goes on.
	s.byHand(func(e *pve.Edit) { e.Delete(10900) })
	s.apply()
	require.Equal(t, []int{first}, s.vmidsOf("web-1"))
	s.inSync()
}

// unmanagedGuest is a VM that the site does not manage; further words are keys and values.
func unmanagedGuest(vmid int, name string, further ...string) pve.Guest {
	g := pve.Guest{VMID: vmid, Running: true, Config: map[string]string{
		"name": name, "cores": "4", "memory": "8192",
		"smbios1": fmt.Sprintf("uuid=f0e1d2c3-0000-4000-8000-%012d", vmid),
	}}
	for i := 0; i < len(further); i += 2 {
		g.Config[further[i]] = further[i+1]
	}
	return g
}

// ST-13: a step fails in the middle of a manifest of four. What becomes of the
// others is what the manifest says; another manifest does not care; and the next
// pass does what is left, and no more.
func TestAStepFails(t *testing.T) {
	t.Parallel()
	const done, skipped, destroyed = engine.NodeCompleted, engine.NodeSkipped, engine.NodeDestroyed
	unanswered := func(nth int) string { return fmt.Sprintf("POST /nodes/father/qemu nth=%d status=596", nth) }
	for _, trouble := range []struct {
		name   string
		faults []string
	}{
		{"the create is refused", []string{"POST /nodes/father/qemu nth=2 status=500"}},
		{"the create is never answered, and was not done", []string{unanswered(2), unanswered(3), unanswered(4), unanswered(5)}},
		{"the disk cannot grow", []string{"PUT /nodes/father/qemu/10001/resize status=500"}},
		{"it cannot be started", []string{"POST /nodes/father/qemu/10001/status/start status=500"}},
	} {
		for _, policy := range []struct {
			onError string
			there   []string // without the one that failed
			told    map[string]engine.Status
			resumes []string // what the next pass creates at most
		}{
			{"stop", []string{"a", "other"}, map[string]engine.Status{"a": done, "c": skipped, "d": skipped}, []string{"b", "c", "d"}},
			{"rollback", []string{"other"}, map[string]engine.Status{"a": destroyed, "c": skipped, "d": skipped}, []string{"a", "b", "c", "d"}},
			{"continue", []string{"a", "c", "d", "other"}, map[string]engine.Status{"a": done, "c": done, "d": done}, []string{"b"}},
		} {
			t.Run(policy.onError+", "+trouble.name, func(t *testing.T) {
				s := begin(t, pve.Config{})
				s.deploy("four", "  on_error = \""+policy.onError+"\"\n"+vm("a")+vm("b")+vm("c")+vm("d"))
				s.deploy("other", vm("other", "vmid = 10500"))

				s.breaks(trouble.faults...)
				r := s.pass("apply", oneAtATime)
				require.Equal(t, engine.Partly, r.Outcome, describe(r))
				s.heals()

				// A failed step may be done in part, unless all was to be rolled back.
				there := slices.DeleteFunc(s.names(), func(name string) bool { return name == "b" })
				if policy.onError == "rollback" {
					there = s.names()
				}
				require.Equal(t, policy.there, there)
				require.Equal(t, engine.NodeFailed, status(r, "b"), describe(r))
				require.NotEmpty(t, nodeOf(r, "b").Error)
				require.Equal(t, engine.NodeCompleted, status(r, "other"))
				for name, want := range policy.told {
					require.Equal(t, want, status(r, name), name)
				}

				kept := s.managed()
				p := s.apply()
				for _, step := range p.Steps {
					require.Contains(t, policy.resumes, step.Address.Name)
				}
				require.Equal(t, []string{"a", "b", "c", "d", "other"}, s.names())
				for _, name := range policy.there {
					require.Equal(t, kept[name], s.guest(name), "%s was done already", name)
				}
				require.True(t, s.guest("b").Running)
				require.Contains(t, s.guest("b").Config["scsi0"], "size=10G")
				s.inSync()
			})
		}
	}
}

// ST-13: the image that two manifests need cannot be had. Both wait, a third one
// does not, and nothing half-made is left.
func TestASharedDependencyFails(t *testing.T) {
	s := begin(t, pve.Config{})
	s.template()
	s.deploy("one", vm("one"))
	s.deploy("two", "  on_error = \"continue\"\n"+vm("two"))
	s.deploy("three", clone("three"))

	s.breaks("POST /nodes/father/storage/*/download-url status=500")
	r := s.try()
	require.Equal(t, engine.Partly, r.Outcome, describe(r))
	require.Equal(t, []string{"golden", "three"}, s.names())
	require.Equal(t, engine.NodeSkipped, status(r, "one"))
	require.Equal(t, engine.NodeSkipped, status(r, "two"))
	requireFinding(t, r.Findings, "image.debian-12", "500")

	s.heals()
	s.apply()
	require.Equal(t, []string{"golden", "one", "three", "two"}, s.names())
	s.inSync()
}

// ST-13: a destroy fails half-way. What is left is still ours, and the next destroy
// takes it.
func TestADestroyFails(t *testing.T) {
	s := begin(t, pve.Config{})
	s.deploy("four", vm("a")+vm("b")+vm("c")+vm("d"))
	s.apply()

	s.breaks("DELETE /nodes/father/qemu/10001 status=500")
	r := s.pass("destroy", func(p *engine.Pass) {
		p.Manifest, p.Destroy = "four", true
		oneAtATime(p)
	})
	require.Equal(t, engine.Partly, r.Outcome, describe(r))
	require.Contains(t, s.names(), "b")
	require.Equal(t, engine.NodeFailed, status(r, "b"), describe(r))
	s.heals()

	s.destroy("four")
	require.Empty(t, s.names())
}

// oneAtATime makes the order of steps that of their names.
func oneAtATime(p *engine.Pass) { p.Width = 1 }

// ST-6: nodes without a parent are peers. They have no order, and they
// are made side by side, but never more at once than was agreed.
func TestPeersAreMadeSideBySide(t *testing.T) {
	t.Parallel()
	for _, peers := range []int{3, 50} {
		t.Run(fmt.Sprintf("%d vms", peers), func(t *testing.T) {
			s := begin(t, pve.Config{TaskTime: 100 * time.Millisecond})
			s.deploy("workers", vm("worker", fmt.Sprintf("count = %d", peers)))

			p := s.plan()
			require.Len(t, p.Steps, peers+1, "an image, and the peers")
			for _, step := range p.Steps {
				for _, first := range step.After {
					require.Equal(t, "image", first.Kind, "%s waits for %s", step.Address, first)
				}
			}

			s.together(min(peers, width), "POST", "/nodes/father/qemu")
			s.apply()

			require.Len(t, s.managed(), peers)
			snap := s.host.Snapshot()
			require.Greater(t, snap.PeakByType["qmcreate"], 1, "one after the other")
			require.LessOrEqual(t, snap.PeakTasks, width)
			for name, g := range s.managed() {
				require.True(t, g.Running, name)
			}
			s.inSync()
		})
	}
}

// together holds the first n requests of a kind until all of them have come: who
// sends them one after the other does not get on.
func (s *story) together(n int, method, path string) {
	s.t.Helper()
	all := make(chan struct{})
	var mu sync.Mutex // The requests come in on goroutines of their own.
	came := 0
	hold := func(r *http.Request) (int, bool) {
		if r.Method != method || strings.TrimPrefix(r.URL.Path, "/api2/json") != path {
			return 0, false
		}
		mu.Lock()
		came++
		if came == n {
			close(all)
		}
		mu.Unlock()
		select {
		case <-all:
		case <-r.Context().Done():
		}
		return 0, false
	}
	s.fault.Store(&hold)
}

const (
	annasOldKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE9sZG9sZG9sZG9sZG9sZG9sZG9sZG9sZG9sZG9sZG9s anna@laptop"
	annasNewKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE5ld25ld25ld25ld25ld25ld25ld25ld25ld25ld25l anna@laptop"
)

// ST-11 with ssh keys: one that changed replaces the old one, one that left
// the files leaves the machine, and nothing else of it is touched. Into a container
// PVE lets no key after its birth: a warning names those containers.
func TestAnSSHKeyThatChangedTakesTheOldOnesPlace(t *testing.T) {
	s := containers(t, pve.Config{TaskTime: 10 * time.Millisecond})
	know := func(keys string) {
		s.write("secrets.yaml", released.Auth+fmt.Sprintf("api_tokens:\n  father: %q\nssh_keys:\n%s", s.host.Token(), keys))
	}
	keysOf := func(name string) string {
		text, err := url.PathUnescape(s.guest(name).Config["sshkeys"])
		require.NoError(t, err)
		return text
	}
	know("  ops: \"" + opsKey + "\"\n  anna: \"" + annasOldKey + "\"\n")
	s.deploy("web", vm("web", `restart = "allowed"`)+vm("db")+ct("cache"))
	s.apply()
	require.Contains(t, keysOf("web"), annasOldKey)
	require.Empty(t, s.plan().Findings)
	before := s.managed()

	for _, change := range []struct {
		keys   string
		should []string
	}{
		{"  ops: \"" + opsKey + "\"\n  anna: \"" + annasNewKey + "\"\n", []string{annasNewKey, opsKey}},
		{"  ops: \"" + opsKey + "\"\n", []string{opsKey}},
	} {
		know(change.keys)
		p := s.plan()
		require.ElementsMatch(t, []string{"update vm.web: ssh_keys", "update vm.db: ssh_keys"}, steps(p))
		for _, step := range p.Steps {
			require.Contains(t, step.Reason, "cloud-init runs again at the next boot, as on a new machine")
		}
		requireFinding(t, p.Findings, "ct.cache", "the ssh keys for ct.cache changed since it was made", "takes none out", "/root/.ssh/authorized_keys")
		s.apply()
		for _, name := range []string{"web", "db"} {
			for _, key := range []string{opsKey, annasOldKey, annasNewKey} {
				if slices.Contains(change.should, key) {
					require.Contains(t, keysOf(name), key)
				} else {
					require.NotContains(t, keysOf(name), key, "%s keeps a key that left", name)
				}
			}
			was, is := before[name].Config, s.guest(name).Config
			for key := range was {
				if key != "sshkeys" && key != "description" { // the mark says when cloud-init was told
					require.Equal(t, was[key], is[key], "%s of %s", key, name)
				}
			}
			require.Len(t, is, len(was))
		}
		require.Equal(t, before["cache"], s.guest("cache"))
	}
	know("  ops: \"" + opsKey + "\"\n  anna: \"" + annasOldKey + "\"\n")
	s.apply()
	require.Empty(t, s.plan().Findings, "it is as when the container was made")
	require.Contains(t, keysOf("web"), annasOldKey)
}

// The limits of a full check of a large host: goals P4 and P5. They are counts,
// so they hold on every machine.
func TestAFullCheckIsCheap(t *testing.T) {
	t.Parallel()
	const guests, concurrency = 500, api.DefaultConcurrency
	for _, c := range []struct{ nodes, pools int }{{1, 0}, {4, 0}, {4, 6}} {
		t.Run(fmt.Sprintf("%d guests on %d nodes in %d pools", guests, c.nodes, c.pools), func(t *testing.T) {
			f := fleet.Fleet{Guests: guests, Nodes: nodeNames(c.nodes), Files: 5}
			s := beginWith(t, f)
			for i := range c.pools {
				s.pool(fmt.Sprintf("pool-%d", i), f.VMID(1+i), f.VMID(100+i))
			}
			s.forgetPeaks()
			before, asked := s.host.Snapshot(), len(s.requests())

			s.quietly(s.inSync)

			sent := s.requests()[asked:]
			after := s.host.Snapshot()
			require.LessOrEqual(t, len(sent), guests+3*c.nodes+5)
			require.LessOrEqual(t, after.Connections-before.Connections, concurrency+len(sent)/100+c.nodes)
			require.LessOrEqual(t, after.PeakRequests, concurrency)
			lists, read := 0, map[string]int{}
			for _, r := range sent {
				require.Equal(t, http.StatusOK, r.status, "%s", r)
				if r.path == "/cluster/resources" {
					lists++
				}
				if parts := strings.Split(r.path, "/"); len(parts) > 4 && parts[3] == "qemu" {
					read[parts[4]]++
				}
			}
			require.Equal(t, 1, lists, "the list of guests is fetched once")
			require.Len(t, read, guests)
			for vmid, n := range read {
				require.Equal(t, 1, n, "guest %s was read more than once", vmid)
			}
			for node, n := range s.peaks() {
				require.LessOrEqual(t, n, max(4, concurrency/c.nodes), "requests at once of node %q", node)
			}
		})
	}
}

// beginWith sets the scene with a host that holds a fleet, and its site. The first
// guest is created by a pass, the others are put beside it.
func beginWith(t *testing.T, f fleet.Fleet) *story {
	t.Helper()
	s := begin(t, pve.Config{Node: f.Nodes[0], Nodes: f.Nodes[1:]})
	s.name, s.keyless = "fleet", true // its guests are copies of the first
	for _, name := range []string{"site.hcl", "host.hcl"} {
		s.remove(name)
	}
	for name, text := range f.Site(fleet.Access{API: s.api, Token: s.host.Token(), Fingerprint: s.host.Fingerprint()}) {
		s.write(name, text)
	}
	first := s.pass("apply", func(p *engine.Pass) {
		p.Targets = []model.Address{{Kind: "vm", Name: f.Name(1)}}
	})
	require.Equal(t, engine.Done, first.Outcome, describe(first))
	one := s.guest(f.Name(1))
	s.byHand(func(e *pve.Edit) {
		for n := 2; n <= f.Guests; n++ {
			twin, err := f.Twin(one.Config, n)
			require.NoError(t, err)
			e.Add(pve.Guest{VMID: f.VMID(n), Node: f.Node(n), Config: twin, Running: true})
		}
	})
	return s
}

// pool makes a pool with some guests in it, as the administrator of the host does.
func (s *story) pool(name string, vmids ...int) {
	s.t.Helper()
	s.call(http.MethodPost, "/pools", map[string]string{"poolid": name})
	s.call(http.MethodPut, "/pools/"+name, map[string]string{"vms": strings.Trim(strings.ReplaceAll(fmt.Sprint(vmids), " ", ","), "[]")})
}

func nodeNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("pve%d", i+1)
	}
	return names
}

// The cost of a full check where VMs with user data and checks live beside containers,
// on several nodes: goals P4 and P5, as for a fleet of plain VMs.
func TestAFullCheckOfAllKindsIsCheap(t *testing.T) {
	const each, nodes, concurrency = 20, 3, api.DefaultConcurrency
	s := containers(t, pve.Config{Nodes: []string{"mother", "uncle"}})
	s.edit("host.hcl", "node        =", "nodes       = [\"father\", \"mother\", \"uncle\"]\n  node        =")
	s.write("pool.hcl", "pool \"prod\" {\n  host = host.father\n}\n")
	s.deploy("web", vm("web", fmt.Sprintf("count = %d", each), "user_data = \"#cloud-config\\npackages: [nginx]\\n\"", "check \"up\" {\n      agent = true\n    }")+
		ct("cache", fmt.Sprintf("count = %d", each)))
	s.apply()
	ours := s.managed()
	s.byHand(func(e *pve.Edit) {
		for i, g := range slices.Collect(maps.Values(ours)) {
			e.Delete(g.VMID)
			g.Node = []string{"father", "mother", "uncle"}[i%nodes]
			e.Add(g)
		}
	})
	s.apply()                                          // what a first boot leaves to do
	s.remembered = s.pass("plan", nil).Have.SweepHints // as an agent has it
	before, asked := s.host.Snapshot(), len(s.requests())

	s.quietly(s.inSync)

	sent := s.requests()[asked:]
	after := s.host.Snapshot()
	t.Logf("%d requests and %d connections for %d guests on %d nodes", len(sent), after.Connections-before.Connections, 2*each, nodes)
	require.LessOrEqual(t, len(sent), 2*each+3*nodes+5)
	require.LessOrEqual(t, after.Connections-before.Connections, concurrency+len(sent)/100+nodes)
	read := map[string]int{}
	for _, r := range sent {
		require.Equal(t, http.StatusOK, r.status, "%s", r)
		if parts := strings.Split(r.path, "/"); len(parts) > 4 && (parts[3] == "qemu" || parts[3] == "lxc") {
			read[parts[3]+parts[4]]++
		}
	}
	require.Len(t, read, 2*each)
}

// ST-10 on a node of Proxmox VE: the agent notices a change by hand long before the next full check, and until then makes no
// request to the API.
func TestAgentOnANodeNoticesChanges(t *testing.T) {
	root := t.TempDir()
	f := follow(t, pve.Config{Files: root}, byFile())
	f.root = root
	text, err := os.ReadFile(f.config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(f.config, []byte(strings.Replace(string(text), `drift_every = "1s"`, `drift_every = "24h"`, 1)), 0o600))
	f.deploy("web", vm("web-1")+vm("web-2"))
	commit := f.push("two guests")
	f.begins()
	f.converged(commit)
	require.Empty(t, f.until("it watches", func(s agent.Status) bool { return s.Watch != nil }).Watch.Error)

	first := f.vmidOf("web-1")
	f.byHand(func(e *pve.Edit) { e.Set(first, "tags", "homestak;mine") })
	f.until("the change is put back", func(agent.Status) bool { return f.guest("web-1").Config["tags"] == "homestak" })
	f.byHand(func(e *pve.Edit) { e.Stop(first) })
	f.until("it runs again", func(agent.Status) bool { return f.guest("web-1").Running })
	f.byHand(func(e *pve.Edit) { e.Delete(first) })
	f.until("it is there again", func(agent.Status) bool { return len(f.names()) == 2 })

	client, err := control.Dial(t.Context(), f.socket())
	require.NoError(t, err)
	pass, err := client.Reconcile(t.Context()) // about the whole host, and so about the agent's own last change, too
	require.NoError(t, err)
	require.Equal(t, engine.Done, pass.Outcome)
	// The agent may notice its own last change after that pass, and checks it once, a moment later.
	for polls, quiet := 0, 0; quiet < 3; polls++ {
		require.Less(t, polls, 10, "nothing changes, but the API is asked again and again")
		before := f.host.Snapshot().Requests
		if f.nextFetch(); maps.Equal(before, f.host.Snapshot().Requests) {
			quiet++
		} else {
			quiet = 0
		}
	}
	f.ends()
}

// The recipes of the example, each as a tree or flat, by one command of the program, with its report.
func TestRecipesOfTheExample(t *testing.T) {
	t.Parallel()
	_, public, err := ssh.NewKey("ops@laptop")
	require.NoError(t, err)
	site, err := filepath.Abs("../../examples/site")
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(site, "secrets.yaml.example"))
	require.NoError(t, err)
	const placeholder = "ssh-ed25519 PUT-THE-PUBLIC-KEY-HERE ops@laptop"
	require.Contains(t, string(text), placeholder)
	secrets := filepath.Join(t.TempDir(), "secrets.yaml")
	require.NoError(t, os.WriteFile(secrets, []byte(strings.Replace(string(text), placeholder, public, 1)), 0o600))
	for recipe, nodes := range map[string][]string{
		"n1-push": {"edge"}, "n1-pull": {"edge"}, "n2-push": {"root-pve", "edge"}, "n2-pull": {"root-pve", "edge"},
		"n3-deep": {"root-pve", "leaf-pve", "edge"}, "workers": {"worker-1", "worker-2", "worker-3"}, "mixed-mode": {"inner-pve", "edge"},
	} {
		t.Run(recipe, func(t *testing.T) {
			t.Parallel()
			r := run(t, t.TempDir(), "test", "-M", recipe, "--host", "father", "--sim", "--site", site, "--secrets", secrets, "--json")
			require.Zero(t, r.code, r.err)
			report := document[struct {
				Success bool
				Nodes   []struct{ Name, Status, Error string }
			}](t, r)
			require.True(t, report.Success)
			var names []string
			for _, n := range report.Nodes {
				require.Equal(t, "destroyed", n.Status, n.Error)
				names = append(names, n.Name)
			}
			require.ElementsMatch(t, nodes, names)
		})
	}
}
