package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
)

// A parent keeps the receipts of its children as they are, each chain in a folder of its own: below/CHILD, and in that below/NODE for
// one that the child keeps itself. What a chain has is signed by its own key.

// belowFolder has the chains of children.
const belowFolder = "below"

// childKeys has the public keys of a chain from below, in its folder chain.
const childKeys = "child.pub"

// mostKept bounds the receipts of one chain from below: a child must not fill the disk of its parent with receipts of removals.
const mostKept = 20_000

// The bounds of all chains that come through one child. It names them itself.
const (
	mostBelow      = 1 << 30 // bytes
	mostFilesBelow = 100_000
)

// Room returns an error if the chains that come through a child have as much as a parent keeps of one.
func (l *Ledger) Room(child string) error {
	dir := below(l.dir, []string{child})
	var size int64
	files := 0
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return ignoreAbsent(err)
		}
		info, err := e.Info()
		if err == nil {
			files++
			size += info.Size()
		}
		return ignoreAbsent(err)
	})
	if err == nil && (size > mostBelow || files > mostFilesBelow) {
		err = fmt.Errorf("there are %d files with %d MiB of it: look whether it forges them, and move %s elsewhere", files, size>>20, dir)
	}
	return err
}

// Head is the newest receipt of a chain that a parent has. The zero Head is none.
type Head struct {
	ID   string `json:"id"`
	Hash string `json:"sha256"`
}

// Head returns that of the ledger.
func (l *Ledger) Head() (Head, error) {
	r, text, err := l.newest()
	if err != nil || r.ID == "" {
		return Head{}, err
	}
	return Head{r.ID, digest(text)}, nil
}

// After returns the documents of the chain that follow a head, as Export writes them, the oldest first: of at most so many bytes, but at
// least one. It begins with that of the head itself if that was replaced since, and with the records of dropped ones if that was dropped.
func (l *Ledger) After(h Head, most int) (out []json.RawMessage, err error) {
	links, gaps, err := l.links(h.ID)
	if err != nil {
		return nil, err
	}
	if h.ID != "" && !slices.ContainsFunc(links, func(k link) bool { return k.id == h.ID }) || h.ID == "" && len(gaps) > 0 {
		for _, text := range gaps {
			links = append([]link{{text: text, id: h.ID + "~"}}, links...)
		}
	}
	for _, k := range links {
		if k.err != nil || k.id < h.ID || k.id == h.ID && digest(k.text) == h.Hash {
			continue
		}
		var b bytes.Buffer
		if json.Compact(&b, k.text) != nil {
			continue // Verify reports it here
		}
		if most -= b.Len(); most < 0 && len(out) > 0 {
			break
		}
		out = append(out, b.Bytes())
	}
	return out, nil
}

// Below opens the folder of a chain from below, by the names on the way down to it.
func (l *Ledger) Below(path ...string) (*Ledger, error) {
	if l.readOnly {
		return nil, errReadOnly
	}
	return l.o.Open(below(l.dir, path))
}

// below is the folder of a chain from below in that of a ledger.
func below(dir string, path []string) string {
	for _, name := range path {
		dir = filepath.Join(dir, belowFolder, name)
	}
	return dir
}

// Chains lists the chains from below that are kept here, by the names on the way down; that of the ledger itself is the first, without any.
func (l *Ledger) Chains() (out [][]string, err error) {
	out = [][]string{{}}
	for i := 0; i < len(out); i++ {
		entries, err := os.ReadDir(filepath.Join(below(l.dir, out[i]), belowFolder))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() {
				out = append(out, append(slices.Clone(out[i]), e.Name()))
			}
		}
	}
	return out, nil
}

// At reads a chain from below.
func (l *Ledger) At(path []string) *Ledger { return Read(below(l.dir, path)) }

// Keep stores documents of a chain from below, as After gives them, and the public keys of that chain. It reports whether there are keys
// that were not known: at first, or after the child lost its own. What is not signed by one of them is refused.
func (l *Ledger) Keep(keys []string, documents []json.RawMessage) (fresh bool, err error) {
	l.write.Lock()
	defer l.write.Unlock()
	err = durable.Exclusively(l.chain(), func() error {
		known, err := l.Keys()
		if err != nil {
			return err
		}
		for _, key := range keys {
			if _, err := ParseKey(key); err != nil {
				return err
			}
			if !slices.Contains(known, key) {
				known, fresh = append(known, key), true
			}
		}
		if len(known) > 100 {
			return errors.New("its receipts have more than 100 keys")
		}
		if fresh {
			if err := durable.ReplaceForOwner(filepath.Join(l.chain(), childKeys), []byte(strings.Join(known, "\n")+"\n")); err != nil {
				return err
			}
		}
		for _, doc := range documents {
			if err := l.keep(known, doc); err != nil {
				return err
			}
		}
		ids, err := l.ids()
		if err != nil {
			return err
		}
		return l.rotate(ids)
	})
	return fresh, err
}

// keep stores one document.
func (l *Ledger) keep(known []string, doc json.RawMessage) error {
	var b bytes.Buffer
	if err := json.Indent(&b, doc, "", "  "); err != nil {
		return err
	}
	b.WriteByte('\n')
	text := b.Bytes()
	var d dropped
	if err := json.Unmarshal(text, &d); err == nil && d.First != "" {
		if !slices.Contains(known, d.Key) || !sealed(text, d.Key) || d.After != "" && !isID(d.After) {
			return errors.New("the record of removed receipts has no good signature")
		}
		if before, err := gap(l.chain(), d.After); err == nil && before != nil && before.Last >= d.Last {
			return nil
		}
		return durable.ReplaceForOwner(droppedFile(l.chain(), d.After), text)
	}
	r, err := readReceipt(text)
	switch {
	case err != nil:
		return err
	case !isID(r.ID):
		return fmt.Errorf("%.80q is not the ID of a receipt", r.ID)
	case r.Signature == "": // of a version that did not sign; after a signed one there is none
		if h, _, err := l.newest(); err != nil || h.Signature != "" {
			return fmt.Errorf("receipt %s is not signed", r.ID)
		}
	case !slices.Contains(known, r.Key) || !sealed(text, r.Key):
		return fmt.Errorf("receipt %s has no good signature", r.ID)
	}
	if isKept(r.ID) && !r.removes() {
		return fmt.Errorf("receipt %s records no removal", r.ID)
	}
	ids, err := l.ids()
	if err != nil {
		return err
	}
	if len(ids) > 0 && r.ID < ids[len(ids)-1] {
		return nil // it is there, or was dropped
	}
	if len(ids) >= mostKept {
		return fmt.Errorf("there are %d of its receipts already", len(ids))
	}
	return durable.ReplaceForOwner(l.file(r.ID), text)
}

// newest reads the newest receipt; the zero Receipt if there is none.
func (l *Ledger) newest() (r Receipt, text []byte, err error) {
	ids, err := l.ids()
	if err != nil || len(ids) == 0 {
		return r, nil, err
	}
	return l.read(ids[len(ids)-1])
}

// isID reports whether a text is the ID of a receipt, and so can be a name of a file.
func isID(id string) bool {
	at, rest, _ := strings.Cut(id, "-")
	_, err := time.Parse(stamp, at)
	rest = strings.TrimSuffix(rest, removal)
	return err == nil && rest != "" && len(rest) <= 16 && !strings.ContainsFunc(rest, func(c rune) bool { return (c < '0' || c > '9') && (c < 'a' || c > 'z') })
}
