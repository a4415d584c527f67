package userland

import (
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// Programs for the tree of files: names, modes, owners.

// eachName does something for each name, as seen from the root, and complains about those where it
// fails, in the words of the program.
func eachName(p *machine.Process, names []string, complaint string, do func(name string) error) int {
	code := 0
	for _, name := range names {
		if err := do(p.Path(name)); err != nil {
			code = p.Failf(complaint, name, machine.ErrorText(err))
		}
	}
	return code
}

// into is the name that a file gets where the target is a folder.
func into(p *machine.Process, from, to string, plain bool) string {
	if i, err := p.K.FS.Stat(p.Cred, p.Path(to)); err == nil && i.Kind == machine.Folder && !plain {
		return path.Join(p.Path(to), path.Base(from))
	}
	return p.Path(to)
}

func mv(p *machine.Process, o Options) int {
	to, sources := o.Args[len(o.Args)-1], o.Args[:len(o.Args)-1]
	return eachName(p, sources, "cannot move '%s': %s", func(from string) error {
		return p.K.FS.Rename(p.Cred, from, into(p, from, to, o.Has("T")))
	})
}

func rm(p *machine.Process, o Options) int {
	return eachName(p, o.Args, "cannot remove '%s': %s", func(name string) error {
		i, err := p.K.FS.Lstat(p.Cred, name)
		switch {
		case o.Has("f") && (errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR)):
			return nil
		case err != nil:
			return err
		case o.Has("r"):
			return p.K.FS.RemoveAll(p.Cred, strings.TrimRight(name, "/"))
		case i.Kind == machine.Folder:
			return syscall.EISDIR
		}
		return p.K.FS.Remove(p.Cred, name)
	})
}

func cp(p *machine.Process, o Options) int {
	to, sources := o.Args[len(o.Args)-1], o.Args[:len(o.Args)-1]
	return eachName(p, sources, "cannot copy '%s': %s", func(from string) error {
		return copyTree(p, from, into(p, from, to, o.Has("T")), o)
	})
}

func copyTree(p *machine.Process, from, to string, o Options) error {
	fs, get := p.K.FS, p.K.FS.Stat
	if o.Has("a") || o.Has("P") {
		get = fs.Lstat
	}
	i, err := get(p.Cred, from)
	switch {
	case err != nil:
		return err
	case i.Kind == machine.SymbolicLink:
		return fs.Symlink(p.Cred, i.Target, to)
	case i.Kind == machine.Folder && !o.Has("a") && !o.Has("r"):
		return syscall.EISDIR
	case i.Kind == machine.Folder:
		if err := fs.Mkdir(p.Cred, to, i.Perm); err != nil && !errors.Is(err, syscall.EEXIST) {
			return err
		}
		list, err := fs.ReadDir(p.Cred, from)
		for _, child := range list {
			err = errors.Join(err, copyTree(p, path.Join(from, child.Name), path.Join(to, child.Name), o))
		}
		if err != nil {
			return err
		}
	default:
		text, err := p.ReadFile(from)
		if err == nil {
			err = save(p, to, text, os.O_TRUNC, i.Perm)
		}
		if err != nil {
			return err
		}
	}
	if !o.Has("a") && !o.Has("p") {
		return nil
	}
	_ = fs.Chown(p.Cred, to, i.UID, i.GID, true) // as cp does, who may not leaves it
	return fs.Chmod(p.Cred, to, i.Perm)
}

// save writes a text into a file; how is O_TRUNC or O_APPEND.
func save(p *machine.Process, name, text string, how int, perm uint32) error {
	f, err := p.Open(name, os.O_WRONLY|os.O_CREATE|how, perm)
	if err != nil {
		return err
	}
	defer p.K.Close(f)
	return f.WriteAll(text)
}

func ln(p *machine.Process, o Options) int {
	target, name := o.Args[0], o.Args[1]
	at := into(p, target, name, o.Has("T") || o.Has("n"))
	if i, err := p.K.FS.Lstat(p.Cred, at); o.Has("f") && err == nil && i.Kind != machine.Folder {
		if err := p.K.FS.Remove(p.Cred, at); err != nil {
			return p.Failf("cannot remove '%s': %s", name, machine.ErrorText(err))
		}
	}
	if !o.Has("s") {
		return p.Failf("only symbolic links are simulated")
	}
	if err := p.K.FS.Symlink(p.Cred, target, at); err != nil {
		return p.Failf("failed to create link '%s': %s", name, machine.ErrorText(err))
	}
	return 0
}

func mkdir(p *machine.Process, o Options) int {
	return eachName(p, o.Args, "cannot create directory '%s': %s", func(name string) error {
		return makeFolder(p, name, o.Has("p"), o.Text("m"))
	})
}

