package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// ReadInput reads a document for Eval from a file, or for the name "-" from stdin: one value in
// JSON, whose numbers stay as they are written.
func ReadInput(name string, stdin io.Reader) (any, error) {
	in := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("open the input: %w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	var doc any
	d := json.NewDecoder(in)
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("read the input from %s: %w", name, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the input from %s: something follows the document", name)
	}
	return doc, nil
}
