package chaos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/policy"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// sample is how many schedules a run makes unless set. make race sets fewer.
const sample = 15

// TestSchedule runs schedules 1 to N, or the one that is named.
func TestSchedule(t *testing.T) {
	rules := compiled(t)
	first, last := uint64(1), number64(t, "HOMESTAK_CHAOS_SCHEDULES", sample)
	if s := number64(t, "HOMESTAK_CHAOS_SEED", 0); s != 0 {
		first, last = s, s
	}
	first += number64(t, "HOMESTAK_CHAOS_SKIP", 0)
	var mu sync.Mutex // schedules run side by side
	var all stats
	done := 0
	t.Run("seed", func(t *testing.T) {
		for seed := first; seed <= last; seed++ {
			t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
				t.Parallel()
				w := run(t, seed, rules, nil)
				mu.Lock()
				defer mu.Unlock()
				all.rounds += w.wire.stats.rounds
				all.requests += w.wire.stats.requests
				all.faults += w.wire.stats.faults
				all.crashes += w.wire.stats.crashes
				all.secrets += w.wire.stats.secrets
				if done++; done%500 == 0 {
					fmt.Printf("%d schedules, the last of them %d, %d requests\n", done, seed, all.requests) // by hand: what is logged comes in the end
				}
				if first == last && !w.broken() {
					t.Log(strings.Join(w.story, "\n"))
				}
				if w.broken() {
					t.Errorf("%s\n\nseed %d, the story:\n%s\n\nagain: HOMESTAK_CHAOS_SEED=%d go test -run TestSchedule ./test/chaos",
						strings.Join(w.violations, "\n"), seed, strings.Join(w.story, "\n"), seed)
				}
			})
		}
	})
	t.Logf("%d schedules, %d rounds, %d requests, %d faults, %d crashes, %d secrets in seeds", last-first+1, all.rounds, all.requests, all.faults, all.crashes, all.secrets)
	if last-first > 20 {
		require.NotZero(t, all.secrets, "no schedule had a secret to keep")
	}
}

func number64(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, name)
	return n
}

func compiled(t *testing.T) *policy.Set {
	t.Helper()
	rules, found := policy.Compile(t.Context(), policy.Options{Kinds: proxmox.Kinds()})
	require.Empty(t, found)
	return rules
}

// run makes one schedule. With meddle it is done in every round, when all is quiet,
// to see whether a law notices.
func run(t *testing.T, seed uint64, rules *policy.Set, meddle func(*world)) *world {
	t.Helper()
	var w *world
	dir := filepath.Join(scratch(t), "agent")
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(t, seed, dir, rules)
		w.meddle = meddle
		rounds := 3 + w.r.IntN(6)
		for i := range rounds {
			w.logf("round %d of %d", i+1, rounds)
			if w.round(i == rounds-1); w.broken() {
				break
			}
		}
		w.cancel()
		require.ErrorIs(t, <-w.ended, context.Canceled)
		end := w.sim.Snapshot()
		w.written(end)
		for _, task := range end.Tasks[max(0, len(end.Tasks)-12):] {
			w.logf("task %s of %s at %s: %s", task.Type, task.ID, task.Start.Format(time.TimeOnly), task.Status)
		}
		told := strings.Split(strings.TrimSpace(w.log.String()), "\n")
		w.logf("the log ends with:\n%s", strings.Join(told[max(0, len(told)-12):], "\n"))
	})
	return w
}

// scratch is a folder, in memory where there is such a one: receipts are forced to disk.
func scratch(t *testing.T) string {
	t.Helper()
	if dir, err := os.MkdirTemp("/dev/shm", "chaos"); err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		return dir
	}
	return t.TempDir()
}

