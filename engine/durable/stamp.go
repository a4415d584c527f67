package durable

import (
	"io/fs"
	"os"
	"time"
)

// Stamps are how files were at one moment, for whoever asks again and again whether they are still that.
type Stamps struct {
	at    time.Time
	files []fs.FileInfo // nil: there was none
}

// fresh is how long after a file was written another write may leave it the time that it has: clocks of file systems tick.
const fresh = 2 * time.Second

// StampsOf is how some files are now.
func StampsOf(names ...string) Stamps {
	s := Stamps{at: time.Now(), files: make([]fs.FileInfo, len(names))}
	for i, name := range names {
		s.files[i], _ = os.Stat(name) // one that cannot be seen is as none: it differs as soon as it can
	}
	return s
}

// Same reports whether the same files certainly have what they had at another moment: nobody replaced or wrote one, and
// none had been written just before.
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
