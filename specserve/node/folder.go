// Package node is a node that applies its own spec: it fetches the spec from its parent, applies it to the local
// machine, and records the result. While the parent is unreachable, it applies the last spec it fetched.
//
// Read in this order: node.go (one run), fetch.go (from the parent), folder.go (stored files), report.go (to the
// parent).
package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// DefaultFolder is the folder of a node for what it pulls.
const DefaultFolder = "/var/lib/homestak-gitops"

// The files of a folder.
const (
	specFile     = "spec.json"
	previousFile = "spec.prev.json"
	completeFile = "config-complete.json"
	failedFile   = "config-failed.json"
	fetchedFile  = "fetched.json"
	tasksFile    = "tasks.json"
)

// FolderFiles are their names.
func FolderFiles() []string {
	return []string{specFile, previousFile, completeFile, failedFile, fetchedFile, tasksFile}
}

// Folder holds the spec of a node and how it was applied. Every file is replaced as a whole, and only
// root reads it: a spec may hold secrets. Two processes must not write to one folder at once.
type Folder struct{ Path string }

// Complete is config-complete.json: the spec that spec.json holds is applied. It is written last, and
// removed when another spec arrives.
type Complete struct {
	Version int       `json:"version"`
	Node    string    `json:"node"`
	Spec    string    `json:"spec"`    // name of the spec in the site
	At      time.Time `json:"at"`      // when it was applied; a later apply that changes nothing leaves it
	Changed int       `json:"changed"` // settings that differed
}

// Failed is config-failed.json: why the last run failed. It is removed by one that succeeds.
type Failed struct {
	Version  int       `json:"version"`
	Code     string    `json:"code"` // see wire.Code
	Message  string    `json:"message"`
	Attempts int       `json:"attempts"` // since the last success
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
}

// Store stores a document as the spec of the node. It reports whether it differs from the one before; then the old
// one becomes spec.prev.json, and the new one is not complete. An invalid document is refused, and nothing is
// written.
func (f Folder) Store(document []byte) (changed bool, err error) {
	if _, err := spec.Read(document); err != nil {
		return false, err
	}
	old, err := os.ReadFile(f.file(specFile))
	if err == nil && bytes.Equal(old, document) {
		return false, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("reading the spec before: %w", err)
	}
	if err == nil {
		if err := f.write(previousFile, old); err != nil {
			return false, err
		}
	}
	if err := f.remove(completeFile); err != nil {
		return false, err
	}
	return true, f.write(specFile, document)
}

// Spec reads the spec that was stored last. The error is fs.ErrNotExist if none was.
func (f Folder) Spec() (*spec.Spec, error) {
	document, err := os.ReadFile(f.file(specFile))
	if err != nil {
		return nil, fmt.Errorf("reading the spec of this node: %w", err)
	}
	s, err := spec.Read(document)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.file(specFile), err)
	}
	return s, nil
}

// Wanted is the spec to apply: the one in a file, or the one that was stored last for "". With keep
// the one of the file is stored.
func (f Folder) Wanted(file string, keep bool) (*spec.Spec, error) {
	if file == "" {
		want, err := f.Spec()
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("no spec was fetched yet: there is none in %s\nfetch one (config fetch), or name a file with --spec", f.Path)
		}
		return want, err
	}
	document, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the spec: %w", err)
	}
	want, err := spec.Read(document)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if keep {
		_, err = f.Store(document)
	}
	return want, err
}

// Complete reads how the spec was applied; nil if it is not, or not as a whole.
func (f Folder) Complete() (*Complete, error) { return readJSON[Complete](f.file(completeFile)) }

// Failed reads why the last run failed; nil if it did not.
func (f Folder) Failed() (*Failed, error) { return readJSON[Failed](f.file(failedFile)) }

// Applied records that the stored spec is applied. If that is already recorded and nothing was changed, it writes
// nothing.
func (f Folder) Applied(of *spec.Spec, changed int, now time.Time) error {
	if before, err := f.Complete(); err == nil && before != nil && changed == 0 {
		return nil
	}
	return f.writeJSON(completeFile, Complete{Version: 1, Node: of.Node, Spec: of.Name, At: now.UTC(), Changed: changed})
}

// Recovered records that a run as a whole succeeded.
func (f Folder) Recovered() error { return f.remove(failedFile) }

// Fail records a run that failed, with how many failed before it.
func (f Folder) Fail(why error, now time.Time) error {
	doc := Failed{Version: 1, Code: string(wire.CodeOf(why)), Message: why.Error(), Attempts: 1, First: now.UTC(), Last: now.UTC()}
	if before, err := f.Failed(); err == nil && before != nil { // one that cannot be read is replaced
		doc.Attempts, doc.First = before.Attempts+1, before.First
	}
	return f.writeJSON(failedFile, doc)
}

func (f Folder) file(name string) string { return filepath.Join(f.Path, name) }

func (f Folder) writeJSON(name string, doc any) error {
	b, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	return f.write(name, append(b, '\n'))
}

func (f Folder) write(name string, content []byte) error {
	err := os.MkdirAll(f.Path, 0o755) //nolint:gosec // its files are 0600
	if err == nil {
		err = durable.Replace(f.file(name), content)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", f.file(name), err)
	}
	return nil
}

func (f Folder) remove(name string) error {
	if err := os.Remove(f.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func readJSON[T any](name string) (*T, error) {
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no file is an answer
	}
	if err != nil {
		return nil, err
	}
	doc := new(T)
	if err := json.Unmarshal(b, doc); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return doc, nil
}
