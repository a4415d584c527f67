package real_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// story is one site in a folder, and the host that it is about.
type story struct {
	*lab
	t    *testing.T
	dir  string // of the site
	data string // of the program
}

// begin writes a site that declares the host, a disk image, and no guest yet.
func begin(t *testing.T, l *lab) *story {
	t.Helper()
	top := t.TempDir()
	s := &story{lab: l, t: t, dir: filepath.Join(top, "site"), data: filepath.Join(top, "data")}
	disk := bootDisk()
	s.write("files/boot.raw", string(disk))
	s.write("site.hcl", siteText(l))
	s.write("image.hcl", fmt.Sprintf("image \"boot\" {\n  file     = \"files/boot.raw\"\n  checksum = \"sha256:%x\"\n}\n", sha256.Sum256(disk)))
	s.write("secrets.yaml", fmt.Sprintf("auth:\n  ownership_key: %q\napi_tokens:\n  real: %q\n", strings.Repeat("0e", 32), l.token))
	require.NoError(t, os.Chmod(filepath.Join(s.dir, "secrets.yaml"), 0o600))
	return s
}

func siteText(l *lab) string {
	return fmt.Sprintf(`site %q {
  domain = "real.test"

  vmid_range "real" {
    from = %d
    to   = %d
  }
}

host "real" {
  api         = %q
  node        = %q
  fingerprint = %q
  bridge      = %q

  storage {
    disks   = %q
    images  = %q
    iso     = %q
    backups = %q
  }
}

template "container" {
  volume = %q
}
`, siteName, l.from, l.to, l.url, l.node, l.fingerprint, l.bridge, l.storage, l.files, l.files, l.files, l.template)
}

// write puts a file into the site.
func (s *story) write(name, text string) {
	s.t.Helper()
	file := filepath.Join(s.dir, filepath.FromSlash(name))
	require.NoError(s.t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(s.t, os.WriteFile(file, []byte(text), 0o600))
}

// vm is the text of a small VM, with further lines of its block.
func (s *story) vm(name string, lines ...string) string {
	options := `options = { scsihw = "virtio-scsi-single" }`
	if s.noKVM {
		options = `options = { scsihw = "virtio-scsi-single", kvm = "0" }`
	}
	for _, l := range lines {
		if strings.HasPrefix(l, "options") {
			options = ""
		}
	}
	return node(name, "vm", append([]string{"image = image.boot", "memory = 64", "disk = 1", "agent = false", options}, lines...))
}

// ct is the text of a small container, with further lines of its block. PVE leaves the files of a system that it does not
// know alone.
func ct(name string, lines ...string) string {
	options := `options = { ostype = "unmanaged" }`
	for _, l := range lines {
		if strings.HasPrefix(l, "options") {
			options = ""
		}
	}
	return node(name, "ct", append([]string{"template = template.container", "memory = 64", "swap = 0", "disk = 1", options}, lines...))
}

// node writes a block of a node. A line of the same attribute as an earlier one takes its
// place.
func node(name, kind string, lines []string) string {
	var kept []string
	for _, line := range append([]string{fmt.Sprintf("type = %q", kind), "cores = 1"}, lines...) {
		attribute, _, isAttribute := strings.Cut(line, " = ")
		for i, earlier := range kept {
			if isAttribute && !strings.Contains(attribute, "{") && strings.HasPrefix(earlier, attribute+" = ") {
				kept[i] = ""
			}
		}
		kept = append(kept, line)
	}
	return fmt.Sprintf("  node %q {\n    %s\n  }\n", prefix+name, strings.ReplaceAll(strings.Join(kept, "\n"), "\n", "\n    "))
}

// deploy declares these nodes and no others.
func (s *story) deploy(nodes ...string) {
	s.t.Helper()
	s.write("nodes.hcl", "manifest \"real\" {\n  pattern = \"flat\"\n  host    = host.real\n\n"+strings.Join(nodes, "\n")+"}\n")
	s.says(0, "fmt", ".")
}

// ran is a run of the program.
type ran struct {
	code     int
	out, err string
}

func (s *story) command(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, s.program, args...)
	command.Dir = s.dir
	command.Env = append(os.Environ(), "HOMESTAK_DATA_DIR="+s.data, "NO_COLOR=1")
	return command
}

