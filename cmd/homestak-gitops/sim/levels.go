package sim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/keys"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// levels has the chapters about trees, in their order.
type levels struct{ *demo }

// two: a VM becomes a host, whose agent makes a VM that configures itself.
func (d levels) two(ctx context.Context) error {
	d.title("A VM becomes a host: it gets an agent, which creates a VM")
	if err := d.deploy("mixed-mode"); err != nil {
		return err
	}
	if err := d.grow(ctx, "Two levels, the lower one in mode pull", 2); err != nil {
		return err
	}
	d.check(names(d.managed()) == "inner-pve", "on %s: inner-pve, made ready by push", hostName)
	if err := d.checkOwn("inner-pve", "edge", "guest.inner-pve"); err != nil {
		return err
	}
	edge := d.within("inner-pve", "edge")
	own := ""
	if edge != nil {
		own, _ = edge("cat /etc/homestak-gitops/node.json")
		_, code := edge("htop && [ -f /var/lib/homestak-gitops/config-complete.json ]")
		d.check(code == 0, "edge fetched and applied its spec")
	}
	inner := d.world.Running("inner-pve")
	d.check(inner != nil && strings.Contains(own, inner.Status().Server.Pins[0]), "with a token of inner-pve, and by its certificate")
	return nil
}

// three: a host on a host on the host.
func (d levels) three(ctx context.Context) error {
	d.title("Three levels: a host on a host on the host")
	if err := d.deploy("n3-deep"); err != nil {
		return err
	}
	if err := d.rewrite("recipes/n3-deep.hcl", `node "edge"`, `node "core"`); err != nil { // there is an edge already
		return err
	}
	before := len(d.history.List())
	if err := d.grow(ctx, "Three levels", 5); err != nil {
		return err
	}
	made := d.history.List()[before:]
	d.check(slices.Equal(made, []string{"+father", "+root-pve", "+leaf-pve"}), "each level was created by the one above it: %s", strings.Join(made, " "))
	if err := d.checkOwn("root-pve", "leaf-pve", "guest.root-pve"); err != nil {
		return err
	}
	return d.checkOwn("leaf-pve", "core", "")
}

// upwards: a tree is removed from its leaves.
func (d levels) upwards(ctx context.Context) error {
	d.title("The three levels are removed from the site: the leaves go first")
	before := len(d.history.List())
	if err := d.replace("recipes/n3-deep.hcl", "host = host.father\n  pattern", "pattern"); err != nil {
		return err
	}
	d.printf("  edit      recipes/n3-deep.hcl: it names no host any more\n")
	if err := d.grow(ctx, "No third level\n\nAllow-Deletes: 3", 2); err != nil {
		return err
	}
	gone := d.history.List()[before:]
	d.check(slices.Equal(gone, []string{"-leaf-pve", "-root-pve", "-father"}), "each host was empty before it was removed: %s", strings.Join(gone, " "))
	d.check(d.world.Running("root-pve") == nil && d.world.Running("leaf-pve") == nil, "their agents stopped with them")
	d.check(names(d.managed()) == "inner-pve" && d.within("inner-pve", "edge") != nil, "the other branch is unchanged")
	return nil
}

// remote: a machine that stands elsewhere becomes a host below this one.
func (d levels) remote(ctx context.Context) error {
	d.title("A machine elsewhere joins: it becomes a host below this one")
	const site = `host "branch" {
  parent = host.father
}

manifest "shop" {
  pattern = "flat"
  host    = host.branch

  node "till" {
    type   = "vm"
    preset = preset.vm-small
    image  = image.debian-12
  }
}
`
	if err := os.WriteFile(filepath.Join(d.dir, "hosts", "branch.hcl"), []byte(site), 0o644); err != nil {
		return fmt.Errorf("edit the site: %w", err)
	}
	d.printf("  edit      hosts/branch.hcl: host \"branch\" { parent = host.father }, with a VM on it\n")
	st, err := d.push(ctx, "A branch")
	if err != nil {
		return err
	}
	token, err := keys.Folder(filepath.Join(d.data, daemon.Folder)).MintJoin("branch", time.Hour, time.Now())
	if err != nil {
		return err
	}
	const disk = "disk of branch"
	d.elsewhere.Boot(pve.Machine{Key: disk, Kind: "qemu", Image: "pve-9", Hostname: "branch", Address: "198.51.100.7/24", Cards: 1})
	m := d.elsewhere.Machine(disk)
	d.printf("  homestak-gitops token mint branch --join\n  homestak-gitops join https://%s --pin sha256:… --token …\n\n", server)
	var said strings.Builder
	join := push.Join{
		JoinFile: wire.JoinFile{URL: "https://" + server, Pin: d.service.Status().Server.Pins[0], Token: token.Token}, Machine: inside{m}, Dial: m.Dial,
		System: "linux", Arch: "amd64", Program: []byte(download("demo")), Version: "demo",
		Say: func(format string, args ...any) { fmt.Fprintf(&said, format+"\n", args...) },
	}
	err = join.Do(ctx, false)
	d.printf("%s\n", indent(said.String()))
	if err != nil {
		return err
	}
	if err := d.ready(ctx, st.Converged.ID, 4); err != nil {
		return err
	}
	made := d.elsewhere.Hosts()[0].Snapshot()
	own := len(made.Tasks) > 0 && !slices.ContainsFunc(made.Tasks, func(t pve.Task) bool { return t.User != "homestak@pve!agent" })
	d.check(own && len(made.Guests) == 1 && made.Guests[0].Name() == "till", "on branch: till, made by its own agent with its own token")
	return nil
}

