// Package sourcetest creates git repositories and real servers for them, for tests.
//
// New makes an empty bare repository in a folder; Commit, Merge, ForcePush and the others change it as a push
// would, without git. HTTPS serves it by git http-backend, SSH by sshd; both skip the test if the program is not
// installed.
//
//	repo := sourcetest.New(t)
//	id := repo.Commit(map[string]string{"site.hcl": "site \"a\" {\n}\n"}, "first")
//	server := repo.HTTPS()
//	…server.URL, server.CAFile…
package sourcetest

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1" // git's name of things
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Prefixes of values of Commit's files for anything but a regular file.
const (
	Gone      = "\x00gone"      // the file is taken away
	Link      = "\x00link "     // a symbolic link; its target follows
	Submodule = "\x00commit "   // a submodule; the id of its commit follows
	Exec      = "\x00program\n" // a file that may be run; its contents follow
)

// Repo is a bare repository in a folder. It is for one goroutine.
type Repo struct {
	Dir    string
	Branch string // where commits go; "main"

	t     testing.TB
	files map[string]string // what the branch holds, in the form of Commit
	clock time.Time
	trees map[string]string // ids of folders by their contents: written once
	zlib  *zlib.Writer      // making one is slow
	made  map[string]bool   // the objects that are written
}

// New makes an empty repository. Its clock begins at 2026-01-02 03:04:05 UTC and goes
// on a minute with each commit, so equal commits have equal ids.
func New(t testing.TB) *Repo {
	t.Helper()
	r := &Repo{
		Dir: filepath.Join(TempDir(t), "site.git"), Branch: "main", t: t, files: map[string]string{},
		clock: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), trees: map[string]string{}, zlib: zlib.NewWriter(nil), made: map[string]bool{},
	}
	for _, dir := range []string{"objects/pack", "objects/info", "refs/heads", "refs/tags"} {
		r.check(os.MkdirAll(filepath.Join(r.Dir, dir), 0o755))
	}
	r.write("HEAD", "ref: refs/heads/main\n")
	r.write("config", "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n[http]\n\treceivepack = true\n")
	return r
}

// TempDir is a folder for the time of the test. It is on a disk in memory where the
// system has one: git's many small files are slow to make elsewhere.
func TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "sourcetest-*")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func (r *Repo) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *Repo) write(name, text string) {
	r.t.Helper()
	file := filepath.Join(r.Dir, name)
	r.check(os.MkdirAll(filepath.Dir(file), 0o755))
	r.check(os.WriteFile(file+".new", []byte(text), 0o644))
	r.check(os.Rename(file+".new", file)) // as git does: who reads sees the old or the new
}

// URL is the file URL of the repository.
func (r *Repo) URL() string { return "file://" + r.Dir }

// Head is the commit the branch is at; "" before the first.
func (r *Repo) Head() string {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.Dir, "refs/heads", r.Branch))
	if os.IsNotExist(err) {
		return ""
	}
	r.check(err)
	return strings.TrimSpace(string(text))
}

// Commit changes files and puts a commit on top of the branch. Files that are not
// named stay as they are. It returns the commit's id.
func (r *Repo) Commit(files map[string]string, message string) string {
	r.t.Helper()
	return r.push(files, message, r.Head())
}

// Merge puts a commit on top of the branch that has others as parents too. It changes
// files as Commit does.
func (r *Repo) Merge(files map[string]string, message string, others ...string) string {
	r.t.Helper()
	return r.push(files, message, append([]string{r.Head()}, others...)...)
}

// ForcePush replaces the branch by one commit without parents that holds these files
// only.
func (r *Repo) ForcePush(files map[string]string, message string) string {
	r.t.Helper()
	r.files = map[string]string{}
	return r.push(files, message)
}

// Side makes a commit on top of an older one that no branch names, as one made on a
// branch which is then merged. It holds the files of the branch as they are, changed
// as told.
func (r *Repo) Side(parent string, files map[string]string, message string) string {
	r.t.Helper()
	all := maps.Clone(r.files)
	change(all, files)
	return r.Object("commit", r.commit(r.tree(all), message, parent))
}

// Reset moves the branch to an existing commit. It does not change the content of the next Commit.
func (r *Repo) Reset(id string) {
	r.t.Helper()
	r.SetBranch(r.Branch, id)
}

