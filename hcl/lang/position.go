package lang

import (
	"sync"
	"sync/atomic"

	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Position is the position of an evaluation. Another goroutine reads it to report an evaluation that takes too long. The
// zero Position is ready to use, and a nil one keeps nothing.
type Position struct {
	mutex sync.Mutex
	expr  hclsyntax.Expression
	read  atomic.Int64
}

// Count adds bytes that were read.
func (p *Position) Count(bytes int) {
	if p != nil {
		p.read.Add(int64(bytes))
	}
}

// Read returns the number of bytes of files that were read so far.
func (p *Position) Read() int64 { return p.read.Load() }

func (p *Position) enter(expr hclsyntax.Expression) {
	if p == nil {
		return
	}
	p.mutex.Lock()
	p.expr = expr
	p.mutex.Unlock()
}

// At is the range of the expression that was entered last; zero if there was none.
func (p *Position) At() diag.Range {
	if p == nil {
		return diag.Range{}
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.expr == nil {
		return diag.Range{}
	}
	return DiagRange(p.expr.Range())
}