// run runs a verb in the folder of the site.
func (s *story) run(args ...string) ran {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), s.patience)
	defer cancel()
	var out, text bytes.Buffer
	command := s.command(ctx, args...)
	command.Stdout, command.Stderr = &out, &text
	err := command.Run()
	require.NoError(s.t, ctx.Err(), "homestak-gitops %v took more than %s\n%s\n%s", args, s.patience, &out, &text)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(s.t, err)
	}
	return ran{command.ProcessState.ExitCode(), out.String(), text.String()}
}

// says runs a verb, and requires its exit code.
func (s *story) says(code int, args ...string) ran {
	s.t.Helper()
	r := s.run(args...)
	require.Equal(s.t, code, r.code, "homestak-gitops %v\n%s\n%s", args, r.out, r.err)
	require.NotContains(s.t, r.out+r.err, "goroutine ", "it panicked")
	require.NotContains(s.t, r.out+r.err, s.secret(), "it printed the secret of the token")
	return r
}

func (s *story) secret() string {
	_, secret, _ := strings.Cut(s.token, "=")
	return secret
}

// planned is what the stories read of a plan.
type planned struct {
	Steps []struct {
		Address, Node, Action, Class, Reason string
		Changes                              []struct{ Path string }
	}
	Pending []struct{ Address, Path string }
	Unknown []struct{ Scope, Why string }
}

// plan requires the exit code of a plan, 0 for nothing to do and 2 for something, and
// reads it.
func (s *story) plan(code int) planned {
	s.t.Helper()
	r := s.says(code, "plan", "--json", "--detailed-exitcode")
	var p planned
	require.NoError(s.t, json.Unmarshal([]byte(r.out), &p), r.out)
	require.Empty(s.t, p.Unknown, "the host is seen in part")
	return p
}

// apply applies the site, and requires that there is nothing to do afterwards.
func (s *story) apply(flags ...string) {
	s.t.Helper()
	s.says(0, append([]string{"apply", "--yes"}, flags...)...)
	s.plan(0)
}

// close removes the guests and the images by the program itself.
func (s *story) close() {
	s.t.Helper()
	s.says(0, "destroy", "-M", "real", "--yes")
	require.Empty(s.t, s.guests(s.t.Context(), s.t), "destroy left guests")
	require.NoError(s.t, os.Remove(filepath.Join(s.dir, "nodes.hcl")))
	require.NoError(s.t, os.Remove(filepath.Join(s.dir, "image.hcl")))
	s.apply("--allow-deletes", "20")
}

// names lists the guests in the range, without the prefix of their names.
func (s *story) names() []string {
	s.t.Helper()
	var out []string
	for _, g := range s.guests(s.t.Context(), s.t) {
		out = append(out, strings.TrimPrefix(g.Name, prefix))
	}
	return out
}

// guest finds a guest by name.
func (s *story) guest(name string) guest {
	s.t.Helper()
	var found []guest
	for _, g := range s.guests(s.t.Context(), s.t) {
		if g.Name == prefix+name {
			found = append(found, g)
		}
	}
	require.Len(s.t, found, 1, "guests with the name %s%s", prefix, name)
	return found[0]
}

// config is the configuration of a guest as it is in force.
func (s *story) config(name string) map[string]string {
	s.t.Helper()
	var raw map[string]json.RawMessage
	require.NoError(s.t, s.call(s.t.Context(), http.MethodGet, s.guest(name).path(s.lab)+"/config", url.Values{"current": {"1"}}, &raw))
	out := map[string]string{}
	for key, value := range raw {
		out[key] = strings.Trim(string(value), `"`)
	}
	return out
}

// pid is the process of a running guest: another one shows that it was restarted.
func (s *story) pid(name string) int {
	s.t.Helper()
	var now struct {
		Status string
		PID    int
	}
	require.NoError(s.t, s.call(s.t.Context(), http.MethodGet, s.guest(name).path(s.lab)+"/status/current", nil, &now))
	require.Equal(s.t, "running", now.Status, name)
	require.NotZero(s.t, now.PID, name)
	return now.PID
}

// set changes the configuration of a guest as somebody does by hand.
func (s *story) set(name string, form url.Values) {
	s.t.Helper()
	require.NoError(s.t, s.call(s.t.Context(), http.MethodPut, s.guest(name).path(s.lab)+"/config", form, nil))
}

// byHand runs a task on a guest, such as POST /status/stop.
func (s *story) byHand(method, name, path string, form url.Values) {
	s.t.Helper()
	require.NoError(s.t, s.task(s.t.Context(), s.node, method, s.guest(name).path(s.lab)+path, form))
}
