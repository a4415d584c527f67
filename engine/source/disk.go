package source

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
)

// disk is the folder of a local copy: a bare repository that git can read too, with
// all objects in packs. Its files are written beside their place and renamed into
// it, and a pack counts only once its index is there. So a program that is killed
// leaves either the old or the new state behind, and at most some files that nobody
// needs. What a power cut tears is found by its checksum.
type disk struct {
	dir     string
	branch  string
	largest int64 // bytes of an object
	// before is asked before each change of the folder; its error keeps that change
	// from happening. It is nil but in tests.
	before func(op, name string) error
}

// state is what the copy holds beside objects.
type state struct {
	head plumbing.Hash   // of the branch, as last fetched; zero before that
	kept []plumbing.Hash // sorted
	ends []plumbing.Hash // commits of which parents are missing; git calls them shallow
}

// The files of the folder.
const (
	markFile  = "homestak-gitops" // says that all of the folder may be deleted
	stateFile = "packed-refs"
	endsFile  = "shallow"
	packDir   = "objects/pack"
	tmpPrefix = "tmp-"
)

const markText = "A copy of the repository of a homestak site, for one agent.\nIt may be deleted while the agent does not run, and is then fetched anew.\n"

// keptPrefix names the refs of kept commits.
const keptPrefix = "refs/kept/"

func (d disk) do(op, name string, f func() error) error {
	if d.before != nil {
		if err := d.before(op, name); err != nil {
			return err
		}
	}
	return f()
}

func (d disk) path(name string) string { return filepath.Join(d.dir, filepath.FromSlash(name)) }

// prepare makes the folder, or what is missing of it. A folder that holds something
// else is left alone.
func (d disk) prepare() error {
	if err := d.do("mkdir", ".", func() error { return os.MkdirAll(d.dir, 0o700) }); err != nil {
		return fmt.Errorf("make the folder of the local copy: %w", err)
	}
	if err := d.claim(); err != nil {
		return err
	}
	if err := d.sweep(); err != nil {
		return err
	}
	for _, name := range []string{"refs", packDir} {
		if err := d.do("mkdir", name, func() error { return os.MkdirAll(d.path(name), 0o700) }); err != nil {
			return fmt.Errorf("make the folder of the local copy: %w", err)
		}
	}
	for name, text := range map[string]string{
		"config": "[core]\n\trepositoryformatversion = 0\n\tbare = true\n",
		"HEAD":   "ref: refs/heads/" + d.branch + "\n",
	} {
		if old, err := os.ReadFile(d.path(name)); err == nil && string(old) == text {
			continue
		}
		if err := d.write(name, []byte(text)); err != nil {
			return err
		}
	}
	return nil
}

// sweep removes what a killed program had not yet renamed.
func (d disk) sweep() error {
	there, err := os.ReadDir(d.dir)
	if err != nil {
		return fmt.Errorf("look into the folder of the local copy: %w", err)
	}
	for _, e := range there {
		if strings.HasPrefix(e.Name(), tmpPrefix) {
			if err := d.remove(e.Name()); err != nil {
				return fmt.Errorf("tidy the local copy: %w", err)
			}
		}
	}
	return nil
}

// claim puts the mark into an empty folder. Nothing is ever removed without it.
func (d disk) claim() error {
	if _, err := os.Lstat(d.path(markFile)); err == nil {
		return nil
	}
	there, err := os.ReadDir(d.dir)
	if err != nil {
		return fmt.Errorf("look into the folder of the local copy: %w", err)
	}
	if len(there) > 0 {
		return fmt.Errorf("%s holds files (%s) but is no copy that this program made: name an empty folder, or one that does not exist", d.dir, there[0].Name())
	}
	return d.do("create", markFile, func() error { return os.WriteFile(d.path(markFile), []byte(markText), 0o600) })
}

// wipe throws the copy away and makes an empty one.
func (d disk) wipe() error {
	if err := d.claim(); err != nil {
		return err
	}
	there, err := os.ReadDir(d.dir)
	if err != nil {
		return fmt.Errorf("throw the local copy away: %w", err)
	}
	for _, e := range there {
		if e.Name() == markFile {
			continue
		}
		if err := d.do("remove", e.Name(), func() error { return os.RemoveAll(d.path(e.Name())) }); err != nil {
			return fmt.Errorf("throw the local copy away: %w", err)
		}
	}
	return d.prepare()
}

