package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/model"
)

// One value is read as it is where all of the text is taken apart.
func TestOneValueOfAProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringMatching(`([ab]?=?[ab= ]?,?){0,6}`).Draw(t, "property string")
		key := rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "key")
		whole := ParseProperty(s)
		require.Equal(t, whole.Values[key], PropertyValue(s, key))
		require.Equal(t, whole.First(key), PropertyFirst(s, key))
	})
	const disk = "local-lvm:vm-100-disk-0,size=32G,iothread=1"
	require.Zero(t, testing.AllocsPerRun(10, func() { PropertyValue(disk, "size") }))
	require.Zero(t, testing.AllocsPerRun(10, func() { PropertyFirst(disk, "file") }))
}

func TestProperties(t *testing.T) {
	for text, want := range map[string]int{"32G": 32, "1T": 1024, "2252M": 2, "1M": 0, "1073741824": 1, "": 0, "x": 0, "4.5G": 4} {
		require.Equal(t, want, ParseGiB(text), text)
	}
}

func TestKeysGoAndComeBack(t *testing.T) {
	keys := []string{"ssh-ed25519 AAAA+/= ops@site", "ssh-rsa BBBB"}
	enc := EncodeSSHKeys(keys)
	require.NotContains(t, enc, "+")
	require.NotContains(t, enc, " ")
	require.Equal(t, keys, DecodeSSHKeys(enc))
	require.Equal(t, keys, DecodeSSHKeys(enc+"%0A"))
	require.Equal(t, []string{}, DecodeSSHKeys(""))
}

func TestMembersAreReplaced(t *testing.T) {
	p := ParseProperty("ip6=auto,gw=192.0.2.1,ip=dhcp")
	require.Equal(t, "ip=192.0.2.9/24,gw=192.0.2.1,ip6=auto", p.With(map[string]string{"ip": "192.0.2.9/24"}, ""))
	require.Equal(t, "ip=dhcp,ip6=auto", p.With(map[string]string{"gw": ""}, ""), "the set itself stays")
	require.Equal(t, "2048", ParseProperty("").With(map[string]string{"current": "2048"}, "current"))
}

// byLibrary reads a list as encoding/json does.
func byLibrary(doc []byte) (list []map[string]json.RawMessage, there bool, err error) {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(doc, &top); err != nil {
		return nil, false, err
	}
	if top["data"] == nil {
		return nil, false, nil
	}
	err = json.Unmarshal(top["data"], &list)
	return list, list != nil, err
}

// FuzzRows checks that whatever is read as a list is one, and says the same as the library finds in it.
func FuzzRows(f *testing.F) {
	for _, doc := range []string{
		`{"data":[{"key":"cores","value":2,"pending":null},{"key":"name","value":"a\"b","delete":1}]}`,
		`{"data":null}`, `{}`, `{"data":[]}`, `{"data":[null,{}]}`, `{"data":{}}`, `{"data":[1]}`, `{"data":[{}],"data":[{}]}`,
		" {\n\"total\" : 1 , \"data\" : [ { \"a\" : [ {\"b\": -0.5e+3} , \"\\u00e9\" , true , false ] } ] }\r\n ",
		`{"data":[{"a":1,"a":2,"\u0062":3,"é":4}]}`, `{"data":[{"a":01}]}`, `{"data":[{"a":1.}]}`, `{"data":[{"a":"` + "\x01" + `"}]}`,
		`{"data":[{"a":1,}]}`, `{"data":[{"a" 1}]}`, `{"data":[{"a":"\x"}]}`, `{"data":[{"a":"\u12g4"}]}`, `{"data":[{"a":nul}]}`, `{"data":[{"a":1}]`, `[]`, ``,
		`{"data":[{"a":` + strings.Repeat("[", 9997) + strings.Repeat("]", 9997) + `}]}`, `{"data":[{"a":` + strings.Repeat("[", 9998) + strings.Repeat("]", 9998) + `}]}`,
	} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		list, there, err := ReadRows(doc)
		want, isThere, wrong := byLibrary(doc)
		if err != nil {
			require.True(t, wrong != nil || there || strings.Count(string(doc), "\"")/2 > 1, "%s: %v", doc, err)
			return
		}
		require.NoError(t, wrong, "%s", doc)
		require.Equal(t, isThere, there, "%s", doc)
		require.Len(t, list, len(want), "%s", doc)
		for i := range want {
			require.Len(t, list[i], len(want[i]), "%s", doc)
			for name, val := range want[i] {
				require.Equal(t, string(val), string(list[i][name]), "%s", doc)
			}
		}
	})
}

