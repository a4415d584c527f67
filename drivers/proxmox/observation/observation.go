// Package observation is the document of a host as it was at one moment: what a plan, and a simulator in place of the
// host, need of it. The members are those of the types here and no others, so what Proxmox VE says beyond them is not in
// a file, whether secret or not.
package observation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
)

// Format is the version of the document. A program reads the version that it writes, since an observation is made
// again in seconds.
const Format = 1

// Host is a host or cluster as its API token saw it. Lists are sorted.
type Host struct {
	Format     int       `json:"observation"`
	Name       string    `json:"host"` // in the site
	ObservedAt time.Time `json:"observed_at"`
	Token      string    `json:"token"`   // that read it: user@realm!name, without its secret
	Version    string    `json:"version"` // of Proxmox VE, such as 9.2
	Node       string    `json:"node"`    // the one of the site's host
	Quorate    bool      `json:"quorate"`

	Nodes    []Node    `json:"nodes"`
	Storages []Storage `json:"storages"`
	Guests   []Guest   `json:"guests"`
	Pools    []Pool    `json:"pools,omitempty"`
	IPSets   []IPSet   `json:"ipsets,omitempty"`
	Edits    []Edit    `json:"edits,omitempty"` // oldest first

	// Privileges are those of the token, by path: 1 for one that holds below the path too.
	Privileges map[string]map[string]int `json:"privileges"`
	// Unread are the requests that failed. What they would have shown is unknown.
	Unread []Unread `json:"unread,omitempty"`
}

// Node is a machine of the cluster. Sizes are in bytes, here and below.
type Node struct {
	Name    string   `json:"name"`
	Online  bool     `json:"online"`
	CPUs    int      `json:"cpus,omitempty"`
	Memory  int64    `json:"memory,omitempty"`
	Disk    int64    `json:"disk,omitempty"`
	Bridges []string `json:"bridges,omitempty"` // and virtual networks
	Tasks   []Task   `json:"tasks,omitempty"`   // running, or begun within the last hour; oldest first
}

// Task is a task of a node. Status is empty while it runs.
type Task struct {
	UPID   string `json:"upid"`
	Ended  int64  `json:"ended,omitempty"` // Unix time
	Status string `json:"status,omitempty"`
}

// Storage is a storage of some nodes.
type Storage struct {
	Name    string   `json:"name"`
	Type    string   `json:"type"`
	Content string   `json:"content"`
	Shared  bool     `json:"shared,omitempty"`
	Nodes   []string `json:"nodes"`
	Size    int64    `json:"size,omitempty"`
	Used    int64    `json:"used,omitempty"`
	Volumes []Volume `json:"volumes,omitempty"`
}

// Volume is what is on a storage.
type Volume struct {
	ID        string `json:"id"`
	Node      string `json:"node,omitempty"` // of a storage that is not shared
	Content   string `json:"content"`
	Format    string `json:"format,omitempty"`
	VMID      int    `json:"vmid,omitempty"`
	Size      int64  `json:"size,omitempty"`
	Used      int64  `json:"used,omitempty"`
	Created   int64  `json:"created,omitempty"` // Unix time
	Notes     string `json:"notes,omitempty"`
	Protected bool   `json:"protected,omitempty"`
	Verified  string `json:"verified,omitempty"` // what a Proxmox Backup Server says of a backup: ok or failed
}

// Guest is a VM or container.
type Guest struct {
	VMID    int    `json:"vmid"`
	Kind    string `json:"kind"` // qemu or lxc
	Node    string `json:"node"`
	Running bool   `json:"running,omitempty"`
	Uptime  int64  `json:"uptime,omitempty"` // seconds
	QMP     string `json:"qmp,omitempty"`    // what QEMU says of a VM that does not execute
	HA      string `json:"ha,omitempty"`     // state in the HA manager
	Pool    string `json:"pool,omitempty"`

	Config    map[string]string `json:"config"`            // in force
	Pending   map[string]string `json:"pending,omitempty"` // values that the next full restart puts in force
	Delete    []string          `json:"delete,omitempty"`  // keys that it removes, with ! by force
	Digest    string            `json:"digest,omitempty"`
	Snapshots []Snapshot        `json:"snapshots,omitempty"` // oldest first
}

