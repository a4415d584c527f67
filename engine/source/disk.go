package source

import (
	"bytes"
	"crypto/sha1" // git's checksum of files, not a matter of trust here
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
)

// disk is the folder of a local copy: a bare repository that git can read too, with all objects in
// packs. Its files are written under another name and then renamed, and a pack counts only once its
// index is there. So a killed program leaves either the old or the new state, and at most some
// unused files. Checksums detect damage by a power failure. go-git's own storage rewrites its files
// in place.
type disk struct {
	dir     string
	branch  string
	largest int64 // bytes of an object
	cache   cache.Object
	// before is called before each change of the folder; its error prevents that change. It is nil
	// outside tests.
	before func(op, name string) error
}

// state is what the copy has besides objects.
type state struct {
	head plumbing.Hash   // of the branch, as last fetched; zero before that
	kept []plumbing.Hash // sorted
	ends []plumbing.Hash // commits of which parents are missing; git calls them shallow
}

// The files of the folder.
const (
	ownerFile = "homestak-gitops" // says that all of the folder may be deleted
	stateFile = "packed-refs"
	endsFile  = "shallow"
	packDir   = "objects/pack"
	tmpPrefix = "tmp-"
)

const ownerText = "A copy of the repository of a homestak site, for one agent.\nIt may be deleted while the agent does not run, and is then fetched again.\n"

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

// prepare creates the missing parts of the folder, and removes incomplete files of a killed
// program. It refuses a folder with other content.
func (d disk) prepare() error {
	err := d.mkdir(".")
	if err == nil {
		err = d.claim()
	}
	if err != nil {
		return err
	}
	found, err := os.ReadDir(d.dir)
	for _, e := range found {
		if err == nil && strings.HasPrefix(e.Name(), tmpPrefix) {
			err = d.remove(e.Name())
		}
	}
	for _, name := range []string{"refs", packDir} {
		if err == nil {
			err = d.mkdir(name)
		}
	}
	for name, text := range map[string]string{
		"config": "[core]\n\trepositoryformatversion = 0\n\tbare = true\n",
		"HEAD":   "ref: refs/heads/" + d.branch + "\n",
	} {
		if old, rerr := os.ReadFile(d.path(name)); err == nil && (rerr != nil || string(old) != text) {
			err = d.write(name, []byte(text))
		}
	}
	return err
}

func (d disk) mkdir(name string) error {
	if err := d.do("mkdir", name, func() error { return os.MkdirAll(d.path(name), 0o700) }); err != nil {
		return fmt.Errorf("create the folder of the local copy: %w", err)
	}
	return nil
}

// claim marks an empty folder as a local copy. Without that file nothing is ever removed.
func (d disk) claim() error {
	if _, err := os.Lstat(d.path(ownerFile)); err == nil {
		return nil
	}
	found, err := os.ReadDir(d.dir)
	if err != nil {
		return fmt.Errorf("read the folder of the local copy: %w", err)
	}
	if len(found) > 0 {
		return fmt.Errorf("%s contains files (%s) but is not a local copy of this program: name an empty folder, or one that does not exist", d.dir, found[0].Name())
	}
	return d.do("create", ownerFile, func() error { return os.WriteFile(d.path(ownerFile), []byte(ownerText), 0o600) })
}

// wipe removes the copy and creates an empty one.
func (d disk) wipe() error {
	err := d.claim()
	found, rerr := os.ReadDir(d.dir)
	err = errors.Join(err, rerr)
	for _, e := range found {
		if err == nil && e.Name() != ownerFile {
			err = d.do("remove", e.Name(), func() error { return os.RemoveAll(d.path(e.Name())) })
		}
	}
	if err != nil {
		return fmt.Errorf("remove the local copy: %w", err)
	}
	return d.prepare()
}

// write replaces a small file.
func (d disk) write(name string, data []byte) error {
	tmp := tmpPrefix + filepath.Base(name)
	err := d.do("create", tmp, func() error { return os.WriteFile(d.path(tmp), data, 0o600) })
	if err == nil {
		err = d.rename(tmp, name)
	}
	if err != nil {
		return fmt.Errorf("write the local copy: %w", err)
	}
	return nil
}

// rename gives a file its final name. Content and name survive a power failure: the repository may
// be on a machine that only boots after this one.
func (d disk) rename(tmp, name string) error {
	if err := d.sync(tmp); err != nil {
		return err
	}
	if err := d.do("rename", name, func() error { return os.Rename(d.path(tmp), d.path(name)) }); err != nil {
		return err
	}
	return d.sync(path.Dir(name))
}

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

// save writes a new state. It writes the ends first: a named commit must not be without them.
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

