// Package importer writes as files of a site what exists already: the guests of a host, to be adopted, and the YAML
// files of the predecessor (Convert).
//
// Read reads the host, Write makes the files of what was read: the nodes (node.go) are arranged in manifests, presets and
// blocks (files.go), by the tags from which package hcl also decodes them. What is not written has its reason in the
// Report.
package importer

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/inventory"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/objects"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Options choose guests, and how their files are arranged.
type Options struct {
	Only      []string // of Types; all if empty
	From, To  int      // VMIDs; 0 for no limit
	Pool, Tag string
	Name      string // a pattern as of path.Match
	By        string // pool, tag or node: what a manifest holds; guests without one go by their node
	Program   string // name and version of this program, for the heads of the files
}

// Ways are the values of By.
func Ways() []string { return []string{"pool", "tag", "node"} }

// Types are the values of Only.
func Types() []string { return []string{"vm", "ct", "template", "image", "pool", "ipset"} }

// includes reports whether guests of a type are asked for.
func (o Options) includes(kind string) bool { return len(o.Only) == 0 || slices.Contains(o.Only, kind) }

// includesObject reports whether objects of a type other than guests are requested: by their type, or with all.
func (o Options) includesObject(kind string) bool {
	all := o
	all.By, all.Program = "", ""
	return slices.Contains(o.Only, kind) || reflect.DeepEqual(all, Options{})
}

// takes reports whether a listed guest is asked for. A template of guests is known as one only by its configuration.
func (o Options) takes(g api.ListedGuest) bool {
	named, err := path.Match(o.Name, g.Name)
	return (o.includes(g.Kind()) || o.includes("template")) &&
		g.VMID >= o.From && (o.To == 0 || g.VMID <= o.To) &&
		(o.Pool == "" || g.Pool == o.Pool) && (o.Tag == "" || slices.Contains(g.Tags, o.Tag)) &&
		(o.Name == "" || err == nil && named)
}

// Seen is what was read of a host.
type Seen struct {
	guests   []seen // by VMID
	archives []string
	images   []string
	objects  []*model.Resource // pools and IP sets
	Unknown  []model.Unknown
}

// seen is one guest.
type seen struct {
	api.ListedGuest
	kind.Reading
}

// Discover completes a host of which only the API is known: the names of its nodes.
func Discover(ctx context.Context, cfg api.Config) error {
	c, err := api.Open(cfg)
	if err != nil {
		return err
	}
	h := cfg.Host
	var nodes []struct{ Node string }
	if err := api.ReadList(ctx, c, "/nodes", &nodes); err != nil {
		return fmt.Errorf("list the nodes of %s: %w", h.API, err)
	}
	var names []string
	for _, n := range nodes {
		names = append(names, n.Node)
	}
	if len(names) == 0 {
		return fmt.Errorf("%s shows no node\ngrant the token the role PVEAuditor on /", h.API)
	}
	slices.Sort(names)
	if h.Name = Label(names[0]); h.Name == "" {
		h.Name = "host"
	}
	if h.Name != names[0] {
		h.Node = names[0]
	}
	if len(names) > 1 {
		h.Nodes = names
	}
	return nil
}

// Read reads the guests of a host that are asked for, each with one request. begun is called with their number.
func Read(ctx context.Context, c *api.Client, h *model.Host, o Options, begun func(guests int)) (*Seen, error) {
	v, err := c.ReadView(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("read host %s at %s: %w", h.Name, h.API, err)
	}
	host := &kind.Host{API: c, Model: h, Width: c.Width}
	obs := kind.NewObservation(host, &model.Want{Host: h}, v)
	listed, unknown, err := inventory.Listed(ctx, obs)
	if err != nil {
		return nil, fmt.Errorf("list the guests of host %s: %w", h.Name, err)
	}
	out := &Seen{Unknown: append(v.Unknown, unknown...)}
	var chosen []api.ListedGuest
	for _, id := range slices.Sorted(maps.Keys(listed)) {
		g := listed[id]
		g.Pool = cmp.Or(g.Pool, v.Guests[id].Pool)
		if o.takes(g) && v.Nodes[g.Node] {
			chosen = append(chosen, g)
		}
	}
	begun(len(chosen))
	archives, images := make(chan []string, 1), make(chan []string, 1) // listed meanwhile
	go func() {
		archives <- readFiles(ctx, c, v, o.includes("template"), "vztmpl")
		images <- readFiles(ctx, c, v, o.includesObject("image"), "iso", "import")
	}()
	if err := obs.ReadConfigs(ctx, chosen); err != nil {
		return nil, fmt.Errorf("read the guests of host %s: %w", h.Name, err)
	}
	for _, g := range chosen {
		out.guests = append(out.guests, seen{g, obs.Configs[g.Ref()]})
	}
	out.archives, out.images = <-archives, <-images
	for _, of := range []struct {
		kind string
		read func(context.Context, *kind.Host) ([]*model.Resource, error)
	}{{"pool", objects.UnmanagedPools}, {"ipset", objects.UnmanagedIPSets}} {
		if !o.includesObject(of.kind) {
			continue
		}
		list, err := of.read(ctx, host)
		if err != nil {
			out.Unknown = append(out.Unknown, model.Unknown{Scope: of.kind + "s", Why: err.Error()})
		}
		out.objects = append(out.objects, list...)
	}
	return out, nil
}

// readFiles lists the files of some content on the storages of the host, if they are asked for. A storage that cannot be
// listed has none: nothing depends on them.
func readFiles(ctx context.Context, c *api.Client, v *api.View, asked bool, contents ...string) []string {
	var out []string
	for at, has := range v.Storages {
		for _, content := range contents {
			if !asked || !v.Nodes[at.Node] || !slices.Contains(strings.Split(has, ","), content) {
				continue
			}
			list, err := c.ListVolumes(ctx, at, content)
			for _, e := range list {
				if volume := api.Text(e["volid"]); err == nil && !strings.Contains(volume, "/homestak.") {
					out = append(out, volume)
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
