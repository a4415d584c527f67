package converge_test

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
)

// fake is a machine that answers probes with rows, and notes the other scripts. It fails
// the test if it is asked something that is neither.
type fake struct {
	t      *testing.T
	system string              // /etc/os-release
	user   string              // number of the user
	login  string              // name of the user that became root by sudo; root unless set
	rows   map[string][]string // by fragment; a field that begins with "=" is encoded
	codes  map[string]int      // exit codes of fragments, 0 unless set
	edit   func(out *guest.Output)

	probes, scripts []string
	script          func(n int, text string) (guest.Output, error) // answers the nth script
}

var (
	frame   = regexp.MustCompile(`(?m)^frame (\w+)$`)
	secret  = regexp.MustCompile(`homestak-[0-9a-f]{32}`)
	library = regexp.MustCompile(`(?s)^.*\nrow\(\) [^\n]*\n`)
)

func (f *fake) Run(_ context.Context, c guest.Command) (guest.Output, error) {
	require.Equal(f.t, []string{"sh", "-s"}, c.Args, "nothing shows in the list of processes")
	text := string(c.Stdin)
	frames := frame.FindAllStringSubmatch(text, -1)
	if frames == nil {
		f.scripts = append(f.scripts, library.ReplaceAllString(text, ""))
		if f.script != nil {
			return f.script(len(f.scripts), text)
		}
		return guest.Output{}, nil
	}
	f.probes = append(f.probes, text)
	boundary := secret.FindString(text)
	out := guest.Output{Out: fmt.Sprintf("Welcome\n%[1]s.uid %[2]s\n%[1]s.login %[4]s\n%[1]s.os %[3]s\n", boundary, f.user, f.system, cmp.Or(f.login, "root"))}
	for _, name := range frames {
		var b strings.Builder
		for _, row := range f.rows[name[1]] {
			fields := strings.Split(row, "|")
			for i := range fields {
				if text, ok := strings.CutPrefix(fields[i], "="); ok {
					fields[i] = "=" + base64.StdEncoding.EncodeToString([]byte(text))
				}
			}
			b.WriteString(strings.Join(fields, "\t") + "\n")
		}
		fmt.Fprintf(&b, "\n%d\n", f.codes[name[1]])
		out.Out += boundary + " " + name[1] + " " + base64.StdEncoding.EncodeToString([]byte(b.String())) + "\n"
	}
	out.Out += boundary + " end\n"
	if f.edit != nil {
		f.edit(&out)
	}
	return out, nil
}

const debian = "ID=debian\tVERSION_ID=\"12\"\tPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\t"

func machine(t *testing.T) *fake {
	t.Helper()
	return &fake{t: t, system: debian, user: "0", rows: map[string][]string{}, codes: map[string]int{}}
}

func want(t *testing.T, document string) *spec.Spec {
	t.Helper()
	s, err := spec.Read([]byte(`{"version": 1, "node": "edge", "spec": "test", ` + document + `}`))
	require.NoError(t, err)
	return s
}

func changes(s *converge.State) []string {
	out := []string{}
	for _, c := range s.Changes() {
		out = append(out, c.String())
	}
	return out
}

func TestAnUnchangedMachineCostsOneCommand(t *testing.T) {
	m := machine(t)
	m.rows["sysctl"] = []string{"file|=a.b = 1\n", "value|a.b|=1\n"}
	m.rows["record"] = []string{`record|={"version": 1, "entries": [{"aspect": "sysctl", "item": "a.b", "identity": "name"}]}`}
	s, err := converge.Apply(t.Context(), m, want(t, `"config": {"sysctl": {"a.b": "1"}}`), converge.Options{})
	require.NoError(t, err)
	require.Empty(t, s.Changes())
	require.Equal(t, 1, s.Trips)
	require.Len(t, m.probes, 1)
	require.Empty(t, m.scripts)
}

// Items that the spec dropped are read once the record has named them.
func TestADroppedItemCostsASecondCommand(t *testing.T) {
	m := machine(t)
	m.rows["sysctl"] = []string{"file|=a.b = 1\n", "value|a.b|=1\n"}
	m.rows["record"] = []string{`record|={"version": 1, "entries": [{"aspect": "sysctl", "item": "a.b", "identity": "name", "found": {"value": "0"}}]}`}
	s, err := converge.Observe(t.Context(), m, want(t, `"config": {}`))
	require.NoError(t, err)
	require.Equal(t, []string{"config.sysctl.a.b 1 → none"}, changes(s))
	require.Equal(t, 2, s.Trips)
	require.NotContains(t, m.probes[0], "/proc/sys/a/b")
	require.Contains(t, m.probes[1], "/proc/sys/a/b")
	require.NotEqual(t, secret.FindString(m.probes[0]), secret.FindString(m.probes[1]), "a boundary is used once")
}

