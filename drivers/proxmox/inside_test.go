package proxmox_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/drivertest"
	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	engineguest "github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/health"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

const vmid = 10000 // of the first node of a world

func (w *world) inside(name string) engineguest.Machine {
	return w.Driver.Machine(model.Address{Kind: "vm", Name: name}, model.Guest{VMID: vmid, Node: "father"}, nil)
}

// asked counts the requests whose method and path hold a text.
func (w *world) asked(text string) int {
	n := 0
	for what, count := range w.Host.Snapshot().Requests {
		if strings.Contains(what, text) {
			n += count
		}
	}
	return n
}

// The agent answers when the guest's system is up, and tells its addresses then.
func TestTheAgentAnswersLater(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		g := w.inside("web-1")
		w.Host.Edit(func(e *pve.Edit) { e.Stop(vmid); e.Start(vmid) }) // it boots
		require.EqualError(t, g.Ping(t.Context()), "the guest agent of VM 10000 does not answer")
		_, err := g.Address(t.Context())
		require.EqualError(t, err, "the guest agent of VM 10000 does not answer")
		_, err = g.Run(t.Context(), engineguest.Command{Args: []string{"true"}})
		require.EqualError(t, err, "the guest agent of VM 10000 does not answer")

		r := health.Prober{Simulated: func(netip.Addr) error { return nil }}.Run(t.Context(),
			health.Subject{Machine: g}, []model.Check{{Name: "agent", Agent: true}, {Name: "web", TCP: "80"}})
		require.NoError(t, r.Err)
		require.Equal(t, 2, r.Results[0].Tries)

		at, err := g.Address(t.Context())
		require.NoError(t, err)
		require.Contains(t, at.Why, " on net0 by the guest agent")
		require.Equal(t, at.IP.String(), r.IP)
		require.False(t, at.Declared)
		require.True(t, w.Host.Reaches(at.IP))

		w.Host.Edit(func(e *pve.Edit) { e.Stop(vmid) })
		require.False(t, w.Host.Reaches(at.IP))
		require.EqualError(t, g.Ping(t.Context()), "VM 10000 does not run")
	})
}

// A declared address needs no agent, and costs one request.
func TestADeclaredAddressIsTaken(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) {
			v.Agent, v.NICs = false, []guest.NIC{{Name: "lan", IP: "10.0.0.7/24"}}
		})
		w.Apply()
		before := total(w)
		g := w.inside("web-1")
		for range 3 {
			at, err := g.Address(t.Context())
			require.NoError(t, err)
			require.Equal(t, "10.0.0.7 on net0, as declared", at.Why)
		}
		require.Equal(t, 1, total(w)-before)
		require.Zero(t, w.asked("agent"))

		err := g.Ping(t.Context())
		require.ErrorContains(t, err, "VM 10000 has no guest agent configured")
		r := health.Prober{}.Run(t.Context(), health.Subject{Machine: g}, []model.Check{{Name: "agent", Agent: true}})
		require.Equal(t, 1, r.Results[0].Tries, "nothing to wait for")
	})
}

// An address in a subnet that the files speak of is preferred, on whichever card.
func TestAddressInTheDeclaredSubnet(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", func(v *guest.VM) {
			v.NICs = []guest.NIC{{Name: "a", IP: "dhcp"}, {Name: "b", IP: "192.0.2.7/24"}}
		})
		w.Apply()
		time.Sleep(time.Minute)
		at, err := w.inside("web-1").Address(t.Context())
		require.NoError(t, err)
		require.Equal(t, "192.0.2.7 on net1 by the guest agent", at.Why)
	})
}

func TestExec(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second, Exec: func(_ int, command []string, _ string) (string, string, int, bool) {
		return "out of " + command[2], "err", 3, command[0] == "/bin/sh"
	}}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		time.Sleep(time.Minute)
		g := w.inside("web-1")
		out, err := g.Run(t.Context(), engineguest.Command{Args: []string{"/bin/sh", "-c", "x; y=1"}})
		require.NoError(t, err)
		require.Equal(t, engineguest.Output{Code: 3, Out: "out of x; y=1", Err: "err"}, out)
		_, err = g.Run(t.Context(), engineguest.Command{Args: []string{"/bin/none", "", ""}})
		require.ErrorContains(t, err, "the host aborted when it started /bin/none, as it does if the guest has no such program; if the guest has it, the outcome of the command is unknown: POST ")
		require.ErrorContains(t, err, "596")
	})
}