func makeFolder(p *machine.Process, name string, parents bool, mode string) error {
	if i, err := p.K.FS.Stat(p.Cred, name); parents && err == nil {
		if i.Kind != machine.Folder {
			return syscall.EEXIST
		}
		return nil
	}
	if parents {
		if err := makeFolder(p, path.Dir(strings.TrimRight(name, "/")), true, ""); err != nil {
			return err
		}
	}
	perm := 0o777 &^ p.Umask
	if mode != "" {
		var err error
		if perm, err = newMode(mode, 0o777, true); err != nil {
			return err
		}
	}
	return p.K.FS.Mkdir(p.Cred, name, perm)
}

func rmdir(p *machine.Process, o Options) int {
	return eachName(p, o.Args, "failed to remove '%s': %s", func(name string) error {
		if i, err := p.K.FS.Lstat(p.Cred, name); err == nil && i.Kind != machine.Folder {
			return syscall.ENOTDIR
		}
		return p.K.FS.Remove(p.Cred, name)
	})
}

// newMode reads a mode, octal or as changes to another one.
func newMode(text string, old uint32, folder bool) (uint32, error) {
	if n, err := strconv.ParseUint(text, 8, 32); err == nil {
		return uint32(n), nil
	}
	invalid := fmt.Errorf("invalid mode: '%s'", text)
	for clause := range strings.SplitSeq(text, ",") {
		at := strings.IndexAny(clause, "+-=")
		if at < 0 {
			return 0, invalid
		}
		who, bits := uint32(0), uint32(0)
		for _, c := range clause[:at] {
			who |= map[rune]uint32{'u': 0o4700, 'g': 0o2070, 'o': 0o1007, 'a': 0o7777}[c]
		}
		if at == 0 {
			who = 0o7777
		}
		for _, c := range clause[at+1:] {
			bit, there := map[rune]uint32{'r': 0o444, 'w': 0o222, 'x': 0o111, 'X': 0, 's': 0o6000, 't': 0o1000}[c]
			if !there {
				return 0, invalid
			}
			if c == 'X' && (folder || old&0o111 != 0) {
				bit = 0o111
			}
			bits |= bit
		}
		switch clause[at] {
		case '+':
			old |= bits & who
		case '-':
			old &^= bits & who
		default:
			old = old&^(who&0o777) | bits&who
		}
	}
	return old, nil
}

// change does something to files, and with deep to everything below folders.
func change(p *machine.Process, names []string, deep bool, do func(name string, i machine.FileInfo) error) int {
	var one func(name string) error
	one = func(name string) error {
		i, err := p.K.FS.Lstat(p.Cred, name)
		if err == nil {
			err = do(name, i)
		}
		if err != nil || !deep || i.Kind != machine.Folder {
			return err
		}
		list, err := p.K.FS.ReadDir(p.Cred, name)
		for _, child := range list {
			err = errors.Join(err, one(path.Join(name, child.Name)))
		}
		return err
	}
	return eachName(p, names, "cannot change '%s': %s", one)
}

func chmod(p *machine.Process) int {
	args, deep := p.Args[1:], false // a mode may begin with a minus
	if len(args) > 0 && args[0] == "-R" {
		args, deep = args[1:], true
	}
	if len(args) > 1 && args[1] == "--" {
		args = slices.Delete(slices.Clone(args), 1, 2)
	}
	if len(args) < 2 {
		return p.Failf("missing operand")
	}
	return change(p, args[1:], deep, func(name string, i machine.FileInfo) error {
		if i.Kind == machine.SymbolicLink {
			if deep {
				return nil
			}
			target, err := p.K.FS.Stat(p.Cred, name)
			if err != nil {
				return err
			}
			i = target
		}
		perm, err := newMode(args[0], i.Perm, i.Kind == machine.Folder)
		if err != nil {
			return err
		}
		return p.K.FS.Chmod(p.Cred, name, perm)
	})
}

// chown is chown and chgrp.
func chown(p *machine.Process, o Options) int {
	owner, group, both := strings.Cut(o.Args[0], ":")
	if path.Base(p.Args[0]) == "chgrp" {
		owner, group = "", o.Args[0]
	}
	uid, gid := -1, -1
	if owner != "" {
		u, there := userOf(p, owner)
		if !there {
			return p.Failf("invalid user: '%s'", o.Args[0])
		}
		uid = u.uid
		if both && group == "" {
			gid = u.gid
		}
	}
	if group != "" {
		g, there := groupOf(p, group)
		if !there {
			return p.Failf("invalid group: '%s'", o.Args[0])
		}
		gid = g
	}
	return change(p, o.Args[1:], o.Has("R"), func(name string, _ machine.FileInfo) error {
		return p.K.FS.Chown(p.Cred, name, uid, gid, !o.Has("h") && !o.Has("R"))
	})
}

func touch(p *machine.Process, o Options) int {
	return eachName(p, o.Args, "cannot touch '%s': %s", func(name string) error {
		f, err := p.Open(name, os.O_WRONLY|os.O_CREATE, 0o666)
		if err != nil && !errors.Is(err, syscall.EISDIR) {
			return err
		}
		p.K.Close(f)
		return p.K.FS.Touch(p.Cred, name)
	})
}