// round is some changes, some faults, and then quiet.
func (w *world) round(last bool) {
	w.wire.mu.Lock()
	w.wire.stats.rounds++
	w.wire.mu.Unlock()
	s := w.site().copy()
	var did []string
	for range w.r.IntN(5) {
		all := edits()
		if what := all[w.r.IntN(len(all))](w.r, s); what != "" {
			did = append(did, what)
		}
	}
	w.idle()
	w.mu.Lock()
	clear(w.young)
	w.mu.Unlock()
	for range w.r.IntN(3) {
		w.byHandOn(w.r)
	}
	later := w.r.IntN(3) == 0
	w.outage()
	if len(did) > 0 && !later {
		w.push(s, strings.Join(did, "; "))
	}
	w.live(time.Duration(2+w.r.IntN(6)) * time.Minute)
	if w.r.IntN(6) == 0 {
		w.typo()
	}
	if len(did) > 0 && later {
		w.push(s, strings.Join(did, "; "))
	}
	if w.r.IntN(3) == 0 {
		w.taskDies()
	}
	w.live(time.Duration(1+w.r.IntN(10)) * time.Minute)
	w.calm()
	if last || w.r.IntN(2) == 0 {
		w.idle()
		w.clear()
	}
	w.quiet()
}

// typo is a commit that does not load, in which all else was removed; the next one fixes it.
func (w *world) typo() {
	w.repo.push("site \"home\" {\n", "a typo")
	w.logf("push: a typo")
	w.live(time.Duration(1+w.r.IntN(4)) * time.Minute)
	w.push(w.site(), "the typo is mended")
}

// outage begins what goes wrong in a round. The agent is idle.
func (w *world) outage() {
	f := faultPlan{key: w.r.Uint64(), chance: pick(w.r, 0, 0.01, 0.04, 0.15, 0.4), short: pick(w.r, "", "/cluster/resources", "/qemu", "/pools")}
	for range w.r.IntN(3) {
		f.crashes = append(f.crashes, crash{at: 1 + w.r.IntN(120), after: w.r.IntN(2) == 0, data: w.r.IntN(4) == 0})
	}
	if nodes := w.site().cluster; len(nodes) > 1 {
		switch w.r.IntN(5) {
		case 0:
			f.dark = nodes[w.r.IntN(len(nodes))]
			// Of guests on a node that is dark the cluster's list is the only witness. If that
			// omitted just one of them, this could not be noticed.
			f.short = strings.TrimPrefix(f.short, "/cluster/resources")
		case 1:
			f.lost = true
		}
	}
	full := pick(w.r, "", "", "", "local", "vault")
	w.logf("faults: %.2f of requests, short lists of %q, crashes %v, offline %q, quorum lost %v, full %q", f.chance, f.short, f.crashes, f.dark, f.lost, full)
	names := map[string]bool{}
	for _, g := range w.sim.Snapshot().Guests {
		if m, found := markOf(g); found && g.Node == f.dark {
			names[m.Node] = true
		}
	}
	w.mu.Lock()
	w.dark, w.lost, w.darkened = f.dark, f.lost, names
	w.mu.Unlock()
	w.sim.Edit(func(e *pve.Edit) {
		if f.dark != "" {
			e.Offline(f.dark, true)
		}
		e.Quorum(!f.lost)
		if full != "" {
			e.Fill(full, true)
		}
	})
	w.wire.mu.Lock()
	w.wire.faults, w.wire.requests, w.wire.blind = f, 0, false
	clear(w.wire.seen)
	w.wire.mu.Unlock()
}

// taskDies kills what works on one of ours, and leaves what it left.
func (w *world) taskDies() {
	for range 200 {
		for _, t := range w.sim.Snapshot().Tasks {
			id, err := strconv.Atoi(t.ID)
			if err == nil && t.End.IsZero() && !w.byHand[id] {
				w.logf("  %s of guest %d dies", t.Type, id)
				w.crashed[id] = true
				w.sim.Edit(func(e *pve.Edit) { e.Crash(id) })
				return
			}
		}
		w.live(time.Second)
	}
}

// calm ends all faults. The agent must be idle when the host comes back, so that what
// it wrote in the dark was ordered in the dark.
func (w *world) calm() {
	w.wire.mu.Lock()
	w.wire.faults = faultPlan{}
	w.wire.mu.Unlock()
	w.idle()
	w.mu.Lock()
	dark := w.dark
	w.dark, w.lost, w.darkened = "", false, nil
	w.mu.Unlock()
	w.sim.Edit(func(e *pve.Edit) {
		if dark != "" {
			e.Offline(dark, false)
		}
		e.Quorum(true)
		e.Fill("local", false)
		e.Fill("vault", false)
	})
	w.logf("faults are over")
}

