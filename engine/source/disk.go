package source

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
)

// disk is the folder of a local copy: a bare repository that git can read too, with
// all objects in packs. Its files are written beside their place and renamed into
// it, and a pack counts only once its index is there. So a program that is killed
// leaves either the old or the new state behind, and at most some files that nobody
// needs. What a power cut tears is found by its checksum.
type disk struct {
	dir    string
	branch string
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
		err = d.do("rename", name, func() error { return os.Rename(d.path(tmp), d.path(name)) })
	}
	if err != nil {
		return fmt.Errorf("write the local copy: %w", err)
	}
	return nil
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

func (d disk) openPack(name string) (*pack, error) {
	idx, err := os.Open(d.path(packDir + "/pack-" + name + ".idx"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = idx.Close() }()
	m := idxfile.NewMemoryIndex()
	if err := idxfile.NewDecoder(bufio.NewReader(idx)).Decode(m); err != nil {
		return nil, err
	}
	f, err := os.Open(d.path(packDir + "/pack-" + name + ".pack"))
	if err != nil {
		return nil, err
	}
	p, err := newPack(name, f, m)
	if err != nil {
		_ = f.Close()
	}
	return p, err
}

func newPack(name string, f *os.File, m *idxfile.MemoryIndex) (*pack, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	sum, err := checkSum(f, info.Size())
	if err != nil {
		return nil, err
	}
	if sum != plumbing.Hash(m.PackfileChecksum) {
		return nil, errors.New("its index belongs to another pack")
	}
	index, err := spots(m)
	if err != nil {
		return nil, err
	}
	starts := make([]int64, len(index))
	for i, s := range index {
		starts[i] = s.at
	}
	slices.Sort(starts)
	return &pack{name, f, info.Size(), index, starts}, nil
}

func (d disk) remove(name string) error {
	return d.do("remove", name, func() error { return os.Remove(d.path(name)) })
}

// drop removes packs that are no longer needed. Who reads from them goes on reading.
func (d disk) drop(packs []*pack, but *pack) error {
	var errs []error
	for _, p := range packs {
		if but != nil && p.name == but.name {
			continue // what was written anew is what was there
		}
		for _, ext := range []string{".idx", ".pack"} { // without its index a pack is nothing
			if err := d.remove(packDir + "/pack-" + p.name + ext); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// add makes a pack of what fill writes, and puts it beside the others. It gives nil
// for a pack without objects. An error of fill is given as it is.
func (d disk) add(durable bool, fill func(w io.Writer) error) (p *pack, err error) {
	var f *os.File
	err = d.do("create", packDir+"/"+tmpPrefix, func() error {
		f, err = os.CreateTemp(d.path(packDir), tmpPrefix+"*.pack")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("write the local copy: %w", err)
	}
	tmp := packDir + "/" + filepath.Base(f.Name())
	defer func() {
		if p == nil {
			err = errors.Join(err, f.Close())
			_ = d.remove(tmp) // else at the next start
		}
	}()
	if err := fill(f); err != nil {
		return nil, err
	}
	return d.install(f, tmp, durable)
}

// install checks and indexes a pack that was written, and gives it its name.
func (d disk) install(f *os.File, tmp string, durable bool) (*pack, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if _, err := checkSum(f, info.Size()); err != nil {
		return nil, fmt.Errorf("%w: what came is no whole pack: %w", errBadPack, err)
	}
	if info.Size() == packHead+sumSize {
		return nil, nil // it has no objects, and that is no error
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	m, err := indexPack(f)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBadPack, err)
	}
	name := plumbing.Hash(m.PackfileChecksum).String()
	var idx bytes.Buffer
	if _, err := idxfile.NewEncoder(&idx).Encode(m); err != nil {
		return nil, err
	}
	if durable {
		if err := d.do("sync", tmp, f.Sync); err != nil {
			return nil, fmt.Errorf("write the local copy: %w", err)
		}
	}
	full := packDir + "/pack-" + name
	if err := d.do("rename", full+".pack", func() error { return os.Rename(d.path(tmp), d.path(full+".pack")) }); err != nil {
		return nil, fmt.Errorf("write the local copy: %w", err)
	}
	p, err := newPack(name, f, m)
	if err != nil {
		return nil, err
	}
	if err := d.write(full+".idx", idx.Bytes()); err != nil {
		return nil, err
	}
	return p, nil
}

// errBadPack is of a pack that came damaged.
var errBadPack = errors.New("bad pack")

// size is the bytes of packs on disk, their indexes left out.
func size(packs []*pack) int64 {
	var n int64
	for _, p := range packs {
		n += p.size
	}
	return n
}

// withHash adds an id to a sorted list without repetition.
func withHash(list []plumbing.Hash, ids ...plumbing.Hash) []plumbing.Hash {
	out := append(slices.Clone(list), ids...)
	plumbing.HashesSort(out)
	return slices.Compact(out)
}
