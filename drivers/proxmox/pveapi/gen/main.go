// Command gen distils a table of the Proxmox VE API into the file that package pveapi embeds, and prints a summary.
// Run it by hand for a newer table, in the folder of the package:
//
//	go run ./gen -from schema.json
//
// The output is one line per method, "VERB PATH {json}", without references between lines, so that a reader parses
// only the methods it needs. Lines are sorted and the archive has no time, so the output is reproducible.
package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// source is the layout of the table read. Methods and values stay generic: the
// generator passes on what it does not need to know.
type source struct {
	Source  json.RawMessage                      `json:"source"`
	Counts  struct{ Paths, Endpoints int }       `json:"counts"`
	Dropped map[string]any                       `json:"droppedSince84"`
	Perms   map[string]map[string]any            `json:"permChangedSince84"`
	Defs    map[string]map[string]any            `json:"defs"`
	Paths   map[string]map[string]map[string]any `json:"paths"`
}

func main() {
	from := flag.String("from", "", "the JSON table to distil")
	to := flag.String("to", "schema.gz", "the file to write")
	flag.Parse()
	if err := run(*from, *to, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1) //nolint:forbidigo // The exit status of a program of its own.
	}
}

func run(from, to string, report io.Writer) error {
	if from == "" {
		return errors.New("which table? give -from FILE")
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("read the table: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // The text of a number appears in PVE's messages.
	var table source
	if err := decoder.Decode(&table); err != nil {
		return fmt.Errorf("parse %s: %w", from, err)
	}
	lines, err := table.lines()
	if err != nil {
		return err
	}
	if len(lines) != table.Counts.Endpoints || len(table.Paths) != table.Counts.Paths {
		return fmt.Errorf("%s promises %d methods on %d paths, but has %d on %d",
			from, table.Counts.Endpoints, table.Counts.Paths, len(lines), len(table.Paths))
	}
	packed, err := pack(lines)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to, packed, 0o644); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	_, err = fmt.Fprintf(report, "%d methods on %d paths, %d bytes\n", len(lines), len(table.Paths), len(packed))
	return err
}

// lines renders every method, references resolved.
func (s *source) lines() ([]string, error) {
	var lines []string
	for path, verbs := range s.Paths {
		for verb, method := range verbs {
			name := verb + " " + path
			// The table lists what a newer PVE dropped or changed beside the methods; here it belongs to its
			// method. A dropped parameter's description is gone, so it accepts any text.
			if gone, ok := s.Dropped[name].([]any); ok {
				method["dropped"] = gone
			}
			if old, ok := s.Perms[name]["8.4"]; ok {
				method["check84"] = old
			}
			full, err := s.resolve(method, 0)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			text, err := json.Marshal(full)
			if err != nil {
				return nil, fmt.Errorf("render %s: %w", name, err)
			}
			lines = append(lines, name+" "+string(text))
		}
	}
	slices.SortFunc(lines, func(a, b string) int {
		verbA, restA, _ := strings.Cut(a, " ")
		verbB, restB, _ := strings.Cut(b, " ")
		pathA, _, _ := strings.Cut(restA, " ")
		pathB, _, _ := strings.Cut(restB, " ")
		return cmp.Or(strings.Compare(pathA, pathB), strings.Compare(verbA, verbB))
	})
	return lines, nil
}

// resolve replaces references by what they stand for. Depth guards against a
// table that refers to itself.
func (s *source) resolve(value any, depth int) (any, error) {
	if depth > 64 {
		return nil, errors.New("references go in a circle")
	}
	switch v := value.(type) {
	case map[string]any:
		if id, ok := v["$ref"].(string); ok {
			target, ok := s.Defs[id]
			if !ok {
				return nil, fmt.Errorf("reference to unknown definition %q", id)
			}
			return s.resolve(target, depth+1)
		}
		full := make(map[string]any, len(v))
		for key, member := range v {
			resolved, err := s.resolve(member, depth+1)
			if err != nil {
				return nil, err
			}
			// "9.1.2+" says: not yet in 9.1.1. A plain version compares.
			if text, ok := resolved.(string); ok && key == "since" {
				resolved = strings.TrimSuffix(text, "+")
			}
			full[key] = resolved
		}
		return full, nil
	case []any:
		full := make([]any, len(v))
		for i, element := range v {
			resolved, err := s.resolve(element, depth+1)
			if err != nil {
				return nil, err
			}
			full[i] = resolved
		}
		return full, nil
	default:
		return value, nil
	}
}

func pack(lines []string) ([]byte, error) {
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, fmt.Errorf("pack the table: %w", err)
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return nil, fmt.Errorf("pack the table: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("pack the table: %w", err)
	}
	return packed.Bytes(), nil
}