// deploy names the host in a recipe.
func (d levels) deploy(recipe string) error {
	d.printf("  edit      recipes/%s.hcl: host = host.father\n", recipe)
	return d.replace("recipes/"+recipe+".hcl", "pattern", "host = host.father\n  pattern")
}

// grow pushes, waits until the whole tree is at the commit and ready, and draws it.
func (d levels) grow(ctx context.Context, message string, nodes int) error {
	st, err := d.push(ctx, message)
	if err != nil {
		return err
	}
	if st.Refused != nil {
		d.findings(st)
		d.check(false, "the commit is in force")
		return nil
	}
	return d.ready(ctx, st.Converged.ID, nodes)
}

// ready waits until the whole tree is at a commit and ready, and draws it.
func (d levels) ready(ctx context.Context, commit string, nodes int) error {
	_, err := d.until(ctx, fmt.Sprintf("the tree has %d nodes that are ready", nodes), func(agent.Status) bool {
		tree := d.service.Tree()
		for _, n := range tree.Nodes {
			if n.Type == "pve" && n.Commit != commit {
				return false
			}
		}
		return tree.Ready && len(tree.Nodes) == nodes
	})
	if err != nil {
		return err
	}
	d.printf("  homestak-gitops tree\n\n%s\n", indent(d.o.Paint.Tree(d.service.Tree(), time.Now())))
	d.check(true, "all %d nodes are ready, and each pve node reports this commit", nodes)
	return nil
}

// checkOwn checks that a child created a node itself once its machine was ready, after the parent's step had ended.
func (d levels) checkOwn(child, node, ready string) error {
	host, own := d.world.Hosts.Find(child), d.world.Running(child)
	if host == nil || own == nil {
		d.check(false, "%s is a host with an agent", child)
		return nil
	}
	byItself, made := true, time.Time{}
	for _, task := range host.Snapshot().Tasks {
		byItself = byItself && task.User == "homestak@pve!agent"
		if task.Type == "qmcreate" {
			made = task.Start
		}
	}
	guests := host.Snapshot().Guests
	d.check(byItself && len(guests) == 1 && guests[0].Name() == node, "on %s: %s, made by its own agent with its own token", child, node)
	if ready == "" {
		return nil
	}
	ended, err := endOf(d.service, ready)
	if err != nil {
		return err
	}
	d.check(!ended.IsZero() && ended.Before(made), "%s was ready %s before %s was made", child, made.Sub(ended).Round(time.Millisecond), node)
	return nil
}

// endOf returns the time at which an agent ended a step; zero if it has not.
func endOf(s *service.Service, address string) (time.Time, error) {
	all, err := s.Ledger.Last(0, nil)
	if err != nil {
		return time.Time{}, err
	}
	for _, r := range all {
		for _, s := range r.Steps {
			if s.Address == address {
				return s.Began.Add(time.Duration(s.Seconds * float64(time.Second))), nil
			}
		}
	}
	return time.Time{}, nil
}

// within is the shell of a guest on a host; nil if there is none.
func (d levels) within(host, guest string) func(line string) (string, int) {
	h := d.world.Hosts.Find(host)
	if h == nil {
		return nil
	}
	guests := h.Snapshot().Guests
	i := slices.IndexFunc(guests, func(g pve.Guest) bool { return g.Name() == guest })
	systems, simulated := h.Systems().(*sim.Guests)
	if i < 0 || !simulated {
		return nil
	}
	m := systems.Machine(fmt.Sprint(guests[i].VMID))
	if m == nil {
		return nil
	}
	return m.Shell
}