// Snapshot is a snapshot of a guest.
type Snapshot struct {
	Name   string            `json:"name"`
	Config map[string]string `json:"config"`
}

// Pool is a resource pool.
type Pool struct {
	Name    string `json:"name"`
	Comment string `json:"comment,omitempty"`
}

// IPSet is a set of addresses of the cluster's firewall.
type IPSet struct {
	Name    string  `json:"name"`
	Comment string  `json:"comment,omitempty"`
	Entries []Entry `json:"entries,omitempty"`
}

// Entry is an address of a set.
type Entry struct {
	CIDR    string `json:"cidr"`
	NoMatch bool   `json:"nomatch,omitempty"`
	Comment string `json:"comment,omitempty"`
}

// Edit is an entry of the cluster log about a change of a VM. Its text has the keys and not their values.
type Edit struct {
	At   int64  `json:"at"` // Unix time
	Node string `json:"node"`
	User string `json:"user"`
	PID  int    `json:"pid"`
	Text string `json:"text"`
}

// Unread is a path that could not be read.
type Unread struct {
	Path   string `json:"path"`
	Status int    `json:"status"` // of the response; 0 for none
	Why    string `json:"why"`
}

// WriteFile writes an observation. It describes a host and its guests, so only its owner may read it.
func (h *Host) WriteFile(name string) error {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	if err := e.Encode(h); err != nil {
		return fmt.Errorf("write the observation: %w", err)
	}
	if err := durable.Replace(name, out.Bytes()); err != nil {
		return fmt.Errorf("write the observation: %w", err)
	}
	return nil
}

// ReadFile reads an observation.
func ReadFile(name string) (*Host, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the observation: %w", err)
	}
	h, err := read(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w\nmake a new one: homestak-gitops observe --out FILE", name, err)
	}
	return h, nil
}

func read(text []byte) (*Host, error) {
	var format struct {
		Observation *int `json:"observation"`
	}
	if err := json.Unmarshal(text, &format); err != nil {
		return nil, fmt.Errorf("not an observation: %w", err)
	}
	switch {
	case format.Observation == nil:
		return nil, errors.New("not an observation: it has no member observation with its version")
	case *format.Observation != Format:
		return nil, fmt.Errorf("it is an observation of version %d, this program reads %d", *format.Observation, Format)
	}
	h := &Host{}
	if err := json.Unmarshal(text, h); err != nil {
		return nil, fmt.Errorf("the observation is damaged: %w", err)
	}
	if err := h.check(); err != nil {
		return nil, fmt.Errorf("the observation is damaged: %w", err)
	}
	return h, nil
}

// check finds references to what is not there, such as in a file that was edited.
func (h *Host) check() error {
	nodes, vmids := map[string]bool{}, map[int]bool{}
	for _, n := range h.Nodes {
		nodes[n.Name] = true
	}
	switch {
	case h.Name == "" || h.Token == "" || h.ObservedAt.IsZero():
		return errors.New("host, token or observed_at is missing")
	case !nodes[h.Node]:
		return fmt.Errorf("node %q is not among its nodes", h.Node)
	}
	for _, s := range h.Storages {
		if len(s.Nodes) == 0 {
			return fmt.Errorf("storage %q is on no node", s.Name)
		}
	}
	for _, g := range h.Guests {
		switch {
		case g.Kind != "qemu" && g.Kind != "lxc":
			return fmt.Errorf("guest %d is of kind %q", g.VMID, g.Kind)
		case !nodes[g.Node]:
			return fmt.Errorf("guest %d is on node %q, which is not among its nodes", g.VMID, g.Node)
		case g.VMID <= 0 || vmids[g.VMID]:
			return fmt.Errorf("guest %d is there twice, or has no VMID", g.VMID)
		}
		vmids[g.VMID] = true
	}
	return nil
}
