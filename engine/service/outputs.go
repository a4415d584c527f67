package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

const (
	outputsDir  = "outputs"      // of the data folder: the outputs with a relative path
	outputsFile = "outputs.json" // of the data folder: the files that this agent wrote
)

// outputs writes the outputs of a site. The goroutine of the agent owns it.
type outputs struct {
	dir      string // the data folder
	identity string
	folders  []string           // where absolute paths may be
	tree     func() wire.Report // what is below the agent
	push     func(ctx context.Context, o *model.Output, text string) error
}

// written is outputs.json: the files that the agent wrote, by their paths, with the hash of their text. A file has its
// entry before it is created, so that a crash leaves none that is not known.
type written map[string]string

func (w *outputs) read() (written, error) {
	b, err := os.ReadFile(filepath.Join(w.dir, outputsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return written{}, nil
	}
	known := written{}
	if err == nil {
		err = json.Unmarshal(b, &known)
	}
	return known, err
}

func (w *outputs) keep(known written) error {
	b, err := json.MarshalIndent(known, "", "  ")
	if err != nil {
		return err
	}
	return durable.Replace(filepath.Join(w.dir, outputsFile), append(b, '\n'))
}

// file is the absolute path of an output, and the folder that it must stay in.
func (w *outputs) file(o *model.Output) (folder, name string, err error) {
	if !filepath.IsAbs(o.To) {
		return filepath.Join(w.dir, outputsDir), filepath.FromSlash(o.To), nil
	}
	for _, folder := range w.folders {
		if name, err := filepath.Rel(folder, o.To); err == nil && filepath.IsLocal(name) && name != "." {
			return folder, name, nil
		}
	}
	return "", "", fmt.Errorf("%s is in no folder that output_folders of agent.hcl permits", o.To)
}

// writeAll writes the outputs that this agent writes, and removes the files of those that left the site.
func (w *outputs) writeAll(ctx context.Context, identity string, d engine.Desired, seen map[string]model.NodeFacts, before []agent.OutputStatus) []agent.OutputStatus {
	var out []agent.OutputStatus
	texts, failed := d.Outputs(ctx, seen)
	known, err := w.read()
	failed = errors.Join(failed, err)
	wanted := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(d.Site.Outputs)) {
		o := d.Site.Outputs[name]
		if !o.WrittenBy(d.Site, identity) {
			continue
		}
		st := agent.OutputStatus{Name: name, To: o.To, Text: texts[name].Text}
		was := slices.IndexFunc(before, func(b agent.OutputStatus) bool { return b.Name == name && b.To == o.To && b.Error == "" })
		if was >= 0 {
			st.Changed = before[was].Changed
		}
		changed, err := false, failed
		switch {
		case err != nil:
		case texts[name].Error != "":
			err = errors.New(texts[name].Error)
		case o.Repository != nil:
			changed, err = w.commit(ctx, o, st.Text, known)
		default:
			if changed, err = w.writeFile(o, st.Text, known); err != nil {
				err = w.advise(o, err)
			}
		}
		if o.Repository != nil {
			wanted[place(o)] = true
		} else if folder, file, errFile := w.file(o); errFile == nil {
			wanted[filepath.Join(folder, file)] = true
		}
		if err != nil {
			st.Error = err.Error()
		} else if changed {
			now := time.Now().UTC()
			st.Changed = &now
		}
		out = append(out, st)
	}
	if failed == nil {
		w.remove(known, wanted)
	}
	return out
}

// writeFile replaces the file of an output, if its text is another one. It reports whether it did.
func (w *outputs) writeFile(o *model.Output, text string, known written) (bool, error) {
	folder, name, err := w.file(o)
	if err != nil {
		return false, err
	}
	if !filepath.IsAbs(o.To) {
		if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // others read outputs
			return false, err
		}
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return false, err
	}
	defer func() { _ = root.Close() }()
	full := filepath.Join(folder, name)
	is, err := root.ReadFile(name)
	sum := sumOf(text)
	_, ours := known[full]
	switch {
	case err == nil && string(is) == text && known[full] == sum:
		return false, nil
	case err == nil && !ours && string(is) != text:
		return false, fmt.Errorf("%s exists, and this agent did not write it: remove it, or write the output elsewhere", full)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	known[full] = sum
	if err := w.keep(known); err != nil {
		return false, err
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return false, err
	}
	return true, durable.ReplaceIn(root, name, []byte(text), 0o644)
}