// A list of the library is read as a list.
func TestEveryListIsRead(t *testing.T) {
	scalar := rapid.OneOf(rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Float64().AsAny(), rapid.Int().AsAny(), rapid.String().AsAny())
	value := rapid.OneOf(scalar, rapid.SliceOfN(scalar, 0, 3).AsAny(), rapid.MapOfN(rapid.String(), scalar, 0, 3).AsAny())
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOf(rapid.MapOf(rapid.String(), value)).Draw(t, "list")
		doc, err := json.MarshalIndent(map[string]any{"data": list, "total": len(list)}, "", strings.Repeat(" ", rapid.IntRange(0, 2).Draw(t, "indent")))
		require.NoError(t, err)
		got, there, err := ReadRows(doc)
		require.NoError(t, err)
		require.True(t, there)
		want, _, err := byLibrary(doc)
		require.NoError(t, err)
		require.Len(t, got, len(want))
		for i := range want {
			require.Len(t, got[i], len(want[i]))
			for name, val := range want[i] {
				require.Equal(t, string(val), string(got[i][name]))
			}
		}
	})
}

// A thousand guests are read each minute, so what reading one leaves to the collector
// is counted: nothing that grows with what PVE reports of it.
func TestReadingAListMakesNoGarbage(t *testing.T) {
	var keys []string
	for i := range 40 {
		keys = append(keys, fmt.Sprintf(`{"key":"key%d","value":"value \"%d\"","pending":%d}`, i, i, i))
	}
	doc := []byte(`{"data":[` + strings.Join(slices.Repeat(keys, 10), ",") + `]}`)
	require.LessOrEqual(t, testing.AllocsPerRun(10, func() { SkimRows(doc) }), 20.0, "for 400 rows")
}

// Text reads a string as the library does, whatever is in it.
func TestTextIsThatOfTheLibrary(t *testing.T) {
	t.Parallel()
	check := func(t require.TestingT, raw string) {
		var want string
		_ = json.Unmarshal([]byte(raw), &want)
		require.Equal(t, want, Text(json.RawMessage(raw)), "%q", raw)
	}
	for _, raw := range []string{
		`""`, `"a"`, `"\""`, `"a\\"`, `"a\nb"`, `"\u00e9\/\ud83d\ude00"`, `"\ud83d"`, `"\ud83dx\n"`, `"\ude00\ud83d"`, "\"\xff\"", "\"\xff\\n\"", `"\u0000"`,
	} {
		check(t, raw)
	}
	rapid.Check(t, func(t *rapid.T) {
		raw, err := json.Marshal(rapid.String().Draw(t, "text"))
		require.NoError(t, err)
		check(t, string(raw))
	})
}

// TestR6DecisiveLines: of real logs of tasks that failed, the lines that say why.
func TestR6DecisiveLines(t *testing.T) {
	const plug = "kvm: -netdev type=tap,id=net0,ifname=tap100i0,script=/usr/libexec/qemu-server/pve-bridge,downscript=/usr/libexec/qemu-server/pve-bridgedown: network script /usr/libexec/qemu-server/pve-bridge failed with status "
	for name, c := range map[string]struct {
		status string
		log    []string
		want   string
	}{
		"bridge (8.4, recorded)": {
			"start failed: QEMU exited with code 1",
			[]string{"generating cloud-init ISO", "bridge 'nosuch' does not exist", plug + "512", "TASK ERROR: start failed: QEMU exited with code 1"},
			"bridge 'nosuch' does not exist",
		},
		"VLAN on a bridge without a port, TPM": {
			"start failed: QEMU exited with code 1",
			[]string{"generating cloud-init ISO", "no physical interface on bridge 'vmbr0'", plug + "6400", "stopping swtpm instance (pid 5034) due to QEMU startup error", "TASK ERROR: start failed: QEMU exited with code 1"},
			"no physical interface on bridge 'vmbr0'",
		},
		"no KVM (recorded)": {
			"start failed: QEMU exited with code 1",
			[]string{"kvm: warning: host doesn't support requested feature: CPUID.01H:ECX.pni [bit 0]", "kvm: Host doesn't support requested features", "TASK ERROR: start failed: QEMU exited with code 1"},
			"kvm: Host doesn't support requested features",
		},
		"container, LXC names the innermost first": {
			"startup for container '200' failed",
			[]string{
				"run_buffer: 571 Script exited with status 2", "lxc_create_network_priv: 3466 No such device - Failed to create network device",
				"lxc_spawn: 1852 Failed to create the network", "__lxc_start: 2119 Failed to spawn container \"200\"", "TASK ERROR: startup for container '200' failed",
			},
			"run_buffer: 571 Script exited with status 2; lxc_create_network_priv: 3466 No such device - Failed to create network device",
		},
		"only consequences": {
			"startup for container '200' failed",
			[]string{"__lxc_start: 2119 Failed to spawn container \"200\"", "TASK ERROR: startup for container '200' failed"},
			"__lxc_start: 2119 Failed to spawn container \"200\"",
		},
		"backup": {
			"job errors",
			[]string{"INFO: starting new backup job", "ERROR: Backup of VM 100 failed - no such volume", "INFO: Failed at 2026-11-20", "INFO: Backup job finished with errors", "TASK ERROR: job errors"},
			"ERROR: Backup of VM 100 failed - no such volume",
		},
		"R6, a long line keeps its end": {
			"start failed: QEMU exited with code 1",
			[]string{plug + "512 since " + strings.Repeat("x", 200) + " bridge vmbr7 does not exist"},
			"kvm: -netdev type=tap,id=net0,ifname=tap100i0,script=/usr/libexec/qemu-server/pve-bridge,downscript= … " + strings.Repeat("x", 169) + " bridge vmbr7 does not exist",
		},
		"nothing to read": {"start failed: QEMU exited with code 1", []string{"no content"}, ""},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, Decisive(c.log, c.status)) })
	}
}