// hand is what people do on the host. Each says what it did, "" if it could not.
func hands() []func(w *world, r *rand.Rand, g pve.Guest) string {
	return []func(*world, *rand.Rand, pve.Guest) string{
		handStop, handStop, handDelete, handDelete, handConfig, handConfig, handConfig, handUntag, handStrip, handRename,
		handDetach, handMigrate, handClone, handSnapshot, handRestore, handLock, handRecycle, handReclaim, handUnmanaged, handCard, handHA, handHA,
	}
}

// byHandOn does something to one of our guests.
func (w *world) byHandOn(r *rand.Rand) {
	var list []pve.Guest
	for _, same := range managed(w.sim.Snapshot()) {
		if len(same) == 1 && same[0].Lock == "" {
			list = append(list, same[0])
		}
	}
	slices.SortFunc(list, func(a, b pve.Guest) int { return a.VMID - b.VMID })
	if len(list) == 0 {
		return
	}
	g := list[r.IntN(len(list))]
	all := hands()
	if what := all[r.IntN(len(all))](w, r, g); what != "" {
		w.logf("by hand: %s (%d): %s", g.Name(), g.VMID, what)
	}
}

func handStop(w *world, _ *rand.Rand, g pve.Guest) string {
	w.sim.Edit(func(e *pve.Edit) { e.Stop(g.VMID) })
	return "stopped"
}

func handDelete(w *world, _ *rand.Rand, g pve.Guest) string {
	w.sim.Edit(func(e *pve.Edit) { e.Delete(g.VMID) })
	return "deleted"
}

func handConfig(w *world, r *rand.Rand, g pve.Guest) string {
	if g.Kind == "lxc" {
		return handContainer(w, r, g)
	}
	key := pick(r, "cores", "memory", "onboot", "tags", "cpu", "nameserver", "balloon", "startup", "agent", "protection", "net3", "description")
	value := map[string]string{
		"cores": "7", "memory": "4242", "onboot": strconv.Itoa(r.IntN(2)), "tags": "homestak;mine", "cpu": "kvm64", "nameserver": "9.9.9.9",
		"balloon": "64", "startup": "order=9", "agent": "0", "protection": strconv.Itoa(r.IntN(2)), "net3": "virtio=BC:24:11:00:00:01,bridge=vmbr0",
		"description": g.Config["description"] + "\nask Ben first",
	}[key]
	w.sim.Edit(func(e *pve.Edit) { e.Set(g.VMID, key, value) })
	return fmt.Sprintf("%s = %q", key, strings.ReplaceAll(value, "\n", " ⏎ "))
}

func handContainer(w *world, r *rand.Rand, g pve.Guest) string {
	key := pick(r, "cores", "memory", "swap", "onboot", "tags", "nameserver", "startup", "features", "protection", "net3", "description", "timezone")
	value := map[string]string{
		"cores": "7", "memory": "4242", "swap": "0", "onboot": strconv.Itoa(r.IntN(2)), "tags": "homestak;mine", "nameserver": "9.9.9.9",
		"startup": "order=9", "features": pick(r, "", "nesting=1"), "protection": strconv.Itoa(r.IntN(2)), "timezone": "host",
		"net3": "name=eth3,bridge=vmbr0,hwaddr=BC:24:11:00:00:01,type=veth", "description": g.Config["description"] + "\nask Ben first",
	}[key]
	w.sim.Edit(func(e *pve.Edit) { e.Set(g.VMID, key, value) })
	return fmt.Sprintf("%s = %q", key, strings.ReplaceAll(value, "\n", " ⏎ "))
}

