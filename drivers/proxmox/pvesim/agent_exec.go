package pvesim

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

func (g *guest) system() *inside {
	if g.in == nil {
		g.in = &inside{files: map[string]string{}, runs: map[int]execution{}, last: 140}
	}
	return g.in
}

// file is the content of a file in a guest: one that was written, or one that every
// system has.
func (w *world) readFile(g *guest, name string) (string, bool) {
	if content, ok := g.system().files[name]; ok {
		return content, true
	}
	switch name {
	case "/etc/hostname":
		return guestHostname(g) + "\n", true
	case "/etc/os-release":
		return w.cfg.System.Release, true
	}
	return "", false
}

// run runs a program in a guest: what the configuration of the host says, else one
// of a few that every system has. ok is false for one that is not there.
func (w *world) run(g *guest, command []string, input string) (e execution, ok bool) {
	if w.cfg.Exec != nil {
		if out, err, code, known := w.cfg.Exec(g.vmid, slices.Clone(command), input); known {
			return execution{out, err, code}, true
		}
	}
	name, args := command[0], command[1:]
	switch name[strings.LastIndexByte(name, '/')+1:] {
	case "true":
		return execution{}, true
	case "false":
		return execution{code: 1}, true
	case "echo":
		return execution{out: strings.Join(args, " ") + "\n"}, true
	case "hostname":
		return execution{out: guestHostname(g) + "\n"}, true
	case "cat":
		return w.cat(g, args, input), true
	case "sh", "bash":
		return g.shell(args), true
	default:
		return execution{}, false
	}
}

func (w *world) cat(g *guest, names []string, input string) execution {
	if len(names) == 0 {
		return execution{out: input}
	}
	e := execution{}
	for _, name := range names {
		content, ok := w.readFile(g, name)
		if !ok {
			e.err, e.code = e.err+"cat: "+name+": No such file or directory\n", 1
		}
		e.out += content
	}
	return e
}

// shell knows exit, and nothing else.
func (*guest) shell(args []string) execution {
	e := execution{}
	if len(args) == 2 && args[0] == "-c" {
		if code, ok := strings.CutPrefix(args[1], "exit "); ok {
			e.code = atoi(code)
		}
	}
	return e
}

// apiAgentExec is POST …/agent/exec. The agent's answer about a program that is
// not there has typographic quotes; pvedaemon cannot put them into its status line
// and drops the connection, so that pveproxy answers 596.
func apiAgentExec(w *world, c *call) (any, error) {
	g, err := c.agentThaws("exec")
	if err != nil {
		return nil, err
	}
	command := c.words("command")
	if len(command) == 0 {
		return nil, badParam("command", "property is missing and it is not optional")
	}
	e, ok := w.run(g, command, c.in["input-data"])
	if !ok {
		return nil, &apiError{status: 596, message: "Broken pipe", bare: true}
	}
	in := g.system()
	in.last += 4
	in.runs[in.last] = e
	return map[string]any{"pid": in.last}, nil
}

// apiAgentExecStatus is GET …/agent/exec-status.
func apiAgentExecStatus(_ *world, c *call) (any, error) {
	g, err := c.agentThaws("exec-status")
	if err != nil {
		return nil, err
	}
	e, ok := g.system().runs[c.num("pid", 0)]
	if !ok {
		return nil, fail("Agent error: Invalid parameter 'pid'")
	}
	delete(g.in.runs, c.num("pid", 0))
	result := map[string]any{"exited": 1, "exitcode": e.code}
	if e.out != "" {
		result["out-data"], result["out-truncated"] = letters(e.out), 0
	}
	if e.err != "" {
		result["err-data"], result["err-truncated"] = letters(e.err), 0
	}
	return result, nil
}

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

// letters makes each byte a letter of its own, as Perl does with bytes that nobody
// decoded when it writes them as JSON (qemu_exec_status in PVE/QemuServer/Agent.pm,
// file-read in PVE/API2/Qemu/Agent.pm).
func letters(bytes string) string {
	var b strings.Builder
	for i := range len(bytes) {
		b.WriteRune(rune(bytes[i]))
	}
	return b.String()
}

