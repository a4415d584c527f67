package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/model"
)

// roundTrip is a transport made of a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(status int, reason, body string) *http.Response {
	return &http.Response{StatusCode: status, Status: reason, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
}

func open(t *testing.T, rt http.RoundTripper) *api.Client {
	t.Helper()
	d, err := api.Open(api.Config{
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
		class        api.Class
		says         string
	}{
		"not found":         {500, "500 Configuration file 'nodes/a/qemu-server/1.conf' does not exist", `{"data":null,"message":"Configuration file 'nodes/a/qemu-server/1.conf' does not exist\n"}`, api.NotFound, "does not exist"},
		"before 5.2.0":      {500, "500 VM 100 already exists", `{"data":null}`, api.Exists, "already exists"},
		"locked":            {500, "500 x", `{"message":"VM is locked (backup)\n"}`, api.Busy, "locked"},
		"digest":            {500, "500 x", `{"message":"checksum mismatch (file change by other user?)\n"}`, api.Changed, "checksum"},
		"digest lxc":        {500, "500 x", `{"message":"detected modified configuration - file changed by other user? Try again.\n"}`, api.Changed, "modified"},
		"parameters":        {400, "400 Parameter verification failed.", `{"errors":{"memory":"type check ('integer') failed"},"message":"Parameter verification failed.\n"}`, api.Invalid, "memory: type check"},
		"forbidden":         {403, "403 Permission check failed (/vms/100, VM.Audit)", `{"data":null}`, api.Denied, "/vms/100, VM.Audit"},
		"no login, no JSON": {401, "401 Authentication failed!", ``, api.NoLogin, "token"},
		"596":               {596, "596 Broken pipe", ``, api.OutcomeUnknown, "Broken pipe"},
		"595":               {595, "595 Errors during connection establishment", ``, api.OutcomeUnknown, "online"},
		"gateway":           {502, "502 Bad Gateway", `<html>nginx</html>`, api.OutcomeUnknown, "proxy"},
		"HTML with 200":     {200, "200 OK", `<html>login</html>`, api.OutcomeUnknown, "not JSON"},
		"404":               {404, "404 Not Found", `<html>`, api.NotFound, "404"},
		"501":               {501, "501 Method 'POST /x' not implemented", ``, api.Other, "not implemented"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := open(t, roundTrip(func(*http.Request) (*http.Response, error) { return answer(c.status, c.reason, c.body), nil }))
				_, err := d.Post(t.Context(), "/x", map[string]any{"a": 1})
				require.ErrorContains(t, err, c.says)
				require.Equal(t, c.class, api.ClassOf(err))
				require.Error(t, d.Get(t.Context(), "/x", nil))
				require.Equal(t, c.status == 401 || c.status == 403, api.IsDenied(err))
			})
		})
	}
}

// What PVE says of each parameter follows the status; where a bridge is missing, what to do follows that.
func TestN15WhatIsWrongWithAParameter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, roundTrip(func(*http.Request) (*http.Response, error) {
			return answer(400, "400 Parameter verification failed.", `{"data":null,"errors":{"net0":"bridge 'vmbr7' does not exist\n"},"message":"Parameter verification failed.\n"}`), nil
		}))
		_, err := d.Post(t.Context(), "/nodes/father/qemu", nil)
		require.EqualError(t, err, "POST /nodes/father/qemu: 400 net0: bridge 'vmbr7' does not exist (make bridge vmbr7 on the node, in System → Network, or name another one in the nic)")
		require.Equal(t, api.Invalid, api.ClassOf(err))
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
		require.Equal(t, api.OutcomeUnknown, api.ClassOf(err))
		require.EqualValues(t, 1, n.Load())
		require.Error(t, d.Get(t.Context(), "/version", nil))
		require.EqualValues(t, 1+3, n.Load())
	})
}

// Whoever counts requests hears of each one that was sent, also of those that are repeated.
func TestSentRequestsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []string
		statuses := []int{0, 595, 200, 500, 0}
		d, err := api.Open(api.Config{
			Host: &model.Host{Name: "father", API: "https://pve.test:8006"}, Token: "root@pam!t=s3cret",
			Sent: func(method string, status int) { sent = append(sent, fmt.Sprint(method, " ", status)) },
			Transport: roundTrip(func(*http.Request) (*http.Response, error) {
				status := statuses[0]
				statuses = statuses[1:]
				if status == 0 {
					return nil, errors.New("connection reset by peer")
				}
				return answer(status, "x", `{"data":null}`), nil
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
				return answer(595, "595 no route", ""), nil
			}
			return answer(200, "200 OK", `{"data":{"a":1}}`), nil
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
			return answer(200, "200 OK", `{"data":null}`), nil
		}))
		done := make(chan error)
		for range 50 {
			go func() { done <- d.Get(t.Context(), "/nodes/father/qemu/1/config", nil) }()
		}
		synctest.Wait()
		require.EqualValues(t, api.DefaultConcurrency, now.Load())
		close(release)
		for range 50 {
			require.NoError(t, <-done)
		}
		require.LessOrEqual(t, peak.Load(), int32(api.DefaultConcurrency))
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
		_, err := api.Open(api.Config{Host: &model.Host{Name: "father", API: "https://pve.test:8006"}, Token: token})
		require.Error(t, err)
		require.NotContains(t, err.Error(), "s3cret")
		require.True(t, api.IsDenied(err))
	}
	_, err := api.Open(api.Config{Host: &model.Host{Name: "f", API: "http://pve.test"}, Token: "a@b!c=d"})
	require.ErrorContains(t, err, "https")
}
