// The agent on a node notices changes of guests without API requests. The cluster file system, pmxcfs, has
// a version for every guest, which grows with each write of its configuration (pve-cluster, src/pmxcfs/status.c,
// cfs_create_version_msg and cfs_create_vmlist_msg). A running guest has a control group, and a VM also a PID file.
// A change only triggers an observation of the host.

package proxmox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The files of a node, below its root.
const (
	folder      = "etc/pve"
	versionFile = folder + "/.version"
	guestsFile  = folder + "/.vmlist"
)

// runningFolders are those that show which VMs and which containers run; of each kind the first that is there counts. The control
// groups of version 1 are in a folder for each controller. There nothing but the file with its process is read of a VM, which is
// there with version 2 as well, but stays for a moment when QEMU is killed (qemu-server, PVE/QemuServer.pm, vm_stop_cleanup).
var runningFolders = [2][]string{
	{
		"sys/fs/cgroup/qemu.slice", // VMID.scope (qemu-server, PVE/QemuServer.pm, vm_start_nolock)
		"run/qemu-server",          // VMID.pid, and other files (qemu-server, PVE/QemuServer/Helpers.pm, pidfile_name)
	},
	{
		"sys/fs/cgroup/lxc",         // VMID
		"sys/fs/cgroup/systemd/lxc", // VMID, with version 1
	},
}

// nodeState is the content of the files at one moment.
type nodeState struct {
	Began   uint64              // when the file system started, Unix seconds: versions are counted from then
	List    uint64              // version of the list of guests
	Guests  map[int]listedGuest // of the whole cluster
	Running map[int]bool        // guests of this node

	ran uint64 // grows with each other Running
}

// listedGuest is an entry of the list of guests.
type listedGuest struct {
	Node    string
	Version uint64 // of its configuration
}

// listEvery is the interval at which the control groups are listed although the folders look as before: the kernel counts what is in
// them, and knows no time of the last change. One guest that stops while another one starts, between two readings, is found then.
const listEvery = 7

// nodeReader reads the files below the root of a node. The zero value is for this machine. It keeps what it
// read last, and is for one goroutine.
type nodeReader struct {
	Root   string // "" for /
	last   nodeState
	text   []byte // of the file of versions, as it was read last
	buffer []byte
	groups [2]groups
	reads  int
}

// groups are the control groups of the running guests of a kind.
type groups struct {
	folder string
	seen   stamp  // of the folder
	there  bool   // the folder is
	list   []byte // what is in it, as it was read last
	buffer []byte
}

// Read reads the files. It reads their content and the folders only if a change shows, and States share them until
// then.
func (r *nodeReader) Read() (nodeState, error) {
	now, err := r.read()
	if err != nil {
		r.text, r.groups = nil, [2]groups{} // so that all of it is read again
		return nodeState{}, err
	}
	r.last = now
	return now, nil
}

func (r *nodeReader) read() (nodeState, error) {
	now, err := r.versions()
	if err != nil {
		return nodeState{}, err
	}
	if now.Guests == nil || now.Began != r.last.Began || now.List != r.last.List {
		if now.Guests, err = r.guests(); err != nil {
			return nodeState{}, err
		}
	}
	return r.running(now)
}

// guests reads the list of guests.
func (r *nodeReader) guests() (map[int]listedGuest, error) {
	var list struct {
		IDs map[int]listedGuest `json:"ids"`
	}
	name := r.path(guestsFile)
	data, err := readFresh(name, nil)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if list.IDs == nil { // without guests
		return map[int]listedGuest{}, nil
	}
	return list.IDs, nil
}

// versions reads the file of versions. Its state has the guests of the last one.
func (r *nodeReader) versions() (nodeState, error) {
	name := r.path(versionFile)
	text, err := readFresh(name, r.buffer[:0])
	if err != nil {
		return nodeState{}, err
	}
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
		return nodeState{}, fmt.Errorf("read %s: %w", name, err)
	case versions.Began == 0 || versions.List == 0:
		return nodeState{}, fmt.Errorf("%s has no version of the list of guests", name)
	}
	r.text, r.buffer = text, r.text
	now := r.last
	now.Began, now.List = versions.Began, versions.List
	return now, nil
}

// running lists the guests that run, in a state that has everything else. As long as the folders are as before it has the
// same map.
func (r *nodeReader) running(now nodeState) (nodeState, error) {
	again := r.reads%listEvery == 0
	r.reads++
	same := r.last.Running != nil
	for i := range runningFolders {
		g := &r.groups[i]
		name, is, err := r.first(runningFolders[i])
		switch {
		case err != nil:
			return nodeState{}, err
		case name == "": // as long as none runs
			same = same && !g.there
			*g = groups{}
			continue
		case name != g.folder:
			same = same && !g.there
			*g = groups{folder: name}
		}
		if !again && g.there && is == g.seen {
			continue
		}
		list, err := listing(name, g.buffer[:0])
		if err != nil {
			return nodeState{}, err
		}
		same = same && g.there && bytes.Equal(list, g.list)
		g.seen, g.there, g.list, g.buffer = is, true, list, g.list
	}
	if same {
		return now, nil
	}
	now.Running = map[int]bool{}
	now.ran = r.last.ran + 1
	for _, g := range r.groups {
		for _, name := range namesIn(g.list) {
			if id, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSuffix(name, ".scope"), ".pid")); err == nil {
				now.Running[id] = true
			}
		}
	}
	return now, nil
}

// first finds the first of some folders that is there; "" for none.
func (r *nodeReader) first(folders []string) (name string, is stamp, err error) {
	for _, folder := range folders {
		name = r.path(folder)
		if is, err = stampOf(name); !errors.Is(err, fs.ErrNotExist) {
			return name, is, err
		}
	}
	return "", stamp{}, nil
}

func (r *nodeReader) path(name string) string { return filepath.Join("/", r.Root, name) }

// Since lists the guests that are not as they were: their configuration was written, they were created, removed, moved,
// started or stopped. All reports that it cannot be said, since the versions start again.
func (s nodeState) Since(before nodeState) (guests []int, all bool) {
	if s.Began != before.Began {
		return nil, true
	}
	if s.List == before.List && s.ran == before.ran {
		return nil, false
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
	if s.ran != before.ran {
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
	}
	return slices.Sorted(maps.Keys(changed)), false
}