// roundTrip is a transport made of a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func respond(status int, reason, body string) *http.Response {
	return &http.Response{StatusCode: status, Status: reason, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
}

func open(t *testing.T, rt http.RoundTripper) *Client {
	t.Helper()
	d, err := Open(Config{
		Host:  &model.Host{Name: "father", API: "https://pve.test:8006"},
		Token: "root@pam!t=s3cret", Transport: rt,
	})
	require.NoError(t, err)
	return d
}

func TestEveryNonSuccessIsATypedError(t *testing.T) {
	for name, c := range map[string]struct {
		status       int
		reason, body string
		class        Class
		says         string
	}{
		"not found":         {500, "500 Configuration file 'nodes/a/qemu-server/1.conf' does not exist", `{"data":null,"message":"Configuration file 'nodes/a/qemu-server/1.conf' does not exist\n"}`, NotFound, "does not exist"},
		"before 5.2.0":      {500, "500 VM 100 already exists", `{"data":null}`, Exists, "already exists"},
		"locked":            {500, "500 x", `{"message":"VM is locked (backup)\n"}`, Busy, "locked"},
		"digest":            {500, "500 x", `{"message":"checksum mismatch (file change by other user?)\n"}`, Changed, "checksum"},
		"digest lxc":        {500, "500 x", `{"message":"detected modified configuration - file changed by other user? Try again.\n"}`, Changed, "modified"},
		"parameters":        {400, "400 Parameter verification failed.", `{"errors":{"memory":"type check ('integer') failed"},"message":"Parameter verification failed.\n"}`, Invalid, "memory: type check"},
		"forbidden":         {403, "403 Permission check failed (/vms/100, VM.Audit)", `{"data":null}`, Denied, "/vms/100, VM.Audit"},
		"no login, no JSON": {401, "401 Authentication failed!", ``, NoLogin, "token"},
		"596":               {596, "596 Broken pipe", ``, OutcomeUnknown, "Broken pipe"},
		"595":               {595, "595 Errors during connection establishment", ``, OutcomeUnknown, "online"},
		"gateway":           {502, "502 Bad Gateway", `<html>nginx</html>`, OutcomeUnknown, "proxy"},
		"HTML with 200":     {200, "200 OK", `<html>login</html>`, OutcomeUnknown, "not JSON"},
		"404":               {404, "404 Not Found", `<html>`, NotFound, "404"},
		"501":               {501, "501 Method 'POST /x' not implemented", ``, Other, "not implemented"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := open(t, roundTrip(func(*http.Request) (*http.Response, error) { return respond(c.status, c.reason, c.body), nil }))
				_, err := d.Post(t.Context(), "/x", map[string]any{"a": 1})
				require.ErrorContains(t, err, c.says)
				require.Equal(t, c.class, ClassOf(err))
				require.Error(t, d.Get(t.Context(), "/x", nil))
				require.Equal(t, c.status == 401 || c.status == 403, IsDenied(err))
			})
		})
	}
}

