package pve_test

import (
	"context"
	"crypto/des"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/sim/pve"
	"github.com/homestak/homestak-gitops/sim/pve/simtest"
)

// caller calls consoles of a host that serves, as root@pam with a ticket.
type caller struct {
	*client
	address   string
	transport *http.Transport
}

func newCaller(t *testing.T) caller {
	t.Helper()
	c := newClient(t, pve.Config{})
	address, transport := simtest.Listen(t, c.h)
	return caller{c.ticketed(), address, transport}
}

// call opens the websocket of a console below a path, and tells the status and the
// protocol that came back.
func (c caller) call(at string, console map[string]any) (ws *websocket.Conn, said string, err error) {
	c.t.Helper()
	dialer := websocket.Dialer{Subprotocols: []string{"binary"}, NetDialContext: c.transport.DialContext, TLSClientConfig: c.transport.TLSClientConfig}
	path := "/api2/json" + at + "/vncwebsocket?port=" + fmt.Sprint(console["port"]) + "&vncticket=" + url.QueryEscape(fmt.Sprint(console["ticket"]))
	header := http.Header{"Cookie": {"PVEAuthCookie=" + url.QueryEscape(c.ticket[0])}}
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Minute)
	defer cancel()
	ws, r, err := dialer.DialContext(ctx, strings.Replace(c.address, "https:", "wss:", 1)+path, header)
	if r != nil {
		said = strings.TrimSpace(r.Status + " " + r.Header.Get("Sec-WebSocket-Protocol"))
		_ = r.Body.Close()
	}
	if ws != nil {
		c.t.Cleanup(func() { _ = ws.Close() })
		require.NoError(c.t, ws.SetReadDeadline(time.Now().Add(5*time.Minute)))
	}
	return ws, said, err
}

// hears reads until a text has come.
func hears(t *testing.T, ws *websocket.Conn, text string) {
	t.Helper()
	var all strings.Builder
	for !strings.Contains(all.String(), text) {
		_, said, err := ws.ReadMessage()
		require.NoError(t, err, "%q, and no %q", all.String(), text)
		all.Write(said)
	}
}

func says(t *testing.T, ws *websocket.Conn, text string) {
	t.Helper()
	require.NoError(t, ws.WriteMessage(websocket.BinaryMessage, []byte(text)))
}

// ended is how the worker of a console ended.
func (c caller) ended(console map[string]any) string {
	c.t.Helper()
	var status map[string]any
	require.Eventually(c.t, func() bool {
		status = c.object("/nodes/father/tasks/" + url.PathEscape(fmt.Sprint(console["upid"])) + "/status")
		return status["status"] == "stopped"
	}, 5*time.Minute, 10*time.Millisecond)
	return fmt.Sprint(status["exitstatus"])
}

