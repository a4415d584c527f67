package durable

import (
	"io/fs"
	"os"
	"time"
)

// Stamps identify the content of files at one moment, to check repeatedly whether they changed.
type Stamps struct {
	at    time.Time
	files []fs.FileInfo // nil: there was none
}

// fresh is the time after a write in which another write may get the same timestamp, because of the
// resolution of file system clocks.
const fresh = 2 * time.Second

// StampsOf returns the stamps of files now.
func StampsOf(names ...string) Stamps {
	s := Stamps{at: time.Now(), files: make([]fs.FileInfo, len(names))}
	for i, name := range names {
		s.files[i], _ = os.Stat(name) // an unreadable file counts as absent: it differs as soon as it is readable
	}
	return s
}

// Same reports whether the same files certainly have the same content as at another moment: none
// was replaced or written, and none had been written just before.
func (s Stamps) Same(before Stamps) bool {
	if len(s.files) == 0 || len(s.files) != len(before.files) {
		return false
	}
	for i, is := range s.files {
		was := before.files[i]
		switch {
		case is == nil && was == nil:
			continue
		case is == nil || was == nil, !os.SameFile(is, was), is.Size() != was.Size(), is.Mode() != was.Mode(), !is.ModTime().Equal(was.ModTime()),
			before.at.Sub(is.ModTime()).Abs() < fresh:
			return false
		}
	}
	return true
}
