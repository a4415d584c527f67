package userland

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mvdan.cc/sh/v3/pattern"

	"github.com/homestak/homestak-gitops/drivers/simworld/files"
	"github.com/homestak/homestak-gitops/drivers/simworld/kernel"
)

// What works on the tree of files: names, modes, owners.

// into is the name that a file gets where the target is a folder.
func into(p *kernel.Process, from, to string, plain bool) string {
	if i, err := p.K.FS.Stat(p.Cred, p.Path(to)); err == nil && i.Kind == files.Folder && !plain {
		return path.Join(p.Path(to), path.Base(from))
	}
	return p.Path(to)
}

func mv(p *kernel.Process) int {
	o, ok := parse(p, "f T n v")
	if !ok || len(o.args) < 2 {
		return 1
	}
	to, code := o.args[len(o.args)-1], 0
	for _, from := range o.args[:len(o.args)-1] {
		if err := p.K.FS.Rename(p.Cred, p.Path(from), into(p, from, to, o.has["T"])); err != nil {
			code = p.Failf("cannot move '%s' to '%s': %s", from, to, files.Text(err))
		}
	}
	return code
}

func rm(p *kernel.Process) int {
	o, ok := parse(p, "f r R=r recursive=r force=f d v")
	if !ok {
		return 1
	}
	code := 0
	for _, name := range o.args {
		at := p.Path(name)
		i, err := p.K.FS.Lstat(p.Cred, at)
		switch {
		case err != nil && o.has["f"] && (errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR)):
			continue
		case err == nil && i.Kind == files.Folder && !o.has["r"]:
			err = syscall.EISDIR
		case err == nil && o.has["r"]:
			err = p.K.FS.RemoveAll(p.Cred, strings.TrimRight(at, "/"))
		case err == nil:
			err = p.K.FS.Remove(p.Cred, at)
		}
		if err != nil {
			code = p.Failf("cannot remove '%s': %s", name, files.Text(err))
		}
	}
	return code
}

