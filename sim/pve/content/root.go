package content

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"io"
	"path"
	"regexp"
	"strings"
)

// RootFS is the content of the archive of a root file system, as far as PVE reads it:
// the paths, where links lead, and how files begin.
type RootFS map[string]*rootFile

type rootFile struct {
	dir  bool
	link string // where a symbolic link leads
	head []byte
}

// headMost is the number of bytes of a file that are kept: all of those that tell of a system are shorter.
const headMost = 4096

// readRoot looks into an archive; nil if it is none that can be read here: tar without
// compression, with gzip or with bzip2.
func readRoot(archive io.Reader) *RootSystem {
	stream := bufio.NewReader(archive)
	head, _ := stream.Peek(512)
	var plain io.Reader = stream
	switch {
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		unpacked, err := gzip.NewReader(stream)
		if err != nil {
			return nil
		}
		plain = unpacked
	case bytes.HasPrefix(head, []byte("BZh")):
		plain = bzip2.NewReader(stream)
	case len(head) < 512 || string(head[257:262]) != "ustar":
		return nil
	}
	fs := RootFS{}
	for files := tar.NewReader(plain); ; {
		file, err := files.Next()
		switch {
		case errors.Is(err, io.EOF):
			return fs.System()
		case err != nil:
			return nil
		}
		entry := &rootFile{dir: file.Typeflag == tar.TypeDir}
		name := path.Clean("/" + file.Name)
		switch file.Typeflag {
		case tar.TypeSymlink:
			entry.link = file.Linkname
		case tar.TypeLink:
			if entry = fs[path.Clean("/"+file.Linkname)]; entry == nil {
				continue
			}
		case tar.TypeReg:
			if entry.head, err = io.ReadAll(io.LimitReader(files, headMost)); err != nil {
				return nil
			}
		}
		fs[name] = entry
	}
}

// resolve finds a file by its path, through symbolic links, as a program in the root
// file system would; nil if there is none.
func (fs RootFS) resolve(name string) *rootFile {
	const mostLinks = 40 // as Linux
	done, rest := "/", strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		next := path.Join(done, rest[0])
		rest = rest[1:]
		f := fs[next]
		if f == nil || f.link == "" {
			done = next
			continue
		}
		if links++; links > mostLinks {
			return nil
		}
		if path.IsAbs(f.link) {
			done = "/"
		}
		rest = append(strings.Split(strings.Trim(f.link, "/"), "/"), rest...)
	}
	return fs[done]
}

// rootReader inspects an archive while it is written.
type rootReader struct {
	*io.PipeWriter
	found chan *RootSystem
}

func newRootReader() *rootReader {
	from, to := io.Pipe()
	r := &rootReader{PipeWriter: to, found: make(chan *RootSystem, 1)}
	go func() {
		root := readRoot(from)
		_, _ = io.Copy(io.Discard, from)
		r.found <- root
	}()
	return r
}

// end says what was found, once all is written.
func (r *rootReader) end() *RootSystem {
	_ = r.Close() // Of a pipe it never fails.
	return <-r.found
}

// RootSystem is what PVE detects in the root file system of a new container
// (PVE/LXC/Setup.pm). It reads the files: the name of a template does not matter.
type RootSystem struct {
	Ostype  string
	Arch    string // empty: not found out
	Notes   []string
	Failure string // why PVE cannot work with it; empty if it can
	Guessed bool   // by the name of the template, whose content is not known
}

// knownSystems are the types of systems that PVE has code for, and the other words that
// /etc/os-release may have for them (PVE/LXC/Setup.pm).
var knownSystems = map[string]string{
	"alpine": "alpine", "archlinux": "archlinux", "centos": "centos", "debian": "debian", "devuan": "devuan", "fedora": "fedora",
	"gentoo": "gentoo", "openeuler": "openeuler", "opensuse": "opensuse", "ubuntu": "ubuntu", "nixos": "nixos", "unmanaged": "unmanaged",
	"opensuse-leap": "opensuse", "opensuse-tumbleweed": "opensuse", "opensuse-slowroll": "opensuse", "sles": "opensuse",
	"openEuler": "openeuler", "arch": "archlinux", "rocky": "centos", "almalinux": "centos",
}

