// Package pmxcfs notices on a node of Proxmox VE that somebody changed a guest, without a request to its API. The
// file system of the cluster has a version for every guest, which grows with each write of its configuration
// (pve-cluster, src/pmxcfs/status.c, cfs_create_version_msg and cfs_create_vmlist_msg), and a guest that runs has a
// control group. Nothing is concluded from either but that it is time to observe the host.
package pmxcfs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The files of a node, below its root.
const (
	Folder      = "etc/pve"
	versionFile = Folder + "/.version"
	guestsFile  = Folder + "/.vmlist"

	vmGroups = "sys/fs/cgroup/qemu.slice" // VMID.scope for each VM that runs (qemu-server, PVE/QemuServer.pm, vm_start_nolock)
	ctGroups = "sys/fs/cgroup/lxc"        // VMID for each container that runs
)

// State is what the files say at one moment.
type State struct {
	Began   uint64        // when the file system started, Unix seconds: versions are counted from then
	List    uint64        // version of the list of guests
	Guests  map[int]Guest // of the whole cluster
	Running map[int]bool  // guests of this node
}

// Guest is an entry of the list of guests.
type Guest struct {
	Node    string
	Version uint64 // of its configuration
}

// Reader reads the files below the root of a node. The zero value is for this machine. It keeps what it
// read last, and is for one goroutine.
type Reader struct {
	Root  string // "" for /
	last  State
	names []string // of control groups
}

// Read reads the files. The list of guests is read only where its version is another one, and is shared by
// the States until then.
func (r *Reader) Read() (State, error) {
	var versions struct {
		Began uint64 `json:"starttime"`
		List  uint64 `json:"vmlist"`
	}
	err := r.document(versionFile, &versions)
	if err != nil {
		return State{}, err
	}
	now := State{Guests: r.last.Guests}
	now.Began, now.List = versions.Began, versions.List
	if now.Began == 0 || now.List == 0 {
		return State{}, fmt.Errorf("%s has no version of the list of guests", r.path(versionFile))
	}
	if now.Guests == nil || now.Began != r.last.Began || now.List != r.last.List {
		var list struct {
			IDs map[int]Guest `json:"ids"` // none where there is no guest
		}
		if err := r.document(guestsFile, &list); err != nil {
			return State{}, err
		}
		if now.Guests = list.IDs; now.Guests == nil {
			now.Guests = map[int]Guest{}
		}
	}
	if now.Running, err = r.running(); err != nil {
		return State{}, err
	}
	r.last = now
	return now, nil
}

// running lists the guests that have a control group. As long as the folders have the same names the answer
// is the same map.
func (r *Reader) running() (map[int]bool, error) {
	var names []string
	for _, folder := range []string{vmGroups, ctGroups} {
		f, err := os.Open(r.path(folder))
		if errors.Is(err, fs.ErrNotExist) { // as long as none runs
			continue
		} else if err != nil {
			return nil, err
		}
		some, err := f.Readdirnames(-1)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		names = append(names, some...)
	}
	if r.last.Running != nil && slices.Equal(names, r.names) {
		return r.last.Running, nil
	}
	r.names = names
	out := map[int]bool{}
	for _, name := range names {
		if id, err := strconv.Atoi(strings.TrimSuffix(name, ".scope")); err == nil {
			out[id] = true
		}
	}
	return out, nil
}

func (r *Reader) path(name string) string { return filepath.Join("/", r.Root, name) }

func (r *Reader) document(name string, into any) error {
	data, err := os.ReadFile(r.path(name))
	if err == nil {
		if err = json.Unmarshal(data, into); err != nil {
			err = fmt.Errorf("read %s: %w", r.path(name), err)
		}
	}
	return err
}

// Since lists the guests that are not as they were: their configuration was written, they were created, removed, moved,
// started or stopped. All reports that it cannot be said, since the versions start again.
func (s State) Since(before State) (guests []int, all bool) {
	if s.Began != before.Began {
		return nil, true
	}
	changed := map[int]bool{}
	if s.List != before.List {
		for id, g := range s.Guests {
			if before.Guests[id] != g {
				changed[id] = true
			}
		}
		for id := range before.Guests {
			if _, there := s.Guests[id]; !there {
				changed[id] = true
			}
		}
	}
	for id := range s.Running {
		if !before.Running[id] {
			changed[id] = true
		}
	}
	for id := range before.Running {
		if !s.Running[id] {
			changed[id] = true
		}
	}
	return slices.Sorted(maps.Keys(changed)), false
}
