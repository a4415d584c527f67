// Package pmxcfs notices on a node of Proxmox VE that somebody changed a guest, without a request to its API. The
// file system of the cluster has a version for every guest, which grows with each write of its configuration
// (pve-cluster, src/pmxcfs/status.c, cfs_create_version_msg and cfs_create_vmlist_msg), and a guest that runs has a
// control group. Nothing is concluded from either but that it is time to observe the host.
package pmxcfs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
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

// listEvery is how often the control groups are listed although the folders look as before: the kernel counts what is in
// them, and knows no time of the last change. One guest that stops in the second in which another one starts is found then.
const listEvery = 10

// Reader reads the files below the root of a node. The zero value is for this machine. It keeps what it
// read last, and is for one goroutine.
type Reader struct {
	Root   string // "" for /
	last   State
	text   []byte // of the file of versions, as it was read last
	buffer []byte
	groups [2]groups
	reads  int
}

// groups are the control groups of the guests of a kind.
type groups struct {
	seen  fs.FileInfo // the folder; nil: there is none
	names []string
}

// Read reads the files. What is in them and in the folders is read only where something shows that it is not as
// before, and is shared by the States until then.
func (r *Reader) Read() (State, error) {
	now, err := r.read()
	if err != nil {
		r.text = nil // so that all of it is read again
		return State{}, err
	}
	r.last = now
	return now, nil
}

func (r *Reader) read() (State, error) {
	now, err := r.versions()
	if err != nil {
		return State{}, err
	}
	if now.Guests == nil || now.Began != r.last.Began || now.List != r.last.List {
		if now.Guests, err = r.guests(); err != nil {
			return State{}, err
		}
	}
	now.Running, err = r.running()
	return now, err
}

// guests reads the list of guests.
func (r *Reader) guests() (map[int]Guest, error) {
	var list struct {
		IDs map[int]Guest `json:"ids"`
	}
	name := r.path(guestsFile)
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if list.IDs == nil { // there is no guest
		return map[int]Guest{}, nil
	}
	return list.IDs, nil
}

// versions reads the file of versions. Its State has the guests of the last one.
func (r *Reader) versions() (State, error) {
	name := r.path(versionFile)
	f, err := os.Open(name)
	if err != nil {
		return State{}, err
	}
	into := bytes.NewBuffer(r.buffer[:0])
	_, err = into.ReadFrom(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return State{}, err
	}
	text := into.Bytes()
	if r.text != nil && bytes.Equal(text, r.text) {
		r.buffer = text
		return r.last, nil
	}
	var versions struct {
		Began uint64 `json:"starttime"`
		List  uint64 `json:"vmlist"`
	}
	switch err := json.Unmarshal(text, &versions); {
	case err != nil:
		return State{}, fmt.Errorf("read %s: %w", name, err)
	case versions.Began == 0 || versions.List == 0:
		return State{}, fmt.Errorf("%s has no version of the list of guests", name)
	}
	r.text, r.buffer = text, r.text
	now := r.last
	now.Began, now.List = versions.Began, versions.List
	return now, nil
}

// running lists the guests that have a control group. As long as the folders are as before the answer
// is the same map.
func (r *Reader) running() (map[int]bool, error) {
	again := r.reads%listEvery == 0
	r.reads++
	same := r.last.Running != nil
	for i, folder := range []string{vmGroups, ctGroups} {
		g := &r.groups[i]
		name := r.path(folder)
		is, err := os.Stat(name)
		if errors.Is(err, fs.ErrNotExist) { // as long as none runs
			same = same && g.seen == nil
			*g = groups{}
			continue
		} else if err != nil {
			return nil, err
		}
		if !again && g.seen != nil && reflect.DeepEqual(is.Sys(), g.seen.Sys()) {
			continue
		}
		names, err := namesIn(name)
		if err != nil {
			return nil, err
		}
		same = same && g.seen != nil && slices.Equal(names, g.names)
		g.seen, g.names = is, names
	}
	if same {
		return r.last.Running, nil
	}
	out := map[int]bool{}
	for _, g := range r.groups {
		for _, name := range g.names {
			if id, err := strconv.Atoi(strings.TrimSuffix(name, ".scope")); err == nil {
				out[id] = true
			}
		}
	}
	return out, nil
}

func namesIn(folder string) ([]string, error) {
	f, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	return names, errors.Join(err, f.Close())
}

func (r *Reader) path(name string) string { return filepath.Join("/", r.Root, name) }

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
