package policy

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// The shipped rules and their tests.
//
//go:embed shipped/*.rego
var shippedFiles embed.FS

// Paths and limits of policy files.
const (
	siteFolder    = "policy"
	shippedFolder = "shipped"
	extension     = ".rego"
	testEnding    = "_test" + extension
	maxFile       = 1 << 20
	maxFiles      = 1000
)

// file is one file of policies.
type file struct {
	name    string // from the root of the site; of a shipped one shipped/NAME
	text    string
	test    bool
	shipped bool
}

// pack reports whether a file belongs to the shipped packs.
func (f file) pack() bool {
	return f.shipped && strings.HasPrefix(f.name, shippedFolder+"/pack")
}

// sources are all files that were read.
type sources []file

// load reads the shipped files and the site's. A policy file that cannot be read is an error,
// because its denials are unknown.
func load(site fs.FS) (sources, diag.List) {
	l := &loader{}
	l.walk(shippedFiles, shippedFolder, true)
	if site != nil {
		l.walk(site, siteFolder, false)
	}
	return l.files, l.found
}

// Shipped returns the shipped files by name, tests included.
func Shipped() map[string]string {
	files, _ := load(nil)
	out := make(map[string]string, len(files))
	for _, f := range files {
		out[path.Base(f.name)] = f.text
	}
	return out
}

type loader struct {
	files sources
	found diag.List
	size  int
}

func (l *loader) walk(fsys fs.FS, folder string, shipped bool) {
	err := fs.WalkDir(fsys, folder, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && name == folder && errors.Is(err, fs.ErrNotExist):
			return nil // a site without policies of its own
		case err != nil:
			l.unreadable(name, err)
			return nil
		case name == folder && !d.IsDir():
			l.unreadable(name, errors.New("it is not a folder"))
			return nil
		case d.IsDir() && name != folder && strings.HasPrefix(path.Base(name), "."):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != extension || strings.HasPrefix(path.Base(name), "."):
			return nil
		}
		text, err := l.read(fsys, name, d)
		if err != nil {
			l.unreadable(name, err)
			return nil
		}
		if shipped || !exported(text) {
			l.files = append(l.files, file{name: name, text: text, test: strings.HasSuffix(name, testEnding), shipped: shipped})
		}
		return nil
	})
	if err != nil {
		l.unreadable(folder, err)
	}
}

func (l *loader) read(fsys fs.FS, name string, d fs.DirEntry) (string, error) {
	if !d.Type().IsRegular() {
		return "", errors.New("it is not a regular file; links are not followed")
	}
	if len(l.files) >= maxFiles {
		return "", fmt.Errorf("there are more than %d files of policies", maxFiles)
	}
	f, err := fsys.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", err
	}
	if l.size += len(b); len(b) > maxFile || l.size > 4*maxFile {
		return "", fmt.Errorf("it is too large: the limit is %d KiB for one file, and %d KiB for all", maxFile>>10, 4*maxFile>>10)
	}
	return string(b), nil
}

func (l *loader) unreadable(name string, err error) {
	f := denial(diag.FromPolicy, name+" cannot be read", err.Error())
	f.At = diag.Range{File: name, Start: diag.Pos{Line: 1, Column: 1}, End: diag.Pos{Line: 1, Column: 1}}
	l.found = append(l.found, f)
}

// parse parses the requested files, with their metadata: rules can read it.
func (s sources) parse(wanted func(file) bool) (map[string]*ast.Module, diag.List) {
	modules := map[string]*ast.Module{}
	var found diag.List
	options := ast.ParserOptions{RegoVersion: ast.RegoV1, Capabilities: capabilities(), ProcessAnnotation: true}
	for _, f := range s {
		if !wanted(f) {
			continue
		}
		m, err := ast.ParseModuleWithOpts(f.name, f.text, options)
		var list ast.Errors
		var one *ast.Error
		switch {
		case err == nil:
			modules[f.name] = m
			continue
		case errors.As(err, &list):
		case errors.As(err, &one):
			list = ast.Errors{one}
		default:
			list = ast.Errors{{Message: err.Error(), Location: ast.NewLocation(nil, f.name, 1, 1)}}
		}
		found = append(found, s.findingsOf(list)...)
	}
	return modules, found
}

// shipped reports whether a file is shipped.
func (s sources) shipped(name string) bool {
	return slices.ContainsFunc(s, func(f file) bool { return f.name == name && f.shipped })
}

// line gives a line of a file of the site, for showing it.
func (s sources) line(name string, number int) string {
	for _, f := range s {
		if f.name != name || f.shipped {
			continue
		}
		n := 0
		for line := range strings.Lines(f.text) {
			if n++; n == number {
				return strings.TrimRight(line, "\r\n")
			}
		}
	}
	return ""
}

// locate makes a range of the site's files from a location of OPA; of a shipped file
// there is none.
func (s sources) locate(l *ast.Location) (diag.Range, string) {
	if l == nil || l.File == "" || s.shipped(l.File) {
		return diag.Range{}, ""
	}
	start := diag.Pos{Line: max(l.Row, 1), Column: max(l.Col, 1), Byte: l.Offset}
	end := start
	if text := string(l.Text); !strings.Contains(text, "\n") {
		end.Column += len([]rune(text))
		end.Byte += len(text)
	}
	return diag.Range{File: l.File, Start: start, End: end}, s.line(l.File, start.Line)
}
