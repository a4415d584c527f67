package source

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
)

// Damaged files stay in the folder for inspection, in damaged/1, damaged/2, and so on. The newest always stays, and
// older ones as long as they are few and small.
const (
	asideDir   = "damaged"
	mostAside  = 3
	asideBytes = 1 << 30
)

// aside moves the whole copy out of the way, and returns the folder where it is then. If a program
// is killed meanwhile, what is left counts as damaged too, since the objects are moved first.
func (d disk) aside() (to string, err error) {
	found, err := d.list(".")
	if err != nil {
		return "", err
	}
	var names []string
	for _, e := range found {
		if e.Name() != ownerFile && e.Name() != asideDir {
			names = append(names, e.Name())
		}
	}
	if at := slices.Index(names, path.Dir(packDir)); at > 0 {
		names[0], names[at] = names[at], names[0]
	}
	return d.asideOf(names...)
}

// asideOf moves files or folders out of the way.
func (d folder) asideOf(names ...string) (to string, err error) {
	if err := d.mkdir(asideDir); err != nil {
		return "", err
	}
	before, err := d.asides()
	if err != nil {
		return "", err
	}
	next := 1
	if len(before) > 0 {
		next = before[len(before)-1] + 1
	}
	to = asideName(next)
	if err := d.mkdir(to); err != nil {
		return "", err
	}
	for _, name := range names {
		if err := d.do("rename", to+"/"+name, func() error { return os.Rename(d.path(name), d.path(to+"/"+name)) }); err != nil {
			return "", err
		}
	}
	if err := errors.Join(d.sync(to), d.sync(".")); err != nil {
		return "", err
	}
	d.trimAsides(append(before, next))
	return d.path(to), nil
}

func asideName(n int) string { return asideDir + "/" + strconv.Itoa(n) }

// asides lists the numbers of what was moved aside, the oldest first.
func (d folder) asides() ([]int, error) {
	found, err := d.list(asideDir)
	var out []int
	for _, e := range found {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, err
}

// trimAsides removes the oldest damaged copies above the limits. Failures are ignored and retried the next time.
func (d folder) trimAsides(all []int) {
	var sum int64
	for i, n := range slices.Backward(all) {
		sum += treeSize(d.path(asideName(n)))
		if newest := i == len(all)-1; !newest && (len(all)-i > mostAside || sum > asideBytes) {
			_ = d.do("remove", asideName(n), func() error { return os.RemoveAll(d.path(asideName(n))) })
		}
	}
}

// treeSize is the bytes of the files in a folder, as far as they can be read.
func treeSize(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}