// handCard removes the first card. A container whose identity it was is unmanaged until the card is back.
func handCard(w *world, _ *rand.Rand, g pve.Guest) string {
	card := g.Config["net0"]
	if card == "" || len(g.Pending) > 0 {
		return ""
	}
	w.sim.Edit(func(e *pve.Edit) { e.Set(g.VMID, "net0", "") })
	w.rebase()
	w.repair(g, func(e *pve.Edit, now pve.Guest) {
		if _, proven := owned(now); !proven && now.Config["net0"] == "" {
			e.Set(g.VMID, "net0", card)
		}
	})
	return "its first card is gone"
}

// handHA gives it to the HA manager; in the end it is taken back.
func handHA(w *world, _ *rand.Rand, g pve.Guest) string {
	sid := map[string]string{"lxc": "ct", "qemu": "vm"}[g.Kind] + ":" + strconv.Itoa(g.VMID)
	state := map[bool]string{true: "started", false: "stopped"}[g.Running]
	if g.HA != "" || !w.root(http.MethodPost, "/cluster/ha/resources", "sid", sid, "state", state) {
		return ""
	}
	w.mends = append(w.mends, func() {
		if now, there := w.sim.Snapshot().Guest(g.VMID); there && now.HA != "" {
			w.root(http.MethodDelete, "/cluster/ha/resources/"+sid)
		}
	})
	return "given to the HA manager, to be " + state
}

func handUntag(w *world, _ *rand.Rand, g pve.Guest) string {
	w.sim.Edit(func(e *pve.Edit) { e.Set(g.VMID, "tags", "") })
	w.repair(g, func(e *pve.Edit, now pve.Guest) {
		if _, proven := owned(now); proven && !tagged(now) { // it left the files, too, and nothing else told of it
			e.Set(g.VMID, "tags", "homestak")
		}
	})
	return "its tags are gone"
}

func handStrip(w *world, r *rand.Rand, g pve.Guest) string {
	w.sim.Edit(func(e *pve.Edit) { e.Set(g.VMID, "description", pick(r, "", "mine now")) })
	w.rebase()
	addr, _ := owned(g)
	w.mends = append(w.mends, func() {
		snap := w.sim.Snapshot()
		now, there := snap.Guest(g.VMID)
		switch {
		case !there || !kin(now, g):
		case len(managed(snap)[addr]) > 0: // renamed, too, it was unmanaged, and was recreated
			w.sim.Edit(func(e *pve.Edit) { e.Delete(g.VMID) })
		default:
			w.sim.Edit(func(e *pve.Edit) { e.Set(g.VMID, "description", g.Config["description"]) })
		}
	})
	return "its description is gone"
}

func handRename(w *world, r *rand.Rand, g pve.Guest) string {
	name := fmt.Sprintf("renamed-%d", r.IntN(99))
	key := map[string]string{"lxc": "hostname", "qemu": "name"}[g.Kind]
	w.sim.Edit(func(e *pve.Edit) { e.Set(g.VMID, key, name) })
	return "renamed to " + name
}

func handDetach(w *world, _ *rand.Rand, g pve.Guest) string {
	slot := map[string]string{"lxc": "mp0", "qemu": "scsi1"}[g.Kind]
	drive := g.Config[slot]
	if drive == "" || g.Config["unused0"] != "" || len(g.Pending) > 0 {
		return ""
	}
	w.sim.Edit(func(e *pve.Edit) {
		e.Set(g.VMID, slot, "")
		e.Set(g.VMID, "unused0", strings.Split(drive, ",")[0])
	})
	w.repair(g, func(e *pve.Edit, now pve.Guest) {
		if now.Config[slot] == "" && strings.HasPrefix(drive, now.Config["unused0"]+",") {
			e.Set(g.VMID, slot, drive)
			e.Set(g.VMID, "unused0", "")
		}
	})
	return slot + " detached"
}

func handMigrate(w *world, _ *rand.Rand, g pve.Guest) string {
	for _, target := range w.site().cluster {
		if target != g.Node {
			how := map[string]string{"lxc": "restart", "qemu": "online"}[g.Kind]
			w.root(http.MethodPost, fmt.Sprintf("/nodes/%s/%s/%d/migrate", g.Node, g.Kind, g.VMID), "target", target, how, "1")
			return "migrated to " + target
		}
	}
	return ""
}

