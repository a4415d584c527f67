package node

import (
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
	"github.com/homestak/homestak-gitops/sim/pve/qemu"
)

// shell is what runs behind a terminal: a shell of the node for root, and else the login
// of a system, where nobody is known. It knows hardly any command, and says so of
// others.
type shell struct {
	host   string
	root   bool // Who types is root already.
	silent bool // Nothing runs behind it that would read or write.
	greets string
	over   bool // It ends right after its greeting.

	begun    bool
	line     []byte
	password bool // What is typed now is one.
}

// shell is the one behind a terminal.
func (o Operator) shell(con *Console) *shell {
	s := &shell{}
	o.Ask(func(w *core.World) {
		g := con.guest
		switch {
		case g == nil:
			s.host, s.root = con.node, con.user == "root@pam"
		case g.Kind == "lxc":
			s.host, s.over = hostOf(g), g.Run == nil
		default:
			s.host = hostOf(g)
			port, err := serialPort(g, con.serial)
			if err == nil && g.Run == nil {
				err = perl.Fail("VM %d not running", g.Vmid)
			}
			s.greets = "starting serial terminal on interface " + port + "\r\n"
			if s.over = err != nil; s.over {
				s.greets = err.Error() + "\r\n"
			} else {
				s.silent = !guests.Obeys(w, g)
			}
		}
	})
	return s
}

func hostOf(g *core.Guest) string {
	if g.Kind == "lxc" {
		return g.Conf["hostname"]
	}
	return qemu.GuestHostname(g)
}

// longestLine is what a terminal of Linux holds of a line (N_TTY_BUF_SIZE).
const longestLine = 4095

func (s *shell) prompt() string {
	switch {
	case s.root:
		return "root@" + s.host + ":~# "
	case s.password:
		return "Password: "
	}
	return s.host + " login: "
}

// typed takes what was typed, and tells what shows then and whether that is the end.
func (s *shell) typed(keys string) (said string, done bool) {
	var b strings.Builder
	if !s.begun {
		s.begun = true
		b.WriteString(s.greets)
		if s.over {
			return b.String(), true
		}
		if !s.silent {
			b.WriteString(s.prompt())
		}
	}
	if s.silent {
		return b.String(), false
	}
	for _, key := range []byte(keys) {
		switch key {
		case '\r', '\n':
			b.WriteString("\r\n")
			text, end := s.enter(string(s.line))
			s.line = nil
			b.WriteString(text)
			if end {
				return b.String(), true
			}
			b.WriteString(s.prompt())
		case 3: // Ctrl-C
			s.line, s.password = nil, false
			b.WriteString("^C\r\n" + s.prompt())
		case 4: // Ctrl-D
			if len(s.line) == 0 {
				b.WriteString("logout\r\n")
				return b.String(), true
			}
		case 0x7f, '\b':
			if len(s.line) > 0 {
				s.line = s.line[:len(s.line)-1]
				b.WriteString("\b \b")
			}
		default:
			if len(s.line) == longestLine { // As with any terminal, the rest is lost.
				continue
			}
			s.line = append(s.line, key)
			if !s.password {
				b.WriteByte(key)
			}
		}
	}
	return b.String(), false
}

// enter does what a line says.
func (s *shell) enter(line string) (said string, end bool) {
	words := strings.Fields(line)
	switch {
	case s.password:
		s.password = false
		return "\r\nLogin incorrect\r\n", false
	case len(words) == 0:
		return "", false
	case !s.root:
		s.password = true
		return "", false
	}
	switch words[0] {
	case "exit", "logout":
		return "logout\r\n", true
	case "echo":
		return strings.Join(words[1:], " ") + "\r\n", false
	case "hostname":
		return s.host + "\r\n", false
	case "whoami":
		return "root\r\n", false
	case "pwd":
		return "/root\r\n", false
	}
	return "-bash: " + words[0] + ": command not found\r\n", false
}
