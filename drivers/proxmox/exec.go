package proxmox

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/guest"
)

const (
	firstPoll = 50 * time.Millisecond // at a command that runs
	lastPoll  = 2 * time.Second
	// longestSilence is the time that the agent may leave requests unanswered while a command runs: PVE waits
	// 3 s for it (qga_check_running in PVE/QemuServer/Agent.pm), a guest that is busy takes
	// longer, and one whose file systems are frozen for a backup answers nothing at all.
	longestSilence = 2 * time.Minute
	// mostBody is the maximum size of a request: pveproxy reads 64 KiB of one before
	// libpve-http-server-perl 5.2.1, and 512 KiB since ($limit_max_post in
	// PVE/APIServer/AnyEvent.pm).
	mostBody = 60 << 10
	// mostInput is the maximum length of input-data, mostContent that of the content of a
	// file-write (PVE/API2/Qemu/Agent.pm), in characters.
	mostInput   = 64 << 10
	mostContent = 60 << 10
)

// Run implements guest.Machine. PVE starts the command and reports its end on request, once. Short input is sent
// with the command, longer input through files.
func (g *machine) Run(ctx context.Context, c guest.Command) (guest.Output, error) {
	if err := c.Check(); err != nil {
		return guest.Output{}, err
	}
	if ctx.Err() != nil {
		return guest.Output{}, fmt.Errorf("%s did not begin: %w", c.Args[0], context.Cause(ctx))
	}
	if err := g.reachable(ctx); err != nil {
		return guest.Output{}, err
	}
	if p := execParams(c); len(c.Stdin) <= mostInput && size(p) <= mostBody {
		return g.exec(ctx, c.Args[0], p)
	}
	return g.runWithFiles(ctx, c)
}

// runInside runs a shell script in a guest, as before_destroy does. Its error ends with what the script wrote.
func runInside(ctx context.Context, m guest.Machine, script string) error {
	out, err := m.Run(ctx, guest.Command{Args: []string{"/bin/sh", "-c", script}})
	switch text := strings.TrimSpace(out.Err + out.Out); {
	case err != nil:
		return err
	case out.Code != 0 || out.Signal != 0:
		return fmt.Errorf("exit code %d: %s", out.Code, diag.Line(text[max(0, len(text)-1000):]))
	}
	return nil
}

// execParams are those of agent/exec. PVE takes each letter for a byte, of the command
// (to_json without UTF-8 in PVE/QMPClient.pm) as of what it reads (encode_base64).
func execParams(c guest.Command) api.Params {
	words := make([]string, len(c.Args))
	for i, arg := range c.Args {
		words[i] = letters([]byte(arg))
	}
	p := api.Params{"command": words}
	if len(c.Stdin) > 0 {
		p["input-data"] = letters(c.Stdin)
	}
	return p
}

// size returns the length of the body of a request.
func size(p api.Params) int {
	body, err := json.Marshal(p)
	if err != nil {
		return mostBody + 1
	}
	return len(body)
}

// exec begins a command and waits for its end.
func (g *machine) exec(ctx context.Context, name string, p api.Params) (guest.Output, error) {
	var out guest.Output
	var begun struct{ PID json.RawMessage }
	if err := g.h.API.PostFor(ctx, g.at.Path("agent", "exec"), p, &begun); err != nil {
		refused, ok := asAPI(err)
		switch {
		case ok && refused.Status == 596:
			return out, fmt.Errorf("the host aborted when it started %s, as it does if the guest has no such program; if the guest has it, %w: %w", name, guest.ErrOutcomeLost, err)
		case api.ClassOf(err) == api.OutcomeUnknown:
			return out, lost(err)
		default:
			return out, g.explain(err)
		}
	}
	pid := strconv.Itoa(api.Number(begun.PID))
	silent := time.Duration(0)
	for every := firstPoll; ; every = min(2*every, lastPoll) {
		var doc struct {
			Exited, ExitCode, Signal json.RawMessage
			Out                      string          `json:"out-data"`
			Err                      string          `json:"err-data"`
			OutCut                   json.RawMessage `json:"out-truncated"`
			ErrCut                   json.RawMessage `json:"err-truncated"`
		}
		if err := g.h.API.Get(ctx, g.at.Path("agent", "exec-status")+"?pid="+pid, &doc); err != nil {
			refused, ok := asAPI(err)
			switch {
			case ok && forgotten(refused.Message):
				return out, lost(fmt.Errorf("the result of the command was delivered once, and that answer was lost: %w", err))
			case ok && busy(refused.Message) && silent < longestSilence:
				silent += every
			default:
				return out, lost(g.explain(err))
			}
		}
		if api.Text(doc.Exited) == "1" {
			out = guest.Output{
				Code: api.Number(doc.ExitCode), Signal: api.Number(doc.Signal), Out: bytesOf(doc.Out), Err: bytesOf(doc.Err),
				Cut: api.Text(doc.OutCut) == "1" || api.Text(doc.ErrCut) == "1",
			}
			return out.Limited(), nil
		}
		if err := api.Sleep(ctx, every); err != nil {
			return out, lost(fmt.Errorf("the command still runs: %w", err))
		}
	}
}

