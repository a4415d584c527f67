package setup_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/cmd/homestak-gitops/setup"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/sim"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// world is a node: a simulated host, a folder for its files, and its programs.
type world struct {
	t    testing.TB
	host *pve.Host
	root string
	ran  []string // commands that change something
	said []string
	with setup.Setup
	file string // of the program, below root

	hostKeys string // of the git server
}

func begin(t testing.TB, cfg pve.Config) *world {
	t.Helper()
	if cfg.Storages == nil {
		cfg.Storages = pve.DefaultStorages()
		cfg.Storages[0].Content = []string{"iso", "vztmpl", "backup"} // as PVE installs it
	}
	w := &world{t: t, host: pve.New(cfg), root: sourcetest.TempDir(t), file: "root/homestak-gitops"}
	for _, dir := range []string{"etc/systemd/system/multi-user.target.wants", "usr/local/bin", "srv", "var/lib", "root"} {
		require.NoError(t, os.MkdirAll(filepath.Join(w.root, dir), 0o755))
	}
	w.put("root/homestak-gitops", "the program")
	w.put("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n")
	w.with = setup.Setup{Files: scaffold(t)}
	return w
}

// scaffold are the files that init writes.
func scaffold(t testing.TB) map[string][]byte {
	t.Helper()
	files, dir := map[string][]byte{}, os.DirFS("../site")
	require.NoError(t, fs.WalkDir(dir, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files[strings.Replace(name, "dot.", ".", 1)], err = fs.ReadFile(dir, name)
		}
		return err
	}))
	return files
}

func (w *world) put(name, text string) {
	w.t.Helper()
	require.NoError(w.t, os.WriteFile(filepath.Join(w.root, name), []byte(text), 0o600))
}

func (w *world) text(name string) string {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.root, name))
	require.NoError(w.t, err)
	return string(data)
}

// setup is a new start of the program.
func (w *world) setup() *setup.Setup {
	s := w.with
	s.Run, s.Root, s.Program = w, w.root, filepath.Join(w.root, w.file)
	s.Say = func(format string, args ...any) { w.said = append(w.said, fmt.Sprintf(format, args...)) }
	return &s
}

// do carries out what is missing, and returns how many steps that were.
func (w *world) do() int {
	w.t.Helper()
	s := w.setup()
	p, err := s.Read(w.t.Context())
	require.NoError(w.t, err)
	require.NoError(w.t, s.Do(w.t.Context(), p))
	return p.Steps()
}

func (w *world) undo() {
	w.t.Helper()
	require.NoError(w.t, w.setup().Undo(w.t.Context()))
}

// makeToken is what the owner does by hand.
func (w *world) makeToken() {
	w.t.Helper()
	for _, line := range []string{"pveum user add homestak@pve", "pveum user token add homestak@pve gitops --privsep 0 --output-format json"} {
		_, err := w.Run(w.t.Context(), strings.Fields(line))
		require.NoError(w.t, err)
	}
}

// refused is why nothing can be planned.
func (w *world) refused() string {
	w.t.Helper()
	_, err := w.setup().Read(w.t.Context())
	require.Error(w.t, err)
	return err.Error()
}