func stat(p *machine.Process, o Options) int {
	get := p.K.FS.Lstat
	if o.Has("L") {
		get = p.K.FS.Stat
	}
	if !o.Has("c") {
		return p.Failf("only -c is simulated")
	}
	code := 0
	for _, name := range o.Args {
		i, err := get(p.Cred, p.Path(name))
		if err != nil {
			code = p.Failf("cannot statx '%s': %s", name, machine.ErrorText(err))
			continue
		}
		text, unknown := described(p, o.Text("c"), name, i)
		if unknown != "" {
			return p.Failf("%s is not simulated", unknown)
		}
		p.Printf("%s\n", text)
	}
	return code
}

var statField = regexp.MustCompile(`%.`)

// described fills in a format of stat(1); unknown is a field that it does not have here.
func described(p *machine.Process, form, name string, i machine.FileInfo) (text, unknown string) {
	text = statField.ReplaceAllStringFunc(form, func(spec string) string {
		switch spec[1] {
		case 'a':
			return strconv.FormatUint(uint64(i.Perm), 8)
		case 'A':
			return i.Mode()
		case 'F':
			return kindName(i)
		case 'g':
			return strconv.Itoa(i.GID)
		case 'G':
			return groupName(p, i.GID)
		case 'i':
			return strconv.FormatUint(i.Ino, 10)
		case 'n':
			return name
		case 's':
			return strconv.FormatInt(i.Size, 10)
		case 'u':
			return strconv.Itoa(i.UID)
		case 'U':
			return userName(p, i.UID)
		case 'Y':
			return strconv.FormatInt(i.ModTime.Unix(), 10)
		case '%':
			return "%"
		}
		unknown = spec
		return ""
	})
	return text, unknown
}

func kindName(i machine.FileInfo) string {
	if i.Kind == machine.PlainFile && i.Size == 0 {
		return "regular empty file"
	}
	return map[machine.FileKind]string{machine.PlainFile: "regular file", machine.Folder: "directory", machine.SymbolicLink: "symbolic link", machine.DeviceFile: "character special file", machine.BlockDevice: "block special file"}[i.Kind]
}

func readlink(p *machine.Process, o Options) int {
	for _, name := range o.Args {
		i, err := p.K.FS.Lstat(p.Cred, p.Path(name))
		text := i.Target
		if o.Has("f") {
			text, err = p.K.FS.Real(p.Cred, p.Path(name))
		}
		if err != nil || text == "" {
			return 1
		}
		p.Printf("%s", text)
		if !o.Has("n") {
			p.Printf("\n")
		}
	}
	return 0
}

func ls(p *machine.Process, o Options) int {
	names := o.Args
	if len(names) == 0 {
		names = []string{"."}
	}
	code := 0
	for n, name := range names {
		i, err := p.K.FS.Stat(p.Cred, p.Path(name))
		if err != nil || o.Has("d") {
			i, err = p.K.FS.Lstat(p.Cred, p.Path(name))
		}
		i.Name = name
		list := []machine.FileInfo{i}
		folder := i.Kind == machine.Folder && !o.Has("d")
		if err == nil && folder {
			list, err = p.K.FS.ReadDir(p.Cred, p.Path(name))
		}
		if err != nil {
			p.Failf("cannot access '%s': %s", name, machine.ErrorText(err))
			code = 2
			continue
		}
		if folder && len(names) > 1 {
			if n > 0 {
				p.Printf("\n")
			}
			p.Printf("%s:\n", name)
		}
		for _, child := range list {
			if folder && strings.HasPrefix(child.Name, ".") && !o.Has("A") {
				continue
			}
			text := child.Name
			if o.Has("l") {
				text = fmt.Sprintf("%s %d %s %s %d %s %s", child.Mode(), child.Links, userName(p, child.UID), groupName(p, child.GID), child.Size, child.ModTime.Format("Jan _2 15:04"), child.Name)
				if child.Kind == machine.SymbolicLink {
					text += " -> " + child.Target
				}
			}
			p.Printf("%s\n", text)
		}
	}
	return code
}

func mktemp(p *machine.Process, o Options) int {
	form := "/tmp/tmp.XXXXXXXXXX"
	if len(o.Args) > 0 {
		form = o.Args[0]
	}
	stem := strings.TrimRight(form, "X")
	for {
		name := fmt.Sprintf("%s%0*x", stem, len(form)-len(stem), p.K.NextPID())
		err := error(nil)
		if o.Has("d") {
			err = p.K.FS.Mkdir(p.Cred, p.Path(name), 0o700)
		} else {
			err = save(p, name, "", os.O_EXCL, 0o600)
		}
		switch {
		case errors.Is(err, syscall.EEXIST):
		case err != nil:
			return p.Failf("failed to create '%s': %s", form, machine.ErrorText(err))
		default:
			p.Printf("%s\n", name)
			return 0
		}
	}
}
