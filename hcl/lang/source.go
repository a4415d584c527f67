package lang

// Reading the files of a site (source.go): nesting.go limits their depth for the parser, plaintext.go finds
// plaintext secrets, blocks.go sorts blocks by type and name. findings.go collects the findings of a load: their
// number is limited, and none contains a secret.

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	hclv2 "github.com/hashicorp/hcl/v2"
)

// Limits of reading.
const (
	MaxFile  = 4 << 20  // bytes of one *.hcl file
	maxTotal = 32 << 20 // bytes of all of them
	MaxOther = 1 << 20  // bytes of a file that an expression reads
)

// Sum identifies contents.
type Sum = [sha256.Size]byte

// Source is one file of the site.
type Source struct {
	Name string
	Data []byte
	Sum  Sum
}

// ReadSources reads all files of the language, sorted by name. Whole is false if a file is missing
// in the result: its declarations are unknown then.
func ReadSources(fsys fs.FS, f *Findings) (files []Source, whole bool) {
	whole = true
	total := 0
	var others []string
	refuse := func(name, summary, detail string) {
		whole = false
		f.Errorf(FileStart(name), summary, "%s", detail)
	}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch base := path.Base(name); {
		case err != nil && name == ".":
			return err
		case name == ".":
			return nil
		case strings.HasPrefix(base, "."), d.IsDir() && name == "policy":
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case err != nil:
			refuse(name, "unreadable folder", "The system says: "+reason(err)+".")
			return nil
		case d.Type()&fs.ModeSymlink != 0 && path.Ext(base) == "" && !isFile(fsys, name):
			f.Warnf(FileStart(name), "linked folder is ignored", "%s is a symbolic link, and links are not followed: put the files there.", Quote(name))
			return nil
		case !d.IsDir() && otherLanguage(base):
			others = append(others, name)
			return nil
		case d.IsDir() || path.Ext(base) != ".hcl":
			return nil
		}
		data, problem := ReadFile(fsys, name, MaxFile)
		if problem == "" {
			if total += len(data); total > maxTotal {
				problem = fmt.Sprintf("the limit for all files of a site is %d MiB", maxTotal>>20)
			}
		}
		if problem != "" {
			refuse(name, "unreadable file", UpperFirst(problem)+".")
			return nil
		}
		if i := Unreadable(data); i >= 0 {
			whole = false
			f.Errorf(OffsetRange(name, data, i), "file is not UTF-8 text", "Byte %d is not valid UTF-8: save the file as UTF-8. If it is not HCL, give it another extension.", i)
			return nil
		}
		files = append(files, Source{Name: name, Data: data, Sum: sha256.Sum256(data)})
		return nil
	})
	if err != nil {
		f.Errorf(hclv2.Range{}, "unreadable site", "The system says: %s.", reason(err))
		return nil, false
	}
	f.leftOut(others)
	sort.Slice(files, func(i, j int) bool { return files[i].Name < files[j].Name })
	return files, whole
}

// otherLanguage reports whether a file looks like part of the site, but is not read.
func otherLanguage(base string) bool {
	return path.Ext(base) != ".hcl" && slices.Contains([]string{".hcl", ".tf", ".tofu"}, language(base))
}

// language is the extension of a file, .json aside.
func language(name string) string {
	return path.Ext(strings.TrimSuffix(strings.ToLower(name), ".json"))
}

// leftOut reports once which files are ignored although they look like part of the site.
func (f *Findings) leftOut(names []string) {
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	summary, advice := "file is ignored", "Only files that end in .hcl are read."
	if n := len(names); n > 1 {
		summary = fmt.Sprintf("%d files are ignored", n)
		advice += " The others are " + strings.Join(names[1:min(n, 4)], ", ")
		if n > 4 {
			advice += fmt.Sprintf(" and %d more", n-4)
		}
		advice += "."
	}
	if slices.ContainsFunc(names, func(s string) bool { return strings.HasSuffix(s, ".hcl.json") }) {
		advice += " The JSON syntax of HCL is not supported: write blocks, in a file that ends in .hcl."
	}
	if slices.ContainsFunc(names, func(s string) bool { return language(s) != ".hcl" }) {
		advice += " Terraform's configuration is another language: keep it in a folder whose name begins with a dot, or in another repository."
	}
	f.Warnf(FileStart(names[0]), summary, "%s", advice)
}

// ReadFile reads a regular file of the tree that has at most limit bytes; it returns a problem as
// text. Links are never followed: a tree on disk must not lead outside, and a git tree has no other
// files.
func ReadFile(fsys fs.FS, name string, limit int) (data []byte, problem string) {
	if !fs.ValidPath(name) {
		return nil, "only files of the site can be read, by a path without .., relative to its folder"
	}
	for i := 0; i <= len(name); i++ {
		if i < len(name) && name[i] != '/' {
			continue
		}
		info, err := fs.Lstat(fsys, name[:i])
		switch {
		case err != nil:
			return nil, reason(err)
		case info.Mode()&fs.ModeSymlink != 0:
			return nil, Quote(name[:i]) + " is a symbolic link, and links are not followed: put the file itself there"
		case i == len(name) && !info.Mode().IsRegular():
			return nil, Quote(name) + " is not a regular file"
		case i == len(name) && info.Size() > int64(limit):
			return nil, fmt.Sprintf("%d bytes are too many: the limit is %d MiB", info.Size(), limit>>20)
		}
	}
	file, err := fsys.Open(name)
	if err != nil {
		return nil, reason(err)
	}
	defer file.Close()
	data, err = io.ReadAll(io.LimitReader(file, int64(limit)+1))
	switch {
	case err != nil:
		return nil, reason(err)
	case len(data) > limit:
		return nil, fmt.Sprintf("the limit is %d MiB", limit>>20)
	}
	return data, ""
}

// isFile reports whether a name, or the target of its link within the tree, is not a folder.
func isFile(fsys fs.FS, name string) bool {
	info, err := fs.Stat(fsys, name)
	return err == nil && !info.IsDir()
}

// reason returns the bare cause of an error of a file system, without the path that the finding
// names anyway.
func reason(err error) string {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		err = p.Err
	}
	return Clip(err.Error(), MaxQuoted)
}

// Unreadable finds the first byte that is not text; -1 if there is none.
func Unreadable(data []byte) int {
	if i := bytes.IndexByte(data, 0); i >= 0 && utf8.Valid(data[:i]) {
		return i
	}
	if utf8.Valid(data) {
		return -1
	}
	for i := 0; ; {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
}

// FileStart is the start of a file.
func FileStart(name string) hclv2.Range {
	return hclv2.Range{Filename: name, Start: hclv2.InitialPos, End: hclv2.InitialPos}
}

// UpperFirst writes the first letter of a sentence large.
func UpperFirst(s string) string {
	if s != "" && s[0] >= 'a' && s[0] <= 'z' {
		return string(s[0]-'a'+'A') + s[1:]
	}
	return s
}

// ReadSum identifies the result of reading a file: its content or the error.
func ReadSum(data []byte, problem string) Sum {
	if problem != "" {
		return sha256.Sum256([]byte("problem: " + problem))
	}
	return sha256.Sum256(data)
}
