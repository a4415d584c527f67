package site

import (
	"bufio"
	"context"
	"io"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/policy"
)

// The limits that a child sets itself. They are a second line: the parent watches it.
const (
	childStack = 64 << 20
	childFiles = 32
	sayEvery   = 20 * time.Millisecond

	idleAfter = 5 * time.Second // without a request, the child returns the memory that it does not use

	// childGarbage is the garbage, as a percentage of what is in use, at which a child collects it, within its limit
	// of memory: it lives for a moment.
	childGarbage = 400
)

// RunSandbox is the child of a Sandbox: it serves requests until its input ends. Kinds are those
// that a site may declare.
func RunSandbox(kinds model.Kinds, in io.Reader, out io.Writer) error {
	debug.SetMaxStack(childStack)
	debug.SetGCPercent(childGarbage)
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0) // the kernel takes this process before the agent
	for resource, most := range map[int]uint64{syscall.RLIMIT_NOFILE: childFiles, syscall.RLIMIT_FSIZE: 0, syscall.RLIMIT_CORE: 0} {
		_ = syscall.Setrlimit(resource, &syscall.Rlimit{Cur: most, Max: most}) // not every sandbox around this one permits it
	}
	b := &border{out: out, files: make(chan fileAnswer), requests: make(chan request)}
	c := &childWork{border: b, loader: NewLoader(kinds)}
	go policy.Compile(context.Background(), policy.Options{}) // the shipped rules, for the first tree
	go c.say()
	go c.work()
	b.read(in) // its end ends the process, whatever is still evaluated
	return nil
}

// boundChild makes the process collect its garbage before the parent ends it, and limits what it
// can map: one call may take gigabytes at once.
func boundChild(memory, most int64) {
	collectWithin(memory)
	_ = syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: uint64(most)*2 + 512<<20, Max: math.MaxUint64})
}

func collectWithin(memory int64) {
	if memory > 0 {
		debug.SetMemoryLimit(memory - memory/4)
	}
}

// border is the side of the child.
type border struct {
	out      io.Writer
	writing  sync.Mutex // several goroutines say something
	asking   sync.Mutex // one of them waits for a file
	files    chan fileAnswer
	requests chan request
}

// fromParent is a document of the parent: a request or a file.
type fromParent struct {
	request
	File *fileAnswer `json:",omitempty"`
}

// read reads what the parent sends, until that ends.
func (b *border) read(in io.Reader) {
	r := bufio.NewReader(in)
	for {
		var got fromParent
		if err := readDocument(r, math.MaxUint32, &got); err != nil {
			return
		}
		if got.File != nil {
			b.files <- *got.File
		} else {
			b.requests <- got.request
		}
	}
}

func (b *border) write(m message) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	return writeDocument(b.out, m)
}

func (b *border) file(q fileRequest) (fileAnswer, error) {
	b.asking.Lock()
	defer b.asking.Unlock()
	if err := b.write(message{File: &q}); err != nil {
		return fileAnswer{}, err
	}
	a := <-b.files
	collectWithin(a.Memory)
	return a, nil
}

// childWork is the work of a child.
type childWork struct {
	*border
	loader    *Loader
	rules     policy.Responder
	mutex     sync.Mutex
	positions []func() diag.Range // of the request under way; nil: there is none
	said      map[int]diag.Range  // of these
}

// say reports to the parent where the work is, so that the parent can name the place if it has to end this process.
func (c *childWork) say() {
	for range time.Tick(sayEvery) {
		c.sayNow()
	}
}

// sayNow holds the mutex while it writes: behind the reply, the parent would take a position for one of the next request.
func (c *childWork) sayNow() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for i, position := range c.positions {
		if at := position(); !at.IsZero() && at != c.said[i] {
			c.said[i] = at
			_ = c.write(message{At: &at})
		}
	}
}

// at sets the positions of the request that begins; without any it ends.
func (c *childWork) at(positions ...func() diag.Range) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.positions, c.said = positions, map[int]diag.Range{}
}

// work replies to requests. If it cannot write, the parent is gone and the input ends too.
func (c *childWork) work() {
	idle := time.AfterFunc(idleAfter, debug.FreeOSMemory)
	for r := range c.requests {
		idle.Stop()
		boundChild(r.Memory, r.Most)
		a := c.serve(r)
		_ = c.write(message{Reply: &a})
		idle.Reset(idleAfter)
	}
}

func (c *childWork) serve(r request) reply {
	inRules, inSite := &policy.Position{}, &hcl.Position{}
	c.at(inSite.At, inRules.At)
	defer c.at()
	ctx := policy.WithPosition(context.Background(), inRules)
	switch {
	case r.Load != nil:
		refused, rules := c.load(ctx, r, inSite, inRules)
		bad := refused.HasErrors()
		return reply{Refused: refused, Answer: rules, Harmful: inRules.Stopped() && bad, Last: bad || inRules.Stopped()}
	case r.Ask != nil:
		c.rules.Limit, c.rules.Memory = r.Rules.CPU, r.Rules.Memory
		a, err := c.rules.Answer(ctx, *r.Ask)
		if err != nil {
			return reply{Error: err.Error()}
		}
		return reply{Answer: a, Last: c.rules.Busy()}
	case r.Render != nil:
		return reply{Texts: hcl.Render(r.Render.Templates, r.Render.Facts)}
	default:
		return reply{Error: "the request asks for nothing"}
	}
}

// load does all that the parent may do with a tree. Of a tree with errors it gives the findings: the parent needs no
// more of it. Of any other it gives what the rules say of its site; the parent finds the rest itself.
func (c *childWork) load(ctx context.Context, asked request, position *hcl.Position, inRules *policy.Position) (diag.List, policy.Answer) {
	tree, r := &parentFiles{ask: c.file}, asked.Load
	l := c.loader
	// A name of a tree is one only to the loader of the parent, and it may be that not all of a tree could be read.
	defer func() { l.was = &loaded{set: l.set()} }()
	l.position, l.rules = position, asked.Rules
	l.asks = func() {
		_ = c.write(message{Rules: true})
		collectWithin(asked.Most)
	}
	in := Input{Commit: r.Commit, Tree: r.Tree, Secrets: r.Secrets, Local: r.Local, Vars: r.Vars, Mode: r.Mode, Unattended: r.Unattended, Now: func() time.Time { return r.Now }}
	got := l.load(ctx, tree, in)
	if found := slices.Concat(got.found, got.denied); found.HasErrors() || got.site == nil {
		return found, policy.Answer{}
	}
	_, _ = needs(l.files.Load, tree, hcl.Options{Kinds: l.kinds, Secrets: r.Secrets, Vars: r.Vars, Position: position})
	site := withMode(got.site, in.Mode)
	for name := range site.Hosts {
		_, _ = site.Want(name)
	}
	d := l.check(ctx, tree, engine.Desired{Site: site, Commit: in.Commit.ID}, in, nil)
	if inRules.Stopped() {
		return slices.Concat(got.found, got.denied, d.Findings), policy.Answer{}
	}
	return nil, policy.Answer{Found: got.check.found, Rules: got.check.rules}
}