// advise adds to an error how the agent of the unit is permitted to write to a folder of the machine.
func (w *outputs) advise(o *model.Output, err error) error {
	folder, _, no := w.file(o)
	denied := errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EROFS)
	if no != nil || !denied || !filepath.IsAbs(o.To) {
		return err
	}
	return fmt.Errorf("%w: run install -d -o homestak-gitops %s, and set ReadWritePaths=%s with systemctl edit homestak-gitops", err, folder, folder)
}

// place is the entry of an output that is committed to a repository.
func place(o *model.Output) string {
	return fmt.Sprintf("repository %s %s %s", o.Repository.URL, o.Repository.Branch, o.To)
}

// commit commits the text of an output, if it is another one than the last. It reports whether it did.
func (w *outputs) commit(ctx context.Context, o *model.Output, text string, known written) (bool, error) {
	sum := sumOf(text)
	if known[place(o)] == sum {
		return false, nil
	}
	if err := w.push(ctx, o, text); err != nil {
		return false, err
	}
	known[place(o)] = sum
	return true, w.keep(known)
}

// pushTime limits one push.
const pushTime = time.Minute

// pushOutput commits an output to its repository, with the credentials of the site.
func pushOutput(ctx context.Context, o *model.Output, text string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, pushTime)
	defer cancel()
	dir, err := os.MkdirTemp("", "homestak-output-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	auth, r := source.Auth{}, o.Repository
	if err := (source.Secrets{Key: r.Key, HostKey: r.HostKey, Token: r.Token}).Write(dir, &auth); err != nil {
		return err
	}
	return source.File{
		Branch: r.Branch, Path: o.To, Text: text, Message: "outputs: update " + o.Name + "\n", Name: "homestak-gitops", Email: "agent@localhost", At: time.Now(),
	}.Push(ctx, r.URL, auth)
}

// remove removes the files of outputs that left the site. One that was changed since stays.
func (w *outputs) remove(known written, wanted map[string]bool) {
	changed := false
	for name, sum := range maps.Clone(known) {
		if wanted[name] {
			continue
		}
		if text, err := os.ReadFile(name); err == nil && sumOf(string(text)) == sum {
			if os.Remove(name) != nil {
				continue // the next pass tries again
			}
		}
		delete(known, name)
		changed = true
	}
	if changed {
		_ = w.keep(known) // the next pass tries again
	}
}

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// write writes the outputs of the site for the agent; see agent.Options. What is below other agents is known by their
// reports.
func (w *outputs) write(ctx context.Context, d engine.Desired, nodes []engine.NodeStatus, before []agent.OutputStatus) []agent.OutputStatus {
	if len(d.Site.Outputs) == 0 {
		return w.writeAll(ctx, w.identity, d, nil, before) // those that left the site are removed
	}
	seen := map[string]model.NodeFacts{}
	for _, n := range w.tree().Nodes {
		seen[n.Name] = model.NodeFacts{VMID: n.VMID, Address: n.IP, Phase: n.Life}
	}
	for _, n := range nodes {
		seen[n.Node] = model.NodeFacts{VMID: n.VMID, Address: n.IP, PVENode: n.PVENode, Phase: string(n.Life)}
	}
	return w.writeAll(ctx, w.identity, d, seen, before)
}

// WrittenOutput reads an output as the agent of a data folder wrote it last; false if there is none that can be read.
func WrittenOutput(dataDir string, o *model.Output) (string, bool) {
	name := o.To
	if o.Repository != nil || dataDir == "" {
		return "", false
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(dataDir, outputsDir, filepath.FromSlash(name))
	}
	known, err := (&outputs{dir: dataDir}).read()
	if _, ours := known[name]; err != nil || !ours || strings.Contains(name, "\x00") {
		return "", false
	}
	text, err := os.ReadFile(name)
	return string(text), err == nil
}