// load reads and checks the state and all packs. It removes packs without an index.
func (d disk) load() (state, packs, error) {
	s, err := d.loadState()
	if err != nil {
		return state{}, nil, fmt.Errorf("read the state: %w", err)
	}
	found, err := os.ReadDir(d.path(packDir))
	if err != nil {
		return state{}, nil, fmt.Errorf("read the packs: %w", err)
	}
	var ps packs
	used := map[string]bool{}
	for _, e := range found {
		name, ok := strings.CutSuffix(e.Name(), ".idx")
		if !ok || strings.HasPrefix(name, tmpPrefix) {
			continue
		}
		p, err := d.loadPack(packDir + "/" + name)
		if err != nil {
			return state{}, nil, fmt.Errorf("read %s: %w", name, err)
		}
		ps = append(ps, p)
		used[name+".idx"], used[name+".pack"] = true, true
	}
	for _, e := range found {
		if !used[e.Name()] {
			_ = d.remove(packDir + "/" + e.Name()) // it does no harm either
		}
	}
	return s, ps, nil
}

func (d disk) loadState() (state, error) {
	var s state
	text, err := os.ReadFile(d.path(stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	for line := range strings.Lines(string(text)) {
		id, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch {
		case !ok || !plumbing.IsHash(id) || !strings.HasSuffix(line, "\n"):
			return s, errors.New("it is not a list of refs")
		case name == "refs/heads/"+d.branch:
			s.head = plumbing.NewHash(id)
		case strings.HasPrefix(name, keptPrefix):
			s.kept = append(s.kept, plumbing.NewHash(id))
		}
	}
	plumbing.HashesSort(s.kept)
	return s, err
}

func (d disk) loadPack(name string) (*pack, error) {
	data, err := os.ReadFile(d.path(name + ".idx"))
	if err != nil {
		return nil, err
	}
	index := idxfile.NewMemoryIndex()
	if err := idxfile.NewDecoder(bytes.NewReader(data)).Decode(index); err != nil {
		return nil, err
	}
	f, err := os.Open(d.path(name + ".pack"))
	if err != nil {
		return nil, err
	}
	p, err := newPack(f, index, d.cache)
	if err == nil {
		err = checkSum(f, p.size, index.PackfileChecksum)
	}
	if err == nil {
		err = checkSum(bytes.NewReader(data), int64(len(data)), index.IdxChecksum)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return p, nil
}

// checkSum compares the checksum of a file, which is its last bytes, with its contents
// and with what is wanted.
func checkSum(r io.ReaderAt, size int64, want [sha1.Size]byte) error {
	h, end := sha1.New(), make([]byte, sha1.Size)
	_, err := io.Copy(h, io.NewSectionReader(r, 0, size-sha1.Size))
	if err == nil {
		_, err = io.ReadFull(io.NewSectionReader(r, size-sha1.Size, sha1.Size), end)
	}
	if err == nil && (!bytes.Equal(h.Sum(nil), want[:]) || !bytes.Equal(end, want[:])) {
		err = errors.New("its checksum does not match")
	}
	return err
}

// add creates a pack from the output of fill. It returns nil for a pack without objects, and an
// error of fill unchanged.
func (d disk) add(fill func(w io.Writer) error) (p *pack, err error) {
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
		if p == nil || err != nil {
			p, err = nil, errors.Join(err, f.Close())
			_ = d.remove(tmp) // else at the next start
		}
	}()
	if err := fill(f); err != nil {
		return nil, err
	}
	m, err := indexPack(f, d.largest)
	if err != nil {
		return nil, err
	}
	if count, err := m.Count(); count == 0 || err != nil {
		return nil, err
	}
	if p, err = newPack(f, m, d.cache); err != nil {
		return nil, err
	}
	var index bytes.Buffer
	if _, err := idxfile.NewEncoder(&index).Encode(m); err != nil {
		return nil, err
	}
	name := packDir + "/pack-" + p.name
	if err := d.rename(tmp, name+".pack"); err != nil {
		return nil, fmt.Errorf("write the local copy: %w", err)
	}
	return p, d.write(name+".idx", index.Bytes())
}

// drop removes packs that are no longer needed, except one. Their readers continue.
func (d disk) drop(ps packs, except *pack) error {
	var errs []error
	for _, p := range ps {
		if except != nil && p.name == except.name {
			continue // the new pack holds what the old one held
		}
		for _, ext := range []string{".idx", ".pack"} { // without its index a pack is nothing
			if err := d.remove(packDir + "/pack-" + p.name + ext); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// withHash adds an id to a sorted list without repetition.
func withHash(list []plumbing.Hash, ids ...plumbing.Hash) []plumbing.Hash {
	out := append(slices.Clone(list), ids...)
	plumbing.HashesSort(out)
	return slices.Compact(out)
}
