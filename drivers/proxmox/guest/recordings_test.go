package guest_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
)

// shown is a configuration as a real PVE answered it, one map of strings for either
// of its two forms, and what had been ordered before that.
type shown struct {
	from    string
	pending json.RawMessage // as GET pending answers
	lxc     bool
	ordered map[string]string // keys of the create request and all changes since
}

// recorded are all configurations in the recordings: those of the folder that is
// set, else of the one beside this repository, else of the copies kept for the simulator.
func recorded(t *testing.T) []shown {
	t.Helper()
	folder := os.Getenv("HOMESTAK_RECORDINGS")
	if folder == "" {
		folder = filepath.Join("..", "..", "..", "..", "shared", "pve-recordings")
	}
	var files []string
	for _, pattern := range []string{
		filepath.Join(folder, "*.json"),
		filepath.Join(folder, "stories", "*.json"),
		filepath.Join("..", "..", "..", "test", "sim", "replay", "testdata", "stories", "*.json.gz"),
	} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		files = append(files, found...)
	}
	require.NotEmpty(t, files)
	var out []shown
	for _, file := range files {
		out = append(out, recordedIn(t, file)...)
	}
	return out
}

var (
	configPath = regexp.MustCompile(`/(qemu|lxc)/(\d+)/(config|pending)(\?current=0)?$`)
	createPath = regexp.MustCompile(`/(qemu|lxc)$`)
)

func recordedIn(t *testing.T, file string) []shown {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	if strings.HasSuffix(file, ".gz") {
		z, err := gzip.NewReader(bytes.NewReader(raw))
		require.NoError(t, err)
		raw, err = io.ReadAll(z)
		require.NoError(t, err)
	}
	var doc struct {
		Exchanges []struct {
			Request struct {
				Method, Path string
				Form         [][2]any
			}
			Response struct {
				Status int
				Body   struct{ Data json.RawMessage }
			}
		}
	}
	require.NoError(t, json.Unmarshal(raw, &doc), file)
	var out []shown
	ordered := map[string]map[string]string{} // by VMID
	for i, e := range doc.Exchanges {
		if e.Response.Status != http.StatusOK {
			continue
		}
		m := configPath.FindStringSubmatch(e.Request.Path)
		switch {
		case m == nil && e.Request.Method == http.MethodPost && createPath.MatchString(e.Request.Path):
			keys := map[string]string{}
			for _, f := range e.Request.Form {
				keys[fmt.Sprint(f[0])] = plain(f[1])
			}
			ordered[keys["vmid"]] = keys
		case m == nil:
		case e.Request.Method != http.MethodGet:
			for _, f := range e.Request.Form {
				if key := fmt.Sprint(f[0]); ordered[m[2]] != nil && key != "delete" && key != "revert" {
					ordered[m[2]][key] = plain(f[1])
				} else { // what is deleted or taken back is followed no further
					for gone := range strings.SplitSeq(plain(f[1]), ",") {
						delete(ordered[m[2]], gone)
					}
				}
			}
		default:
			data := e.Response.Body.Data
			if m[3] == "config" {
				data = asPending(t, data)
			}
			out = append(out, shown{fmt.Sprintf("%s %d %s", filepath.Base(file), i, e.Request.Path), data, m[1] == "lxc", maps.Clone(ordered[m[2]])})
		}
	}
	return out
}

func plain(v any) string {
	if f, ok := v.(float64); ok {
		return fmt.Sprintf("%g", f)
	}
	return fmt.Sprint(v)
}

// asPending is an answer of GET config in the form of GET pending.
func asPending(t *testing.T, data json.RawMessage) json.RawMessage {
	t.Helper()
	var keys map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(data, &keys))
	var list []map[string]any
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		list = append(list, map[string]any{"key": k, "value": keys[k]})
	}
	out, err := json.Marshal(list)
	require.NoError(t, err)
	return out
}

// roundTrip is a transport made of a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// readRecorded reads an answer of GET pending as that of a managed guest.
func readRecorded(t *testing.T, s shown) (*model.Resource, api.GuestConfig) {
	t.Helper()
	c, err := api.Open(api.Config{
		Host: &model.Host{Name: "father", API: "https://pve.test:8006"}, Token: "root@pam!x=y",
		Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			body := io.NopCloser(strings.NewReader(`{"data":` + string(s.pending) + `}`))
			return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: r}, nil
		}),
	})
	require.NoError(t, err)
	at := api.GuestRef{Node: "father", VMID: 100, LXC: s.lxc}
	cfg, err := api.ReadConfig(t.Context(), c, at)
	require.NoError(t, err)
	tag := owner.Tag{V: 1, Site: "home", Node: "db", Type: at.Kind(), UUID: owner.UUID(cfg.Next["smbios1"]), Slots: map[string]string{}}
	for key, val := range cfg.Next {
		if api.IsDrive(key) && api.HoldsData(val) && !api.HoldsState(key) && !strings.HasPrefix(key, "unused") || s.lxc && api.IsMount(key) {
			tag.Slots["disk."+key] = key
		}
	}
	return guest.FromConfig(api.ListedGuest{VMID: 100, Node: "father", LXC: s.lxc}, cfg, "", tag), cfg
}

// A configuration that a real PVE answered is read as a guest, and has what was ordered: none of it
// would be planned again.
func TestRecordedConfigurationsAreRead(t *testing.T) {
	compared := 0
	all := recorded(t)
	for _, s := range all {
		t.Run(s.from, func(t *testing.T) {
			seen, cfg := readRecorded(t, s)
			next := cfg.Next
			if next["lock"] == "create" {
				return
			}
			name, first := "name", "net0"
			if s.lxc {
				name = "hostname"
			}
			attrs := map[string]any{}
			for _, a := range model.Attrs(seen.Spec) {
				attrs[a.Path] = a.Value
			}
			if next[name] != "" {
				require.Equal(t, next[name], attrs[name])
			}
			if next[first] != "" {
				require.Equal(t, "vmbr0", attrs["nic."+first+".bridge"])
			}
			for key, val := range s.ordered {
				if _, spoken := attrs["options."+key]; !spoken || key == "boot" { // PVE changes boot as drives come and go
					continue
				}
				compared++
				same := (&guest.VM{}).SameValue(key, val, next[key])
				if s.lxc {
					same = guest.CTKeys().Same(key, val, next[key])
				}
				require.True(t, same, "%s: ordered %q, shown %q", key, val, next[key])
			}
			want, have := &model.Resource{Spec: model.Clone(seen.Spec)}, &model.Resource{Spec: model.Clone(seen.Spec), Private: seen.Private}
			require.Empty(t, differing(schemaOf(seen), want, have), "a guest that is wanted exactly so")
		})
	}
	require.Greater(t, len(all), 40)
	require.Greater(t, compared, 20)
}
