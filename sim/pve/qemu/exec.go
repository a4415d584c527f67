package qemu

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/guests"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

func system(g *core.Guest) *core.Inside {
	if g.In == nil {
		g.In = &core.Inside{Files: map[string]string{}, Runs: map[int]*core.Execution{}, Last: 140}
	}
	return g.In
}

// file is the content of a file in a guest: one that was written, or one that every
// system has.
func readFile(w *core.World, g *core.Guest, name string) (string, bool) {
	if in := inside(w, g); in != nil {
		return in.Read(name)
	}
	if content, ok := system(g).Files[name]; ok {
		return content, true
	}
	switch name {
	case "/etc/hostname":
		return guestHostname(g) + "\n", true
	case "/etc/os-release":
		return w.Cfg.System.Release, true
	}
	return "", false
}

// begin begins a program in a guest.
func begin(w *core.World, g *core.Guest, command []string, input string) (*core.Execution, bool) {
	if in := inside(w, g); in != nil {
		wait := in.Start(slices.Clone(command), input)
		if wait == nil {
			return nil, false
		}
		return follow(wait), true
	}
	if w.Cfg.Start == nil {
		e, ok := run(w, g, command, input)
		return &e, ok
	}
	wait, ok := w.Cfg.Start(g.Vmid, slices.Clone(command), input)
	if !ok {
		return nil, false
	}
	return follow(wait), true
}

// follow is a program that runs.
func follow(wait func() core.Execution) *core.Execution {
	e := &core.Execution{Ended: make(chan struct{})}
	go func() {
		end := wait()
		e.Out, e.Err, e.Code, e.Signal = end.Out, end.Err, end.Code, end.Signal
		close(e.Ended)
	}()
	return e
}

// inside returns the system in a guest; nil if none is simulated.
func inside(w *core.World, g *core.Guest) core.Programs {
	if w.Cfg.Systems == nil {
		return nil
	}
	return w.Cfg.Systems.Programs(g.Key())
}

// run runs a program in a guest: what the configuration of the host says, else one
// of a few that every system has. ok is false for one that is not there.
func run(w *core.World, g *core.Guest, command []string, input string) (e core.Execution, ok bool) {
	if w.Cfg.Exec != nil {
		if out, err, code, known := w.Cfg.Exec(g.Vmid, slices.Clone(command), input); known {
			return core.Execution{Out: out, Err: err, Code: code}, true
		}
	}
	name, args := command[0], command[1:]
	switch name[strings.LastIndexByte(name, '/')+1:] {
	case "true":
		return core.Execution{}, true
	case "false":
		return core.Execution{Code: 1}, true
	case "echo":
		return core.Execution{Out: strings.Join(args, " ") + "\n"}, true
	case "hostname":
		return core.Execution{Out: guestHostname(g) + "\n"}, true
	case "cat":
		return cat(w, g, args, input), true
	case "sh", "bash":
		return shell(g, args), true
	default:
		return core.Execution{}, false
	}
}

func cat(w *core.World, g *core.Guest, names []string, input string) core.Execution {
	if len(names) == 0 {
		return core.Execution{Out: input}
	}
	e := core.Execution{}
	for _, name := range names {
		content, ok := readFile(w, g, name)
		if !ok {
			e.Err, e.Code = e.Err+"cat: "+name+": No such file or directory\n", 1
		}
		e.Out += content
	}
	return e
}

// shell knows exit, and nothing else.
func shell(_ *core.Guest, args []string) core.Execution {
	e := core.Execution{}
	if len(args) == 2 && args[0] == "-c" {
		if code, ok := strings.CutPrefix(args[1], "exit "); ok {
			e.Code = perl.Atoi(code)
		}
	}
	return e
}