// An unreadable aspect is unknown: nothing follows from it, and an apply does not succeed.
func TestUnreadableAspectsAreUnknown(t *testing.T) {
	m := machine(t)
	m.codes["packages"] = 3
	m.rows["timezone"] = []string{"link|=/usr/share/zoneinfo/UTC\n"}
	w := want(t, `"platform": {"packages": ["htop"]}, "config": {"timezone": "UTC"}`)
	s, err := converge.Observe(t.Context(), m, w)
	require.NoError(t, err)
	require.Empty(t, changes(s))
	require.Equal(t, "packages", s.Unknown[0].Aspect)
	_, err = converge.Apply(t.Context(), m, w, converge.Options{})
	require.ErrorContains(t, err, "packages of edge could not be read: the probe ended with exit code 3")
	require.Empty(t, m.scripts)
}

func TestS7AnswersThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(m *fake)
		says string
	}{
		{"another system", func(m *fake) { m.system = "ID=alpine\tPRETTY_NAME=\"Alpine Linux\"" }, "the machine runs Alpine Linux: specs are applied on Debian 12, Debian 13 and Ubuntu only"},
		{"no system", func(m *fake) { m.system = "" }, "the machine runs a system without /etc/os-release"},
		{"old", func(m *fake) { m.system = "ID=debian\tVERSION_ID=\"11\"\tPRETTY_NAME=\"Debian 11\"" }, "the machine runs Debian 11"},
		{"hostile system", func(m *fake) {
			m.system = "ID=x\tPRETTY_NAME=\"" + strings.Repeat("%s\x1b]0;owned\x07\u202e", 50_000) + "\""
		}, "the machine runs …"},
		{"hostile user", func(m *fake) { m.user = strings.Repeat("\x1b[2J%n", 50_000) }, "commands run as user …"},
		{"not root", func(m *fake) { m.user = "1000" }, "commands run as user 1000 and not as root"},
		{"cut", func(m *fake) { m.edit = func(o *guest.Output) { o.Cut = true } }, "is longer than"},
		{"half", func(m *fake) {
			m.edit = func(o *guest.Output) { o.Out = o.Out[:strings.LastIndex(o.Out, "homestak-")] }
		}, "is incomplete"},
		{"killed", func(m *fake) { m.edit = func(o *guest.Output) { o.Signal = 9 } }, "signal 9"},
		{"no shell", func(m *fake) {
			m.edit = func(o *guest.Output) { *o = guest.Output{Code: 127, Err: "sh: \x1b[31mnot found"} }
		}, "no POSIX shell that answers: exit code 127: sh: ?[31mnot found"},
		{"record", func(m *fake) { m.rows["record"] = []string{"record|={"} }, "owned.json is damaged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := machine(t)
			c.edit(m)
			_, err := converge.Observe(t.Context(), m, want(t, `"config": {}`))
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, "observing edge")
			require.Less(t, len(err.Error()), 2000, "what a guest says is bounded")
			require.Equal(t, diag.Clean(err.Error()), err.Error())
		})
	}
	for _, system := range []string{debian, "ID=debian\tVERSION_ID=\"13\"", "ID=ubuntu\tVERSION_ID=\"24.04\""} {
		m := machine(t)
		m.system = system
		_, err := converge.Observe(t.Context(), m, want(t, `"config": {}`))
		require.NoError(t, err)
	}
}

var errLost = errors.New("connection lost")

// A step stops the apply, and its error says which it was. What is recorded comes before
// what is done, in one script.
func TestAStepThatFails(t *testing.T) {
	m := machine(t)
	m.rows["sysctl"] = []string{"value|a.b|=0\n"}
	w := want(t, `"config": {"timezone": "UTC", "sysctl": {"a.b": "1"}}`)
	m.script = func(int, string) (guest.Output, error) { return guest.Output{}, errLost }
	_, err := converge.Apply(t.Context(), m, w, converge.Options{})
	require.ErrorIs(t, err, errLost)
	require.ErrorContains(t, err, "edge: set the time zone to UTC: ")
	require.Len(t, m.scripts, 1)
	recorded, done := strings.Index(m.scripts[0], "owned.json 0600")+strings.Index(m.scripts[0], "'/var/lib/homestak-gitops-spec/owned.json' '0600'"), strings.Index(m.scripts[0], "mv -fT /etc/.localtime")
	require.Positive(t, recorded)
	require.Greater(t, done, recorded)

	m.script = func(int, string) (guest.Output, error) { return guest.Output{Code: 1, Err: "disk full\n"}, nil }
	_, err = converge.Apply(t.Context(), m, w, converge.Options{})
	require.EqualError(t, err, "edge: set the time zone to UTC: disk full")
}

