package site

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/source"
)

// The bounds of a search for references. What exceeds them could not be searched, so the removal is refused.
const (
	mostReferenceFile  = 8 << 20 // bytes of a file
	mostReferenceFiles = 20_000  // files of one path
	mostRepositories   = 8
	referencesTime     = 4 * time.Minute // of fetching the repositories; an agent is stuck after ten
	shownReferences    = 3
)

// references searches files for the words by which guests that are to be removed are known.
type references struct {
	tree   fs.FS // the site
	of     *model.References
	copies source.Options // see Loader.Copies
}

// checkReferences finds repositories that cannot be searched.
func checkReferences(r *model.References) (found diag.List) {
	if r == nil {
		return nil
	}
	wrong := func(summary, format string, args ...any) {
		found = append(found, diag.Errorf(diag.Range{}, "references: "+summary, format, args...))
	}
	if len(r.Repositories) > mostRepositories {
		wrong("too many repositories", "Name at most %d.", mostRepositories)
	}
	first := ""
	for _, text := range r.Repositories {
		url, branch, _ := strings.Cut(text, "#")
		server, err := source.ServerOf(url)
		if err == nil && branch != "" {
			err = source.CheckBranch(branch)
		}
		switch {
		case err != nil:
			wrong("a repository cannot be searched", "%s.", err)
		case r.Token == "" || !strings.HasPrefix(server, "http"):
		case first != "" && first != server:
			wrong("a token for two servers", "Each would get it: name repositories of %s alone, or search a checkout of the other ones by paths.", first)
		default:
			first = server
		}
	}
	return found
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
	unsearched := func(name string, err error) {
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s could not be searched: %w", name, err))
		}
	}
	for _, name := range r.of.Paths {
		if filepath.IsAbs(name) {
			unsearched(name, searchMachine(ctx, name, look))
		} else {
			unsearched(name, search(ctx, r.tree, path.Clean(name), func(inside string) string { return inside }, look))
		}
	}
	switch {
	case len(r.of.Repositories) == 0:
	case len(r.of.Missing) > 0:
		unsearched("repositories", errors.New("the value of "+strings.Join(r.of.Missing, ", ")+" is not known here"))
	default:
		r.searchRepositories(ctx, look, unsearched)
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

// searchMachine searches a file or a folder of this machine. What it reads is below that folder, whatever links are in it.
func searchMachine(ctx context.Context, name string, look func(name string, text []byte)) error {
	folder, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	file, label := ".", func(inside string) string { return filepath.Join(name, inside) }
	if info, err := os.Stat(folder); err == nil && !info.IsDir() {
		folder, file = filepath.Split(folder)
		label = func(string) string { return name }
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return search(ctx, machineFiles{root}, file, label, look)
}

// machineFiles are the files of a folder. A pipe that takes the place of a file is not waited for.
type machineFiles struct{ root *os.Root }

func (m machineFiles) Stat(name string) (fs.FileInfo, error) { return m.root.Stat(name) }

func (m machineFiles) Open(name string) (fs.File, error) {
	return m.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// searchRepositories fetches repositories, and searches their newest commits. An agent keeps their copies for the next search.
func (r references) searchRepositories(ctx context.Context, look func(name string, text []byte), unsearched func(name string, err error)) {
	ctx, cancel := context.WithTimeout(ctx, referencesTime)
	defer cancel()
	aside, err := os.MkdirTemp("", "homestak-references-")
	if err != nil {
		unsearched("references", err)
		return
	}
	defer func() { _ = os.RemoveAll(aside) }()
	o := r.copies
	o.Auth.TokenFile, o.Auth.Username = "", "" // those of the site's own repository are for its server alone
	if err := (source.Secrets{Key: r.of.Key, HostKey: r.of.HostKey, Token: r.of.Token}).Write(aside, &o.Auth); err != nil {
		unsearched("references", err)
		return
	}
	folder := cmp.Or(o.Dir, filepath.Join(aside, "copies"))
	left := map[string]bool{}
	if entries, err := os.ReadDir(folder); err == nil {
		for _, e := range entries {
			left[e.Name()] = true
		}
	}
	for _, name := range r.of.Repositories {
		url, branch, _ := strings.Cut(name, "#")
		at := copyName(name)
		delete(left, at)
		o.URL, o.Branch, o.Dir, o.Depth = url, cmp.Or(branch, source.DefaultBranch), filepath.Join(folder, at), 1
		shown := source.Shown(url) + strings.TrimPrefix(name, url)
		tree, err := newest(ctx, o)
		if err == nil {
			err = search(ctx, tree, ".", func(inside string) string { return shown + " " + inside }, look)
		}
		unsearched(shown, err)
	}
	for name := range left { // of repositories that left the site
		_ = os.RemoveAll(filepath.Join(folder, name))
	}
}

// copyName is the folder of the copy of a repository.
func copyName(repository string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(repository)))[:32]
}

// newest fetches the newest commit of a branch, and returns its files.
func newest(ctx context.Context, o source.Options) (fs.FS, error) {
	r, err := source.OpenRepository(o)
	if err != nil {
		return nil, err
	}
	c, err := r.Head(ctx)
	if err != nil {
		return nil, err
	}
	return r.Tree(c.ID)
}

// search gives the files below a root to a function, without those of git. It does not follow symbolic links, as grep -r: what
// one leads to is searched as well, or it is an error.
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
		case e.Type()&fs.ModeSymlink != 0 && name != root:
			if _, err := fs.Stat(files, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s is a link that leads out of it: %w", label(name), err)
			}
			return nil
		case e.IsDir():
			return nil
		case !e.Type().IsRegular() && name == root:
			return errors.New("it is neither a file nor a folder")
		case !e.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a folder", label(name))
		}
		if count++; count > mostReferenceFiles {
			return fmt.Errorf("it has more than %d files", mostReferenceFiles)
		}
		f, err := files.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			return fmt.Errorf("%s was replaced while it was searched: %w", label(name), cmp.Or(err, fs.ErrInvalid))
		}
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