// TestTerminal: the protocol of termproxy behind the websocket, with a shell of the node.
func TestTerminal(t *testing.T) {
	c := newCaller(t)
	open := func() map[string]any { return c.ok("POST", "/nodes/father/termproxy", nil).(map[string]any) }
	console := open()
	require.Equal(t, []any{"root@pam", "5900"}, []any{console["user"], console["port"]})
	other := open()
	require.Equal(t, "5901", other["port"], "a port of its own")

	ws, status, err := c.call("/nodes/father", console)
	require.NoError(t, err)
	require.Equal(t, "101 Switching Protocols binary", status)
	says(t, ws, fmt.Sprintf("root@pam:%s\n", console["ticket"]))
	_, said, err := ws.ReadMessage()
	require.NoError(t, err)
	require.Equal(t, "OK", string(said))
	hears(t, ws, "root@father:~# ")
	says(t, ws, "1:80:24:")
	says(t, ws, "0:9:hostname\n")
	hears(t, ws, "hostname\r\nfather\r\nroot@father:~# ")
	says(t, ws, "20:5:ls")   // A sign of life, then a message
	says(t, ws, " -l0:1:\r") // whose parts come in two frames, and a third.
	hears(t, ws, "ls -l\r\n-bash: ls: command not found\r\n")
	says(t, ws, "0:5:exit\n")
	hears(t, ws, "logout")
	require.Equal(t, "OK", c.ended(console))

	t.Run("who cannot say who he is is not let in", func(t *testing.T) {
		ws, _, err := c.call("/nodes/father", other)
		require.NoError(t, err)
		says(t, ws, "root@pam:nonsense\n")
		_, _, err = ws.ReadMessage()
		require.Error(t, err)
		require.Equal(t, "command '/usr/bin/termproxy 5901 --path /nodes/father --perm Sys.Console' failed: exit code 1", c.ended(other))
	})
	t.Run("a stopped worker hangs up", func(t *testing.T) {
		third := open()
		ws, _, err := c.call("/nodes/father", third)
		require.NoError(t, err)
		says(t, ws, fmt.Sprintf("root@pam:%s\n", third["ticket"]))
		hears(t, ws, "root@father:~# ")
		c.ok("DELETE", "/nodes/father/tasks/"+url.PathEscape(fmt.Sprint(third["upid"])), nil)
		_, _, err = ws.ReadMessage()
		require.Error(t, err)
		require.Equal(t, "received interrupt", c.ended(third))
	})
	t.Run("no token gets a shell", func(t *testing.T) {
		require.Equal(t, "value 'root@pam!sim' does not look like a valid user name", c.client.byToken().ask("POST", "/nodes/father/termproxy", nil).reason)
	})
}

// TestTicketOfAConsole: it is for one path and port.
func TestTicketOfAConsole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // The answer is held back for three seconds.
		host := newClient(t, pve.Config{})
		c := caller{host.ticketed(), "https://pve", simtest.Pipe(t, host.h)}
		console, other := c.ok("POST", "/nodes/father/termproxy", nil).(map[string]any), c.ok("POST", "/nodes/father/termproxy", nil).(map[string]any)
		_, status, err := c.call("/nodes/father", map[string]any{"port": other["port"], "ticket": console["ticket"]})
		require.Error(t, err)
		require.Equal(t, "401 permission denied - invalid PVEVNC ticket", status)
	})
}

// byToken is the same client with its token alone.
func (c *client) byToken() *client {
	own := *c
	own.ticket = [2]string{}
	return &own
}

// TestSerialTerminal: a machine that runs shows its login, one that has nothing to boot
// from is silent, and of one that is off the terminal ends.
func TestSerialTerminal(t *testing.T) {
	c := newCaller(t)
	c.image()
	c.vm("100", form{"serial0": "socket"})
	at := vmURL("100", "")
	open := func() (*websocket.Conn, map[string]any) {
		console := c.ok("POST", at+"/termproxy", nil).(map[string]any)
		ws, _, err := c.call(at, console)
		require.NoError(t, err)
		says(t, ws, fmt.Sprintf("root@pam:%s\n", console["ticket"]))
		return ws, console
	}
	ws, console := open()
	hears(t, ws, "VM 100 not running")
	require.Equal(t, "OK", c.ended(console))
	c.done("POST", at+"/status/start", nil)
	ws, _ = open()
	hears(t, ws, "starting serial terminal on interface serial0")
}