// Another writer in between is noticed by the machine; then it is read again.
func TestAChangedMachineIsReadAgain(t *testing.T) {
	m := machine(t)
	m.script = func(n int, _ string) (guest.Output, error) {
		if n == 1 {
			m.rows["timezone"] = []string{"link|=/usr/share/zoneinfo/UTC\n"} // the other one did it
			return guest.Output{Code: 75, Err: "the record of this machine has changed since it was read"}, nil
		}
		return guest.Output{}, nil
	}
	_, err := converge.Apply(t.Context(), m, want(t, `"config": {"timezone": "UTC"}`), converge.Options{})
	require.NoError(t, err)
	require.Len(t, m.scripts, 1)
	require.Len(t, m.probes, 2)
}

// A step that reports success and changes nothing does not count as done.
func TestAStepWithoutEffect(t *testing.T) {
	m := machine(t)
	_, err := converge.Apply(t.Context(), m, want(t, `"config": {"timezone": "UTC"}`), converge.Options{})
	require.ErrorContains(t, err, `applying the spec to edge had no effect on config.timezone "" → UTC`)
	require.Len(t, m.scripts, 3)
}

const ssh = `"posture": {"ssh": {"port": "2222", "permit_root_login": "no", "password_authentication": "no"}}`

// The machine reverts a change unless it is confirmed; only a confirmation cancels that.
func TestTheRevertIsCancelledByAConfirmationOnly(t *testing.T) {
	before := []string{"settings|=port 22\npermitrootlogin yes\npasswordauthentication no\n"}
	m := machine(t)
	m.rows["sshd"] = before
	m.script = func(n int, _ string) (guest.Output, error) {
		if n == 3 { // behind the probe and who can log in
			m.rows["sshd"] = []string{"settings|=port 2222\npermitrootlogin no\npasswordauthentication no\n"}
		}
		return guest.Output{}, nil
	}
	var confirmed []string
	_, err := converge.Apply(t.Context(), m, want(t, ssh), converge.Options{ConfirmWithin: 30 * time.Second, Confirm: func(ctx context.Context, s *spec.Spec, step aspect.Step) error {
		deadline, ok := ctx.Deadline()
		require.True(t, ok)
		require.LessOrEqual(t, time.Until(deadline), 30*time.Second)
		confirmed = append(confirmed, step.Aspect+" "+s.Posture.SSH.Port)
		require.Len(t, m.scripts, 2)
		return nil
	}})
	require.NoError(t, err)
	require.Equal(t, []string{"sshd 2222"}, confirmed)
	armed, changed := strings.Index(m.scripts[1], "--on-active=60"), strings.Index(m.scripts[1], "reload ssh.service ||")
	require.Positive(t, armed)
	require.Greater(t, changed, armed, "it is armed before anything changes")
	require.Contains(t, m.scripts[2], "revert/sshd.sh.confirmed")

	m = machine(t)
	m.rows["sshd"] = before
	_, err = converge.Apply(t.Context(), m, want(t, ssh), converge.Options{Confirm: func(context.Context, *spec.Spec, aspect.Step) error { return errLost }})
	require.ErrorIs(t, err, errLost)
	require.ErrorContains(t, err, "so the old state is restored")
	require.Len(t, m.scripts, 3)
	require.Contains(t, m.scripts[2], "sh /var/lib/homestak-gitops-spec/revert/sshd.sh")
	require.NotContains(t, m.scripts[2], "confirmed")

	// A login that is cut off when its time is over does not make the outcome of the step unknown.
	m = machine(t)
	m.rows["sshd"] = before
	for _, why := range []error{guest.ErrOutcomeLost, context.DeadlineExceeded} {
		_, err = converge.Apply(t.Context(), m, want(t, ssh), converge.Options{Confirm: func(context.Context, *spec.Spec, aspect.Step) error {
			return fmt.Errorf("%w: true still ran", why)
		}})
		require.ErrorContains(t, err, "so the old state is restored")
		require.NotErrorIs(t, err, why, "nothing is tried again")
	}

	// It is unknown whether it was confirmed: then it is a change, whatever is in force.
	m = machine(t)
	m.rows["sshd"] = []string{"settings|=port 2222\npermitrootlogin no\npasswordauthentication no\n"}
	m.rows["armed"] = []string{"armed|=sshd.sh"}
	s, err := converge.Observe(t.Context(), m, want(t, ssh))
	require.NoError(t, err)
	require.Equal(t, []string{"posture.ssh.unconfirmed true → false"}, changes(s))
	require.Len(t, s.Steps(), 1)
}

