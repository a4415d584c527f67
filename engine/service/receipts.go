package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Bounds of what a child sends after one report: in one request, and requests.
const (
	receiptsBytes = 1 << 20
	receiptsTries = 4
)

// receiptsUp sends receipts to the parent. The goroutine of reports owns it.
type receiptsUp struct {
	s      *Service
	heads  map[string]ledger.Head // that the parent has, by path
	failed string                 // why it did not take them, "" if it did
}

// Send sends what the parent does not have yet.
func (u *receiptsUp) Send(ctx context.Context, c *client.Client) {
	for range receiptsTries {
		more, err := u.once(ctx, u.s.Ledger, c)
		if text := fmt.Sprint(err); err != nil && ctx.Err() == nil && u.failed != text {
			u.failed = text
			u.s.o.Log.Warn("the parent did not keep the receipts; they are sent again", "error", err)
		}
		if err != nil || !more {
			return
		}
		u.failed = ""
	}
}

// once makes one request, and reports whether there was something to send or ask.
func (u *receiptsUp) once(ctx context.Context, l *ledger.Ledger, c *client.Client) (more bool, err error) {
	paths, err := l.Chains()
	if err != nil {
		return false, err
	}
	r, budget := wire.Receipts{Version: 1}, receiptsBytes
	for _, path := range paths {
		chain := l.At(path)
		part := wire.ReceiptChain{Path: path, Documents: []json.RawMessage{}}
		head, known := u.heads[strings.Join(path, "/")]
		if known {
			here, err := chain.Head()
			if err != nil || here == head {
				continue
			}
			if part.Documents, err = chain.After(head, budget); err != nil || len(part.Documents) == 0 {
				continue
			}
		}
		if part.Keys, err = chain.Keys(); err != nil {
			return false, err
		}
		for _, d := range part.Documents {
			budget -= len(d)
		}
		if r.Chains = append(r.Chains, part); budget <= 0 {
			break
		}
	}
	if len(r.Chains) == 0 {
		return false, nil
	}
	body, err := json.Marshal(r)
	if err != nil {
		return false, err
	}
	answer, err := c.Receipts(ctx, body)
	var heads wire.ReceiptHeads
	if err == nil {
		err = json.Unmarshal(answer, &heads)
	}
	if err == nil && len(heads.Heads) != len(r.Chains) {
		err = errors.New("the answer of the parent is about other receipts")
	}
	if err != nil {
		return false, err
	}
	if u.heads == nil {
		u.heads = map[string]ledger.Head{}
	}
	for i, h := range heads.Heads {
		u.heads[strings.Join(r.Chains[i].Path, "/")] = ledger.Head(h)
	}
	return true, nil
}

// keepReceipts stores the receipts of a child; see specserve.Options.
func (s *Service) keepReceipts(child string, r wire.Receipts) (out wire.ReceiptHeads, err error) {
	if err := s.Ledger.Room(child); err != nil {
		s.o.Log.Warn("no more receipts of a host are kept", "host", child, "error", err)
		return out, errors.New("the parent keeps no more of its receipts; its log says why")
	}
	for _, c := range r.Chains {
		l, err := s.Ledger.Below(slices.Concat([]string{child}, c.Path)...)
		if err != nil {
			return out, err
		}
		fresh, err := l.Keep(c.Keys, c.Documents)
		if err != nil {
			return out, err
		}
		if fresh {
			s.o.Log.Info("a host signs its receipts with a key that is new here", "host", slices.Concat([]string{child}, c.Path), "keys", c.Keys)
		}
		head, err := l.Head()
		if err != nil {
			return out, err
		}
		out.Heads = append(out.Heads, wire.ReceiptHead(head))
	}
	return out, nil
}
