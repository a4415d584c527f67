package sim_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/observation"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// recordedConfig is a request for the configuration of a guest.
var recordedConfig = regexp.MustCompile(`/nodes/[^/]+/(qemu|lxc)/\d+/(config|pending)(?:\?current=1)?$`)

// answers is a host that answers with what is given, and with an empty list else.
type answers map[string]any

// RoundTrip implements http.RoundTripper.
func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	data, ok := a[strings.TrimPrefix(r.URL.Path, "/api2/json")]
	if !ok {
		data = []any{}
	}
	text, err := json.Marshal(map[string]any{"data": data})
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(text)), Request: r}, err
}

// recordedHosts are hosts with every recorded configuration of a guest, by the version of Proxmox VE. Each guest has a VMID
// of its own.
func recordedHosts(t *testing.T) map[string]answers {
	t.Helper()
	var all []*story
	for _, name := range storyNames(t) {
		all = append(all, readStory(t, name))
	}
	for _, name := range chain { // only where the recordings are beside the repository
		for _, folder := range recordingFolders() {
			if text, err := readPacked(folder + "/" + name + ".json"); err == nil {
				s := &story{}
				require.NoError(t, decodeJSON(text, s), name)
				all = append(all, s)
			}
		}
	}
	hosts, seen := map[string]answers{}, map[string]bool{}
	privileges := map[string]int{}
	for name := range strings.FieldsSeq("VM.Audit VM.Config.Options Sys.Audit Datastore.Audit Pool.Audit SDN.Audit") {
		privileges[name] = 1
	}
	for _, s := range all {
		h := hosts[s.version()]
		if h == nil {
			h = answers{
				"/version": map[string]string{"release": s.version()}, "/access/permissions": map[string]any{"/": privileges, "/vms": privileges, "/nodes": privileges},
				"/cluster/resources": []any{map[string]any{"type": "node", "node": "pve1", "status": "online", "maxcpu": 4, "maxmem": 1 << 33, "maxdisk": 1 << 36}},
			}
			hosts[s.version()] = h
		}
		for _, e := range s.Exchanges {
			m := recordedConfig.FindStringSubmatch(e.Request.Path)
			var doc struct{ Data any }
			if m == nil || e.Request.Method != http.MethodGet || e.Response.Status != http.StatusOK || json.Unmarshal(e.Response.Body, &doc) != nil || seen[m[1]+string(e.Response.Body)] {
				continue
			}
			seen[m[1]+string(e.Response.Body)] = true
			list, _ := doc.Data.([]any)
			if conf, ok := doc.Data.(map[string]any); ok {
				for key, value := range conf {
					if _, nested := value.([]any); !nested { // pending leaves out what is no text (config_with_pending_array in PVE/GuestHelpers.pm)
						list = append(list, map[string]any{"key": key, "value": value})
					}
				}
			}
			rows := h["/cluster/resources"].([]any)
			vmid := 1000 + len(rows)
			h["/cluster/resources"] = append(rows, map[string]any{"type": m[1], "vmid": vmid, "node": "pve1", "status": "stopped", "name": "one"})
			h[fmt.Sprintf("/nodes/pve1/%s/%d/pending", m[1], vmid)] = list
		}
	}
	return hosts
}

// TestTwinOfRecordedGuests: a twin has every configuration that was recorded of a real host, with its digest.
func TestTwinOfRecordedGuests(t *testing.T) {
	observe := func(way http.RoundTripper, token string) *observation.Host {
		d, err := proxmox.Open(proxmox.Config{Host: &model.Host{Name: "pve1", API: "https://pve.test:8006"}, Token: token, Transport: way})
		require.NoError(t, err)
		o, err := d.Record(t.Context())
		require.NoError(t, err)
		require.Empty(t, o.Unread)
		return o
	}
	hosts := recordedHosts(t)
	for _, version := range slices.Sorted(maps.Keys(hosts)) {
		o := observe(hosts[version], "root@pam!lab=x")
		require.NotEmpty(t, o.Guests)
		twin, err := pve.Twin(o, pve.Config{Promise: func(deviation string) { t.Error("not what the API promises:", deviation) }})
		require.NoError(t, err)
		again := observe(twin, twin.Token())
		require.Equal(t, o.Version, again.Version)
		for i, g := range o.Guests {
			require.NotEmpty(t, g.Config)
			require.Equal(t, g, again.Guests[i], "version %s", version)
		}
		t.Logf("%s: %d configurations of guests", version, len(o.Guests))
	}
}