// Values that are made from secrets are in no change, and in no argument.
func TestSecretsAreNotShown(t *testing.T) {
	const canary = "c4n4ry-s3cret"
	m := machine(t)
	w := want(t, `"config": {"files": [{"path": "/etc/key", "content": "`+canary+`", "mode": "0600", "owner": "root", "group": "root"}]}, "sensitive": ["config.file./etc/key.content"]`)
	m.script = func(int, string) (guest.Output, error) { return guest.Output{Code: 1, Err: "disk full"}, nil }
	s, err := converge.Apply(t.Context(), m, w, converge.Options{})
	require.Error(t, err)
	require.NotContains(t, err.Error(), canary)
	require.NotEmpty(t, changes(s))
	for _, c := range s.Changes() {
		require.NotContains(t, c.String(), canary)
		b, err := c.MarshalJSON()
		require.NoError(t, err)
		require.NotContains(t, string(b), canary)
	}
	for _, p := range m.probes {
		require.NotContains(t, p, canary)
	}
	for _, step := range s.Steps() {
		require.NotContains(t, step.Text+fmt.Sprint(step.Keep), canary)
	}
}

// While a step takes long, it is asked how far it is, and each answer is reported once.
func TestR4ProgressShowsWhatAptDoes(t *testing.T) {
	m := &slow{fake: machine(t), states: make(chan string), asked: make(chan struct{}), installs: make(chan struct{}), installed: make(chan struct{})}
	m.rows["packages"] = []string{"none"}
	seen := make(chan string, 10)
	ended := make(chan error, 1)
	s, err := converge.Observe(t.Context(), m.fake, want(t, `"platform": {"packages": ["jq"]}`))
	require.NoError(t, err)
	go func() {
		ended <- s.Apply(t.Context(), m, s.Steps(), converge.Options{ProgressEvery: time.Microsecond, Progress: func(s aspect.Step, state string) { seen <- s.Text + ": " + state }})
	}()
	const first = "Get:1 http://deb.debian.org/debian trixie\n"
	for _, state := range []string{"", first, first} {
		m.states <- state
	}
	close(m.asked)
	<-m.installs
	for _, state := range []string{first, "Unpacking \x1b[31mjq\n"} {
		m.states <- state
	}
	require.Equal(t, "install jq: Get:1 http://deb.debian.org/debian trixie", <-seen)
	require.Equal(t, "install jq: Unpacking ?[31mjq", <-seen)
	close(m.installed)
	require.NoError(t, <-ended)
	require.Empty(t, seen)
}

// slow is a machine that simulates the installation of packages until asked is closed. It closes installs when it begins to
// install them, and installs them until installed is closed.
type slow struct {
	*fake
	states                     chan string
	asked, installs, installed chan struct{}
}

func (m *slow) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	switch text := string(c.Stdin); {
	case strings.Contains(text, "\n"+aspect.AptState):
		select {
		case state := <-m.states:
			return guest.Output{Out: state}, nil
		case <-ctx.Done():
			return guest.Output{}, ctx.Err()
		}
	case strings.Contains(text, "apt-cache show"):
		<-m.asked
	case strings.Contains(text, "apt_get install"):
		close(m.installs)
		<-m.installed
	}
	return guest.Output{}, nil
}

// A cancelled apply ends before the next step; completed steps stay, and the next apply continues.
func TestR4AnApplyStopsBetweenSteps(t *testing.T) {
	m := machine(t)
	m.rows["sysctl"] = []string{"value|a.b|=0\n"}
	stop := make(chan struct{})
	m.script = func(int, string) (guest.Output, error) {
		close(stop)
		return guest.Output{}, nil
	}
	_, err := converge.Apply(t.Context(), m, want(t, `"config": {"timezone": "UTC", "sysctl": {"a.b": "1"}}`), converge.Options{Stop: stop})
	require.ErrorIs(t, err, converge.ErrStopped)
	require.EqualError(t, err, "edge: set a.b: stopped before this step")
	require.Len(t, m.scripts, 1)
}

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
		fresh := false // a login at the new address succeeded
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
			case strings.Contains(text, "cat /var/lib/homestak-gitops-spec/revert/network.sh.outcome") && !fresh:
				return guest.Output{}, errLost
			case strings.Contains(text, "cat /var/lib/homestak-gitops-spec/revert/network.sh.outcome"):
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
			case strings.Contains(text, "cat /var/lib/homestak-gitops-spec/revert/network.sh.outcome") && reached:
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

