package health_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
)

func tcp(c *model.Check) { c.TCP = "8080" }

// A check is tried until it holds, and tells meanwhile what it saw.
func TestACheckIsTriedUntilItHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialer{serve: silent, err: func(n int) error {
			if n < 3 {
				return &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			return nil
		}}
		var told []health.Progress
		p := health.Prober{Dial: d.dial, Notify: func(w health.Progress) { told = append(told, w) }}
		began := time.Now()
		r := p.Run(t.Context(), subject(&machine{}), check(tcp))
		require.NoError(t, r.Err)
		require.Equal(t, 10*time.Second, time.Since(began), "two pauses")
		require.Equal(t, []health.Result{{Name: "web", OK: true, Detail: "192.0.2.7:8080: accepted in 0 ms", Tries: 3, Seconds: 10}}, r.Results)
		require.Equal(t, "192.0.2.7", r.IP)
		require.Equal(t, []string{"192.0.2.7:8080", "192.0.2.7:8080", "192.0.2.7:8080"}, d.to)
		require.Len(t, told, 3)
		require.True(t, told[2].Passed, "who told that it is waited for tells that this is over")
		require.Equal(t, health.Progress{
			Address: model.Address{Kind: "vm", Name: "web-1"}, Check: "web", Saw: "192.0.2.7:8080: connection refused",
			Tries: 2, Waited: 5 * time.Second, Timeout: 20 * time.Second,
		}, told[1])
	})
}

// One that does not hold says where it is declared, what it saw, how often and since
// when; what comes after it is not tried.
func TestACheckThatNeverHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialer{err: func(int) error { return &net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH} }}
		began := time.Now()
		checks := append(check(tcp), model.Check{Name: "later", Agent: true})
		r := health.Prober{Dial: d.dial}.Run(t.Context(), subject(&machine{}), checks)
		require.EqualError(t, r.Err, "check web (web.hcl:31:5) failed: 192.0.2.7:8080: no route to host; tried 4 times since "+began.UTC().Format("15:04:05 UTC"))
		require.Equal(t, 15*time.Second, time.Since(began), "a fourth pause would have no try after it")
		require.Equal(t, health.Result{Name: "later", Detail: "not tried, because an earlier check failed"}, r.Results[1])
		require.Equal(t, 35*time.Second, health.Limit([]model.Check{{Timeout: 20 * time.Second}, {Timeout: 15 * time.Second}}))
	})
}

// The last try has what is left of the time. That it did not finish says nothing of the guest; the one before it does.
func TestN12ATryThatIsCutOffIsNotTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialer{err: func(n int) error {
			if n < 4 {
				return &net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}
			}
			return nil
		}}
		began := time.Now()
		r := health.Prober{Dial: d.dial}.Run(t.Context(), subject(&machine{}), check(func(c *model.Check) { c.TCP, c.Timeout = "8080", 18*time.Second }))
		require.Equal(t, 18*time.Second, time.Since(began))
		require.ErrorContains(t, r.Err, "192.0.2.7:8080: no route to host; tried 4 times since ")
	})
}

// What no waiting mends is not waited for.
func TestHopelessIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &machine{address: func() (guest.Address, error) {
			return guest.Address{}, &health.HopelessError{Text: "VM 100 has no guest agent configured"}
		}}
		began := time.Now()
		r := health.Prober{}.Run(t.Context(), subject(g), check(tcp))
		require.ErrorContains(t, r.Err, "its address is unknown: VM 100 has no guest agent configured")
		require.Zero(t, time.Since(began))
		r = health.Prober{}.Run(t.Context(), subject(g), check(func(*model.Check) {}))
		require.ErrorContains(t, r.Err, "its command uses a secret that is unknown here")
	})
}

// Whoever cancels gets away at once, from a pause as well as from a try, and the reason
// is told with what was seen before.
func TestCancelIsPrompt(t *testing.T) {
	errLeave := errors.New("asked to leave")
	for name, serve := range map[string]func(net.Conn){"in a pause": nil, "in a try": silent} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				d := &dialer{serve: serve, err: func(n int) error {
					if serve == nil || n == 1 {
						return errRefused
					}
					return nil
				}}
				time.AfterFunc(7*time.Second, func() { cancel(errLeave) })
				began := time.Now()
				r := health.Prober{Dial: d.dial}.Run(ctx, subject(&machine{}), check(func(c *model.Check) { c.HTTP = "/" }))
				require.Equal(t, 7*time.Second, time.Since(began))
				require.ErrorIs(t, r.Err, errLeave)
				require.ErrorContains(t, r.Err, "refused for the test")
				require.ErrorContains(t, r.Err, "tried 2 times")
				require.ErrorContains(t, r.Err, "given up: asked to leave")
			})
		})
	}
}