// traces are the files that tell a system without a known word in /etc/os-release, in the
// order in which PVE searches for them.
var traces = []struct{ file, system string }{
	{"etc/debian_version", "debian"},
	{"etc/devuan_version", "devuan"},
	{"etc/SuSE-brand", "opensuse"},
	{"etc/SuSE-release", "opensuse"},
	{"etc/fedora-release", "fedora"},
	{"etc/centos-release", "centos"},
	{"etc/redhat-release", "centos"},
	{"etc/arch-release", "archlinux"},
	{"etc/alpine-release", "alpine"},
	{"etc/gentoo-release", "gentoo"},
	{"nix/store", "nixos"},
	{"etc/openEuler-release", "openeuler"},
}

// versionFiles are the files without which PVE does not work with a system: each
// PVE/LXC/Setup/*.pm reads its version there.
var versionFiles = map[string]string{
	"debian": "etc/debian_version", "devuan": "etc/devuan_version", "centos": "etc/redhat-release", "gentoo": "etc/gentoo-release",
}

var (
	releaseLine = regexp.MustCompile(`(?m)^\s*([a-zA-Z_][a-zA-Z0-9_]*)=(?:'([^']*)'|"((?:[^"\\]|\\.)*)"|([A-Za-z0-9]*))`)
	ubuntuID    = regexp.MustCompile(`(?im)^DISTRIB_ID=Ubuntu$`)
)

// System finds out what is in a root file system.
func (fs RootFS) System() *RootSystem {
	r := &RootSystem{Arch: fs.architecture()}
	release := ""
	for _, file := range []string{"etc/os-release", "usr/lib/os-release"} {
		if f := fs.resolve(file); f != nil && !f.dir {
			release = string(f.head)
			break
		}
	}
	id := ""
	for _, m := range releaseLine.FindAllStringSubmatch(release, -1) {
		if m[1] == "ID" {
			id = m[2] + m[3] + m[4]
		}
	}
	r.Ostype = knownSystems[id]
	if r.Ostype == "" {
		if id != "" {
			r.Notes = append(r.Notes, "unknown ID '"+id+"' in /etc/os-release file, trying fallback detection")
		}
		fs.trace(r)
	}
	fs.checkVersion(r)
	return r
}

// trace tells a system by the files that only it has.
func (fs RootFS) trace(r *RootSystem) {
	if f := fs.resolve("etc/lsb-release"); f != nil && ubuntuID.Match(f.head) {
		r.Ostype = "ubuntu"
		return
	}
	for _, trace := range traces {
		if f := fs.resolve(trace.file); f != nil && f.dir == (trace.file == "nix/store") {
			r.Ostype = trace.system
			return
		}
	}
	if fs.resolve("etc/os-release") != nil {
		r.Failure = "unable to detect OS distribution"
		return
	}
	r.Notes = append(r.Notes, "/etc/os-release file not found and autodetection failed, falling back to 'unmanaged'")
	r.Ostype = "unmanaged"
}

func (fs RootFS) checkVersion(r *RootSystem) {
	if file := versionFiles[r.Ostype]; file != "" {
		if f := fs.resolve(file); f == nil || len(f.head) == 0 {
			r.Failure = "unable to read version info"
		}
	}
	if r.Ostype == "ubuntu" {
		if f := fs.resolve("etc/lsb-release"); f == nil || !ubuntuID.Match(f.head) {
			r.Failure = "got unknown DISTRIB_ID"
		}
	}
}

// machines are the architectures by the number of the machine in the head of a program
// (detect_elf_architecture in PVE/LXC/Tools.pm).
var machines = map[int]string{0x03: "i386", 0x3e: "amd64", 0x28: "armhf", 0xb7: "arm64"}

// architecture is that of the shell, which every system has.
func (fs RootFS) architecture() string {
	shell := fs.resolve("bin/sh")
	if shell == nil || len(shell.head) < 20 || string(shell.head[:4]) != "\x7fELF" {
		return ""
	}
	machine := int(shell.head[17])<<8 | int(shell.head[18])
	if machine == 0xf3 {
		return map[byte]string{1: "riscv32", 2: "riscv64"}[shell.head[4]]
	}
	return machines[machine]
}
