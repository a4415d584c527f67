package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// The chapters of the demo, in their order.

// create: a host becomes what the site says.
func (d *demo) create(ctx context.Context) error {
	d.title("The first push: the host converges to the site")
	if _, err := d.push(ctx, "The example site"); err != nil {
		return err
	}
	managed := d.managed()
	d.check(names(managed) == "db ns-a ns-b web-1 web-2", "on the host: %s", names(managed))
	d.check(all(managed, isRunning), "all of them run")
	d.check(all(managed, tagged), "each has its ownership tag")
	d.check(d.tasks("download") == 2, "each image was downloaded once")
	for _, name := range []string{"ns-a", "ns-b"} {
		good := d.inside(name, `[ "$(cat /etc/hostname)" = `+name+` ] && htop && curl && sshd -t && [ "$(readlink -f /etc/localtime)" = /usr/share/zoneinfo/Europe/Berlin ]`)
		d.check(good, "inside %s, over SSH: packages, users, keys, time zone and sshd match spec base", name)
	}
	return d.checkQuiet(ctx)
}

// inside runs a line of shell in a guest, as from its console, and reports whether it succeeds.
func (d *demo) inside(name, line string) bool {
	m := d.guests.Machine(strconv.Itoa(d.managed()[name].VMID))
	if m == nil {
		return false
	}
	_, code := m.Shell(line)
	return code == 0
}

// handwork changes the inside of a guest by hand.
func (d *demo) handwork(ctx context.Context) error {
	d.title("A colleague edits sshd in ns-a: root can no longer log in")
	const file = "/etc/ssh/sshd_config.d/00-homestak-gitops.conf"
	last, err := d.receipt()
	if err != nil {
		return err
	}
	good := d.inside("ns-a", "sed -i 's/PermitRootLogin yes/PermitRootLogin no/' "+file+" && systemctl reload ssh && sshd -T | grep -qx 'permitrootlogin no'")
	d.check(good, "by hand, in %s", file)
	if _, err := d.until(ctx, "the change inside the guest is reverted", func(s agent.Status) bool {
		r, err := d.receipt()
		return err == nil && r.ID != last.ID && s.State == agent.Idle && s.Last != nil && s.Last.Outcome == engine.Done
	}); err != nil {
		return err
	}
	receipt, err := d.receipt()
	if err != nil {
		return err
	}
	var paths []string
	for _, s := range receipt.Steps {
		for _, c := range s.Changes {
			paths = append(paths, c.Path)
		}
	}
	d.check(receipt.Drift && steps(receipt) == "update guest.ns-a" && strings.Join(paths, " ") == "posture.ssh.permit_root_login",
		"its receipt calls it drift: %s, %s", steps(receipt), strings.Join(paths, " "))
	good = d.inside("ns-a", "sshd -T | grep -qx 'permitrootlogin yes'")
	d.check(good, "reverted over SSH: root can log in again")
	return d.checkQuiet(ctx)
}

// checkQuiet: what is so already is left alone, however often the agent checks.
func (d *demo) checkQuiet(ctx context.Context) error {
	before := d.sim.Snapshot().Writes
	last, err := d.agent.Reconcile(ctx)
	if err != nil {
		return err
	}
	d.check(last.Outcome == engine.Done && d.sim.Snapshot().Writes == before, "the next pass changes nothing")
	return nil
}

// edit: the site changes, and the host follows.
func (d *demo) edit(ctx context.Context) error {
	d.title("An edit: a third web server, another tag")
	before := d.managed()
	if err := d.rewrite("site.hcl", "default = 2", "default = 3"); err != nil {
		return err
	}
	if err := d.rewrite("manifests/web.hcl", `["web"]`, `["web", "public"]`); err != nil {
		return err
	}
	p, err := d.show(ctx)
	if err != nil {
		return err
	}
	if _, err := d.push(ctx, "A third web server, all of them public"); err != nil {
		return err
	}
	managed := d.managed()
	receipt, err := d.receipt()
	if err != nil {
		return err
	}
	d.check(p.Summary.Create == 1 && p.Summary.Update == 2 && steps(receipt) == "create vm.web-3, update vm.web-1, update vm.web-2", "it did exactly what was planned: %s", steps(receipt))
	d.check(names(managed) == "db ns-a ns-b web-1 web-2 web-3", "on the host: %s", names(managed))
	d.check(strings.Contains(managed["web-1"].Config["tags"], "public"), "web-1 has the tags %s", managed["web-1"].Config["tags"])
	d.check(managed["web-1"].VMID == before["web-1"].VMID && managed["web-1"].Running, "web-1 is the same guest as before, and was not restarted")
	d.check(managed["db"].Digest == before["db"].Digest, "db was not touched")
	return d.checkQuiet(ctx)
}