// TestWordsOfAProgram: PVE makes of each byte a letter of its own (QemuServer/Agent.pm).
func TestWordsOfAProgram(t *testing.T) {
	for _, said := range []string{"läuft – ●", "plain", "", "a\xffb"} {
		inTime(t, pve.Config{TaskTime: time.Second, Exec: func(int, []string, string) (string, string, int, bool) {
			return said, said, 0, true
		}}, func(t *testing.T, w *world) {
			w.Node("web-1", nil)
			w.Apply()
			time.Sleep(time.Minute)
			out, err := w.inside("web-1").Run(t.Context(), engineguest.Command{Args: []string{"/bin/x"}})
			require.NoError(t, err)
			require.Equal(t, engineguest.Output{Out: said, Err: said}, out)
		})
	}
}

// TestAnAgentThatIsSwitchedOff is not waited for: PVE says of it what it says of one that
// does not answer (QemuServer/Agent.pm, assert_agent_available).
func TestAnAgentThatIsSwitchedOff(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		w.Host.Edit(func(e *pve.Edit) { e.Set(vmid, "agent", "enabled=0") })
		time.Sleep(time.Minute)
		err := w.inside("web-1").Ping(t.Context())
		require.ErrorContains(t, err, "has no guest agent configured")
		var hopeless interface{ Hopeless() bool }
		require.ErrorAs(t, err, &hopeless)
	})
}

// answers returns a transport that answers certain requests itself, n times.
func (w *world) answers(n int, path, body string, status int) {
	d, err := proxmox.Open(proxmox.Config{
		Keys: keysOfTests, Host: w.Site.Hosts["father"], Site: "home", Owner: "father", Token: w.Host.Token(),
		Transport: proxmoxtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
			if !strings.HasSuffix(r.URL.Path, path) || n == 0 {
				return w.Host.RoundTrip(r)
			}
			n--
			return &http.Response{StatusCode: status, Status: fmt.Sprint(status, " as told"), Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{}, Request: r}, nil
		}),
	})
	require.NoError(w.T, err)
	w.Driver = d
}

// TestWordsForAProgram: PVE makes a byte of each letter (QMPClient.pm, QemuServer/Agent.pm), so
// that what a program reads comes to it byte for byte. What is too long for one request lies
// in files, which are there when it begins; they are removed if it does not.
func TestWordsForAProgram(t *testing.T) {
	var read []string
	var args [][]string
	refuse := false
	inTime(t, pve.Config{TaskTime: time.Second, Exec: func(_ int, command []string, input string) (string, string, int, bool) {
		args, read = append(args, command), append(read, input)
		return "", "no room", 1, !refuse || command[0] != "/bin/rm"
	}}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		time.Sleep(time.Minute)
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		short := bytes.Repeat([]byte("x"), 50<<10)
		for _, stdin := range [][]byte{nil, []byte("läuft – ●"), every, short} {
			args, read = nil, nil
			_, err := w.inside("web-1").Run(t.Context(), engineguest.Command{Args: []string{"/bin/x", "–ä", ""}, Stdin: stdin})
			require.NoError(t, err)
			require.Equal(t, []string{string(stdin)}, read)
			require.Equal(t, [][]string{{"/bin/x", "–ä", ""}}, args)
		}

		args = nil
		_, err := w.inside("web-1").Run(t.Context(), engineguest.Command{Args: []string{"/bin/x"}, Stdin: bytes.Repeat(every, 400)})
		require.ErrorContains(t, err, "writing what /bin/x reads (102400 bytes) into the guest: exit 1: no room")
		require.NotErrorIs(t, err, engineguest.ErrOutcomeLost, "it did not begin")
		require.Equal(t, []string{"/bin/mkdir", "/bin/rm"}, []string{args[0][0], args[1][0]})
		require.Equal(t, args[0][len(args[0])-1], args[1][len(args[1])-1])
	})
}

// What is longer than a request may be comes in parts of less than 64 KiB, which is what older
// hosts read.
func TestLongWordsForAProgram(t *testing.T) {
	var begun []string
	inTime(t, pve.Config{TaskTime: time.Second, Exec: func(_ int, command []string, _ string) (string, string, int, bool) {
		begun = command
		return "done", "", 0, true
	}}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		time.Sleep(time.Minute)
		stdin := make([]byte, 100<<10) // of NUL bytes: in JSON six letters each
		out, err := w.inside("web-1").Run(t.Context(), engineguest.Command{Args: []string{"/bin/x", "-y"}, Stdin: stdin})
		require.NoError(t, err)
		require.Equal(t, "done", out.Out)
		require.Equal(t, []string{"/bin/sh", "-c"}, begun[:2])
		require.Equal(t, []string{"/bin/x", "-y"}, begun[len(begun)-2:])
		require.Equal(t, 3, w.asked("file-write"))
		for _, long := range []int{50 << 10, 70 << 10} {
			_, err = w.inside("web-1").Run(t.Context(), engineguest.Command{Args: []string{"/bin/x", strings.Repeat("y", long)}, Stdin: make([]byte, 100<<10)})
			if long > 60<<10 {
				require.ErrorContains(t, err, "the arguments of /bin/x exceed the limit of PVE (61440 bytes)")
			} else {
				require.NoError(t, err)
			}
		}
	})
}

