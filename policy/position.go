package policy

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Position is the last call of a function that an evaluation began. One call may take long, and does
// not notice that it was stopped. The zero Position is ready to use.
type Position struct {
	at      atomic.Pointer[ast.Location]
	stopped atomic.Bool
}

// Stopped reports whether an evaluation was stopped at a limit.
func (p *Position) Stopped() bool { return p.stopped.Load() }

// At is the position of the call; zero if there was none, or if it is in a shipped rule.
func (p *Position) At() diag.Range {
	l := p.at.Load()
	if l == nil || l.File == "" || strings.HasPrefix(l.File, shippedFolder+"/") {
		return diag.Range{}
	}
	at := diag.Pos{Line: max(l.Row, 1), Column: max(l.Col, 1), Byte: l.Offset}
	return diag.Range{File: l.File, Start: at, End: at}
}

type positionKey struct{}

// WithPosition makes evaluations under the context say where they are.
func WithPosition(ctx context.Context, p *Position) context.Context {
	return context.WithValue(ctx, positionKey{}, p)
}

// positioned is WithPosition, with the place that the context has already if there is one.
func positioned(ctx context.Context) (context.Context, *Position) {
	if p, ok := ctx.Value(positionKey{}).(*Position); ok {
		return ctx, p
	}
	p := &Position{}
	return WithPosition(ctx, p), p
}

// enter notes the call that begins.
func enter(bctx topdown.BuiltinContext) {
	if bctx.Context == nil || bctx.Location == nil {
		return
	}
	if p, ok := bctx.Context.Value(positionKey{}).(*Position); ok {
		p.at.Store(bctx.Location)
	}
}
