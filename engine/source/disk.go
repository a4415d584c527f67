package source

import (
	"bytes"
	"crypto/sha1" // git's checksum of files, not a matter of trust here
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"

	"github.com/homestak/homestak-gitops/engine/source/objects"
)

// disk is the folder of a local copy: a bare repository that git can read too, with all objects in
// packs. Its files are written under another name and then renamed, and a pack counts only once its
// index is there. So a killed program leaves either the old or the new state, and at most some
// unused files. Checksums detect damage by a power failure. go-git's own storage rewrites its files
// in place.
type disk struct {
	folder
	branch  string
	largest int64 // bytes of an object
	cache   cache.Object
}

// state is the state of the copy besides objects.
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
	found, err := d.list(".")
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
	if err == nil {
		err = d.have("config", "[core]\n\trepositoryformatversion = 0\n\tbare = true\n")
	}
	if err == nil {
		err = d.have("HEAD", "ref: refs/heads/"+d.branch+"\n")
	}
	if err != nil {
		return fmt.Errorf("open the local copy: %w", err)
	}
	return nil
}

// have writes a file that has the same text in every copy, unless it is there.
func (d disk) have(name, text string) error {
	old, err := d.read(name)
	if errors.Is(err, objects.ErrDamaged) {
		if _, err := d.asideOf(name); err != nil {
			return err
		}
		err = fs.ErrNotExist
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) || string(old) == text {
		return err
	}
	return d.write(name, []byte(text))
}

// claim marks an empty folder as a local copy. Without that file nothing is ever changed.
func (d disk) claim() error {
	err := d.do("stat", ownerFile, func() error {
		_, err := os.Lstat(d.path(ownerFile))
		return err
	})
	if err == nil {
		return nil
	}
	var found []fs.DirEntry
	if errors.Is(err, fs.ErrNotExist) {
		found, err = d.list(".")
	}
	if err != nil {
		return fmt.Errorf("read the folder of the local copy: %w", err)
	}
	if len(found) > 0 {
		return fmt.Errorf("%s contains files (%s) but is not a local copy of this program: name an empty folder, or one that does not exist", d.dir, found[0].Name())
	}
	return d.do("create", ownerFile, func() error { return os.WriteFile(d.path(ownerFile), []byte(ownerText), 0o600) })
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

// load reads and checks the state and all packs, and changes nothing. The error is objects.ErrDamaged
// only if the contents of a file are wrong, or a file is missing. unused lists files that
// belong to no pack: those of a killed program.
func (d disk) load() (s state, ps packs, unused []string, err error) {
	if s, err = d.loadState(); err != nil {
		return state{}, nil, nil, fmt.Errorf("read the state: %w", err)
	}
	found, err := d.list(packDir)
	if err != nil {
		return state{}, nil, nil, fmt.Errorf("read the packs: %w", err)
	}
	used := map[string]bool{}
	for _, e := range found {
		name, ok := strings.CutSuffix(e.Name(), ".idx")
		if !ok || strings.HasPrefix(name, tmpPrefix) {
			continue
		}
		p, err := d.loadPack(packDir + "/" + name)
		if err != nil {
			return state{}, nil, nil, fmt.Errorf("read %s: %w", name, err)
		}
		ps = append(ps, p)
		used[name+".idx"], used[name+".pack"] = true, true
	}
	for _, e := range found {
		if !used[e.Name()] {
			unused = append(unused, packDir+"/"+e.Name())
		}
	}
	return s, ps, unused, nil
}

func (d disk) loadState() (state, error) {
	var s state
	text, err := d.read(stateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	for line := range strings.Lines(string(text)) {
		id, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch {
		case !ok || !plumbing.IsHash(id) || !strings.HasSuffix(line, "\n"):
			return s, objects.Damage(fmt.Errorf("%s is not a list of refs", stateFile))
		case name == "refs/heads/"+d.branch:
			s.head = plumbing.NewHash(id)
		case strings.HasPrefix(name, keptPrefix):
			s.kept = append(s.kept, plumbing.NewHash(id))
		}
	}
	plumbing.HashesSort(s.kept)
	return s, nil
}

func (d disk) loadPack(name string) (*pack, error) {
	data, err := d.read(name + ".idx")
	if err != nil {
		return nil, err
	}
	if err := checkSum(bytes.NewReader(data), int64(len(data)), nil); err != nil {
		return nil, objects.Damage(fmt.Errorf("the index: %w", err))
	}
	index := idxfile.NewMemoryIndex()
	if err := idxfile.NewDecoder(bytes.NewReader(data)).Decode(index); err != nil {
		return nil, objects.Damage(err)
	}
	f, err := d.open(name + ".pack")
	if errors.Is(err, fs.ErrNotExist) {
		err = objects.Damage(err)
	}
	if err != nil {
		return nil, err
	}
	p, err := newPack(f, index, d.cache)
	if err == nil {
		err = f.parse(objects.Damage, func() error { return checkSum(f, p.size, index.PackfileChecksum[:]) })
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return p, nil
}

// checkSum compares the checksum of a file, which is its last bytes, with its contents
// and with what is wanted, if that is known.
func checkSum(r io.ReaderAt, size int64, want []byte) error {
	if size < sha1.Size {
		return errors.New("it is cut off")
	}
	h, end := sha1.New(), make([]byte, sha1.Size)
	_, err := io.Copy(h, io.NewSectionReader(r, 0, size-sha1.Size))
	if err == nil {
		_, err = io.ReadFull(io.NewSectionReader(r, size-sha1.Size, sha1.Size), end)
	}
	if err == nil && (!bytes.Equal(h.Sum(nil), end) || want != nil && !bytes.Equal(end, want)) {
		err = errors.New("its checksum does not match")
	}
	return err
}

// add creates a pack from the output of fill. It returns nil for a pack without objects, and an
// error of fill unchanged.
func (d disk) add(fill func(w io.Writer) error) (p *pack, err error) {
	f, err := d.createTemp(packDir, tmpPrefix+"*.pack")
	if err != nil {
		return nil, fmt.Errorf("write the local copy: %w", err)
	}
	tmp := f.name
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
		for _, ext := range []string{".idx", ".pack"} { // without its index a pack is nothing, but an index without its pack is damage
			if err := d.remove(packDir + "/pack-" + p.name + ext); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
				break
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
