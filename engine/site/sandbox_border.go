package site

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sync"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/policy"
)

// Documents cross the border of the processes as JSON, each behind its length. The parent sends a
// request; the child asks for files and says where it is until it has the reply.

// mostFromChild bounds a document of a child, in bytes. A reply has at most some thousand findings.
const mostFromChild = 8 << 20

type request struct {
	Memory int64            // the limit at first, so that the child collects its garbage in time
	Most   int64            // the limit once rules are evaluated
	Rules  limits           // of one evaluation of rules
	Load   *loadRequest     `json:",omitempty"`
	Ask    *policy.Question `json:",omitempty"`
	Render *renderRequest   `json:",omitempty"`
}

// message is a message of a child: one of these.
type message struct {
	At    *diag.Range  `json:",omitempty"`
	File  *fileRequest `json:",omitempty"`
	Rules bool         `json:",omitempty"` // a site is loaded, and its rules are asked
	Reply *reply       `json:",omitempty"`
}

type reply struct {
	Refused diag.List                 // of a load: what is wrong; empty if the tree is good
	Harmful bool                      // an evaluation of its rules was stopped
	Answer  policy.Answer             // of a question, or what the rules say of the site that was loaded
	Error   string                    // why there is neither
	Texts   map[string]model.Rendered `json:",omitempty"`
	Last    bool                      // the child is not to get another request
}

func writeDocument(w io.Writer, doc any) error {
	b, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

func readDocument(r *bufio.Reader, most uint32, doc any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > most {
		return fmt.Errorf("a document of %d bytes; the limit is %d", size, most)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	return json.Unmarshal(b, doc)
}

// fileRequest asks for one entry of the tree.
type fileRequest struct {
	Op   string // lstat, stat, readlink or open
	Name string
}

// fileAnswer is the entry: of a file its content, of a folder what is in it.
type fileAnswer struct {
	Entry   entry
	Data    []byte
	Entries []entry
	Link    string
	Error   string // "": there is the entry
	Missing bool   // the error is fs.ErrNotExist
	Memory  int64  // the limit of the child's memory from now on; 0: as before

	failed bool // the tree could not be read
}

// mostOfFile bounds what is read of one file. All that a load reads is smaller.
const mostOfFile = 8 << 20

// answerFile reads one entry of a tree.
func answerFile(tree fs.FS, q fileRequest) fileAnswer {
	var a fileAnswer
	err := func() (err error) {
		var info fs.FileInfo
		switch q.Op {
		case "lstat":
			info, err = fs.Lstat(tree, q.Name)
		case "readlink":
			a.Link, err = fs.ReadLink(tree, q.Name)
			return err
		case "stat":
			info, err = fs.Stat(tree, q.Name)
		default:
			info, err = a.open(tree, q.Name)
		}
		if err == nil {
			a.Entry = entryOf(info)
		}
		return err
	}()
	if err != nil {
		var p *fs.PathError
		if a.Missing = errors.Is(err, fs.ErrNotExist); errors.As(err, &p) {
			err = p.Err
		}
		a.Error = err.Error()
		a.failed = !a.Missing && !errors.Is(err, fs.ErrInvalid)
	}
	return a
}

func (a *fileAnswer) open(tree fs.FS, name string) (fs.FileInfo, error) {
	f, err := tree.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		list, err := fs.ReadDir(tree, name)
		for _, e := range list {
			a.Entries = append(a.Entries, entry{EntryName: e.Name(), EntryMode: e.Type()})
		}
		return info, err
	}
	a.Data, err = io.ReadAll(io.LimitReader(f, mostOfFile))
	return info, err
}

// entry is a file or folder of the tree.
type entry struct {
	EntryName string
	EntrySize int64
	EntryMode fs.FileMode
}

func entryOf(i fs.FileInfo) entry { return entry{i.Name(), i.Size(), i.Mode()} }

func (e entry) Name() string               { return e.EntryName }
func (e entry) Size() int64                { return e.EntrySize }
func (e entry) Mode() fs.FileMode          { return e.EntryMode }
func (entry) ModTime() time.Time           { return time.Time{} }
func (e entry) IsDir() bool                { return e.EntryMode.IsDir() }
func (entry) Sys() any                     { return nil }
func (e entry) Type() fs.FileMode          { return e.EntryMode.Type() }
func (e entry) Info() (fs.FileInfo, error) { return e, nil }

// parentFiles is the tree of the parent, as the child sees it.
type parentFiles struct {
	ask func(fileRequest) (fileAnswer, error)

	mutex sync.Mutex
	known map[fileRequest]fileAnswer
	size  int
}

// mostKept bounds the files that a child keeps, in bytes: an expression may read one a million times.
const mostKept = 16 << 20

func (p *parentFiles) answer(q fileRequest) (fileAnswer, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if a, ok := p.known[q]; ok {
		return a, nil
	}
	a, err := p.ask(q)
	if cost := len(a.Data) + 200*(1+len(a.Entries)); err == nil && p.size+cost <= mostKept {
		if p.known == nil {
			p.known = map[fileRequest]fileAnswer{}
		}
		p.known[q], p.size = a, p.size+cost
	}
	return a, err
}

func (p *parentFiles) get(op, name string) (fileAnswer, error) {
	if !fs.ValidPath(name) {
		return fileAnswer{}, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	a, err := p.answer(fileRequest{op, name})
	switch {
	case err != nil:
	case a.Missing:
		err = fs.ErrNotExist
	case a.Error != "":
		err = errors.New(a.Error)
	}
	if err != nil {
		return a, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return a, nil
}

// Open implements fs.FS.
func (p *parentFiles) Open(name string) (fs.File, error) {
	a, err := p.get("open", name)
	if err != nil {
		return nil, err
	}
	if a.Entry.EntryName == "" {
		a.Entry.EntryName = path.Base(name)
	}
	return &parentFile{fileAnswer: a}, nil
}

// Stat implements fs.StatFS.
func (p *parentFiles) Stat(name string) (fs.FileInfo, error) {
	a, err := p.get("stat", name)
	if err != nil {
		return nil, err
	}
	return a.Entry, nil
}

// Lstat implements fs.ReadLinkFS.
func (p *parentFiles) Lstat(name string) (fs.FileInfo, error) {
	a, err := p.get("lstat", name)
	if err != nil {
		return nil, err
	}
	return a.Entry, nil
}

// ReadLink implements fs.ReadLinkFS.
func (p *parentFiles) ReadLink(name string) (string, error) {
	a, err := p.get("readlink", name)
	return a.Link, err
}

// parentFile is an open file or folder of it.
type parentFile struct {
	fileAnswer
	at int
}

func (f *parentFile) Stat() (fs.FileInfo, error) { return f.Entry, nil }
func (*parentFile) Close() error                 { return nil }

func (f *parentFile) Read(b []byte) (int, error) {
	if f.at >= len(f.Data) {
		return 0, io.EOF
	}
	n := copy(b, f.Data[f.at:])
	f.at += n
	return n, nil
}

// ReadDir implements fs.ReadDirFile, for a folder that is read as a whole.
func (f *parentFile) ReadDir(int) ([]fs.DirEntry, error) {
	out := make([]fs.DirEntry, 0, len(f.Entries))
	for _, e := range f.Entries[f.at:] {
		out = append(out, e)
	}
	f.at = len(f.Entries)
	return out, nil
}