// drift changes the host by hand, without a push.
func (d *demo) drift(ctx context.Context) error {
	d.title("A colleague changes the host by hand: web-2 deleted, ns-a stopped, db renamed")
	before := d.managed()
	d.sim.Edit(func(e *pve.Edit) {
		e.Delete(before["web-2"].VMID)
		e.Stop(before["ns-a"].VMID)
		e.Set(before["db"].VMID, "name", "database")
	})
	_, err := d.until(ctx, "drift is reverted", func(s agent.Status) bool {
		return s.State == agent.Idle && s.Last != nil && s.Last.Outcome == engine.Done && fixed(d.managed())
	})
	if err != nil {
		return err
	}
	// A full check first starts the guests that are off, in a pass that has a receipt of its own.
	list, err := d.receipts.Last(2, nil)
	if err != nil {
		return err
	}
	undone := steps(slices.DeleteFunc(list, func(r ledger.Receipt) bool { return !r.Drift })...)
	d.printf("  agent     reverted by the full check, every %s here\n\n", driftEvery)
	d.check(undone == "create vm.web-2, update vm.db, update vm.ns-a", "its receipts call it drift: %s", undone)
	managed := d.managed()
	d.check(names(managed) == "db ns-a ns-b web-1 web-2 web-3", "on the host: %s", names(managed))
	d.check(all(managed, isRunning), "all of them run")
	return d.checkQuiet(ctx)
}

// receipt is the newest of the agent's.
func (d *demo) receipt() (ledger.Receipt, error) {
	list, err := d.receipts.Last(1, nil)
	if err == nil && len(list) == 0 {
		err = errors.New("the agent wrote no receipt")
	}
	if err != nil {
		return ledger.Receipt{}, err
	}
	return list[0], nil
}

