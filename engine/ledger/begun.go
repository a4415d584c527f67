package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/homestak/homestak-gitops/engine/durable"
)

// begunFile has the receipt of a pass that has begun and is not recorded yet: of the agent, or of a pass by hand over a host.
func begunFile(dir, host string) string {
	if host == "" {
		return filepath.Join(dir, "begun.json")
	}
	return filepath.Join(dir, "begun-"+host+".json")
}

// HasBegun reports whether a pass has begun that the ledger of a folder has no receipt of; see Begin.
func HasBegun(dir, host string) bool {
	_, err := os.Stat(begunFile(dir, host))
	return err == nil
}

// Unknown is the status of a step of a pass that was cut off before its receipt was written.
const Unknown = "unknown"

// Begin stores a receipt with unknown steps, which Settle writes unless End is called before. It settles an earlier
// pass first. Host is control.HostFile of a pass by hand, whose lock the caller holds in all three; "" for the agent.
func Begin(l *Ledger, host string, r Receipt) error {
	if l.readOnly {
		return errReadOnly
	}
	if _, err := Settle(l, host); err != nil {
		return err
	}
	r = r.listed()
	for i := range r.Steps {
		r.Steps[i].Status = Unknown
		r.Steps[i].Error = "the pass was cut off before it recorded how this ended"
	}
	b, err := json.Marshal(r)
	if err == nil {
		err = durable.ReplaceForOwner(begunFile(l.dir, host), b)
	}
	if err != nil {
		return fmt.Errorf("record that a pass has begun: %w", err)
	}
	return nil
}

// End drops what Begin stored: the pass is recorded, or has done nothing.
func End(l *Ledger, host string) error { return ignoreAbsent(os.Remove(begunFile(l.dir, host))) }

// Settle writes the receipt of a pass that began and was not recorded, and reports whether there was one: the process
// was killed, the pass panicked, or its receipt could not be written. A process that was killed between Write and End
// has recorded its pass.
func Settle(l *Ledger, host string) (found bool, err error) {
	b, err := get(begunFile(l.dir, host))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	var r Receipt
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return false, errors.Join(fmt.Errorf("read the pass that was cut off: %w", err), End(l, host))
	}
	recorded, _ := l.Last(1, func(k *Receipt) bool { // what cannot be read is for Verify to report
		ended := k.Began.Add(time.Duration(k.Seconds * float64(time.Second)))
		return k.Verb == r.Verb && k.Plan == r.Plan && !ended.Before(r.Began.Truncate(time.Second))
	})
	if found = len(recorded) == 0; found {
		if _, err := l.Write(r); err != nil {
			return false, fmt.Errorf("record the pass that was cut off: %w", err)
		}
	}
	return found, End(l, host)
}