// PVE's errors of parameters follow the status; for a missing bridge the fix follows them.
func TestN15ErrorsOfParameters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, roundTrip(func(*http.Request) (*http.Response, error) {
			return respond(400, "400 Parameter verification failed.", `{"data":null,"errors":{"net0":"bridge 'vmbr7' does not exist\n"},"message":"Parameter verification failed.\n"}`), nil
		}))
		_, err := d.Post(t.Context(), "/nodes/father/qemu", nil)
		require.EqualError(t, err, "POST /nodes/father/qemu: 400 net0: bridge 'vmbr7' does not exist (make bridge vmbr7 on the node, in System → Network, or name another one in the nic)")
		require.Equal(t, Invalid, ClassOf(err))
	})
}

func TestOnlyReadsAreSentTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		d := open(t, roundTrip(func(*http.Request) (*http.Response, error) {
			n.Add(1)
			return nil, errors.New("connection reset by peer")
		}))
		_, err := d.Post(t.Context(), "/nodes/father/qemu", map[string]any{"vmid": 100})
		require.Equal(t, OutcomeUnknown, ClassOf(err))
		require.EqualValues(t, 1, n.Load())
		require.Error(t, d.Get(t.Context(), "/version", nil))
		require.EqualValues(t, 1+3, n.Load())
	})
}

// Every request that is sent is counted, repeated ones included.
func TestSentRequestsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []string
		statuses := []int{0, 595, 200, 500, 0}
		d, err := Open(Config{
			Host: &model.Host{Name: "father", API: "https://pve.test:8006"}, Token: "root@pam!t=s3cret",
			Sent: func(method string, status int) { sent = append(sent, fmt.Sprint(method, " ", status)) },
			Transport: roundTrip(func(*http.Request) (*http.Response, error) {
				status := statuses[0]
				statuses = statuses[1:]
				if status == 0 {
					return nil, errors.New("connection reset by peer")
				}
				return respond(status, "x", `{"data":null}`), nil
			}),
		})
		require.NoError(t, err)
		require.NoError(t, d.Get(t.Context(), "/x", nil))
		_, err = d.Post(t.Context(), "/x", nil)
		require.Error(t, err)
		_, err = d.Post(t.Context(), "/x", nil)
		require.Error(t, err)
		require.Equal(t, []string{"GET 0", "GET 595", "GET 200", "POST 500", "POST 0"}, sent)
	})
}

func TestReadSucceedsAfterAFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		d := open(t, roundTrip(func(*http.Request) (*http.Response, error) {
			if n.Add(1) == 1 {
				return respond(595, "595 no route", ""), nil
			}
			return respond(200, "200 OK", `{"data":{"a":1}}`), nil
		}))
		var got map[string]int
		require.NoError(t, d.Get(t.Context(), "/x", &got))
		require.Equal(t, map[string]int{"a": 1}, got)
	})
}

func TestRequestsPerNodeAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, peak atomic.Int32
		release := make(chan struct{})
		d := open(t, roundTrip(func(*http.Request) (*http.Response, error) {
			peak.Store(max(peak.Load(), now.Add(1)))
			<-release
			now.Add(-1)
			return respond(200, "200 OK", `{"data":null}`), nil
		}))
		done := make(chan error)
		for range 50 {
			go func() { done <- d.Get(t.Context(), "/nodes/father/qemu/1/config", nil) }()
		}
		synctest.Wait()
		require.EqualValues(t, DefaultConcurrency, now.Load())
		close(release)
		for range 50 {
			require.NoError(t, <-done)
		}
		require.LessOrEqual(t, peak.Load(), int32(DefaultConcurrency))
	})
}

func TestCancelEndsAWaitingRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d := open(t, roundTrip(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}))
		done := make(chan error)
		for range 20 { // more than there are slots
			go func() { done <- d.Get(ctx, "/x", nil) }()
		}
		synctest.Wait()
		cancel()
		for range 20 {
			require.ErrorIs(t, <-done, context.Canceled)
		}
	})
}

func TestErrorsNeverShowTheToken(t *testing.T) {
	for _, token := range []string{"", "nonsense-s3cret", "root@pam=s3cret", "root!x=s3cret", "root@pam!x="} {
		_, err := Open(Config{Host: &model.Host{Name: "father", API: "https://pve.test:8006"}, Token: token})
		require.Error(t, err)
		require.NotContains(t, err.Error(), "s3cret")
		require.True(t, IsDenied(err))
	}
	_, err := Open(Config{Host: &model.Host{Name: "f", API: "http://pve.test"}, Token: "a@b!c=d"})
	require.ErrorContains(t, err, "https")
}