// TestScreen: the greeting of RFB 3.8 with the ticket as password, and a black screen.
func TestScreen(t *testing.T) {
	c := newCaller(t)
	c.image()
	c.vm("100", nil)
	c.done("POST", vmURL("100", "/status/start"), nil)
	for _, good := range []bool{true, false} {
		console := c.ok("POST", vmURL("100", "/vncproxy"), form{"websocket": "1"}).(map[string]any)
		ws, _, err := c.call(vmURL("100", ""), console)
		require.NoError(t, err)
		expect := func(what []byte) {
			_, said, err := ws.ReadMessage()
			require.NoError(t, err)
			require.Equal(t, what, said)
		}
		expect([]byte("RFB 003.008\n"))
		says(t, ws, "RFB 003.008\n")
		expect([]byte{1, 2})
		says(t, ws, "\x02")
		_, challenge, err := ws.ReadMessage()
		require.NoError(t, err)
		require.Len(t, challenge, 16)
		password := fmt.Sprint(console["ticket"])
		if !good {
			password = "a wrong one"
		}
		says(t, ws, encrypted(t, password, challenge))
		if !good {
			expect(append([]byte{0, 0, 0, 1, 0, 0, 0, 21}, "Authentication failed"...))
			require.Equal(t, "Authentication failed", c.ended(console))
			continue
		}
		expect([]byte{0, 0, 0, 0})
		says(t, ws, "\x01")
		_, server, err := ws.ReadMessage()
		require.NoError(t, err)
		require.Equal(t, []uint16{720, 400}, []uint16{binary.BigEndian.Uint16(server), binary.BigEndian.Uint16(server[2:])})
		require.Contains(t, string(server), "QEMU (vm-100)")
		says(t, ws, "\x03\x00\x00\x01\x00\x01\x00\x02\x00\x03") // Show six pixels at 1, 1.
		expect(append([]byte{0, 0, 0, 1, 0, 1, 0, 1, 0, 2, 0, 3}, make([]byte, 4+2*3*4)...))
		require.NoError(t, ws.Close())
		require.Equal(t, "OK", c.ended(console))
	}
}

func encrypted(t *testing.T, password string, challenge []byte) string {
	t.Helper()
	key := make([]byte, 8)
	for i := range key {
		key[i] = bits.Reverse8(password[i])
	}
	cipher, err := des.NewCipher(key) //nolint:gosec // As the protocol has it.
	require.NoError(t, err)
	out := make([]byte, 16)
	cipher.Encrypt(out, challenge)
	cipher.Encrypt(out[8:], challenge[8:])
	return string(out)
}

// TestConsolePorts: there are a hundred ports for consoles (next_vnc_port in
// PVE/Tools.pm), which come back when their workers end.
func TestConsolePorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, pve.Config{}).ticketed()
		for range 100 {
			c.ok("POST", "/nodes/father/termproxy", nil)
		}
		require.Equal(t, "unable to find free port (5900-6000)", c.ask("POST", "/nodes/father/termproxy", nil).reason)
		time.Sleep(time.Minute)
		require.Equal(t, "5900", c.ok("POST", "/nodes/father/termproxy", nil).(map[string]any)["port"])
	})
}

// TestEndlessTyping: what never ends is not kept.
func TestEndlessTyping(t *testing.T) {
	c := newCaller(t)
	open := func() (*websocket.Conn, map[string]any) {
		console, ok := c.ok("POST", "/nodes/father/termproxy", nil).(map[string]any)
		require.True(t, ok)
		ws, _, err := c.call("/nodes/father", console)
		require.NoError(t, err)
		says(t, ws, fmt.Sprint(console["user"], ":", console["ticket"], "\n"))
		hears(t, ws, "root@father:~# ")
		return ws, console
	}
	ws, _ := open()
	line := strings.Repeat("a", 5000)
	says(t, ws, fmt.Sprintf("0:%d:%s\r", len(line)+1, line))
	var said strings.Builder
	for !strings.Contains(said.String(), "not found") {
		_, more, err := ws.ReadMessage()
		require.NoError(t, err)
		said.Write(more)
	}
	require.Contains(t, said.String(), ": "+strings.Repeat("a", 4095)+": ")
	require.NotContains(t, said.String(), strings.Repeat("a", 4096))

	ws, console := open()
	for range 3 { // A length without an end.
		if ws.WriteMessage(websocket.BinaryMessage, []byte("0:"+strings.Repeat("1", 40<<10))) != nil {
			break
		}
	}
	require.Equal(t, "OK", c.ended(console))
}