func handClone(w *world, r *rand.Rand, g pve.Guest) string {
	id := w.freeVMID(r)
	key := map[string]string{"lxc": "hostname", "qemu": "name"}[g.Kind]
	if !w.root(http.MethodPost, fmt.Sprintf("/nodes/%s/%s/%d/clone", g.Node, g.Kind, g.VMID), "newid", strconv.Itoa(id), "full", "1", key, "copy-of-"+g.Name()) {
		return ""
	}
	w.copied(id)
	return fmt.Sprintf("cloned as %d", id)
}

func handSnapshot(w *world, r *rand.Rand, g pve.Guest) string {
	name := fmt.Sprintf("before%d", r.IntN(1000))
	w.root(http.MethodPost, fmt.Sprintf("/nodes/%s/%s/%d/snapshot", g.Node, g.Kind, g.VMID), "snapname", name)
	return "snapshot " + name
}

func handRestore(w *world, r *rand.Rand, g pve.Guest) string {
	if !w.root(http.MethodPost, fmt.Sprintf("/nodes/%s/vzdump", g.Node), "vmid", strconv.Itoa(g.VMID), "storage", "local", "mode", "snapshot", "notes-template", "by hand") {
		return ""
	}
	archive := ""
	for _, v := range w.sim.Snapshot().Volumes["local"] {
		if v.Content == "backup" && v.VMID == g.VMID && v.Notes == "by hand" {
			archive = v.ID
		}
	}
	id := w.freeVMID(r)
	form := []string{"vmid", strconv.Itoa(id), "archive", archive, "storage", w.site().storage}
	if g.Kind == "lxc" {
		form = []string{"vmid", strconv.Itoa(id), "ostemplate", archive, "restore", "1", "storage", w.site().storage}
	}
	if archive == "" || !w.root(http.MethodPost, fmt.Sprintf("/nodes/%s/%s", g.Node, g.Kind), form...) {
		return ""
	}
	w.copied(id)
	return fmt.Sprintf("backed up, and restored as %d", id)
}

func handLock(w *world, r *rand.Rand, g pve.Guest) string {
	lock := pick(r, "backup", "migrate", "snapshot", "rollback")
	w.sim.Edit(func(e *pve.Edit) { e.Lock(g.VMID, lock) })
	w.repair(g, func(e *pve.Edit, _ pve.Guest) { e.Lock(g.VMID, "") })
	return "left with the lock " + lock
}

// handRecycle deletes it, and an unmanaged guest gets its VMID.
func handRecycle(w *world, r *rand.Rand, g pve.Guest) string {
	w.sim.Edit(func(e *pve.Edit) {
		e.Delete(g.VMID)
		e.Add(pve.Guest{VMID: g.VMID, Node: g.Node, Running: r.IntN(2) == 0, Config: map[string]string{"name": "stranger", "cores": "1", "memory": "512"}})
	})
	w.rebase()
	w.strangers = append(w.strangers, g.VMID)
	return "deleted, its VMID is a stranger's"
}

// handReclaim creates an unmanaged guest with the name of a managed one.
func handReclaim(w *world, r *rand.Rand, g pve.Guest) string {
	id := w.freeVMID(r)
	w.sim.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: id, Config: map[string]string{"name": g.Name(), "cores": "1", "memory": "512"}})
	})
	w.rebase()
	w.strangers = append(w.strangers, id)
	return fmt.Sprintf("another guest gets that name, %d", id)
}

// handUnmanaged changes an unmanaged guest.
func handUnmanaged(w *world, r *rand.Rand, _ pve.Guest) string {
	ids := slices.Sorted(maps.Keys(w.foreign))
	id := ids[r.IntN(len(ids))]
	g, there := w.sim.Snapshot().Guest(id)
	if !there || g.Config["template"] == "1" {
		return ""
	}
	w.sim.Edit(func(e *pve.Edit) { e.Set(id, "onboot", strconv.Itoa(r.IntN(2))) })
	w.rebase()
	return fmt.Sprintf("its neighbour %d is edited", id)
}