// The address may be late, and one by DHCP may change; a declared one is asked for once.
func TestTheAddressIsAskedForAgain(t *testing.T) {
	for _, declared := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			g := &machine{address: func() (guest.Address, error) {
				asked++
				if asked == 1 {
					return guest.Address{}, errors.New("the guest agent of VM 100 does not answer")
				}
				return guest.Address{IP: netip.AddrFrom4([4]byte{192, 0, 2, byte(asked)}), Declared: declared}, nil
			}}
			d := &dialer{serve: silent, err: func(n int) error {
				if n == 1 {
					return errRefused
				}
				return nil
			}}
			r := health.Prober{Dial: d.dial}.Run(t.Context(), subject(g), check(tcp))
			require.NoError(t, r.Err)
			want := []string{"192.0.2.2:8080", "192.0.2.3:8080"}
			if declared {
				want[1] = want[0]
			}
			require.Equal(t, want, d.to)
		})
	}
}

// A try has its own deadlines: to connect, without a byte, and in all.
func TestDeadlinesOfATry(t *testing.T) {
	http := func(c *model.Check) { c.HTTP, c.Timeout = "/", time.Hour }
	drip := func(c net.Conn) {
		request(c)
		for {
			if _, err := c.Write([]byte("H")); err != nil {
				return
			}
			_ = c.SetReadDeadline(time.Now().Add(9 * time.Second))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
		}
	}
	for name, v := range map[string]struct {
		d    dialer
		edit func(*model.Check)
		took time.Duration
		want string
	}{
		"connect":         {dialer{}, http, 5 * time.Second, "192.0.2.7:80: no connection within 5 s"},
		"idle":            {dialer{serve: silent}, http, 10 * time.Second, "192.0.2.7:80: connected in 0 ms, then no byte for 10 s"},
		"idle, tcp":       {dialer{serve: silent}, func(c *model.Check) { c.TCP, c.Expect = "25", "220"; c.Timeout = time.Hour }, 10 * time.Second, "192.0.2.7:25: connected in 0 ms, then no byte for 10 s"},
		"idle, ssh":       {dialer{serve: silent}, func(c *model.Check) { c.SSH, c.Timeout = true, time.Hour }, 10 * time.Second, "192.0.2.7:22: connected in 0 ms, then no byte for 10 s"},
		"total":           {dialer{serve: drip}, http, 30 * time.Second, "192.0.2.7:80: connected in 0 ms, 4 bytes received, not finished after 30 s"},
		"what is left":    {dialer{serve: silent}, func(c *model.Check) { c.HTTP, c.Timeout = "/", 3*time.Second }, 3 * time.Second, "192.0.2.7:80: connected in 0 ms, not finished after 3 s"},
		"closed":          {dialer{serve: request}, http, 0, "192.0.2.7:80: connected in 0 ms, then the other side closed it"},
		"closed, ssh":     {dialer{serve: func(net.Conn) {}}, func(c *model.Check) { c.SSH = true }, 0, "192.0.2.7:22: connected in 0 ms, then the other side closed it"},
		"no such name":    {dialer{err: func(int) error { return &net.DNSError{Name: "db.example", Err: "no such host"} }}, func(c *model.Check) { c.TCP = "db.example:1" }, 0, "db.example:1: the name db.example is not known: no such host"},
		"some other word": {dialer{serve: func(c net.Conn) { request(c); _, _ = c.Write([]byte("220 mail\r\n")) }}, http, 0, `192.0.2.7:80: connected in 0 ms, 10 bytes received, then: net/http: HTTP/1.x transport connection broken: malformed HTTP status code "mail"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				got, ok := saw(t, health.Prober{Dial: v.d.dial}, subject(&machine{}), v.edit)
				require.False(t, ok)
				require.Equal(t, v.want, got)
				require.Equal(t, v.took, time.Since(began))
			})
		})
	}
}

// With a simulator there is no network: what is up is taken to answer.
func TestSimulatedGuests(t *testing.T) {
	up := false
	p := health.Prober{Simulated: func(ip netip.Addr) error {
		require.Equal(t, "192.0.2.7", ip.String())
		if !up {
			return errors.New("is not up")
		}
		return nil
	}}
	for range 2 {
		for _, edit := range []func(*model.Check){
			func(c *model.Check) { c.HTTP, c.Expect = ":8080/", "ready" }, func(c *model.Check) { c.TCP = "22" }, func(c *model.Check) { c.SSH = true },
		} {
			got, ok := saw(t, p, subject(&machine{}), edit)
			require.Equal(t, up, ok, got)
		}
		got, ok := saw(t, p, subject(&machine{}), func(c *model.Check) { c.TCP = "db.example:5432" })
		require.True(t, ok, got)
		up = true
	}
}
