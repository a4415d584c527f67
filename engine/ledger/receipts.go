package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/durable"
)

const (
	receiptVersion = 1
	suffix         = ".json"
	// stamp is the time in a name: fixed in length, so that names sort by it.
	stamp = "20060102T150405.000Z"
)

// Write stores a receipt, and sets its Version, Previous and ID. The file is complete, or not
// there. A pass that failed in the same way as the one before replaces the receipt of that one, and sets Passes and First:
// a failure that is retried at every check must not displace everything else that is kept. It removes the oldest receipts over the limit; if only that fails, the receipt is stored
// and the error is returned.
func (l *Ledger) Write(r Receipt) (Receipt, error) {
	if l.readOnly {
		return r, errReadOnly
	}
	l.write.Lock()
	defer l.write.Unlock()
	ids, err := l.ids()
	if err != nil {
		return r, fmt.Errorf("write receipt: %w", err)
	}
	newest := ""
	r.Previous = ""
	if len(ids) > 0 {
		newest = ids[len(ids)-1]
		if b, err := get(l.file(newest)); err == nil { // else the chain breaks here, which Verify reports
			r.Previous = digest(b)
		}
	}
	r.Version, r.ID = receiptVersion, name(r, newest)
	if before, _, err := l.read(newest); err == nil && r.repeats(&before) {
		r.ID, r.Previous, r.Passes, r.First = before.ID, before.Previous, max(before.Passes, 1)+1, before.First
		if r.First == nil {
			r.First = &before.Began
		}
		ids = ids[:len(ids)-1]
	}
	b, err := json.MarshalIndent(r.listed(), "", "  ")
	if err != nil {
		return r, fmt.Errorf("write receipt: %w", err)
	}
	if err := durable.Replace(l.file(r.ID), append(b, '\n')); err != nil {
		return r, fmt.Errorf("write receipt: %w", err)
	}
	l.usual.learn(l, append(ids, r.ID))
	if err := l.rotate(append(ids, r.ID)); err != nil {
		return r, fmt.Errorf("remove old receipts: %w", err)
	}
	return r, nil
}

// listed has empty lists where there are none: the file has no null for a list.
func (r Receipt) listed() Receipt {
	r.Findings = append(diag.List{}, r.Findings...)
	r.Steps = append([]Step{}, r.Steps...)
	for i := range r.Steps {
		r.Steps[i].Changes = append([]Change{}, r.Steps[i].Changes...)
		r.Steps[i].Tasks = append([]string{}, r.Steps[i].Tasks...)
	}
	return r
}

// name returns the file name of a receipt: its start time and its plan. It sorts after the newest
// receipt, even if the clock was set back.
func name(r Receipt, newest string) string {
	at := r.Began.UTC()
	if at.IsZero() {
		at = time.Now().UTC()
	}
	before, _, _ := strings.Cut(newest, "-")
	if at.Format(stamp) <= before {
		if last, err := time.Parse(stamp, before); err == nil {
			at = last.Add(time.Millisecond)
		}
	}
	plan := strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' {
			return c
		}
		return -1
	}, r.Plan)
	if plan == "" {
		plan = "noplan"
	}
	return at.Format(stamp) + "-" + plan[:min(len(plan), 16)]
}

// Last returns the newest n receipts that match, newest first; all for n 0, any for match nil. The
// error names files that cannot be read; the others are still returned.
func (l *Ledger) Last(n int, match func(*Receipt) bool) ([]Receipt, error) {
	ids, err := l.ids()
	if err != nil {
		return nil, fmt.Errorf("read receipts: %w", err)
	}
	var out []Receipt
	var errs []error
	for i := len(ids) - 1; i >= 0 && (n <= 0 || len(out) < n); i-- {
		r, _, err := l.read(ids[i])
		switch {
		case errors.Is(err, fs.ErrNotExist): // taken away meanwhile, since it is old
		case err != nil:
			errs = append(errs, err)
		case match == nil || match(&r):
			out = append(out, r)
		}
	}
	return out, errors.Join(errs...)
}

// Verify reads the chain of receipts, and returns how many are intact and a text for each of the
// others: "ID: why". The next receipt has the hash of each one; so a change of the newest cannot be
// detected, nor that the oldest ones are missing.
func (l *Ledger) Verify() (intact int, broken []string, err error) {
	ids, err := l.ids()
	if err != nil {
		return 0, nil, fmt.Errorf("read receipts: %w", err)
	}
	before, hash := "", ""
	sound := false // whether the previous one was intact
	for _, id := range ids {
		r, b, err := l.read(id)
		if errors.Is(err, fs.ErrNotExist) {
			before, sound = "", false // a writer removes the oldest meanwhile, so the previous one is gone, too
			continue
		}
		if before != "" && err == nil && r.Previous != hash {
			if sound {
				intact--
			}
			broken = append(broken, fmt.Sprintf("%s: it is not the predecessor that %s recorded: it was changed, or one between them is missing", before, id))
		}
		if sound = err == nil; sound {
			intact++
		} else {
			broken = append(broken, id+": "+err.Error())
		}
		before, hash = id, digest(b)
	}
	return intact, broken, nil
}

// ids lists the receipts by name, oldest first. Files with other names are left alone.
func (l *Ledger) ids() ([]string, error) {
	entries, err := os.ReadDir(l.receipts()) // in the order of names
	if err != nil {
		return nil, ignoreAbsent(err)
	}
	out := make([]string, 0, len(entries)+1)
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), suffix)
		at, _, _ := strings.Cut(id, "-")
		if _, err := time.Parse(stamp, at); ok && err == nil && e.Type().IsRegular() {
			out = append(out, id)
		}
	}
	return out, nil
}

func (l *Ledger) file(id string) string { return filepath.Join(l.receipts(), id+suffix) }

// read gives a receipt and the bytes of its file.
func (l *Ledger) read(id string) (Receipt, []byte, error) {
	b, err := get(l.file(id))
	if err != nil {
		return Receipt{}, nil, err
	}
	r, err := readReceipt(b)
	if err != nil {
		return Receipt{}, b, fmt.Errorf("receipt %s: %w", id, err)
	}
	return r, b, nil
}

func readReceipt(b []byte) (Receipt, error) {
	var r Receipt
	if err := json.Unmarshal(b, &r); err != nil {
		return Receipt{}, err
	}
	if r.Version != receiptVersion {
		return Receipt{}, fmt.Errorf("its version is %d, this program reads %d", r.Version, receiptVersion)
	}
	return r, nil
}

// rotate removes the oldest receipts until the others are within the limits; the newest always
// stays.
func (l *Ledger) rotate(ids []string) error {
	var total int64
	var errs []error
	keep := len(ids)
	for keep > 0 && len(ids)-keep < l.o.Files {
		info, err := os.Lstat(l.file(ids[keep-1]))
		if err == nil {
			total += info.Size()
		}
		errs = append(errs, ignoreAbsent(err))
		if total > l.o.Bytes && keep < len(ids) {
			break
		}
		keep--
	}
	for _, id := range ids[:keep] { // the oldest first: who reads meanwhile finds no gap
		errs = append(errs, ignoreAbsent(os.Remove(l.file(id))))
	}
	return errors.Join(append(errs, sweep(l.receipts()))...)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
