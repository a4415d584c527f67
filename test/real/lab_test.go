package real_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	siteName = "homestak-real"
	prefix   = "hsreal-" // of the names of all guests and files that the tests make
)

// settings say which host to use, and what of it.
type settings struct {
	host        string // name or address, with or without port, or a URL
	token       string // user@realm!name=secret
	fingerprint string // of its certificate; "" to trust the one that it shows now
	node        string // "" where the host has one only
	storage     string // of disks; "" for the first that takes disks of VMs and of containers
	bridge      string // "" for the first
	vmids       string // FROM-TO
	noKVM       bool   // the host cannot virtualise by hardware

	patience time.Duration   // bounds each run of the program, and each wait for an agent
	again    time.Duration   // until a host is asked once more what it was asked just now
	kills    []time.Duration // moments of a pass at which the program is killed
}

// fromEnvironment reads what make real hands over.
func fromEnvironment() settings {
	get := func(name string) string { return os.Getenv("HOMESTAK_REAL_" + name) }
	return settings{
		host: get("HOST"), token: get("TOKEN"), fingerprint: get("FINGERPRINT"), node: get("NODE"),
		storage: get("STORAGE"), bridge: get("BRIDGE"), vmids: cmp.Or(get("RANGE"), "51000-51099"), noKVM: get("KVM") == "0",
		patience: 10 * time.Minute, // a pass creates, backs up and shuts down several guests, without KVM on some hosts
		again:    time.Second,
		kills:    []time.Duration{0, 100 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond, time.Second, 2 * time.Second},
	}
}

// lab is a host on which the stories may work, and the part of it that is theirs.
type lab struct {
	*api
	settings
	url, release string
	from, to     int    // VMIDs of the stories
	files        string // storage of disk images, container templates and backups
	template     string // volume of the container template
	program      string // the binary under test
}

// openLab looks at a host and refuses it where the stories could do harm, or cannot run.
func openLab(t *testing.T, s settings) *lab {
	t.Helper()
	require.NotEmpty(t, s.token, "TOKEN is missing: user@realm!name=secret")
	l := &lab{settings: s}
	l.url = "https://" + strings.TrimSuffix(strings.TrimPrefix(s.host, "https://"), "/")
	address, err := url.Parse(l.url)
	require.NoError(t, err, "HOST")
	if address.Port() == "" {
		address.Host = net.JoinHostPort(address.Hostname(), "8006")
		l.url = address.String()
	}
	if l.fingerprint == "" {
		l.fingerprint, err = presented(t.Context(), address.Host)
		require.NoError(t, err, "connecting to %s", address.Host)
		t.Logf("trusting the certificate that %s shows: FINGERPRINT=%s", address.Host, l.fingerprint)
	}
	l.api = newAPI(l.url, s.token, l.fingerprint)
	var version struct{ Version string }
	require.NoError(t, l.call(t.Context(), http.MethodGet, "/version", nil, &version))
	l.release = version.Version
	l.findNode(t)
	l.findStorages(t)
	l.findBridge(t)
	l.findRange(t)
	t.Logf("Proxmox VE %s, node %s, VMIDs %d to %d, disks on %s, files on %s, bridge %s", l.release, l.node, l.from, l.to, l.storage, l.files, l.bridge)
	return l
}

func (l *lab) findNode(t *testing.T) {
	t.Helper()
	var nodes []struct{ Node, Status string }
	require.NoError(t, l.call(t.Context(), http.MethodGet, "/nodes", nil, &nodes))
	var names []string
	for _, n := range nodes {
		if n.Status == "online" || n.Status == "unknown" {
			names = append(names, n.Node)
		}
	}
	if l.node == "" {
		require.Len(t, names, 1, "the host has several nodes, or shows none to the token: choose one by NODE=")
		l.node = names[0]
	}
	require.Contains(t, names, l.node, "NODE")
}

func (l *lab) findStorages(t *testing.T) {
	t.Helper()
	var storages []struct {
		Storage, Content string
		Active, Enabled  int
	}
	require.NoError(t, l.call(t.Context(), http.MethodGet, "/nodes/"+l.node+"/storage", nil, &storages))
	takes := func(content string, wanted ...string) bool {
		has := strings.Split(content, ",")
		return !slices.ContainsFunc(wanted, func(w string) bool { return !slices.Contains(has, w) })
	}
	slices.SortFunc(storages, func(a, b struct {
		Storage, Content string
		Active, Enabled  int
	},
	) int {
		return strings.Compare(a.Storage, b.Storage)
	})
	for _, s := range storages {
		if s.Active == 0 || s.Enabled == 0 {
			continue
		}
		if l.storage == "" && takes(s.Content, "images", "rootdir") {
			l.storage = s.Storage
		}
		if l.files == "" && takes(s.Content, "import", "vztmpl", "backup") {
			l.files = s.Storage
		}
	}
	require.NotEmpty(t, l.storage, "no active storage of node %s takes disks of VMs and of containers (content images,rootdir)", l.node)
	require.NotEmpty(t, l.files, "no active storage of node %s takes disk images, container templates and backups: `pvesm set local --content backup,import,iso,snippets,vztmpl`", l.node)
}

func (l *lab) findBridge(t *testing.T) {
	t.Helper()
	if l.bridge != "" {
		return
	}
	var bridges []struct{ Iface string }
	require.NoError(t, l.call(t.Context(), http.MethodGet, "/nodes/"+l.node+"/network", url.Values{"type": {"any_bridge"}}, &bridges))
	require.NotEmpty(t, bridges, "node %s lists no bridge: name one by BRIDGE=", l.node)
	names := make([]string, len(bridges))
	for i, b := range bridges {
		names[i] = b.Iface
	}
	l.bridge = slices.Min(names)
}