// copied notes a copy made by hand; in the end people clear it away.
func (w *world) copied(id int) {
	w.byHand[id] = true
	w.strangers = append(w.strangers, id)
	w.rebase()
}

// repair is how people will put right what they did to a guest, if it is still that one.
func (w *world) repair(g pve.Guest, do func(*pve.Edit, pve.Guest)) {
	w.mends = append(w.mends, func() {
		now, there := w.sim.Snapshot().Guest(g.VMID)
		if there && kin(now, g) {
			w.sim.Edit(func(e *pve.Edit) { do(e, now) })
		}
	})
}

// clear is people putting right all that they did: as the program told them to.
func (w *world) clear() {
	w.logf("by hand: all is put right")
	for _, m := range w.mends {
		m()
	}
	w.mends = nil
	snap := w.sim.Snapshot()
	for _, id := range w.strangers {
		if _, there := snap.Guest(id); there {
			w.sim.Edit(func(e *pve.Edit) { e.Delete(id) })
		}
		delete(w.foreign, id)
		delete(w.byHand, id)
	}
	w.strangers = nil
	w.rest() // who unlocks a guest has looked first whether a task works on it
	for _, g := range w.sim.Snapshot().Guests {
		switch {
		case g.Lock == "create" || g.Lock == "clone":
			w.logf("by hand: qm unlock %d && qm destroy %d", g.VMID, g.VMID)
			w.crashed[g.VMID] = true
			w.sim.Edit(func(e *pve.Edit) { e.Delete(g.VMID) })
			w.freeVolumes(g.VMID) // its configuration did not name them yet
		case g.Lock != "":
			w.logf("by hand: qm unlock %d", g.VMID)
			w.sim.Edit(func(e *pve.Edit) { e.Lock(g.VMID, "") })
		}
	}
	w.rebase()
}

// freeVolumes is what pvesm free does to all that carries a VMID.
func (w *world) freeVolumes(vmid int) {
	for _, list := range w.sim.Snapshot().Volumes {
		for _, v := range list {
			if v.VMID == vmid && v.Content != "backup" {
				w.logf("by hand: pvesm free %s", v.ID)
				w.sim.Edit(func(e *pve.Edit) { e.RemoveVolume(v.ID) })
			}
		}
	}
}

func (w *world) freeVMID(r *rand.Rand) int {
	snap := w.sim.Snapshot()
	for {
		id := pick(r, w.site().from, 20000) + r.IntN(49)
		if _, there := snap.Guest(id); !there {
			return id
		}
	}
}

// root does something by the API as an administrator does, and waits for its task.
func (w *world) root(method, path string, form ...string) bool {
	values := url.Values{}
	for i := 0; i < len(form); i += 2 {
		values.Set(form[i], form[i+1])
	}
	upid, ok := w.call(method, path, values)
	if !ok || !strings.HasPrefix(upid, "UPID:") {
		return ok
	}
	for range 600 {
		time.Sleep(time.Second)
		for _, t := range w.sim.Snapshot().Tasks {
			if t.UPID == upid && !t.End.IsZero() {
				if t.Status != "OK" {
					w.logf("  by hand: %s %s: %s", method, path, t.Status)
				}
				return t.Status == "OK"
			}
		}
		w.call(http.MethodGet, "/version", nil) // the simulator's clock moves with requests
	}
	return false
}

func (w *world) call(method, path string, form url.Values) (string, bool) {
	r, err := http.NewRequestWithContext(w.ctx, method, "https://192.0.2.10:8006/api2/json"+path, strings.NewReader(form.Encode()))
	if err != nil {
		return "", false
	}
	if len(form) == 0 {
		r.Body, r.ContentLength = nil, 0
	} else {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	r.Header.Set("Authorization", "PVEAPIToken="+w.sim.Token())
	res, err := w.sim.RoundTrip(r)
	if err != nil {
		return "", false
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusOK {
		w.logf("  by hand: %s %s: %s", method, path, text)
		return "", false
	}
	var doc struct {
		Data any `json:"data"`
	}
	_ = json.Unmarshal(text, &doc)
	upid, _ := doc.Data.(string)
	return upid, true
}