// apiAgentRead is GET …/agent/file-read.
func apiAgentRead(w *world, c *call) (any, error) {
	g, err := c.agentThaws("file-open")
	if err != nil {
		return nil, err
	}
	content, ok := w.readFile(g, c.in["file"])
	if !ok && directory(c.in["file"]) {
		return nil, fail("Agent error: failed to read file: Is a directory")
	}
	if !ok {
		return nil, fail("Agent error: failed to open file '%s' (mode: 'r'): No such file or directory", c.in["file"])
	}
	return map[string]any{"content": letters(content), "bytes-read": len(content)}, nil
}

// apiAgentWrite is POST …/agent/file-write. With encode=0 the content is base64.
func apiAgentWrite(_ *world, c *call) (any, error) {
	g, err := c.agentThaws("file-open")
	if err != nil {
		return nil, err
	}
	content, file := c.in["content"], c.in["file"]
	switch {
	case directory(file):
		return nil, fail("Agent error: failed to open file '%s' (mode: 'wb'): Is a directory", file)
	case !directory(topOf(file)):
		return nil, fail("Agent error: failed to open file '%s' (mode: 'wb'): No such file or directory", file)
	}
	if c.has("encode") && !c.flag("encode") {
		plain, err := base64.StdEncoding.DecodeString(content)
		if err != nil {
			return nil, fail("Agent error: Invalid base64 data in 'buf-b64'")
		}
		content = string(plain)
	}
	g.system().files[file] = content
	return nil, nil
}

// apiAgentPassword is POST …/agent/set-user-password.
func apiAgentPassword(_ *world, c *call) (any, error) {
	if _, err := c.agentThaws("set-user-password"); err != nil {
		return nil, err
	}
	return map[string]any{"result": map[string]any{}}, nil
}

// apiAgentShutdown is POST …/agent/shutdown: no task tells of it.
func apiAgentShutdown(w *world, c *call) (any, error) {
	g, err := c.agent()
	if err != nil {
		return nil, err
	}
	w.at(w.now.Add(w.taskTime("qmshutdown")), func() {
		if g.run != nil && w.guests[g.vmid] == g {
			w.powerOff(g, nil)
		}
	})
	return map[string]any{"result": nil}, nil
}

func agentFilesystems(_ *world, g *guest) any {
	list := []map[string]any{}
	for i, key := range driveNames(g.conf) {
		d := parseDrive(key, g.conf[key])
		if size, _ := parseSize(d.opts["size"]); !d.cdrom() && size > 0 {
			disk := map[string]any{
				"dev": fmt.Sprintf("/dev/sd%c1", 'a'+i), "bus-type": familyOf(key), "bus": 0, "target": 0, "unit": i,
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

func agentFreezing(_ *world, g *guest) any {
	if g.system().frozen {
		return "frozen"
	}
	return "thawed"
}

// agentFreeze and agentThaw answer with the number of file systems.
func agentFreeze(_ *world, g *guest) any {
	g.system().frozen = true
	return len(g.disks(g.conf))
}

func agentThaw(_ *world, g *guest) any {
	if !g.system().frozen {
		return 0
	}
	g.in.frozen = false
	return len(g.disks(g.conf))
}

func agentTrim(*world, *guest) any { return map[string]any{"paths": []any{}} }

// agentMethod is the table's name of an agent command.
func agentMethod(name string) string {
	verb := http.MethodGet
	switch name {
	case "ping", "fsfreeze-freeze", "fsfreeze-status", "fsfreeze-thaw", "fstrim", "shutdown", "suspend-disk", "suspend-hybrid", "suspend-ram":
		verb = http.MethodPost
	}
	return verb + " /nodes/{node}/qemu/{vmid}/agent/" + name
}