// The machine reverts a change that fails, and one after which it cannot be reached.
func TestAChangeThatIsTakenBack(t *testing.T) {
	for _, c := range []struct {
		name, outcome, said string
		confirm             func(context.Context, *spec.Spec, aspect.Step) error
		check               int // exit code of the check of the step
		says                string
		back                bool // the revert is started
	}{
		{name: "it fails", outcome: "failed", said: "ifup eth0 fails", says: "it failed, so the old state is restored: ifup eth0 fails"},
		{name: "it never began", outcome: "none", says: "the machine has already restored the old state, or never started"},
		{name: "no connection", outcome: "ok", confirm: func(context.Context, *spec.Spec, aspect.Step) error { return errLost }, says: "no connection was possible afterwards, so the old state is restored: connection lost", back: true},
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
					case strings.Contains(text, "cat /var/lib/homestak-gitops-spec/revert/network.sh.outcome"):
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

// It is unknown whether it was confirmed: then it is a change, whatever is in force.
func TestAnUnconfirmedAddress(t *testing.T) {
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

// everything is a spec that every aspect has something to say of.
const everything = `"identity": {"hostname": "edge", "domain": "home.example"},
"network": {"ip": "10.9.0.5/24", "gateway": "10.9.0.1", "dns": ["10.9.0.1"]},
"access": {"former_users": "remove", "users": [{"name": "ann", "sudo": "nopasswd", "ssh_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGs3bGZ6c2FrZGpoZmtqc2RoZmtqaHNkZmtqaHNka2Y= ann"], "groups": ["video"], "shell": "/bin/bash"}]},
"posture": {"name": "prod", "ssh": {"port": "22", "permit_root_login": "no", "password_authentication": "no"}, "fail2ban": {}},
"platform": {"packages": ["htop"], "services": {"cron": "enabled", "ntp": "disabled"}},
"config": {"timezone": "Europe/Berlin", "sysctl": {"vm.swappiness": "1"}, "swap": 512,
 "files": [{"path": "/etc/app", "content": "x", "mode": "0644", "owner": "root", "group": "root", "restart": ["app"]}],
 "repositories": [{"name": "r", "url": "http://192.0.2.1/", "suites": ["a"], "components": ["b"], "key": "-----BEGIN PGP PUBLIC KEY BLOCK-----"}],
 "commands": [{"name": "c", "run": "true", "unless": "false"}],
 "mounts": [{"path": "/srv/data", "label": "data", "fstype": "ext4"}],
 "pve": {"no_subscription": true, "remove_subscription_nag": true, "bridge": "vmbr0"}},
"run": {"trigger": "schedule", "interval_seconds": 60}`

// Root in a guest decides what every probe answers. Whatever that is, it is taken, or it is an error: it never ends the
// program, and it costs no more than the answer is long.
func TestS7AMachineThatLies(t *testing.T) {
	aspects := strings.Fields(`repositories users commands services fail2ban swap mounts keys sysctl sshd pvebridge pverepository pvenag network timezone pull files sudo packages hostname`)
	words := []string{"", "0", "-1", "1", "99999999999999999999", "=", "=ann", "=x=y", "ann", "root", "r", "c", "/etc/app", "/srv/data", "vmbr0", "eth0", "lo", "htop", "cron", "22", "10.9.0.5/24", "::1", "yes", "no", "=\x1b[2J", "=\n\n\n", "=a:b:c:d:e:f:g", "=a:x:0:0::/:/", "={}", "=[]", "=null", "=iface eth0 inet", "=[Network]\n[", "=" + strings.Repeat("a ", 300)}
	keys := strings.Fields(`file unit hook fstab eni xfs swaps state source route resolv program ports odd networkd mounted manager linkdns lacks key its interfaces ifupdown disk dhcpcd dhclient dev container cloud card bridge addr why value trigger token sum stat shadow record passwd other mode link kernel hosts home group copy content beyond armed address sudo auto login hostname settings want static permitrootlogin passwordauthentication port row rows`)
	rapid.Check(t, func(r *rapid.T) {
		m := machine(t)
		word := rapid.SampledFrom(words)
		for _, a := range aspects {
			n := rapid.IntRange(0, 4).Draw(r, "rows of "+a)
			for range n {
				row := append([]string{rapid.SampledFrom(append(keys, a)).Draw(r, "key")}, rapid.SliceOfN(word, 0, 6).Draw(r, "fields")...)
				m.rows[a] = append(m.rows[a], strings.ReplaceAll(strings.Join(row, "|"), "\n|", "\n"))
			}
			m.codes[a] = rapid.SampledFrom([]int{0, 0, 0, 0, 1, 255}).Draw(r, "code")
		}
		if rapid.Bool().Draw(r, "armed") {
			m.rows["armed"] = []string{rapid.SampledFrom([]string{"armed", "armed|=sshd.sh", "armed|=network.sh.7", "armed|=pvebridge.sh", "armed|=x|=y"}).Draw(r, "what is armed")}
		}
		var entries []string
		for range rapid.IntRange(0, 6).Draw(r, "entries") {
			text := func(what string) string {
				b, err := json.Marshal(strings.TrimPrefix(word.Draw(r, what), "="))
				require.NoError(t, err)
				return string(b)
			}
			aspect := rapid.SampledFrom(aspects).Draw(r, "aspect")
			entries = append(entries, fmt.Sprintf(`{"aspect": %q, "item": %s, "identity": %s, "found": {%s: %s}, "put": {%s: %s}}`, aspect, text("item"), text("identity"), text("key"), text("value"), text("key"), text("value")))
		}
		m.rows["record"] = []string{`record|={"version": 1, "entries": [` + strings.Join(entries, ", ") + `]}`}
		if rapid.Bool().Draw(r, "noise") {
			noise := rapid.SampledFrom([]string{"\x00\xff", strings.Repeat("y\n", 100), "homestak-0 end\n"}).Draw(r, "noise")
			m.edit = func(out *guest.Output) { out.Out = noise + out.Out; out.Err = noise }
		}
		s, err := converge.Observe(t.Context(), m, want(t, everything))
		if err != nil {
			return
		}
		s.Changes()
		s.Steps()
	})
}

// Items of the site itself are not reported as unmanaged, and a report names the machine.
func TestN13R5R11UnmanagedThings(t *testing.T) {
	m := machine(t)
	m.rows["users"] = []string{"passwd|=root:0:0:/root:/bin/bash\nops:1000:1000:/home/ops:/bin/bash\nbob:1001:1001:/home/bob:/bin/sh\n", "group|=root:0:\n", "shadow|=ops:0:\nbob:0:\n"}
	m.rows["sudo"] = []string{"sudo", "other|=/etc/sudoers.d/90-cloud-init-users", "other|=/etc/sudoers.d/README", "other|=/etc/sudoers.d/bob"}
	site := &model.Site{VMUser: "ops", Specs: map[string]*model.Spec{"base": {Name: "base"}}}
	for nodeType, says := range map[string][]string{
		"vm": {"user bob on web-1 is unmanaged", "sudoers file /etc/sudoers.d/bob on web-1 is unmanaged"},
		"ct": { // a container has no user but root
			"user bob on web-1 is unmanaged", "user ops on web-1 is unmanaged",
			"sudoers file /etc/sudoers.d/90-cloud-init-users on web-1 is unmanaged", "sudoers file /etc/sudoers.d/bob on web-1 is unmanaged",
		},
	} {
		s, found := spec.Resolve(site, &model.Node{Name: "web-1", Spec: "base", Type: nodeType})
		require.Empty(t, found)
		require.Equal(t, says, unmanaged(t, m, s), nodeType)
	}
	s, _ := spec.Resolve(site, &model.Node{Name: "web-1", Spec: "base", Type: "vm"})
	s.Access.FirstUser = "admin" // vm_user was changed later: who entered as ops still does
	m.login = "ops"
	require.NotContains(t, unmanaged(t, m, s), "user ops on web-1 is unmanaged")
}

func unmanaged(t *testing.T, m converge.Machine, s *spec.Spec) []string {
	t.Helper()
	state, err := converge.Observe(t.Context(), m, s)
	require.NoError(t, err)
	var out []string
	for _, f := range state.Observed().Findings {
		require.Equal(t, diag.Warning, f.Severity)
		require.Equal(t, "guest.web-1", f.Address)
		out = append(out, f.Summary)
	}
	return out
}
