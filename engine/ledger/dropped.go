package ledger

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/homestak/homestak-gitops/engine/durable"
)

// dropped records receipts that were removed over the limit, between two that are kept: one signed file in the folder chain,
// which is written before they are removed.
type dropped struct {
	Version   int    `json:"version"`  // 1
	Previous  string `json:"previous"` // that the first of them recorded
	After     string `json:"after"`    // ID of the kept one before them, "" for none
	First     string `json:"first_dropped"`
	Last      string `json:"last_dropped"`
	Hash      string `json:"sha256"` // of the last, which the receipt after it records
	Count     int    `json:"count"`
	Key       string `json:"key"`
	Signature string `json:"signature,omitempty"` // the last member
}

const (
	droppedSuffix  = ".dropped"
	droppedAtStart = "start" // instead of an ID
)

// removal ends the ID of a receipt that is never dropped.
const removal = "-removed"

// isKept reports whether a receipt is exempt from the limits: it records the removal of a guest.
func isKept(id string) bool { return strings.HasSuffix(id, removal) }

// removes reports whether a receipt records that a guest was removed.
func (r *Receipt) removes() bool {
	for i := range r.Steps {
		if s := &r.Steps[i]; s.VMID != 0 && s.Action == "delete" && (s.Status == "done" || s.Status == Unknown) {
			return true
		}
	}
	return false
}

func droppedFile(chain, after string) string {
	after = cmp.Or(after, droppedAtStart)
	return filepath.Join(chain, after+droppedSuffix)
}

// gap reads the record of those dropped after a receipt from the folder chain, nil if there is none.
func gap(chain, after string) (*dropped, error) {
	text, err := get(droppedFile(chain, after))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // there is none
	}
	d := &dropped{}
	if err == nil {
		err = json.Unmarshal(text, d)
	}
	return d, err
}

// drop removes receipts in a row, which follow the kept one after, and records it before.
func (l *Ledger) drop(after string, ids []string) error {
	d, err := gap(l.chain(), after)
	if err != nil {
		return fmt.Errorf("read which receipts were removed: %w", err)
	}
	fresh := ids
	if d != nil { // those that a crash left behind are in it
		for len(fresh) > 0 && fresh[0] <= d.Last {
			fresh = fresh[1:]
		}
	} else {
		d = &dropped{After: after, First: ids[0]}
	}
	for _, id := range fresh {
		r, text, err := l.read(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if d.Count == 0 {
			d.Previous = r.Previous // "" of one that cannot be read: the chain is broken there already
		}
		d.Last, d.Hash = id, digest(text)
		d.Count++
	}
	if len(fresh) > 0 && d.Count > 0 {
		d.Version, d.Key, d.Signature = receiptVersion, present(l.key), ""
		text, _, err := seal(l.key, d)
		if err == nil {
			err = durable.ReplaceForOwner(droppedFile(l.chain(), after), text)
		}
		if err != nil {
			return err
		}
	}
	var errs []error
	for _, id := range ids {
		errs = append(errs, ignoreAbsent(os.Remove(l.file(id))))
	}
	return errors.Join(errs...)
}
