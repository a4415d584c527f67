package ledger

import (
	"cmp"
	"crypto/ed25519"
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

// Write stores a receipt, signs it, and sets its Version, Previous, ID, Key and Signature. The file is complete, or not
// there. A pass that failed in the same way as the one before replaces the receipt of that one, and sets Passes and First:
// a failure that is retried at every check must not displace everything else that is kept. It removes the oldest receipts over
// the limit but those of removals; if only that fails, the receipt is stored and the error is returned. Processes take turns.
func (l *Ledger) Write(r Receipt) (out Receipt, err error) {
	if l.readOnly {
		return r, errReadOnly
	}
	l.write.Lock()
	defer l.write.Unlock()
	err = durable.Exclusively(l.chain(), func() error {
		out, err = l.append(r)
		return err
	})
	return out, err
}

func (l *Ledger) append(r Receipt) (Receipt, error) {
	ids, err := l.ids()
	if err != nil {
		return r, fmt.Errorf("write receipt: %w", err)
	}
	newest, repeated := "", false
	var before Receipt
	r.Previous = ""
	if len(ids) > 0 {
		newest = ids[len(ids)-1]
		var text []byte
		if before, text, err = l.read(newest); text != nil { // else the chain breaks here, which Verify reports
			r.Previous = digest(text)
		}
		repeated = err == nil && r.repeats(&before)
	}
	r.Version, r.ID, r.Key, r.Signature = receiptVersion, name(r, newest), present(l.key), ""
	if repeated {
		r.ID, r.Previous, r.Passes, r.First = before.ID, before.Previous, max(before.Passes, 1)+1, before.First
		if r.First == nil {
			r.First = &before.Began
		}
		ids = ids[:len(ids)-1]
	}
	var b []byte
	if b, r.Signature, err = seal(l.key, r.listed()); err == nil {
		err = durable.ReplaceForOwner(l.file(r.ID), b)
	}
	if err != nil {
		return r, fmt.Errorf("write receipt: %w", err)
	}
	if l.usual.ready() {
		l.usual.learn(l, append(ids, r.ID))
	}
	if err := l.rotate(append(ids, r.ID)); err != nil {
		return r, fmt.Errorf("remove old receipts: %w", err)
	}
	return r, nil
}

// present is the public key of a private one.
func present(key ed25519.PrivateKey) string {
	public, _ := key.Public().(ed25519.PublicKey)
	return publicText(public)
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
	plan = cmp.Or(plan, "noplan")
	id := at.Format(stamp) + "-" + plan[:min(len(plan), 16)]
	if r.removes() {
		id += removal
	}
	return id
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

// rotate removes the oldest receipts until the others are within the limits; the newest always stays, and those of
// removals, which do not count.
func (l *Ledger) rotate(ids []string) error {
	var total int64
	var errs []error
	over := map[string]bool{}
	for i, n := len(ids)-1, 0; i >= 0; i-- {
		if isKept(ids[i]) {
			continue
		}
		info, err := os.Lstat(l.file(ids[i]))
		if err == nil {
			total += info.Size()
		}
		errs = append(errs, ignoreAbsent(err))
		if n++; n > 1 && total > l.o.Bytes || n > l.o.Files {
			over[ids[i]] = true
		}
	}
	after, row := "", []string(nil)
	drop := func() {
		if len(row) > 0 {
			errs = append(errs, l.drop(after, row))
		}
		row = nil
	}
	for _, id := range ids { // the oldest first
		if over[id] {
			row = append(row, id)
			continue
		}
		drop()
		after = id
	}
	drop()
	return errors.Join(append(errs, sweep(l.receipts()))...)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