// An agent that does not answer for a while, as in a busy guest or one that is frozen for a
// backup, is asked again; not for ever.
func TestAnAgentThatIsBusyWhileACommandRuns(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		time.Sleep(time.Minute)
		for _, said := range []string{"QEMU guest agent is not running", "Agent error: Command guest-exec-status has been disabled: the agent is in frozen state"} {
			body := `{"data":null,"message":"` + said + `\n"}`
			w.answers(20, "/exec-status", body, 500)
			_, err := w.inside("web-1").Run(t.Context(), engineguest.Command{Args: []string{"true"}})
			require.NoError(t, err)
			w.answers(1000, "/exec-status", body, 500)
			_, err = w.inside("web-1").Run(t.Context(), engineguest.Command{Args: []string{"true"}})
			require.ErrorIs(t, err, engineguest.ErrOutcomeLost)
		}
	})
}

// An agent that is configured to run nothing, as those of some distributions are, is not
// waited for.
func TestAnAgentThatMayRunNothing(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		time.Sleep(time.Minute)
		w.answers(1, "/exec", `{"data":null,"message":"Agent error: Command guest-exec has been disabled: the command is not allowed\n"}`, 500)
		_, err := w.inside("web-1").Run(t.Context(), engineguest.Command{Args: []string{"true"}})
		require.ErrorContains(t, err, "the guest agent of VM 10000 is configured not to do this (allow-rpcs or block-rpcs in the guest's /etc/qemu/qemu-ga.conf, or its service's options): POST ")
		var hopeless interface{ Hopeless() bool }
		require.ErrorAs(t, err, &hopeless)
	})
}

// A command that still runs is polled again; a cancelled caller returns at once.
func TestACommandThatRunsOn(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		time.Sleep(time.Minute)
		w.answers(2, "/exec-status", `{"data":{"exited":0}}`, 200)
		began := time.Now()
		out, err := w.inside("web-1").Run(t.Context(), engineguest.Command{Args: []string{"/bin/sh", "-c", "exit 4"}})
		require.NoError(t, err)
		require.Equal(t, 4, out.Code)
		require.Equal(t, 150*time.Millisecond, time.Since(began))

		w.answers(1000, "/exec-status", `{"data":{"exited":0}}`, 200)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		began = time.Now()
		_, err = w.inside("web-1").Run(ctx, engineguest.Command{Args: []string{"/bin/sh", "-c", "sleep 100"}})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, engineguest.ErrOutcomeLost)
		require.Equal(t, 30*time.Second, time.Since(began))
	})
}

// PVE reports the end of a command once. If that answer is lost, the outcome is unknown.
func TestALostEndOfACommand(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		time.Sleep(time.Minute)
		for _, said := range []string{"Invalid parameter 'pid'", "PID 144 does not exist"} { // of older and of newer agents
			w.answers(1, "/exec-status", `{"data":null,"message":"Agent error: `+said+`\n"}`, 500)
			_, err := w.inside("web-1").Run(t.Context(), engineguest.Command{Args: []string{"true"}})
			require.ErrorContains(t, err, "the result of the command was delivered once, and that answer was lost")
			require.NotErrorAs(t, err, new(interface{ Hopeless() bool }), "it may be asked once more")
		}
	})
}

// Nothing is asked of a guest that is not provably the one that is meant, nor waited
// for where the token lacks the right.
func TestOnlyTheGuestThatIsMeantIsAsked(t *testing.T) {
	inTime(t, pve.Config{TaskTime: time.Second}, func(t *testing.T, w *world) {
		w.Node("web-1", nil)
		w.Apply()
		time.Sleep(time.Minute)
		_, err := w.inside("web-2").Run(t.Context(), engineguest.Command{Args: []string{"true"}})
		require.EqualError(t, err, "VM 10000 can no longer be verified as vm.web-2 (it is vm.web-1): nothing is asked of it")
		w.Host.Edit(func(e *pve.Edit) { e.Set(vmid, "smbios1", "uuid=11111111-2222-3333-4444-555555555555") })
		for _, err := range []error{w.inside("web-1").Ping(t.Context()), second(w.inside("web-1").Run(t.Context(), engineguest.Command{Args: []string{"true"}}))} {
			require.ErrorContains(t, err, "VM 10000 can no longer be verified as vm.web-1 (has the ownership tag of vm.web-1, but is another machine")
		}
		require.Zero(t, w.asked("agent"))

		w.Host.Edit(func(e *pve.Edit) { e.Delete(vmid) })
		r := health.Prober{}.Run(t.Context(), health.Subject{Machine: w.inside("web-1")}, []model.Check{{Name: "agent", Agent: true}})
		require.ErrorContains(t, r.Err, "reading VM 10000: ")
		require.Equal(t, 1, r.Results[0].Tries)

		w.answers(1000, "/pending", `{"data":null,"message":"Permission check failed (/vms/10000, VM.Audit)\n"}`, 403)
		r = health.Prober{}.Run(t.Context(), health.Subject{Machine: w.inside("web-1")}, []model.Check{{Name: "agent", Agent: true}})
		require.ErrorContains(t, r.Err, "VM.Audit")
		require.Equal(t, 1, r.Results[0].Tries)
	})
}

