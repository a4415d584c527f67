package sim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// cache is the manifest of the VM whose life is shown.
const cache = `manifest "cache" {
  pattern = "flat"
  host    = host.father
  owner   = "ops"
  purpose = "Cache of the shop"

  node "cache" {
    type     = "vm"
    planned  = true
    image    = image.debian-12
    preset   = preset.vm-small
    agent    = false
    services = ["redis"]

    decommission { policy = "requires_final_backup" }
  }
}
`

// lives is the chapter about the life of a VM.
type lives struct{ *demo }

// life follows one VM from its plan to the receipt of its removal.
func (d lives) life(ctx context.Context) error {
	d.title("The life of a VM: planned, created, in operation, removed, and the proof of it")
	const name = "manifests/cache.hcl"
	d.printf("  edit      %s: a node with planned = true\n", name)
	if err := os.WriteFile(filepath.Join(d.dir, filepath.FromSlash(name)), []byte(cache), 0o644); err != nil {
		return fmt.Errorf("edit the site: %w", err)
	}
	var planned, operating engine.NodeStatus
	if err := d.phase(ctx, "Plan a cache", plan.Planned, &planned); err != nil {
		return err
	}
	_, made := d.managed()["cache"]
	d.check(!made && planned.VMID != 0, "VMID %d is reserved, and nothing is created", planned.VMID)

	if err := d.rewrite(name, "planned  = true", "planned  = false"); err != nil {
		return err
	}
	if err := d.phase(ctx, "Create it", plan.Operating, &operating); err != nil {
		return err
	}
	d.check(operating.VMID == planned.VMID, "it has that VMID, and operates")
	if err := d.lists(ctx, fmt.Sprintf("| cache | %d | operating | ops | Cache of the shop |", operating.VMID)); err != nil {
		return err
	}

	d.printf("\n  edit      %s is removed\n", name)
	if err := os.Remove(filepath.Join(d.dir, filepath.FromSlash(name))); err != nil {
		return fmt.Errorf("edit the site: %w", err)
	}
	if _, err := d.push(ctx, "Remove the cache\n\nThe shop does without."); err != nil {
		return err
	}
	_, there := d.managed()["cache"]
	d.check(!there && d.tasks("vzdump") > 0, "it is gone, after a final backup")
	if err := d.lists(ctx, ""); err != nil {
		return err
	}
	receipts, err := d.receipts.Last(0, func(r *ledger.Receipt) bool {
		return slices.ContainsFunc(r.Steps, func(s ledger.Step) bool { return s.Address == "vm.cache" })
	})
	if err != nil {
		return err
	}
	proof, err := d.receipts.Verify(ledger.Expect{})
	if err != nil {
		return err
	}
	d.check(len(receipts) == 2 && strings.Contains(receipts[0].Reason, "does without"), "two receipts say who created and removed it, and why")
	d.check(len(proof.Broken) == 0 && proof.Unsigned == 0, "history verify: %d receipts are signed, and none is missing or changed", proof.Intact)
	return nil
}

// phase pushes what was edited, and waits until the node is in a phase.
func (d lives) phase(ctx context.Context, message string, want plan.Phase, node *engine.NodeStatus) error {
	if _, err := d.push(ctx, message); err != nil {
		return err
	}
	_, err := d.until(ctx, "the cache is "+string(want), func(s agent.Status) bool {
		i := slices.IndexFunc(s.Nodes, func(n engine.NodeStatus) bool { return n.Node == "cache" })
		if i >= 0 {
			*node = s.Nodes[i]
		}
		return i >= 0 && node.Life == want
	})
	d.check(err == nil, "the phase of cache is %s", want)
	return err
}

// lists waits until the output lifecycle has a line about the cache; "" for none.
func (d lives) lists(ctx context.Context, line string) error {
	_, err := d.until(ctx, "the output lifecycle is written", func(agent.Status) bool {
		text, err := os.ReadFile(filepath.Join(d.data, "outputs", "lifecycle.md"))
		if line == "" {
			return err == nil && !strings.Contains(string(text), "| cache |")
		}
		return err == nil && strings.Contains(string(text), line)
	})
	if line == "" {
		line = "nothing of cache"
	}
	d.check(err == nil, "output lifecycle has %s", line)
	return err
}