// apiAgentExec is POST …/agent/exec. The agent's answer about a program that is
// not there has typographic quotes; pvedaemon cannot put them into its status line
// and drops the connection, so that pveproxy answers 596.
func apiAgentExec(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	command := c.Words("command")
	if len(command) == 0 {
		return nil, perl.BadParam("command", "property is missing and it is not optional")
	}
	input, err := octets(c.In["input-data"], "/usr/share/perl5/PVE/QemuServer/Agent.pm")
	if err != nil {
		return nil, err
	}
	for i := range command {
		if command[i], err = octets(command[i], "/usr/share/perl5/IO/Multiplex.pm"); err != nil {
			return nil, err
		}
		if !utf8.ValidString(command[i]) {
			return nil, perl.Fail("Agent error: JSON parse error, invalid UTF-8 sequence in string")
		}
	}
	e, ok := begin(w, g, command, input)
	if !ok {
		return nil, &perl.APIError{Status: 596, Message: "Broken pipe", Plain: true}
	}
	in := system(g)
	in.Last += 4
	in.Runs[in.Last] = e
	return map[string]any{"pid": in.Last}, nil
}

// apiAgentExecStatus is GET …/agent/exec-status.
func apiAgentExecStatus(_ *core.World, c *core.Call, g *core.Guest) (any, error) {
	e, ok := system(g).Runs[c.Num("pid", 0)]
	if !ok {
		return nil, perl.Fail("Agent error: Invalid parameter 'pid'")
	}
	if e.Ended != nil {
		select {
		case <-e.Ended:
		default:
			return map[string]any{"exited": 0}, nil
		}
	}
	delete(g.In.Runs, c.Num("pid", 0))
	result := map[string]any{"exited": 1, "exitcode": e.Code}
	if e.Signal != 0 { // then the exit code is missing (qmp_guest_exec_status in qga/commands.c of QEMU)
		result = map[string]any{"exited": 1, "signal": e.Signal}
	}
	for name, said := range map[string]string{"out": e.Out, "err": e.Err} {
		if said != "" {
			kept := min(len(said), mostOutput)
			result[name+"-data"], result[name+"-truncated"] = letters(said[:kept]), perl.BoolInt(kept < len(said))
		}
	}
	return result, nil
}

// mostOutput is how many bytes an agent keeps of each output of a program (GUEST_EXEC_MAX_OUTPUT in
// qga/commands.c of QEMU).
const mostOutput = 16 << 20

// topFolders are the folders that every system has. Below them any folder counts as
// made.
const topFolders = " / /bin /boot /dev /etc /home /lib /media /mnt /opt /proc /root /run /sbin /srv /sys /tmp /usr /var "

func directory(name string) bool { return strings.Contains(topFolders, " "+name+" ") }

// topOf is the first folder of the path of a file.
func topOf(name string) string {
	if i := strings.IndexByte(strings.TrimPrefix(name, "/"), '/'); i >= 0 && strings.HasPrefix(name, "/") {
		return name[:i+1]
	}
	return "/"
}

// letters makes each byte a character, as Perl does when it writes undecoded bytes as JSON (qemu_exec_status in
// PVE/QemuServer/Agent.pm, file-read in PVE/API2/Qemu/Agent.pm).
func letters(bytes string) string {
	var b strings.Builder
	for i := range len(bytes) {
		b.WriteRune(rune(bytes[i]))
	}
	return b.String()
}

// octets returns the bytes that Perl takes a text of a request for: one for each letter, of
// which none may be wider. in is where it fails.
func octets(text, in string) (string, error) {
	bytes := make([]byte, 0, len(text))
	for _, r := range text {
		if r > 0xff {
			return "", perl.Fail("Wide character in subroutine entry at %s", in)
		}
		bytes = append(bytes, byte(r))
	}
	return string(bytes), nil
}

// apiAgentRead is GET …/agent/file-read.
func apiAgentRead(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	content, ok := readFile(w, g, c.In["file"])
	if !ok && directory(c.In["file"]) {
		return nil, perl.Fail("Agent error: failed to read file: Is a directory")
	}
	if !ok {
		return nil, perl.Fail("Agent error: failed to open file '%s' (mode: 'r'): No such file or directory", c.In["file"])
	}
	return map[string]any{"content": letters(content), "bytes-read": len(content)}, nil
}

