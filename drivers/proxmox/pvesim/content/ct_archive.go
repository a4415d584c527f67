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
	"strings"
)

// RootFS is the content of the archive of a root file system, as far as PVE looks at it:
// the paths, where links lead, and how files begin.
type RootFS map[string]*rootFile

type rootFile struct {
	dir  bool
	link string // where a symbolic link leads
	head []byte
}

// headMost is how much of a file is kept: all of those that tell of a system are shorter.
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

// rootReader looks into an archive while somebody writes it.
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

// RootSystem is what PVE finds out of the root file system of a new container
// (PVE/LXC/Setup.pm). It looks at the files: the name of a template says nothing.
type RootSystem struct {
	Ostype  string
	Arch    string // empty: not found out
	Notes   []string
	Failure string // why PVE cannot work with it; empty if it can
	Guessed bool   // by the name of the template, for nobody here has its content
}
