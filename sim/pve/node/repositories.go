package node

import (
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Package repositories of a node (PVE/API2/APT.pm; what it calls is Rust, the crate
// proxmox-apt): those of a fresh installation, and what was added.

// repository is one entry of a file below /etc/apt.
type repository struct {
	path, handle string // handle is empty for those of Debian.
	uri, suites  string
	components   string
	enabled      bool
	comment      string
}

// repositoryNames are the standard repositories, with what they are called.
func repositoryNames(w *core.World) [][2]string {
	names := [][2]string{{"enterprise", "Enterprise"}, {"no-subscription", "No-Subscription"}, {"test", "Test"}}
	releases := []string{"Quincy", "Reef", "Squid"}
	if w.V9() {
		releases = releases[2:]
	}
	for _, release := range releases {
		handle := "ceph-" + strings.ToLower(release)
		names = append(names, [2]string{handle + "-enterprise", "Ceph " + release + " Enterprise"},
			[2]string{handle + "-no-subscription", "Ceph " + release + " No-Subscription"}, [2]string{handle + "-test", "Ceph " + release + " Test"})
	}
	return names
}

// suite is the release of Debian below.
func suite(w *core.World) string {
	if w.V9() {
		return "trixie"
	}
	return "bookworm"
}

// standardRepository is the entry that a handle stands for, where it belongs.
func standardRepository(w *core.World, handle string) repository {
	host, under, file := "http://download.proxmox.com", "pve", "proxmox"
	if strings.HasSuffix(handle, "enterprise") {
		host, file = "https://enterprise.proxmox.com", "pve-enterprise"
	}
	component := "pve-" + handle
	if rest, ceph := strings.CutPrefix(handle, "ceph-"); ceph {
		release, kind, _ := strings.Cut(rest, "-")
		under, component, file = "ceph-"+release, kind, "ceph"
	}
	ending := "sources"
	if !w.V9() {
		ending = "list"
	}
	path := "/etc/apt/sources.list.d/" + file + "." + ending
	if file == "proxmox" && !w.V9() {
		path = "/etc/apt/sources.list"
		if handle == "test" {
			component = "pvetest"
		}
	}
	return repository{path: path, handle: handle, uri: host + "/debian/" + under, suites: suite(w), components: component, enabled: true}
}

// repositories are those of a node.
func repositories(w *core.World, node string) *[]repository {
	s := settingsOf(w.Nodes[node])
	if s.repositories == nil {
		suite, path := suite(w), "/etc/apt/sources.list"
		if w.V9() {
			path = "/etc/apt/sources.list.d/debian.sources"
		}
		debian := repository{path: path, uri: "http://deb.debian.org/debian", suites: suite + " " + suite + "-updates", components: "main contrib non-free-firmware", enabled: true}
		security := debian
		security.uri, security.suites = "http://security.debian.org/debian-security", suite+"-security"
		s.repositories = []repository{debian, security, standardRepository(w, "enterprise"), standardRepository(w, "ceph-squid-enterprise")}
	}
	return &s.repositories
}

func repositoryDigest(w *core.World, node string) string {
	return perl.SumOf(fmt.Sprint(*repositories(w, node)))
}

// apiRepositories is GET /nodes/{node}/apt/repositories.
func apiRepositories(w *core.World, c *core.Call) (any, error) {
	node, files, at := c.In["node"], []map[string]any{}, map[string]int{}
	status := map[string]bool{}
	for _, r := range *repositories(w, node) {
		kind := r.path[strings.LastIndex(r.path, ".")+1:]
		entry := map[string]any{
			"Types": []string{"deb"}, "URIs": []string{r.uri}, "Suites": strings.Fields(r.suites), "Components": strings.Fields(r.components),
			"Enabled": perl.BoolInt(r.enabled), "FileType": kind, "Comment": r.comment,
		}
		if kind == "sources" {
			ring := "/usr/share/keyrings/debian-archive-keyring.gpg"
			if r.handle != "" {
				ring = "/usr/share/keyrings/proxmox-archive-keyring.gpg"
			}
			entry["Options"] = []map[string]any{{"Key": "Signed-By", "Values": []string{ring}}}
		}
		i, there := at[r.path]
		if !there {
			i = len(files)
			at[r.path] = i
			var sum []int
			for _, b := range []byte(perl.SumOf(r.path))[:32] {
				sum = append(sum, int(b))
			}
			files = append(files, map[string]any{"path": r.path, "file-type": kind, "digest": sum, "repositories": []map[string]any{}})
		}
		files[i]["repositories"] = append(files[i]["repositories"].([]map[string]any), entry)
		status[r.handle] = status[r.handle] || r.enabled
	}
	standard := []map[string]any{}
	for _, name := range repositoryNames(w) {
		entry := map[string]any{"handle": name[0], "name": name[1], "description": "The repository " + name[1] + " of Proxmox."}
		if enabled, there := status[name[0]]; there {
			entry["status"] = perl.BoolInt(enabled)
		}
		standard = append(standard, entry)
	}
	return map[string]any{"files": files, "errors": []any{}, "infos": []any{}, "digest": repositoryDigest(w, node), "standard-repos": standard}, nil
}

// apiAddRepository is PUT /nodes/{node}/apt/repositories: a standard repository, which
// is switched on where it is there already (add_repository_handle).
func apiAddRepository(w *core.World, c *core.Call) (any, error) {
	node, handle := c.In["node"], c.In["handle"]
	if !slices.ContainsFunc(repositoryNames(w), func(name [2]string) bool { return name[0] == handle }) {
		return nil, perl.Fail("unknown repository handle '%s'", handle)
	}
	if err := c.Modified(repositoryDigest(w, node)); err != nil {
		return nil, err
	}
	all := repositories(w, node)
	for i := range *all {
		if r := &(*all)[i]; r.handle == handle {
			r.enabled = true
			return nil, nil
		}
	}
	*all = append(*all, standardRepository(w, handle))
	return nil, nil
}

// apiChangeRepository is POST /nodes/{node}/apt/repositories: one entry of a file is
// switched on or off (change_repository).
func apiChangeRepository(w *core.World, c *core.Call) (any, error) {
	node, path, index := c.In["node"], c.In["path"], c.Num("index", 0)
	if err := c.Modified(repositoryDigest(w, node)); err != nil {
		return nil, err
	}
	known := false
	all := *repositories(w, node)
	for i := range all {
		if all[i].path != path {
			continue
		}
		known = true
		if index == 0 {
			if c.Has("enabled") {
				all[i].enabled = c.Flag("enabled")
			}
			return nil, nil
		}
		index--
	}
	if known {
		return nil, perl.Fail("invalid index - %s", c.In["index"])
	}
	return nil, perl.Fail("invalid path - %s", path)
}

// apiChangelog is GET /nodes/{node}/apt/changelog: apt finds nothing to fetch it from,
// and what it says is the answer.
func apiChangelog(_ *core.World, c *core.Call) (any, error) {
	name := c.In["name"]
	if !slices.Contains(packages, name) {
		return fmt.Sprintf("E: Unable to locate package %s\nRC: 100", name), nil
	}
	return fmt.Sprintf("E: Failed to fetch changelog:/%s.changelog  Changelog unavailable for %s\nRC: 100", name, name), nil
}
