package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// generate runs the generator on a table and returns what it reported and wrote,
// unpacked.
func generate(t *testing.T, table string) (report, lines string, err error) {
	t.Helper()
	from, to := filepath.Join(t.TempDir(), "schema.json"), filepath.Join(t.TempDir(), "schema.gz")
	require.NoError(t, os.WriteFile(from, []byte(table), 0o600))
	var out bytes.Buffer
	if err := run(from, to, &out); err != nil {
		return "", "", err
	}
	packed, err := os.ReadFile(to)
	require.NoError(t, err)
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	require.NoError(t, err)
	text, err := io.ReadAll(unpacked)
	require.NoError(t, err)
	return out.String(), string(text), nil
}

func TestRun(t *testing.T) {
	report, lines, err := generate(t, `{
		"counts": {"paths": 2, "endpoints": 3},
		"droppedSince84": {"PUT /b": ["old"], "GET /gone": true},
		"permChangedSince84": {"GET /a": {"8.4": ["perm", "/", ["VM.Monitor"]]}},
		"defs": {"1": {"type": "string", "sub": {"$ref": "2"}}, "2": {"x": {"type": "integer", "max": 1e3}}},
		"paths": {
			"/b": {"PUT": {"params": {"s": {"$ref": "1"}, "new": {"since": "9.1.2+"}, "since": {"type": "string"}}}},
			"/a": {"POST": {"params": {}}, "GET": {"params": {}}}
		}
	}`)
	require.NoError(t, err)
	require.Regexp(t, `^3 methods on 2 paths, \d+ bytes\n$`, report)
	require.Equal(t, `GET /a {"check84":["perm","/",["VM.Monitor"]],"params":{}}
POST /a {"params":{}}
PUT /b {"dropped":["old"],"params":{"new":{"since":"9.1.2"},"s":{"sub":{"x":{"max":1e3,"type":"integer"}},"type":"string"},"since":{"type":"string"}}}
`, lines)
}

func TestRunRefuses(t *testing.T) {
	for name, test := range map[string]struct{ table, want string }{
		"no JSON":           {`{`, "parse "},
		"unknown reference": {`{"counts":{"paths":1,"endpoints":1},"paths":{"/a":{"GET":{"returns":{"$ref":"1"}}}}}`, `GET /a: reference to unknown definition "1"`},
		"a circle":          {`{"counts":{"paths":1,"endpoints":1},"defs":{"1":{"items":{"$ref":"1"}}},"paths":{"/a":{"GET":{"returns":[{"$ref":"1"}]}}}}`, "GET /a: references go in a circle"},
		"wrong counts":      {`{"counts":{"paths":1,"endpoints":2},"paths":{"/a":{"GET":{}}}}`, "promises 2 methods on 1 paths, but has 1 on 1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := generate(t, test.table)
			require.ErrorContains(t, err, test.want)
		})
	}
	require.ErrorContains(t, run("", "", io.Discard), "give -from FILE")
	require.ErrorContains(t, run(filepath.Join(t.TempDir(), "none"), "", io.Discard), "read the table")
}

// The file that is checked in is what the generator makes of the table.
func TestUpToDate(t *testing.T) {
	from := filepath.Join("..", "..", "..", "..", "..", "shared", "pve-api", "schema-9.2.json")
	if _, err := os.Stat(from); err != nil {
		t.Skip("needs the JSON table, which is not part of this repository")
	}
	to := filepath.Join(t.TempDir(), "schema.gz")
	require.NoError(t, run(from, to, io.Discard))
	want, err := os.ReadFile(to)
	require.NoError(t, err)
	have, err := os.ReadFile(filepath.Join("..", "schema.gz"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, have), "schema.gz is out of date: run the generator")
}