func second(_ engineguest.Output, err error) error { return err }

// PVE reports the addresses of containers in two forms.
func TestAddressesOfAContainer(t *testing.T) {
	for _, body := range []string{
		`{"data":[{"name":"lo","hwaddr":"00:00:00:00:00:00","inet":"127.0.0.1/8"},{"name":"eth0","hwaddr":"bc:24:11:00:00:01","inet":"10.0.12.7/24","inet6":"fe80::1/64"}]}`,
		`{"data":[{"name":"eth0","hwaddr":"bc:24:11:00:00:01","inet":"10.0.12.7/24","hardware-address":"bc:24:11:00:00:01","ip-addresses":[{"ip-address":"10.0.12.7","ip-address-type":"inet","prefix":"24"}]}]}`,
	} {
		at, ok, err := proxmox.ChooseAddress(t.Context(), proxmoxtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
			require.Equal(t, "/api2/json/nodes/father/lxc/200/interfaces", r.URL.Path)
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{}, Request: r}, nil
		}), "net0", "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01,ip=dhcp,gw=10.0.12.1")
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, "10.0.12.7 on net0 by its host", at.Why)
	}
	at, ok := proxmox.DeclaredAddress("net0", "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01,ip=10.0.12.9/24,ip6=2001:db8::9/64")
	require.True(t, ok)
	require.Equal(t, "10.0.12.9", at.IP.String())
}

// The API runs nothing in containers, and is not asked to.
func TestContainerHasNoAgent(t *testing.T) {
	m := proxmox.Container(proxmoxtest.RoundTripFunc(func(*http.Request) (*http.Response, error) {
		t.Error("a request")
		return nil, io.EOF
	}))
	for _, err := range []error{m.Ping(t.Context()), insideSecond(m.Run(t.Context(), engineguest.Command{Args: []string{"true"}}))} {
		require.EqualError(t, err, "CT 200 has no guest agent, since it is a container: the API runs nothing in it")
		drivertest.Hopeless(t, err, true)
	}
}

func insideSecond(_ engineguest.Output, err error) error { return err }

// system is this machine as the system of every simulated VM. What belongs below /run is in a
// folder of the test.
type system struct {
	ctx     context.Context // ends what still runs
	dir     string
	running *sync.WaitGroup
}

func (s system) mapped(text string) string {
	return strings.ReplaceAll(text, "/run/homestak-gitops-", s.dir+"/")
}

func (s system) start(_ int, command []string, input string) (func() pve.Execution, bool) {
	if _, err := exec.LookPath(command[0]); err != nil {
		return nil, false
	}
	for i := range command {
		command[i] = s.mapped(command[i])
	}
	s.running.Add(1)
	return func() pve.Execution {
		defer s.running.Done()
		var out, err bytes.Buffer
		cmd := exec.CommandContext(s.ctx, command[0], command[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &err
		_ = cmd.Run()
		status := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if status.Signaled() {
			return pve.Execution{Out: out.String(), Err: err.String(), Signal: int(status.Signal())}
		}
		return pve.Execution{Out: out.String(), Err: err.String(), Code: status.ExitStatus()}
	}, true
}

func (s system) write(_ int, file, content string) error {
	return os.WriteFile(s.mapped(file), []byte(content), 0o600)
}

// The guest agent of a simulated VM passes the suite of all ways into a machine.
func TestMachine(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	s := system{ctx, t.TempDir(), &sync.WaitGroup{}}
	w := proxmoxtest.New(t, pve.Config{Speed: 10000, TaskTime: time.Second, Start: s.start, Write: s.write})
	w.Node("web-1", nil)
	w.Apply()
	open := func() engineguest.Machine {
		return w.Driver.Machine(model.Address{Kind: "vm", Name: "web-1"}, model.Guest{VMID: 10000, Node: "father"}, nil)
	}
	require.Eventually(t, func() bool { return open().Ping(t.Context()) == nil }, 5*time.Minute, time.Millisecond, "it boots")
	drivertest.Machine(t, func(*testing.T) engineguest.Machine { return open() })
	cancel()
	s.running.Wait()
	left, err := filepath.Glob(s.dir + "/*")
	require.NoError(t, err)
	require.Empty(t, left)
}