// apiAgentWrite is POST …/agent/file-write: it writes the whole file. With encode=0 the
// content is base64.
func apiAgentWrite(w *core.World, c *core.Call, g *core.Guest) (any, error) {
	content, file := c.In["content"], c.In["file"]
	encoded := c.Has("encode") && !c.Flag("encode")
	if !encoded {
		plain, err := octets(content, "/usr/share/perl5/PVE/API2/Qemu/Agent.pm")
		if err != nil {
			return nil, err
		}
		content = plain
	}
	switch {
	case w.Cfg.Write != nil || inside(w, g) != nil: // it knows its own folders
	case directory(file):
		return nil, perl.Fail("Agent error: failed to open file '%s' (mode: 'wb'): Is a directory", file)
	case !directory(topOf(file)):
		return nil, perl.Fail("Agent error: failed to open file '%s' (mode: 'wb'): No such file or directory", file)
	}
	if encoded {
		plain, err := base64.StdEncoding.DecodeString(content)
		if err != nil {
			return nil, perl.Fail("Agent error: Invalid base64 data in 'buf-b64'")
		}
		content = string(plain)
	}
	if in := inside(w, g); in != nil {
		if err := in.Write(file, content); err != nil {
			return nil, perl.Fail("Agent error: failed to open file '%s' (mode: 'wb'): %v", file, err)
		}
		return nil, nil
	}
	if w.Cfg.Write != nil {
		if err := w.Cfg.Write(g.Vmid, file, content); err != nil {
			return nil, perl.Fail("Agent error: failed to open file '%s' (mode: 'wb'): %v", file, err)
		}
		return nil, nil
	}
	system(g).Files[file] = content
	return nil, nil
}

// apiAgentPassword is POST …/agent/set-user-password.
func apiAgentPassword(*core.World, *core.Call, *core.Guest) (any, error) {
	return map[string]any{"result": map[string]any{}}, nil
}

// apiAgentShutdown is POST …/agent/shutdown: no task tells of it.
func apiAgentShutdown(w *core.World, _ *core.Call, g *core.Guest) (any, error) {
	w.At(w.Now.Add(w.Cfg.TaskTimeOf("qmshutdown")), func() {
		if g.Run != nil && w.Guests[g.Vmid] == g {
			guests.PowerOff(w, g, nil)
		}
	})
	return map[string]any{"result": nil}, nil
}

func agentFilesystems(_ *core.World, g *core.Guest) any {
	list := []map[string]any{}
	for i, key := range g.Conf.DriveNames() {
		d := perl.ParseDrive(key, g.Conf[key])
		if size, _ := perl.ParseSize(d.Opts["size"]); !d.Cdrom() && size > 0 {
			disk := map[string]any{
				"dev": fmt.Sprintf("/dev/sd%c1", 'a'+i), "bus-type": perl.FamilyOf(key), "bus": 0, "target": 0, "unit": i,
				"pci-controller": map[string]any{"bus": 0, "domain": 0, "function": 0, "slot": 5},
			}
			list = append(list, map[string]any{
				"name": fmt.Sprintf("sd%c1", 'a'+i), "mountpoint": "/", "type": "ext4", "total-bytes": size, "used-bytes": size / 4, "disk": []any{disk},
			})
			break
		}
	}
	return list
}

func agentFreezing(_ *core.World, g *core.Guest) any {
	if system(g).Frozen {
		return "frozen"
	}
	return "thawed"
}

// agentFreeze and agentThaw answer with the number of file systems.
func agentFreeze(_ *core.World, g *core.Guest) any {
	system(g).Frozen = true
	return len(guests.Disks(g, g.Conf))
}

func agentThaw(_ *core.World, g *core.Guest) any {
	if !system(g).Frozen {
		return 0
	}
	g.In.Frozen = false
	return len(guests.Disks(g, g.Conf))
}

func agentTrim(*core.World, *core.Guest) any { return map[string]any{"paths": []any{}} }

// agentMethod is the table's name of an agent command.
func agentMethod(name string) string {
	verb := http.MethodGet
	switch name {
	case "ping", "fsfreeze-freeze", "fsfreeze-status", "fsfreeze-thaw", "fstrim", "shutdown", "suspend-disk", "suspend-hybrid", "suspend-ram":
		verb = http.MethodPost
	}
	return verb + " /nodes/{node}/qemu/{vmid}/agent/" + name
}