// copyFile copies one plain file.
func copyFile(p *kernel.Process, from, to string, perm uint32) error {
	text, err := p.ReadFile(from)
	if err != nil {
		return err
	}
	out, err := p.Open(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	defer p.K.Close(out)
	return out.WriteAll(text)
}

func cp(p *kernel.Process) int {
	o, ok := parse(p, "f T a p r R=r d P preserve: no-preserve: t:")
	if !ok || len(o.args) < 2 {
		return 1
	}
	to, code := o.args[len(o.args)-1], 0
	for _, from := range o.args[:len(o.args)-1] {
		if err := copyTree(p, p.Path(from), into(p, from, to, o.has["T"]), o); err != nil {
			code = p.Failf("cannot copy '%s': %s", from, files.Text(err))
		}
	}
	return code
}

func copyTree(p *kernel.Process, from, to string, o options) error {
	keep, deep := o.has["a"] || o.has["p"], o.has["a"] || o.has["r"]
	get := p.K.FS.Stat
	if o.has["a"] || o.has["d"] || o.has["P"] {
		get = p.K.FS.Lstat
	}
	i, err := get(p.Cred, from)
	if err != nil {
		return err
	}
	switch {
	case i.Kind == files.Link:
		return p.K.FS.Symlink(p.Cred, i.Target, to)
	case i.Kind == files.Folder && !deep:
		return syscall.EISDIR
	case i.Kind == files.Folder:
		if err := p.K.FS.Mkdir(p.Cred, to, i.Perm); err != nil && !errors.Is(err, syscall.EEXIST) {
			return err
		}
		list, err := p.K.FS.ReadDir(p.Cred, from)
		if err != nil {
			return err
		}
		for _, child := range list {
			if err := copyTree(p, path.Join(from, child.Name), path.Join(to, child.Name), o); err != nil {
				return err
			}
		}
	default:
		if err := copyFile(p, from, to, i.Perm); err != nil {
			return err
		}
	}
	if keep {
		_ = p.K.FS.Chown(p.Cred, to, i.UID, i.GID, true) // as cp does, who may not leaves it
		return p.K.FS.Chmod(p.Cred, to, i.Perm)
	}
	return nil
}

func ln(p *kernel.Process) int {
	o, ok := parse(p, "s f T n r v symbolic=s force=f no-target-directory=T no-dereference=n")
	if !ok || len(o.args) == 0 {
		return 1
	}
	target, name := o.args[0], path.Base(o.args[0])
	if len(o.args) > 1 {
		name = o.args[1]
	}
	at := into(p, target, name, o.has["T"] || o.has["n"])
	if o.has["f"] {
		if i, err := p.K.FS.Lstat(p.Cred, at); err == nil && i.Kind != files.Folder {
			if err := p.K.FS.Remove(p.Cred, at); err != nil {
				return p.Failf("cannot remove '%s': %s", name, files.Text(err))
			}
		}
	}
	err := error(nil)
	if o.has["s"] {
		err = p.K.FS.Symlink(p.Cred, target, at)
	} else {
		err = p.K.FS.Link(p.Cred, p.Path(target), at)
	}
	if err != nil {
		return p.Failf("failed to create link '%s': %s", name, files.Text(err))
	}
	return 0
}

func mkdir(p *kernel.Process) int {
	o, ok := parse(p, "p m: parents=p mode:=m v")
	if !ok {
		return 1
	}
	code := 0
	for _, name := range o.args {
		if err := makeFolder(p, p.Path(name), o.has["p"], o.text["m"]); err != nil {
			code = p.Failf("cannot create directory '%s': %s", name, files.Text(err))
		}
	}
	return code
}

func makeFolder(p *kernel.Process, name string, parents bool, mode string) error {
	name = strings.TrimRight(name, "/")
	if name == "" {
		return nil
	}
	if i, err := p.K.FS.Stat(p.Cred, name); parents && err == nil {
		if i.Kind != files.Folder {
			return syscall.EEXIST
		}
		return nil
	}
	if parents {
		if err := makeFolder(p, path.Dir(name), true, ""); err != nil {
			return err
		}
	}
	if err := p.K.FS.Mkdir(p.Cred, name, 0o777&^p.Umask); err != nil {
		return err
	}
	if mode == "" {
		return nil
	}
	perm, err := newMode(mode, 0o777, true)
	if err != nil {
		return err
	}
	return p.K.FS.Chmod(p.Cred, name, perm)
}

func rmdir(p *kernel.Process) int {
	o, ok := parse(p, "p ignore-fail-on-non-empty=i")
	if !ok {
		return 1
	}
	code := 0
	for _, name := range o.args {
		i, err := p.K.FS.Lstat(p.Cred, p.Path(name))
		if err == nil && i.Kind != files.Folder {
			err = syscall.ENOTDIR
		}
		if err == nil {
			err = p.K.FS.Remove(p.Cred, p.Path(name))
		}
		if err != nil && (!o.has["i"] || !errors.Is(err, syscall.ENOTEMPTY)) {
			code = p.Failf("failed to remove '%s': %s", name, files.Text(err))
		}
	}
	return code
}

// newMode reads a mode, octal or as changes to another one.
func newMode(text string, old uint32, folder bool) (uint32, error) {
	if n, err := strconv.ParseUint(text, 8, 32); err == nil {
		return uint32(n), nil
	}
	for clause := range strings.SplitSeq(text, ",") {
		at := strings.IndexAny(clause, "+-=")
		if at < 0 {
			return 0, fmt.Errorf("invalid mode: '%s'", text)
		}
		who, bits := uint32(0), uint32(0)
		for _, c := range clause[:at] {
			who |= map[rune]uint32{'u': 0o4700, 'g': 0o2070, 'o': 0o1007, 'a': 0o7777}[c]
		}
		if at == 0 {
			who = 0o7777
		}
		for _, c := range clause[at+1:] {
			switch c {
			case 'r':
				bits |= 0o444
			case 'w':
				bits |= 0o222
			case 'x':
				bits |= 0o111
			case 'X':
				if folder || old&0o111 != 0 {
					bits |= 0o111
				}
			case 's':
				bits |= 0o6000
			case 't':
				bits |= 0o1000
			default:
				return 0, fmt.Errorf("invalid mode: '%s'", text)
			}
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

// each calls do for names, and with deep for everything below them.
func each(p *kernel.Process, names []string, deep bool, do func(name string, i files.Info) error) int {
	code := 0
	for _, name := range names {
		i, err := p.K.FS.Lstat(p.Cred, p.Path(name))
		if err == nil {
			err = do(p.Path(name), i)
		}
		if err != nil {
			code = p.Failf("'%s': %s", name, files.Text(err))
			continue
		}
		if deep && i.Kind == files.Folder {
			list, err := p.K.FS.ReadDir(p.Cred, p.Path(name))
			if err != nil {
				code = p.Failf("'%s': %s", name, files.Text(err))
			}
			var below []string
			for _, child := range list {
				below = append(below, path.Join(p.Path(name), child.Name))
			}
			code = max(code, each(p, below, true, do))
		}
	}
	return code
}

func chmod(p *kernel.Process) int {
	args, deep := []string{}, false
	for _, a := range p.Args[1:] { // a mode may begin with a minus
		switch a {
		case "-R", "--recursive":
			deep = true
		case "-f", "-v", "--":
		default:
			args = append(args, a)
		}
	}
	if len(args) < 2 {
		return p.Failf("missing operand")
	}
	return each(p, args[1:], deep, func(name string, i files.Info) error {
		if i.Kind == files.Link {
			if deep {
				return nil
			}
			target, err := p.K.FS.Stat(p.Cred, name)
			if err != nil {
				return err
			}
			i = target
		}
		perm, err := newMode(args[0], i.Perm, i.Kind == files.Folder)
		if err != nil {
			return err
		}
		return p.K.FS.Chmod(p.Cred, name, perm)
	})
}

// chown is chown and chgrp.
func chown(p *kernel.Process) int {
	o, ok := parse(p, "R h f v recursive=R no-dereference=h reference:")
	if !ok || len(o.args) < 2 {
		return 1
	}
	owner, group, both := strings.Cut(o.args[0], ":")
	if path.Base(p.Args[0]) == "chgrp" {
		owner, group = "", o.args[0]
	}
	uid, gid := -1, -1
	if owner != "" {
		u, there := userOf(p, owner)
		if !there {
			return p.Failf("invalid user: '%s'", o.args[0])
		}
		uid = u.uid
		if both && group == "" {
			gid = u.gid
		}
	}
	if group != "" {
		g, there := groupOf(p, group)
		if !there {
			return p.Failf("invalid group: '%s'", o.args[0])
		}
		gid = g
	}
	return each(p, o.args[1:], o.has["R"], func(name string, _ files.Info) error {
		return p.K.FS.Chown(p.Cred, name, uid, gid, !o.has["h"] && !o.has["R"])
	})
}

func touch(p *kernel.Process) int {
	o, ok := parse(p, "c a m d: r: t:")
	if !ok {
		return 1
	}
	code := 0
	for _, name := range o.args {
		f, err := p.Open(name, os.O_WRONLY|os.O_CREATE, 0o666)
		if errors.Is(err, syscall.EISDIR) {
			err = nil
		}
		if f != nil {
			p.K.Close(f)
		}
		if err == nil {
			err = p.K.FS.Touch(p.Cred, p.Path(name))
		}
		if err != nil {
			code = p.Failf("cannot touch '%s': %s", name, files.Text(err))
		}
	}
	return code
}

func stat(p *kernel.Process) int {
	o, ok := parse(p, "c: L f format:=c dereference=L printf:=c")
	if !ok {
		return 1
	}
	code := 0
	for _, name := range o.args {
		get := p.K.FS.Lstat
		if o.has["L"] {
			get = p.K.FS.Stat
		}
		i, err := get(p.Cred, p.Path(name))
		if err != nil {
			code = p.Failf("cannot stat '%s': %s", name, files.Text(err))
			continue
		}
		form := o.text["c"]
		if form == "" {
			form = "  File: %n\n  Size: %s\t%F\nAccess: (%a/%A)  Uid: (%u/%U)  Gid: (%g/%G)"
		}
		p.Printf("%s\n", described(p, form, name, i))
	}
	return code
}

// described fills in a format of stat(1).
func described(p *kernel.Process, form, name string, i files.Info) string {
	return regexp.MustCompile(`%[a-zA-Z%]`).ReplaceAllStringFunc(form, func(spec string) string {
		switch spec[1] {
		case 'a':
			return strconv.FormatUint(uint64(i.Perm), 8)
		case 'A':
			return i.Mode()
		case 'f':
			return fmt.Sprintf("%x", i.Perm|map[files.Kind]uint32{files.Plain: 0x8000, files.Folder: 0x4000, files.Link: 0xa000, files.Device: 0x2000}[i.Kind])
		case 'F':
			return kindName(i)
		case 'g':
			return strconv.Itoa(i.GID)
		case 'G':
			return groupName(p, i.GID)
		case 'h':
			return strconv.Itoa(i.Links)
		case 'i':
			return strconv.FormatUint(i.Ino, 10)
		case 'n':
			return name
		case 'N':
			if i.Kind == files.Link {
				return "'" + name + "' -> '" + i.Target + "'"
			}
			return "'" + name + "'"
		case 's':
			return strconv.FormatInt(i.Size, 10)
		case 'u':
			return strconv.Itoa(i.UID)
		case 'U':
			return userName(p, i.UID)
		case 'y':
			return i.ModTime.UTC().Format("2006-01-02 15:04:05.000000000 -0700")
		case 'Y':
			return strconv.FormatInt(i.ModTime.Unix(), 10)
		case 'Z':
			return strconv.FormatInt(i.Changed.Unix(), 10)
		case '%':
			return "%"
		}
		return "?"
	})
}

func kindName(i files.Info) string {
	switch {
	case i.Kind == files.Folder:
		return "directory"
	case i.Kind == files.Link:
		return "symbolic link"
	case i.Kind == files.Device:
		return "character special file"
	case i.Size == 0:
		return "regular empty file"
	}
	return "regular file"
}

func readlink(p *kernel.Process) int {
	o, ok := parse(p, "f e m n q s v canonicalize=f")
	if !ok {
		return 1
	}
	for _, name := range o.args {
		text := ""
		if o.has["f"] || o.has["e"] || o.has["m"] {
			name, err := p.K.FS.Real(p.Cred, p.Path(name))
			if err != nil {
				return 1
			}
			text = name
		} else {
			i, err := p.K.FS.Lstat(p.Cred, p.Path(name))
			if err != nil || i.Kind != files.Link {
				return 1
			}
			text = i.Target
		}
		p.Printf("%s", text)
		if !o.has["n"] {
			p.Printf("\n")
		}
	}
	return 0
}

func realpath(p *kernel.Process) int {
	o, ok := parse(p, "e m q s")
	if !ok {
		return 1
	}
	for _, name := range o.args {
		name, err := p.K.FS.Real(p.Cred, p.Path(name))
		if err != nil {
			return p.Failf("%s: %s", name, files.Text(err))
		}
		p.Printf("%s\n", name)
	}
	return 0
}

func ls(p *kernel.Process) int {
	o, ok := parse(p, "a A l d 1 n h t r S R F directory=d all=a almost-all=A")
	if !ok {
		return 2
	}
	names := o.args
	if len(names) == 0 {
		names = []string{"."}
	}
	code := 0
	for n, name := range names {
		i, err := p.K.FS.Stat(p.Cred, p.Path(name))
		if err != nil || o.has["d"] {
			i, err = p.K.FS.Lstat(p.Cred, p.Path(name))
		}
		if err != nil {
			p.Failf("cannot access '%s': %s", name, files.Text(err))
			code = 2
			continue
		}
		if i.Kind != files.Folder || o.has["d"] {
			i.Name = name
			listed(p, o, i)
			continue
		}
		list, err := p.K.FS.ReadDir(p.Cred, p.Path(name))
		if err != nil {
			p.Failf("cannot open directory '%s': %s", name, files.Text(err))
			code = 2
			continue
		}
		if len(names) > 1 {
			if n > 0 {
				p.Printf("\n")
			}
			p.Printf("%s:\n", name)
		}
		if o.has["t"] {
			slices.SortStableFunc(list, func(a, b files.Info) int { return b.ModTime.Compare(a.ModTime) })
		}
		if o.has["r"] {
			slices.Reverse(list)
		}
		for _, child := range list {
			if !strings.HasPrefix(child.Name, ".") || o.has["a"] || o.has["A"] {
				listed(p, o, child)
			}
		}
	}
	return code
}

func listed(p *kernel.Process, o options, i files.Info) {
	if !o.has["l"] && !o.has["n"] {
		p.Printf("%s\n", i.Name)
		return
	}
	name := i.Name
	if i.Kind == files.Link {
		name += " -> " + i.Target
	}
	p.Printf("%s %d %s %s %d %s %s\n", i.Mode(), i.Links, userName(p, i.UID), groupName(p, i.GID), i.Size, i.ModTime.Format("Jan _2 15:04"), name)
}

func mktemp(p *kernel.Process) int {
	o, ok := parse(p, "d t p: u q tmpdir:=p directory=d")
	if !ok {
		return 1
	}
	form := "/tmp/tmp.XXXXXXXXXX"
	if len(o.args) > 0 {
		form = o.args[0]
		if o.has["t"] || o.has["p"] {
			form = path.Join("/tmp", form)
			if o.text["p"] != "" {
				form = path.Join(o.text["p"], o.args[0])
			}
		}
	}
	stem := strings.TrimRight(form, "X")
	for {
		name := fmt.Sprintf("%s%0*x", stem, len(form)-len(stem), p.K.NextPID())
		err := error(nil)
		if o.has["d"] {
			err = p.K.FS.Mkdir(p.Cred, p.Path(name), 0o700)
		} else {
			var f *kernel.Open
			if f, err = p.Open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
				p.K.Close(f)
			}
		}
		switch {
		case errors.Is(err, syscall.EEXIST):
		case err != nil:
			return p.Failf("failed to create '%s': %s", form, files.Text(err))
		default:
			p.Printf("%s\n", name)
			return 0
		}
	}
}

func install(p *kernel.Process) int {
	o, ok := parse(p, "d D m: o: g: T v mode:=m owner:=o group:=g directory=d")
	if !ok || len(o.args) == 0 {
		return 1
	}
	perm := uint32(0o755)
	if o.has["m"] {
		n, err := newMode(o.text["m"], 0, false)
		if err != nil {
			return p.Failf("%v", err)
		}
		perm = n
	}
	targets := o.args
	if !o.has["d"] {
		if len(o.args) < 2 {
			return p.Failf("missing destination file operand")
		}
		to := into(p, o.args[0], o.args[1], o.has["T"])
		if o.has["D"] {
			if err := makeFolder(p, path.Dir(to), true, ""); err != nil {
				return p.Failf("cannot create '%s': %s", path.Dir(to), files.Text(err))
			}
		}
		if err := p.K.FS.Remove(p.Cred, to); err != nil && !errors.Is(err, syscall.ENOENT) {
			return p.Failf("cannot remove '%s': %s", to, files.Text(err))
		}
		var err error
		if o.args[0] == "/dev/stdin" {
			err = save(p, to)
		} else {
			err = copyFile(p, o.args[0], to, 0o600)
		}
		if err != nil {
			return p.Failf("cannot install '%s': %s", o.args[0], files.Text(err))
		}
		targets = []string{to}
	}
	for _, name := range targets {
		if o.has["d"] {
			if err := makeFolder(p, p.Path(name), true, ""); err != nil {
				return p.Failf("cannot create directory '%s': %s", name, files.Text(err))
			}
		}
		uid, gid := -1, -1
		if u, there := userOf(p, o.text["o"]); there {
			uid = u.uid
		} else if o.has["o"] {
			return p.Failf("invalid user '%s'", o.text["o"])
		}
		if g, there := groupOf(p, o.text["g"]); there {
			gid = g
		} else if o.has["g"] {
			return p.Failf("invalid group '%s'", o.text["g"])
		}
		err := p.K.FS.Chown(p.Cred, p.Path(name), uid, gid, true)
		if err == nil {
			err = p.K.FS.Chmod(p.Cred, p.Path(name), perm)
		}
		if err != nil {
			return p.Failf("'%s': %s", name, files.Text(err))
		}
	}
	return 0
}

// save writes what the program reads into a file.
func save(p *kernel.Process, name string) error {
	text, err := io.ReadAll(p.In())
	if err != nil {
		return err
	}
	f, err := p.Open(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer p.K.Close(f)
	return f.WriteAll(string(text))
}

// find knows -name, -type, -newer, -mmin, -maxdepth, -mindepth, -path, -not, -xdev, -print, -delete and -o.
func find(p *kernel.Process) int {
	args := p.Args[1:]
	var roots []string
	for len(args) > 0 && !strings.HasPrefix(args[0], "-") && args[0] != "!" {
		roots, args = append(roots, args[0]), args[1:]
	}
	if len(roots) == 0 {
		roots = []string{"."}
	}
	f := &finder{p: p, most: 1 << 20}
	if code := f.read(args); code != 0 {
		return code
	}
	for _, root := range roots {
		f.walk(root, 0)
	}
	return f.code
}

type finder struct {
	p           *kernel.Process
	tests       [][]func(name string, i files.Info) bool // any of these lists
	least, most int
	remove      bool
	code        int
}

func (f *finder) read(args []string) int {
	not := false
	f.tests = [][]func(string, files.Info) bool{nil}
	add := func(test func(string, files.Info) bool) {
		inverted := not
		not = false
		last := len(f.tests) - 1
		f.tests[last] = append(f.tests[last], func(name string, i files.Info) bool { return test(name, i) != inverted })
	}
	value := func() string {
		if len(args) < 2 {
			return ""
		}
		args = args[1:]
		return args[0]
	}
	for ; len(args) > 0; args = args[1:] {
		switch args[0] {
		case "!", "-not":
			not = !not
		case "-o", "-or":
			f.tests = append(f.tests, nil)
		case "-xdev", "-print", "-a", "-mount":
		case "-delete":
			f.remove = true
		case "-maxdepth":
			f.most, _ = strconv.Atoi(value())
		case "-mindepth":
			f.least, _ = strconv.Atoi(value())
		case "-name":
			pat := glob(value())
			add(func(name string, _ files.Info) bool { return pat.MatchString(path.Base(name)) })
		case "-path":
			pat := glob(value())
			add(func(name string, _ files.Info) bool { return pat.MatchString(name) })
		case "-type":
			want := value()
			add(func(_ string, i files.Info) bool {
				return map[string]files.Kind{"f": files.Plain, "d": files.Folder, "l": files.Link, "c": files.Device}[want] == i.Kind
			})
		case "-newer":
			of, err := f.p.K.FS.Stat(f.p.Cred, f.p.Path(value()))
			if err != nil {
				return f.p.Failf("'%s': %s", args[0], files.Text(err))
			}
			add(func(_ string, i files.Info) bool { return i.ModTime.After(of.ModTime) })
		case "-mmin":
			n, err := strconv.Atoi(strings.TrimLeft(value(), "+-"))
			if err != nil {
				return f.p.Failf("invalid argument '%s' to '-mmin'", args[0])
			}
			sign := args[0][:1]
			add(func(_ string, i files.Info) bool {
				age, of := f.p.K.Clock.Now().Sub(i.ModTime), time.Duration(n)*time.Minute
				return sign == "-" && age < of || sign == "+" && age > of
			})
		case "-empty":
			add(func(_ string, i files.Info) bool { return i.Size == 0 })
		default:
			return f.p.Failf("unknown predicate '%s'", args[0])
		}
	}
	return 0
}

func (f *finder) walk(name string, depth int) {
	i, err := f.p.K.FS.Lstat(f.p.Cred, f.p.Path(name))
	if err != nil {
		f.code = f.p.Failf("'%s': %s", name, files.Text(err))
		return
	}
	holds := slices.ContainsFunc(f.tests, func(all []func(string, files.Info) bool) bool {
		return !slices.ContainsFunc(all, func(test func(string, files.Info) bool) bool { return !test(name, i) })
	})
	if !f.remove && holds && depth >= f.least {
		f.p.Printf("%s\n", name)
	}
	if i.Kind == files.Folder && depth < f.most {
		list, err := f.p.K.FS.ReadDir(f.p.Cred, f.p.Path(name))
		if err != nil {
			f.code = f.p.Failf("'%s': %s", name, files.Text(err))
		}
		for _, child := range list {
			f.walk(strings.TrimRight(name, "/")+"/"+child.Name, depth+1)
		}
	}
	if f.remove && holds && depth >= f.least {
		if err := f.p.K.FS.Remove(f.p.Cred, f.p.Path(name)); err != nil {
			f.code = f.p.Failf("cannot delete '%s': %s", name, files.Text(err))
		}
	}
}

// glob makes a pattern of the shell a regular expression.
func glob(pat string) *regexp.Regexp {
	expr, err := pattern.Regexp(pat, pattern.EntireString)
	if err != nil {
		expr = "^" + regexp.QuoteMeta(pat) + "$"
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return regexp.MustCompile("^" + regexp.QuoteMeta(pat) + "$")
	}
	return re
}
