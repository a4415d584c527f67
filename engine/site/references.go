package site

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/model"
)

// The bounds of a search for references. What exceeds them could not be searched, so the removal is refused.
const (
	mostReferenceFile  = 8 << 20 // bytes of a file
	mostReferenceFiles = 20_000  // files of one path
	shownReferences    = 3
)

// references searches files for the words by which guests that are to be removed are known.
type references struct {
	tree  fs.FS    // the site
	paths []string // of its block
}

// find returns for each guest where one of its words is, or why that could not be searched; "" and no entry for none.
func (r references) find(ctx context.Context, words map[model.Address][]string) map[model.Address]string {
	places := map[model.Address][]string{}
	var failed error
	look := func(name string, text []byte) {
		for addr, list := range words {
			for _, word := range list {
				if at := findWord(text, word); at >= 0 && len(places[addr]) <= shownReferences {
					places[addr] = append(places[addr], fmt.Sprintf("%s:%d (%s)", name, 1+bytes.Count(text[:at], []byte("\n")), word))
				}
			}
		}
	}
	for _, name := range r.paths {
		files, root := r.tree, "."
		switch {
		case !filepath.IsAbs(name):
			root = path.Clean(name)
		default:
			files = os.DirFS(name)
			if info, err := os.Stat(name); err == nil && !info.IsDir() {
				files, root = os.DirFS(filepath.Dir(name)), filepath.Base(name)
			}
		}
		label := func(inside string) string {
			if filepath.IsAbs(name) && root == "." {
				return filepath.Join(name, inside)
			}
			if filepath.IsAbs(name) {
				return name
			}
			return inside
		}
		if err := search(ctx, files, root, label, look); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s could not be searched: %w", name, err))
		}
	}
	out := map[model.Address]string{}
	for addr := range words {
		list := places[addr]
		slices.Sort(list)
		switch {
		case len(list) > shownReferences:
			out[addr] = "it is still referenced at " + strings.Join(list[:shownReferences], ", ") + " and elsewhere"
		case len(list) > 0:
			out[addr] = "it is still referenced at " + strings.Join(list, ", ")
		case failed != nil:
			out[addr] = "whether it is still referenced is unknown: " + strings.ReplaceAll(failed.Error(), "\n", "; ")
		}
	}
	return out
}

// search gives the files below a root to a function, without those of git. It does not follow symbolic links, as grep -r.
func search(ctx context.Context, files fs.FS, root string, label func(string) string, look func(name string, text []byte)) error {
	count := 0
	return fs.WalkDir(files, root, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case e.IsDir() && e.Name() == ".git":
			return fs.SkipDir
		case !e.IsDir() && !e.Type().IsRegular() && name == root:
			return errors.New("it is neither a file nor a folder")
		case !e.Type().IsRegular():
			return nil
		}
		if count++; count > mostReferenceFiles {
			return fmt.Errorf("it has more than %d files", mostReferenceFiles)
		}
		f, err := files.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		text, err := io.ReadAll(io.LimitReader(f, mostReferenceFile+1))
		switch {
		case err != nil:
			return err
		case len(text) > mostReferenceFile:
			return fmt.Errorf("%s has more than %d MiB", label(name), mostReferenceFile>>20)
		}
		look(label(name), text)
		return nil
	})
}

// findWord returns where a text has a word as a whole, -1 if nowhere: web is in web.example.com, not in web-2 nor in cobweb. In
// numbers and addresses a dot between digits is part of the word: 100 is not in 10.0.0.100.
func findWord(text []byte, word string) int {
	numeric := word[len(word)-1] >= '0' && word[len(word)-1] <= '9' && strings.Trim(word, "0123456789.:abcdef") == ""
	part := func(at, step int) bool {
		if at < 0 || at >= len(text) {
			return false
		}
		if c := text[at]; c != '.' && c != ':' || !numeric {
			return isWordByte(c)
		}
		next := at + step
		return text[at] == '.' && next >= 0 && next < len(text) && text[next] >= '0' && text[next] <= '9'
	}
	for from := 0; ; {
		i := bytes.Index(text[from:], []byte(word))
		if i < 0 {
			return -1
		}
		if i += from; !part(i-1, -1) && !part(i+len(word), 1) {
			return i
		}
		from = i + 1
	}
}

func isWordByte(c byte) bool {
	return c == '_' || c == '-' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}