// SetBranch makes or moves a branch.
func (r *Repo) SetBranch(name, id string) {
	r.t.Helper()
	r.write("refs/heads/"+name, id+"\n")
}

// RemoveBranch takes a branch away.
func (r *Repo) RemoveBranch(name string) {
	r.t.Helper()
	r.check(os.Remove(filepath.Join(r.Dir, "refs/heads", name)))
}

// Remove takes the whole repository away, and Restore brings it back.
func (r *Repo) Remove() {
	r.t.Helper()
	r.check(os.Rename(r.Dir, r.Dir+".away"))
}

// Restore undoes Remove.
func (r *Repo) Restore() {
	r.t.Helper()
	r.check(os.Rename(r.Dir+".away", r.Dir))
}

func change(all, files map[string]string) {
	for name, text := range files {
		if text == Gone {
			delete(all, name)
		} else {
			all[name] = text
		}
	}
}

func (r *Repo) push(files map[string]string, message string, parents ...string) string {
	r.t.Helper()
	change(r.files, files)
	id := r.Object("commit", r.commit(r.tree(r.files), message, parents...))
	r.SetBranch(r.Branch, id)
	return id
}

func (r *Repo) commit(tree, message string, parents ...string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "tree %s\n", tree)
	for _, p := range parents {
		if p != "" {
			fmt.Fprintf(&b, "parent %s\n", p)
		}
	}
	who := fmt.Sprintf("Ada Example <ada@example.org> %d +0000", r.clock.Unix())
	fmt.Fprintf(&b, "author %s\ncommitter %s\n\n%s\n", who, who, strings.TrimRight(message, "\n"))
	r.clock = r.clock.Add(time.Minute)
	return b.Bytes()
}

// tree writes the objects of files, given by their whole paths.
func (r *Repo) tree(files map[string]string) string {
	r.t.Helper()
	below := map[string]map[string]string{}
	var lines []line
	for name, text := range files {
		if folder, rest, ok := strings.Cut(name, "/"); ok {
			if below[folder] == nil {
				below[folder] = map[string]string{}
			}
			below[folder][rest] = text
			continue
		}
		lines = append(lines, r.leaf(name, text))
	}
	for name, inside := range below {
		lines = append(lines, line{"40000", name, r.tree(inside), name + "/"})
	}
	slices.SortFunc(lines, func(a, b line) int { return strings.Compare(a.order, b.order) })
	var b bytes.Buffer
	for _, l := range lines {
		id, err := hex.DecodeString(l.id)
		r.check(err)
		b.WriteString(l.mode + " " + l.name + "\x00")
		b.Write(id)
	}
	if id, ok := r.trees[b.String()]; ok {
		return id
	}
	id := r.Object("tree", b.Bytes())
	r.trees[b.String()] = id
	return id
}

// line is one of a tree; order is what git sorts by.
type line struct{ mode, name, id, order string }

func (r *Repo) leaf(name, text string) line {
	r.t.Helper()
	if target, ok := strings.CutPrefix(text, Link); ok {
		return line{"120000", name, r.Object("blob", []byte(target)), name}
	}
	if id, ok := strings.CutPrefix(text, Submodule); ok {
		return line{"160000", name, id, name}
	}
	if program, ok := strings.CutPrefix(text, Exec); ok {
		return line{"100755", name, r.Object("blob", []byte(program)), name}
	}
	return line{"100644", name, r.Object("blob", []byte(text)), name}
}

// Object writes an object of any kind, and returns its id.
func (r *Repo) Object(kind string, data []byte) string {
	r.t.Helper()
	whole := append(fmt.Appendf(nil, "%s %d\x00", kind, len(data)), data...)
	sum := sha1.Sum(whole)
	id := hex.EncodeToString(sum[:])
	file := filepath.Join(r.Dir, "objects", id[:2], id[2:])
	if r.made[id] {
		return id
	}
	r.made[id] = true
	var b bytes.Buffer
	r.zlib.Reset(&b)
	_, err := r.zlib.Write(whole)
	r.check(err)
	r.check(r.zlib.Close())
	r.check(os.MkdirAll(filepath.Dir(file), 0o755))
	r.check(os.WriteFile(file, b.Bytes(), 0o444))
	return id
}