// write replaces a small file.
func (d disk) write(name string, data []byte) error {
	tmp := tmpPrefix + filepath.Base(name)
	err := d.do("create", tmp, func() error { return os.WriteFile(d.path(tmp), data, 0o600) })
	if err == nil {
		err = d.sync(tmp)
	}
	if err == nil {
		err = d.rename(tmp, name)
	}
	if err != nil {
		return fmt.Errorf("write the local copy: %w", err)
	}
	return nil
}

// rename gives a file its name, which lasts.
func (d disk) rename(tmp, name string) error {
	if err := d.do("rename", name, func() error { return os.Rename(d.path(tmp), d.path(name)) }); err != nil {
		return err
	}
	return d.sync(path.Dir(name))
}

// sync makes the contents of a file, or the names in a folder, last over a power cut.
// The repository may be on a machine that comes back only when this one has started it.
func (d disk) sync(name string) error {
	return d.do("sync", name, func() error {
		f, err := os.Open(d.path(name))
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
}

func (d disk) remove(name string) error {
	return d.do("remove", name, func() error { return os.Remove(d.path(name)) })
}

// save writes the state that follows another. The ends come first: a commit that is
// named must not be without them.
func (d disk) save(s, before state) error {
	var ends, refs bytes.Buffer
	for _, id := range s.ends {
		fmt.Fprintln(&ends, id)
	}
	if !s.head.IsZero() {
		fmt.Fprintf(&refs, "%s refs/heads/%s\n", s.head, d.branch)
	}
	for _, id := range s.kept {
		fmt.Fprintf(&refs, "%s %s%s\n", id, keptPrefix, id)
	}
	if !slices.Equal(s.ends, before.ends) {
		if err := d.write(endsFile, ends.Bytes()); err != nil {
			return err
		}
	}
	if s.head == before.head && slices.Equal(s.kept, before.kept) {
		return nil
	}
	return d.write(stateFile, refs.Bytes())
}

// load reads what is there: the state, and the packs with their checksums held
// against them. Packs without an index are removed.
func (d disk) load() (state, []*pack, error) {
	s, err := d.loadState()
	if err != nil {
		return state{}, nil, err
	}
	there, err := os.ReadDir(d.path(packDir))
	if err != nil {
		return state{}, nil, fmt.Errorf("read the packs: %w", err)
	}
	var packs []*pack
	used := map[string]bool{}
	for _, e := range there {
		name, ok := strings.CutSuffix(e.Name(), ".idx")
		if !ok || strings.HasPrefix(name, tmpPrefix) {
			continue
		}
		p, err := d.openPack(strings.TrimPrefix(name, "pack-"))
		if err != nil {
			return state{}, nil, fmt.Errorf("read %s: %w", name, err)
		}
		packs = append(packs, p)
		used[name+".idx"], used[name+".pack"] = true, true
	}
	for _, e := range there {
		if !used[e.Name()] {
			_ = d.remove(packDir + "/" + e.Name()) // it does no harm either
		}
	}
	return s, packs, nil
}

func (d disk) loadState() (state, error) {
	var s state
	text, err := os.ReadFile(d.path(stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read the state: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		id, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch {
		case !ok || !plumbing.IsHash(id) || !strings.HasSuffix(line, "\n"):
			return s, errors.New("read the state: it is no list of refs")
		case name == "refs/heads/"+d.branch:
			s.head = plumbing.NewHash(id)
		case strings.HasPrefix(name, keptPrefix):
			s.kept = append(s.kept, plumbing.NewHash(id))
		}
	}
	plumbing.HashesSort(s.kept)
	return s, nil
}

// withHash adds an id to a sorted list without repetition.
func withHash(list []plumbing.Hash, ids ...plumbing.Hash) []plumbing.Hash {
	out := append(slices.Clone(list), ids...)
	plumbing.HashesSort(out)
	return slices.Compact(out)
}
