package converge_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

const address = `"network": {"ip": "10.0.0.6/24", "gateway": "10.0.0.1"}`

// card gives a machine an interface of ifupdown with this address.
func (f *fake) card(ip string) {
	f.rows["network"] = []string{
		"dev|=eth0", "addr|=2: eth0    inet " + ip + " scope global eth0\n", "route|=default via 10.0.0.1 onlink\n", "ifupdown|=",
		"eni|/etc/network/interfaces|=iface eth0 inet static\n  address " + ip + "\n  gateway 10.0.0.1\n", "resolv|=/etc/resolv.conf",
	}
}

// The change of an address cuts the connection that it is made over: whether it was made is read over
// another one, and only then it is confirmed.
func TestAChangeThatCutsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(t)
		m.card("10.0.0.5/24")
		var story []string
		fresh := false // somebody connected to the new address
		m.script = func(_ int, text string) (guest.Output, error) {
			lost := fmt.Errorf("%w: no sign of life", guest.ErrOutcomeLost)
			switch {
			case strings.Contains(text, "ifup --no-act"):
				story = append(story, "ask")
			case strings.Contains(text, "--unit=homestak-gitops-change-network"):
				story = append(story, "change")
				require.Less(t, strings.Index(text, "--on-active=120"), strings.Index(text, "--unit=homestak-gitops-change-network"), "it is armed before it begins")
				return guest.Output{}, lost
			case strings.Contains(text, "network.sh.outcome") && !strings.Contains(text, "confirmed"):
				story = append(story, "outcome")
				if !fresh {
					return guest.Output{}, lost
				}
				return guest.Output{Out: "ok\n"}, nil
			case strings.Contains(text, "network.sh.confirmed"):
				story = append(story, "confirmed")
				m.card("10.0.0.6/24")
			}
			return guest.Output{}, nil
		}
		_, err := converge.Apply(t.Context(), m, want(t, address), converge.Options{Confirm: func(_ context.Context, _ *spec.Spec, s aspect.Step) error {
			require.Equal(t, "10.0.0.6", s.Address.String())
			story, fresh = append(story, "connect"), true
			return nil
		}})
		require.NoError(t, err)
		require.Equal(t, "ask change outcome connect outcome connect confirmed", strings.Join(story, " "))
	})
}

// A machine that is busy takes longer for a login than one attempt lasts at first: the change holds all the same.
func TestAChangeOfABusyMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(t)
		m.card("10.0.0.5/24")
		fresh := false
		m.script = func(_ int, text string) (guest.Output, error) {
			switch {
			case strings.Contains(text, "cat /var/lib/homestak-gitops/revert/network.sh.outcome") && !fresh:
				return guest.Output{}, errLost
			case strings.Contains(text, "cat /var/lib/homestak-gitops/revert/network.sh.outcome"):
				return guest.Output{Out: "ok\n"}, nil
			case strings.Contains(text, "network.sh.confirmed"):
				m.card("10.0.0.6/24")
			}
			return guest.Output{}, nil
		}
		_, err := converge.Apply(t.Context(), m, want(t, address), converge.Options{Confirm: func(ctx context.Context, _ *spec.Spec, _ aspect.Step) error {
			select {
			case <-time.After(9 * time.Second): // of the ten that logging in may take
				fresh = true
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}})
		require.NoError(t, err)
	})
}

// silent is a machine whose old connection is dead: commands that ask for the outcome get no answer before the new address works.
type silent struct {
	*fake
	reached *bool
}

func (m silent) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	if !*m.reached && strings.Contains(string(c.Stdin), "network.sh.outcome") && !strings.Contains(string(c.Stdin), "systemd-run") {
		<-ctx.Done()
		return guest.Output{}, context.Cause(ctx)
	}
	return m.fake.Run(ctx, c)
}

// A switch may forward to a changed address only after most of the minute. Asking over the dead connection must leave time for logins.
func TestAChangeOfASlowNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, reached := machine(t), false
		f.card("10.0.0.5/24")
		f.script = func(_ int, text string) (guest.Output, error) {
			switch {
			case strings.Contains(text, "cat /var/lib/homestak-gitops/revert/network.sh.outcome") && reached:
				return guest.Output{Out: "ok\n"}, nil
			case strings.Contains(text, "network.sh.confirmed"):
				f.card("10.0.0.6/24")
			}
			return guest.Output{}, nil
		}
		began := time.Now()
		_, err := converge.Apply(t.Context(), silent{f, &reached}, want(t, address), converge.Options{Confirm: func(ctx context.Context, _ *spec.Spec, _ aspect.Step) error {
			select {
			case <-time.After(max(0, 40*time.Second-time.Since(began))):
				reached = true
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}})
		require.NoError(t, err)
	})
}

// A change that fails is taken back by the machine; one that works but nobody reaches is taken back, too.
func TestAChangeThatIsTakenBack(t *testing.T) {
	for _, c := range []struct {
		name, outcome, said string
		confirm             func(context.Context, *spec.Spec, aspect.Step) error
		check               int // exit code of the check of the step
		says                string
		back                bool // somebody starts the revert
	}{
		{name: "it fails", outcome: "failed", said: "ifup eth0 fails", says: "it failed, so the old state is restored: ifup eth0 fails"},
		{name: "it never began", outcome: "none", says: "the machine has already restored the old state, or never started"},
		{name: "nobody connects", outcome: "ok", confirm: func(context.Context, *spec.Spec, aspect.Step) error { return errLost }, says: "no connection was possible afterwards, so the old state is restored: connection lost", back: true},
		{name: "the gateway is not there", outcome: "ok", check: 1, says: "it does not work, so the old state is restored: the gateway does not answer"},
		{name: "it does not end", says: "so the old state is restored: context deadline exceeded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := machine(t)
				m.card("10.0.0.5/24")
				back := false
				m.script = func(_ int, text string) (guest.Output, error) {
					switch {
					case strings.Contains(text, "homestak-gitops-change-network-back"):
						back = true
					case strings.Contains(text, "ip neigh flush") && !strings.Contains(text, "--on-active"):
						return guest.Output{Code: c.check, Err: "the gateway does not answer"}, nil
					case strings.Contains(text, "cat /var/lib/homestak-gitops/revert/network.sh.outcome"):
						<-time.After(400 * time.Millisecond) // as long as the machine waits
						return guest.Output{Out: c.outcome + "\n" + c.said + "\n"}, nil
					}
					require.NotContains(t, text, "confirmed")
					return guest.Output{}, nil
				}
				_, err := converge.Apply(t.Context(), m, want(t, address), converge.Options{Confirm: c.confirm})
				require.ErrorContains(t, err, c.says)
				require.Equal(t, c.back, back)
			})
		})
	}
}

// Nobody knows whether it was confirmed: then it is a change, whatever is in force.
func TestAnAddressThatNobodyConfirmed(t *testing.T) {
	m := machine(t)
	m.card("10.0.0.6/24")
	for _, armed := range []string{"network.sh", "network.sh.4711"} { // which runs already
		m.rows["armed"] = []string{"armed|=" + armed}
		s, err := converge.Observe(t.Context(), m, want(t, address))
		require.NoError(t, err)
		require.Equal(t, []string{"network.unconfirmed true → false"}, changes(s))
		require.Len(t, s.Steps(), 1)
	}
}
