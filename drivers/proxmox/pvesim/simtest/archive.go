package simtest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"maps"
	"slices"
	"strings"
)

// RootArchive packs a root file system. A content "-> x" is a symbolic link, a name that
// ends in a slash a directory.
func RootArchive(files map[string]string) []byte {
	var b bytes.Buffer
	packed := gzip.NewWriter(&b)
	w := tar.NewWriter(packed)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		head := &tar.Header{Name: "./" + name, Mode: 0o755, Typeflag: tar.TypeReg, Size: int64(len(files[name]))}
		if link, ok := strings.CutPrefix(files[name], "-> "); ok {
			head.Typeflag, head.Linkname, head.Size = tar.TypeSymlink, link, 0
		}
		if strings.HasSuffix(name, "/") {
			head.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(head); err != nil {
			panic(err)
		}
		if head.Size > 0 {
			if _, err := w.Write([]byte(files[name])); err != nil {
				panic(err)
			}
		}
	}
	if w.Close() != nil || packed.Close() != nil {
		panic("memory does not take it")
	}
	return b.Bytes()
}

// ELF is the head of a program for a machine.
func ELF(machine string) string {
	return "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9) + "\x02\x00" + machine + "\x00"
}