// steps names what passes did, sorted.
func steps(passes ...ledger.Receipt) string {
	var out []string
	for _, r := range passes {
		for _, s := range r.Steps {
			out = append(out, s.Action+" "+s.Address)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// fixed reports whether the damage of the chapter drift is undone.
func fixed(managed map[string]pve.Guest) bool {
	return managed["web-2"].Running && managed["ns-a"].Running && managed["db"].Running
}

// mistake: a commit that is not valid changes nothing, and the last good one is kept up.
func (d *demo) mistake(ctx context.Context) error {
	d.title("A typo: the commit is refused, and the last good one stays in force")
	if err := d.rewrite("manifests/web.hcl", "preset = preset.vm-medium", "preset = preset.vm-medum"); err != nil {
		return err
	}
	before, was := d.sim.Snapshot().Writes, d.agent.Status().InForce
	st, err := d.push(ctx, "A larger database")
	if err != nil {
		return err
	}
	d.findings(st)
	d.check(st.Refused != nil && st.Refused.Outcome == engine.Invalid && strings.Contains(text(st.Refused), "vm-medum"), "it is refused, with file, line and column of the error")
	d.check(was != nil && is(st.InForce, was.ID), "the previous commit stays in force")
	d.check(d.sim.Snapshot().Writes == before, "nothing was written to the host")
	off := d.managed()["ns-b"].VMID
	d.sim.Edit(func(e *pve.Edit) { e.Stop(off) })
	_, err = d.until(ctx, "ns-b runs again", func(s agent.Status) bool { // and answers, or the agent reports in the next chapters that it does not
		return s.State == agent.Idle && d.managed()["ns-b"].Running && s.Last != nil && s.Last.Outcome == engine.Done
	})
	if err != nil {
		return err
	}
	d.check(true, "ns-b, stopped by hand meanwhile, runs again")
	return d.rewrite("manifests/web.hcl", "preset = preset.vm-medum", "preset = preset.vm-medium")
}

// forbidden: a policy says no.
func (d *demo) forbidden(ctx context.Context) error {
	d.title("A production posture allows passwords: a policy denies it")
	const before = "permit_root_login       = \"no\"\n    password_authentication = \"no\""
	const after = "permit_root_login       = \"no\"\n    password_authentication = \"yes\""
	writes := d.sim.Snapshot().Writes
	if err := d.replace("postures.hcl", before, after); err != nil {
		return err
	}
	d.printf("  edit      postures.hcl: posture prod, password_authentication = \"yes\"\n")
	st, err := d.push(ctx, "Easier logins")
	if err != nil {
		return err
	}
	d.findings(st)
	d.check(st.Refused != nil && strings.Contains(text(st.Refused), "password"), "it is refused by the shipped rule prod-no-password")
	d.check(d.sim.Snapshot().Writes == writes, "nothing was written to the host")
	return d.replace("postures.hcl", after, before)
}

// accident pushes a commit that removes too much: it is held back until it is confirmed.
func (d *demo) accident(ctx context.Context) error {
	d.title("An accident: a merge loses all manifests")
	kept, folder := filepath.Join(filepath.Dir(d.dir), "kept"), filepath.Join(d.dir, "manifests")
	if err := os.Rename(folder, kept); err != nil {
		return fmt.Errorf("edit the site: %w", err)
	}
	d.printf("  edit      manifests/ is gone\n")
	writes := d.sim.Snapshot().Writes
	st, err := d.push(ctx, "Merge branch 'spring-cleaning'")
	if err != nil {
		return err
	}
	d.findings(st)
	managed := d.managed()
	d.check(st.Refused != nil && st.Refused.Outcome == engine.Refused && strings.Contains(text(st.Refused), "Allow-Deletes"), "a guard refuses it, and names the next step")
	d.check(names(managed) == "db ns-a ns-b web-1 web-2 web-3" && d.sim.Snapshot().Writes == writes, "all guests are still there: %s", names(managed))
	if err := os.Rename(kept, folder); err != nil {
		return fmt.Errorf("edit the site: %w", err)
	}
	_, err = d.push(ctx, "Bring the manifests back")
	d.check(d.sim.Snapshot().Writes == writes, "after the next push everything is as before, without a write")
	return err
}

// stranded: a guest that is not managed, in the range that is.
func (d *demo) stranded(ctx context.Context) error {
	d.title("A colleague creates a guest by hand, with a VMID in the site's range")
	const vmid = 10500
	d.sim.Edit(func(e *pve.Edit) {
		e.Add(pve.Guest{VMID: vmid, Config: map[string]string{"name": "scratch", "memory": "512"}, Running: true})
	})
	for _, g := range d.sim.Snapshot().Guests {
		if g.VMID == vmid {
			d.unmanaged[vmid] = g
		}
	}
	p, err := d.show(ctx)
	if err != nil {
		return err
	}
	listed := slices.ContainsFunc(p.Unmanaged, func(f model.Unmanaged) bool { return f.VMID == vmid })
	d.check(listed && len(p.Steps) == 0, "it is listed as unmanaged, and the plan has no step for it")
	return d.checkQuiet(ctx)
}

// adoption: guests that were made by hand come into the site without a change, and leave it again.
func (d *demo) adoption(ctx context.Context) error {
	d.title("Guests that were there before are adopted, and given up again")
	before := d.sim.Snapshot()
	report, err := d.o.Import(ctx, d.dir, hostName, d.secrets, d.hosts())
	if err != nil {
		return err
	}
	d.printf("  homestak-gitops import --site . --host %s\n\n%s\n", hostName, indent(report))
	p, err := d.show(ctx)
	if err != nil {
		return err
	}
	if _, err := d.push(ctx, "Adopt what is there"); err != nil {
		return err
	}
	receipt, err := d.receipt()
	if err != nil {
		return err
	}
	d.check(p.Summary.Adopt == 3 && len(p.Steps) == 3 && steps(receipt) == "adopt ct.dns-1, adopt vm.files-3, adopt vm.media-2", "it did exactly what was planned: %s", steps(receipt))
	now := d.sim.Snapshot()
	kept, still := true, true
	var blocks strings.Builder
	for _, step := range p.Steps {
		was, _ := before.Guest(step.VMID)
		g, _ := now.Guest(step.VMID)
		kept = kept && tagged(g) && sameButTags(was.Config, g.Config)
		still = still && g.Running == was.Running && !slices.ContainsFunc(now.Tasks, func(t pve.Task) bool { return t.ID == strconv.Itoa(step.VMID) })
		fmt.Fprintf(&blocks, "removed %q {\n  destroy = false\n}\n", step.Address)
	}
	d.check(kept, "only notes and tags changed, and the notes begin as before")
	d.check(still, "those that ran were not restarted: no task ran for them")
	if err := d.checkQuiet(ctx); err != nil {
		return err
	}
	const name = "manifests/" + hostName + ".hcl"
	if err := os.WriteFile(filepath.Join(d.dir, filepath.FromSlash(name)), []byte(blocks.String()), 0o644); err != nil {
		return fmt.Errorf("edit the site: %w", err)
	}
	d.printf("\n  edit      %s: its nodes → removed \"…\" { destroy = false }\n", name)
	if _, err := d.push(ctx, "Give them up"); err != nil {
		return err
	}
	if receipt, err = d.receipt(); err != nil {
		return err
	}
	d.check(steps(receipt) == "forget ct.dns-1, forget vm.files-3, forget vm.media-2", "nothing was destroyed: %s", steps(receipt))
	same := slices.EqualFunc(before.Guests, d.sim.Snapshot().Guests, func(a, b pve.Guest) bool { return a.Digest == b.Digest && a.Running == b.Running })
	d.check(same, "every guest of %s is as before the import, byte for byte", hostName)
	return d.checkQuiet(ctx)
}

// sameButTags reports whether a configuration has changed in notes and tags alone, and the notes only behind what
// they were.
func sameButTags(was, now map[string]string) bool {
	before, after := maps.Clone(was), maps.Clone(now)
	for _, key := range []string{"description", "tags"} {
		delete(before, key)
		delete(after, key)
	}
	return maps.Equal(before, after) && strings.HasPrefix(now["description"], was["description"])
}

// farewell: what leaves the site leaves the host.
func (d *demo) farewell(ctx context.Context) error {
	d.title("One node is removed from the site, then all of them")
	if err := d.rewrite("manifests/dns.hcl", "{ a = 53, b = 54 }", "{ a = 53 }"); err != nil {
		return err
	}
	if _, err := d.push(ctx, "One name server is enough"); err != nil {
		return err
	}
	d.check(names(d.managed()) == "db ns-a web-1 web-2 web-3", "ns-b was removed, the others stay: %s", names(d.managed()))
	if err := os.RemoveAll(filepath.Join(d.dir, "manifests")); err != nil {
		return fmt.Errorf("edit the site: %w", err)
	}
	d.printf("\n  edit      manifests/ is removed, this time on purpose: the commit says so\n")
	if _, err := d.push(ctx, "Farewell\n\nAllow-Deletes: 5"); err != nil {
		return err
	}
	disks := 0
	for _, list := range d.sim.Snapshot().Volumes {
		for _, v := range list {
			if _, unmanaged := d.unmanaged[v.VMID]; v.VMID != 0 && v.Content != "backup" && !unmanaged {
				disks++
			}
		}
	}
	d.check(len(d.managed()) == 0 && disks == 0, "no managed guest is left: %s, %s", diag.Count(len(d.managed()), "guest"), diag.Count(disks, "disk"))
	return d.checkQuiet(ctx)
}

// findings reports why a commit is refused.
func (d *demo) findings(st agent.Status) {
	if st.Refused != nil {
		d.printf("%s\n", indent(text(st.Refused)))
	}
}

func text(r *agent.Refusal) string {
	var b strings.Builder
	slices.DeleteFunc(slices.Clone(r.Findings), func(f diag.Finding) bool { return f.Severity != diag.Error }).Write(&b)
	return b.String()
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line != "\n" {
			line = "    " + line
		}
		b.WriteString(line)
	}
	return b.String()
}