// findRange reads the range of VMIDs, and refuses a host where something is in it. PVE
// says of each VMID whether a guest has it, also to a token that may not see the guest.
func (l *lab) findRange(t *testing.T) {
	t.Helper()
	from, to, ok := strings.Cut(l.vmids, "-")
	var err, err2 error
	l.from, err = strconv.Atoi(from)
	l.to, err2 = strconv.Atoi(to)
	require.True(t, ok && err == nil && err2 == nil && l.from >= 100 && l.to >= l.from+29 && l.to <= 999_999_999,
		"RANGE=%s: want FROM-TO, at least 30 VMIDs from 100 to 999999999", l.vmids)
	var taken []string
	for id := l.from; id <= l.to; id++ {
		err := l.call(t.Context(), http.MethodGet, "/cluster/nextid", url.Values{"vmid": {strconv.Itoa(id)}}, nil)
		var refused *statusError
		switch {
		case errors.As(err, &refused) && refused.status == http.StatusBadRequest:
			taken = append(taken, strconv.Itoa(id))
		default:
			require.NoError(t, err)
		}
	}
	require.Empty(t, taken, "guests are in the range %s of the tests, which touch only what they made: remove them, or choose another range by RANGE=FROM-TO", l.vmids)
	require.Empty(t, l.volumes(t.Context(), t), "volumes of the range %s, or of an earlier run, are on the host: look at them and remove them (`pvesm free VOLUME`), or choose another range by RANGE=FROM-TO", l.vmids)
}

// guest is a guest in the range.
type guest struct {
	VMID             int
	Name, Type, Lock string
	Status           string
}

func (g guest) path(l *lab) string {
	return fmt.Sprintf("/nodes/%s/%s/%d", l.node, g.Type, g.VMID)
}

// guests lists what is in the range now, by VMID. It asks the node, whose lists are fresh.
func (l *lab) guests(ctx context.Context, t *testing.T) []guest {
	t.Helper()
	var out []guest
	for _, kind := range []string{"qemu", "lxc"} {
		var list []guest
		require.NoError(t, l.call(ctx, http.MethodGet, "/nodes/"+l.node+"/"+kind, nil, &list))
		for _, g := range list {
			if g.VMID >= l.from && g.VMID <= l.to {
				g.Type = kind
				out = append(out, g)
			}
		}
	}
	slices.SortFunc(out, func(a, b guest) int { return a.VMID - b.VMID })
	return out
}

// volumes lists the volumes of guests in the range, and the files that the tests and the
// program under test put onto the host.
func (l *lab) volumes(ctx context.Context, t *testing.T) []string {
	t.Helper()
	var out []string
	for _, storage := range slices.Compact(slices.Sorted(slices.Values([]string{l.storage, l.files}))) {
		var list []struct {
			VolID string
			VMID  int
		}
		require.NoError(t, l.call(ctx, http.MethodGet, "/nodes/"+l.node+"/storage/"+storage+"/content", nil, &list))
		for _, v := range list {
			if v.VMID >= l.from && v.VMID <= l.to || strings.Contains(v.VolID, prefix) || strings.Contains(v.VolID, "homestak."+siteName+".") {
				out = append(out, v.VolID)
			}
		}
	}
	return out
}

// cleanUp removes what the stories made, after whatever happened. It says what it had to
// remove: a story that goes well leaves nothing. One volume may stay.
func (l *lab) cleanUp(t *testing.T, but string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for _, g := range l.guests(ctx, t) {
		if g.Name != "" && !strings.HasPrefix(g.Name, prefix) {
			t.Errorf("%s %d %q came into the range while the tests ran; its name is none of theirs, so it stays (if a creation of theirs died there: `qm unlock %d && qm destroy %d` or the same with pct)",
				g.Type, g.VMID, g.Name, g.VMID, g.VMID)
			continue
		}
		t.Logf("removing %s %d %q", g.Type, g.VMID, g.Name)
		form := url.Values{"protection": {"0"}}
		if err := l.call(ctx, http.MethodPut, g.path(l)+"/config", form, nil); err != nil {
			t.Log(err)
		}
		if g.Status == "running" {
			if err := l.task(ctx, l.node, http.MethodPost, g.path(l)+"/status/stop", nil); err != nil {
				t.Log(err)
			}
		}
		if err := l.task(ctx, l.node, http.MethodDelete, g.path(l), url.Values{"purge": {"1"}}); err != nil {
			t.Errorf("remove it by hand: %v", err)
		}
	}
	for _, v := range l.volumes(ctx, t) {
		if v == but {
			continue
		}
		t.Logf("removing volume %s", v)
		if err := l.free(ctx, v); err != nil {
			t.Errorf("remove it by hand, `pvesm free %s`: %v", v, err)
		}
	}
}

// requireNothingLeft fails if anything of the stories is on the host.
func (l *lab) requireNothingLeft(t *testing.T, but ...string) {
	t.Helper()
	require.Empty(t, l.guests(t.Context(), t), "guests are left")
	left := slices.DeleteFunc(l.volumes(t.Context(), t), func(v string) bool { return slices.Contains(but, v) })
	require.Empty(t, left, "volumes are left")
}

// free removes a volume. Final backups are protected, which only backups can be.
func (l *lab) free(ctx context.Context, volume string) error {
	storage, name, _ := strings.Cut(volume, ":")
	path := "/nodes/" + l.node + "/storage/" + storage + "/content/" + url.PathEscape(volume)
	if strings.HasPrefix(name, "backup/") {
		if err := l.call(ctx, http.MethodPut, path, url.Values{"protected": {"0"}}, nil); err != nil {
			return err
		}
	}
	return l.task(ctx, l.node, http.MethodDelete, path, nil)
}