// Run runs the programs of the host, for setup.Setup.
func (w *world) Run(ctx context.Context, argv []string) (string, error) {
	wants := filepath.Join(w.root, "etc/systemd/system/multi-user.target.wants/homestak-gitops.service")
	data := filepath.Join(w.root, "var/lib/homestak-gitops")
	if !slices.Contains([]string{"pvesh", "getent"}, argv[0]) {
		w.ran = append(w.ran, strings.Join(argv, " "))
	}
	lines := func(keep func(string) bool) (out string) {
		for line := range strings.Lines(w.text("etc/passwd")) {
			if keep(line) {
				out += line
			}
		}
		return out
	}
	agents := func(line string) bool { return strings.HasPrefix(line, "homestak-gitops:") }
	switch argv[0] {
	case "pvesh", "pveum", "pvesm":
		return sim.Command(w.host, w.host.Token(), argv)
	case "getent":
		if out := lines(agents); out != "" {
			return out, nil
		}
		return "", errors.New("exit status 2")
	case "systemd-sysusers":
		if _, err := os.Stat(argv[1]); err != nil {
			return "", err
		}
		w.put("etc/passwd", lines(func(line string) bool { return !agents(line) })+"homestak-gitops:x:999:999::/var/lib/homestak-gitops:/usr/sbin/nologin\n")
	case "usermod", "chown", "true":
		return "", nil
	case "ssh-keyscan":
		return w.hostKeys, nil
	case "userdel":
		w.put("etc/passwd", lines(func(line string) bool { return !agents(line) }))
	case "systemctl":
		switch argv[1] {
		case "enable":
			_ = os.Remove(wants)
			return "", errors.Join(os.Symlink("/usr/local/lib/systemd/system/homestak-gitops.service", wants), os.MkdirAll(data, 0o700))
		case "disable":
			_ = os.Remove(wants)
		case "clean":
			return "", os.RemoveAll(data)
		}
	case "ssh-keygen":
		if w.hostKeys != "" { // a key that logs in
			return setup.Programs{}.Run(ctx, argv)
		}
		file := argv[len(argv)-1]
		return "", errors.Join(os.WriteFile(file, []byte("-----BEGIN KEY-----\nabc\n-----END KEY-----\n"), 0o600), os.WriteFile(file+".pub", []byte("ssh-ed25519 AAAA homestak-gitops\n"), 0o600))
	case "openssl":
		return strings.Repeat("5a", 32) + "\n", nil
	case "install", "rm", "cat", "awk", "chmod":
		return setup.Programs{}.Run(ctx, argv)
	default:
		return "", fmt.Errorf("%s: not found", argv[0])
	}
	return "", nil
}

// state is everything on the node that setup could change: accounts of PVE, storages, guests, and all files.
func (w *world) state() string { return w.dump(func(string) bool { return true }) }

// shape is the same without what is random or depends on the way: keys, tokens, ids of commits, the record.
func (w *world) shape() string {
	return strings.ReplaceAll(w.dump(func(name string) bool {
		return !strings.Contains(name, "homestak-gitops.git/") && !slices.Contains([]string{"secrets.yaml", "setup.json"}, filepath.Base(name))
	}), w.root, "")
}

// dump has the content of those files that whole says.
func (w *world) dump(whole func(name string) bool) string {
	w.t.Helper()
	var b bytes.Buffer
	for _, path := range []string{"/access/users?full=1", "/access/roles", "/access/acl", "/access/groups", "/pools", "/nodes/" + w.host.Node() + "/storage"} {
		fmt.Fprintf(&b, "%s %s\n", path, w.get(path))
	}
	s := w.host.Snapshot()
	text, err := json.Marshal([]any{s.Guests, s.Volumes, s.Pools, s.Tasks})
	require.NoError(w.t, err)
	b.Write(text)
	require.NoError(w.t, filepath.WalkDir(w.root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if strings.Contains(name, "/objects/") && !whole(name) {
			return nil
		}
		info, err := d.Info()
		fmt.Fprintf(&b, "\n%s %s ", strings.TrimPrefix(name, w.root), info.Mode())
		if err == nil && info.Mode().IsRegular() && whole(name) {
			var data []byte
			data, err = os.ReadFile(name)
			b.Write(data)
		}
		return err
	}))
	return b.String()
}

// get reads the API as root.
func (w *world) get(path string) string {
	w.t.Helper()
	u, err := url.Parse(path)
	require.NoError(w.t, err)
	argv := []string{"pvesh", "get", u.Path, "--output-format", "json"}
	for name := range u.Query() {
		argv = append(argv, "--"+name, u.Query().Get(name))
	}
	out, err := sim.Command(w.host, w.host.Token(), argv)
	require.NoError(w.t, err)
	var list []map[string]any
	if json.Unmarshal([]byte(out), &list) != nil {
		return out
	}
	var items []string // what PVE lists has no order
	for _, item := range list {
		for _, name := range []string{"privs", "content"} {
			if text, ok := item[name].(string); ok {
				words := strings.Split(text, ",")
				slices.Sort(words)
				item[name] = words
			}
		}
		text, err := json.Marshal(item)
		require.NoError(w.t, err)
		items = append(items, string(text))
	}
	slices.Sort(items)
	return strings.Join(items, "\n")
}