// cleanup limits the time for removing files that a command did not read.
const cleanup = 20 * time.Second

// runWithFiles runs a command that reads more than PVE takes with it. PVE writes whole files
// only, of at most mostContent characters, so that the input is written in parts. They lie
// in a folder that only root may enter, in memory as everything below /run is, and are
// removed before the command begins.
func (g *machine) runWithFiles(ctx context.Context, c guest.Command) (out guest.Output, err error) {
	dir := "/run/homestak-gitops-" + strings.ToLower(rand.Text())
	// The shell joins the parts and becomes the command. If it cannot, it exits with a code
	// that few programs use, and names the folder.
	joined := execParams(guest.Command{Args: append([]string{"/bin/sh", "-c", begin, "sh", dir}, c.Args...)})
	if size(joined) > mostBody {
		return guest.Output{}, &lastingError{fmt.Errorf("the arguments of %s exceed the limit of PVE (%d bytes): pass them on standard input", c.Args[0], mostBody)}
	}
	defer func() {
		if err == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		_, _ = g.exec(ctx, "/bin/rm", execParams(guest.Command{Args: []string{"/bin/rm", "-rf", "--", dir}}))
	}()
	parts := []string{}
	for rest := c.Stdin; len(rest) > 0; {
		n := min(len(rest), mostContent/4*3)
		parts, rest = append(parts, base64.StdEncoding.EncodeToString(rest[:n])), rest[n:]
	}
	if made, err := g.exec(ctx, "/bin/mkdir", execParams(guest.Command{Args: []string{"/bin/mkdir", "-m", "0700", "--", dir}})); err != nil || made.Code != 0 || made.Signal != 0 {
		return guest.Output{}, notWritten(c, made, err)
	}
	for i, part := range parts {
		p := api.Params{"file": fmt.Sprintf("%s/%06d", dir, i), "content": part, "encode": false}
		if _, err := g.h.API.Post(ctx, g.at.Path("agent", "file-write"), p); err != nil {
			return guest.Output{}, notWritten(c, guest.Output{}, g.explain(err))
		}
	}
	out, err = g.exec(ctx, c.Args[0], joined)
	if err == nil && out.Code == notBegun && strings.Contains(out.Err, dir) {
		return guest.Output{}, notWritten(c, out, nil)
	}
	return out, err
}

// notBegun is the exit code of begin if the command did not start.
const notBegun = 125

// begin is a shell script whose first argument is the folder, the others the command.
const begin = `d=$1
shift
cat -- "$d"/[0-9]* >"$d/all" && exec <"$d/all" && rm -rf -- "$d" || { echo "$d cannot be read" >&2; exit 125; }
exec "$@"
`

// notWritten is a command that did not begin since what it reads could not be written.
func notWritten(c guest.Command, out guest.Output, err error) error {
	if err == nil {
		err = fmt.Errorf("exit %d: %s", out.Code, guest.Excerpt(out.Err))
	}
	return fmt.Errorf("writing what %s reads (%d bytes) into the guest: %w", c.Args[0], len(c.Stdin), err)
}

// lost says of an error that the command may have run.
func lost(err error) error { return fmt.Errorf("%w: %w", guest.ErrOutcomeLost, err) }

// forgotten reports whether an agent does not know a process, as it does once it has reported
// its end; newer agents say so in other words (qga/commands.c of QEMU, qmp_guest_exec_status).
func forgotten(said string) bool {
	return strings.Contains(said, "'pid'") || strings.Contains(said, "PID") && strings.Contains(said, "does not exist")
}

// busy reports whether an agent may answer later.
func busy(said string) bool {
	return strings.Contains(said, "guest agent is not running") || strings.Contains(said, "is in frozen state")
}

// letters makes each byte a letter of its own, as PVE reads and writes what goes into a
// program and comes from it.
func letters(bytes []byte) string {
	var b strings.Builder
	for _, c := range bytes {
		b.WriteRune(rune(c))
	}
	return b.String()
}

// bytesOf returns what a program wrote. PVE takes each byte of it for a letter of its own
// (QemuServer/Agent.pm, qemu_exec_status, decodes no UTF-8), so that ä comes as two letters.
func bytesOf(s string) string {
	bytes := make([]byte, 0, len(s))
	for _, r := range s {
		if r > 0xff {
			return s
		}
		bytes = append(bytes, byte(r))
	}
	return string(bytes)
}
