package hcl_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

const movesSite = `site "home" {
}
image "debian" {
  url      = "https://images.example/debian.qcow2"
  checksum = "sha256:abababababababababababababababababababababababababababababababab"
}
host "father" {
  api = "https://192.0.2.10:8006"
}
manifest "m" {
  pattern = "flat"
  host    = "father"
  node "web" {
    type   = "vm"
    cores  = 1
    memory = 512
    vmid   = 104
    adopt  = "1bae9530-15f1-4d8a-8b09-1412c51fdb8d"
  }
}
manifest "n" {
  pattern = "flat"
  host    = "father"
  node "worker" {
    type   = "vm"
    count  = 2
    cores  = 1
    memory = 512
    vmid   = 110 + count.index
    adopt  = "1bae9530-15f1-4d8a-8b09-1412c51fdb8${count.index}"
  }
  node "host" {
    type   = "pve"
    cores  = 1
    memory = 512
    vmid   = 120
    image  = image.debian
    adopt  = "1bae9530-15f1-4d8a-8b09-1412c51fdb90"
  }
  node "pulls" {
    type   = "vm"
    cores  = 1
    memory = 512
    vmid   = 121
    adopt  = "1bae9530-15f1-4d8a-8b09-1412c51fdb91"
    execution {
      mode = "pull"
    }
  }
}
`

func TestMovedAndRemoved(t *testing.T) {
	vm := func(name string) model.Address { return model.Address{Kind: "vm", Name: name} }
	for name, c := range map[string]struct {
		text    string
		moved   map[model.Address]model.Address
		removed model.Removals
		found   []string
	}{
		"one":           {text: "moved {\n  from = node.old\n  to   = node.web\n}\n", moved: map[model.Address]model.Address{vm("old"): vm("web")}},
		"each instance": {text: "moved {\n  from = node.crew\n  to   = node.worker\n}\n", moved: map[model.Address]model.Address{vm("crew-1"): vm("worker-1"), vm("crew-2"): vm("worker-2")}},
		"an instance":   {text: "moved {\n  from = node.web-9\n  to   = \"worker-2\"\n}\n", moved: map[model.Address]model.Address{vm("web-9"): vm("worker-2")}},
		"a chain":       {text: "moved {\n  from = node.a\n  to   = node.b\n}\nmoved {\n  from = node.b\n  to   = node.web\n}\n", moved: map[model.Address]model.Address{vm("a"): vm("web"), vm("b"): vm("web")}},
		"count came":    {text: "moved {\n  from = node.worker\n  to   = node.worker-1\n}\n", moved: map[model.Address]model.Address{vm("worker"): vm("worker-1")}},
		"given up":      {text: "removed \"vm.old\" {\n  destroy = false\n}\n", removed: model.Removals{vm("old"): {}}},
		"destroyed":     {text: "removed \"vm.old\" {\n  destroy = true\n}\n", removed: model.Removals{vm("old"): {Destroy: true}}},
		"in one line":   {text: "removed \"vm.old\" { destroy = true }\n", removed: model.Removals{vm("old"): {Destroy: true}}},
		"moved, given up": {
			text:    "moved {\n  from = node.a\n  to   = node.b\n}\nmoved {\n  from = node.b\n  to   = node.c\n}\nremoved \"vm.c\" {\n  destroy = false\n}\n",
			removed: model.Removals{vm("a"): {}, vm("b"): {}, vm("c"): {}},
		},
		"moved, destroyed": {
			text:    "moved {\n  from = node.a\n  to   = node.b\n}\nremoved \"vm.b\" {\n  destroy = true\n}\n",
			removed: model.Removals{vm("a"): {Destroy: true}, vm("b"): {Destroy: true}},
		},
		"declared, given up": {
			text:  "moved {\n  from = node.web\n  to   = node.b\n}\nremoved \"vm.b\" {\n  destroy = true\n}\n",
			found: []string{"m.hcl:2:10: error: node web is moved and declared"},
		},
		"a cycle":          {text: "moved {\n  from = node.a\n  to   = node.b\n}\nmoved {\n  from = node.b\n  to   = node.a\n}\n", found: []string{"m.hcl:2:10: error: node a is moved to itself", "m.hcl:6:10: error: node b is moved to itself"}},
		"two to one":       {text: "moved {\n  from = node.a\n  to   = node.web\n}\nmoved {\n  from = node.b\n  to   = node.web\n}\n", found: []string{"m.hcl:7:10: error: two nodes are moved to web"}},
		"one to two":       {text: "moved {\n  from = node.a\n  to   = node.web\n}\nmoved {\n  from = node.a\n  to   = node.worker-1\n}\n", found: []string{"m.hcl:6:10: error: node a is moved twice"}},
		"declared":         {text: "moved {\n  from = node.web\n  to   = node.worker-1\n}\n", found: []string{"m.hcl:2:10: error: node web is moved and declared"}},
		"undeclared":       {text: "moved {\n  from = node.a\n  to   = node.b\n}\n", found: []string{"m.hcl:3:10: error: node b is not declared"}},
		"pve":              {text: "moved {\n  from = node.a\n  to   = node.host\n}\n", found: []string{"m.hcl:3:10: error: a pve node cannot be moved"}},
		"pull":             {text: "moved {\n  from = node.a\n  to   = node.pulls\n}\n", found: []string{"m.hcl:3:10: error: a node in mode pull cannot be moved"}},
		"no node":          {text: "moved {\n  from = local.a\n  to   = node.web\n}\n", found: []string{"m.hcl:2:10: error: from is not a node"}},
		"half":             {text: "moved {\n  to = node.web\n}\n", found: []string{"m.hcl:1:1: error: moved without from and to"}},
		"more":             {text: "moved {\n  from = node.a\n  to   = node.web\n  at   = 1\n}\n", found: []string{"m.hcl:4:3: error: unknown attribute \"at\" in moved"}},
		"removed, there":   {text: "removed \"vm.web\" {\n  destroy = false\n}\n", found: []string{"m.hcl:1:1: error: vm.web is removed and declared"}},
		"removed pool":     {text: "removed \"pool.x\" {\n  destroy = false\n}\n", found: []string{"m.hcl:1:1: error: removed \"pool.x\" is not the address of a guest"}},
		"removed pve":      {text: "removed \"pve.x\" {\n  destroy = false\n}\n", found: []string{"m.hcl:1:1: error: a pve node cannot be given up"}},
		"removed, no word": {text: "removed \"vm.x\" {\n}\n", found: []string{"m.hcl:1:1: error: missing attribute \"destroy\" in removed \"vm.x\""}},
	} {
		t.Run(name, func(t *testing.T) {
			site, found := hcl.Load(files("a.hcl", movesSite, "m.hcl", c.text), hcl.Options{Kinds: proxmox.Kinds()})
			require.Equal(t, append([]string{}, c.found...), summaries(found))
			if c.found != nil {
				return
			}
			if c.moved == nil {
				c.moved = map[model.Address]model.Address{}
			}
			require.Equal(t, c.moved, site.Moved)
			require.Equal(t, c.removed, site.Removed)
		})
	}
}
