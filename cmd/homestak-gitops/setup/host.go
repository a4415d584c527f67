package setup

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// host is what is known of the node and its cluster.
type host struct {
	Name     string   // of the node
	Nodes    []string // of the cluster, this one among them
	Address  string
	Version  string
	Storages []storage
	Network  []device
	Resolver struct{ Search, DNS1, DNS2, DNS3 string }
	Timezone string
	Certs    []struct{ Filename, Fingerprint string }
	Guests   []guest
	Users    []map[string]any
	Roles    []map[string]any
	Entries  []map[string]any // of the access list
}

// Numbers of PVE may be in quotes, which json.Number takes.
type (
	guest   struct{ VMID json.Number }
	storage struct {
		Storage, Type, Content string
		Active, Avail          json.Number
	}
	device struct {
		Iface, Type, Gateway string
		Active               json.Number
	}
)

const yes = json.Number("1")

func (s storage) has(content string) bool {
	return slices.Contains(strings.Split(s.Content, ","), content)
}

// get is the command that prints an answer of the API.
func get(path string, options ...string) []string {
	return slices.Concat([]string{"pvesh", "get", path}, options, []string{"--output-format", "json"})
}

// The lists that steps read.
func users() []string               { return get("/access/users", "--full", "1") }
func roles() []string               { return get("/access/roles") }
func accessList() []string          { return get("/access/acl") }
func storages(node string) []string { return get("/nodes/" + node + "/storage") }

// oldest is the first version whose API can import disk images.
const oldestMajor, oldestMinor = 8, 4

// readHost asks the API as root. It changes nothing.
func (s *Setup) readHost(ctx context.Context) (*host, error) {
	h := &host{}
	read := func(argv []string, into any) error {
		out, err := s.Run.Run(ctx, argv)
		if err == nil {
			if err = json.Unmarshal([]byte(out), into); err != nil {
				err = fmt.Errorf("%s: %w", quoted(argv), err)
			}
		}
		return err
	}
	var version struct{ Version string }
	if err := read(get("/version"), &version); err != nil {
		return nil, fmt.Errorf("%w\nsetup runs on a Proxmox VE node, as root; docs/howto/install-the-agent.md has the way for other machines", err)
	}
	h.Version = version.Version
	if !recent(h.Version) {
		return nil, fmt.Errorf("this is Proxmox VE %s, and setup needs %d.%d or later: upgrade the host first", h.Version, oldestMajor, oldestMinor)
	}
	var status []struct {
		Type, Name, IP string
		Local, Quorate json.Number
	}
	if err := read(get("/cluster/status"), &status); err != nil {
		return nil, err
	}
	for _, one := range status {
		switch {
		case one.Type == "cluster" && one.Quorate != yes:
			return nil, fmt.Errorf("cluster %s has no quorum, so its configuration is read-only: start further nodes (see pvecm status), then run setup again", diag.Clean(one.Name))
		case one.Type == "node":
			h.Nodes = append(h.Nodes, one.Name)
			if one.Local == yes {
				h.Name, h.Address = one.Name, one.IP
			}
		}
	}
	slices.Sort(h.Nodes)
	if i := slices.IndexFunc(h.Nodes, func(name string) bool { return !lang.ValidName(name) }); i >= 0 {
		return nil, fmt.Errorf("node %s has a name that a site cannot have: names start with a letter", diag.Clean(h.Nodes[i]))
	}
	if h.Name == "" || h.Address == "" {
		return nil, errors.New("the host does not say which node this is, and its address: see pvesh get /cluster/status")
	}
	var clock struct{ Timezone string }
	node := "/nodes/" + h.Name
	err := errors.Join(
		read(storages(h.Name), &h.Storages), read(get(node+"/network"), &h.Network), read(get(node+"/dns"), &h.Resolver), read(get(node+"/time"), &clock),
		read(get(node+"/certificates/info"), &h.Certs), read(get("/cluster/resources", "--type", "vm"), &h.Guests),
		read(users(), &h.Users), read(roles(), &h.Roles), read(accessList(), &h.Entries),
	)
	h.Timezone = cmp.Or(clock.Timezone, "UTC")
	return h, err
}

// recent reports whether a version can be used. One that cannot be read is taken for a new one.
func recent(version string) bool {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, err1 := strconv.Atoi(first)
	minor, err2 := strconv.Atoi(second)
	return err1 != nil || err2 != nil || major > oldestMajor || major == oldestMajor && minor >= oldestMinor
}

// api is the URL that the site names.
func (h *host) api() string { return "https://" + net.JoinHostPort(h.Address, "8006") }

// fingerprint is that of the certificate that pveproxy shows: one of the owner's, else the one that the cluster signed.
func (h *host) fingerprint() string {
	for _, name := range []string{"pveproxy-ssl.pem", "pve-ssl.pem"} {
		for _, c := range h.Certs {
			if c.Filename == name {
				return c.Fingerprint
			}
		}
	}
	return ""
}

// choose gives a storage: the named one, else the first of the preferred ones that fits, else the one that fits and
// has most room. The error lists what to do.
func (h *host) choose(named, flag, what string, fits func(storage) bool, preferred ...string) (storage, error) {
	var good []storage
	for _, st := range h.Storages {
		switch {
		case named != "" && st.Storage != named:
		case st.Active == yes && fits(st):
			good = append(good, st)
		case named != "":
			return st, fmt.Errorf("storage %s is not active on node %s, or not for %s", named, h.Name, what)
		}
	}
	switch {
	case len(good) == 0 && named != "":
		return storage{}, fmt.Errorf("node %s has no storage %s: see pvesm status", h.Name, named)
	case len(good) == 0:
		return storage{}, fmt.Errorf("node %s has no active storage for %s: add one, or name one with %s", h.Name, what, flag)
	}
	return slices.MinFunc(good, func(a, b storage) int {
		rank := func(st storage) int {
			return (slices.Index(preferred, st.Storage) + len(preferred) + 1) % (len(preferred) + 1)
		}
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(number(b.Avail), number(a.Avail)), strings.Compare(a.Storage, b.Storage))
	}), nil
}

// number is 0 for one that is missing.
func number(n json.Number) float64 {
	f, _ := n.Float64()
	return f
}

// bridge gives the bridge for guests: the named one, else that of the default route, else the first.
func (h *host) bridge(named string) (device, error) {
	var best device
	for _, d := range h.Network {
		switch {
		case d.Type != "bridge" && d.Type != "OVSBridge", d.Active != yes:
		case d.Iface == named:
			return d, nil
		case named == "" && (best.Iface == "" || best.Gateway == "" && d.Gateway != ""):
			best = d
		}
	}
	if best.Iface == "" {
		return best, fmt.Errorf("node %s has no active bridge %s: create one under System, Network of the node, or name one with --bridge", h.Name, named)
	}
	return best, nil
}

// freeRange is the first thousand VMIDs from 10000 on of which no guest has one.
func (h *host) freeRange() int {
	for from := 10000; ; from += 1000 {
		if !slices.ContainsFunc(h.Guests, func(g guest) bool { return int(number(g.VMID))/1000 == from/1000 }) {
			return from
		}
	}
}
