package serve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"

	"github.com/homestak/homestak-gitops/engine/source/objects"
)

// answer is the reply to one request, as git's own upload-pack makes it for a client that
// sends every round as a request of its own.
type answer struct {
	s   *Snapshot
	req *request

	head   bytes.Buffer // all that comes before the pack
	common []plumbing.Hash
	ends   map[plumbing.Hash]bool // commits that the client will have without their parents
	wanted objects.Past           // the commits that the client will have
}

// negotiate writes the head of an answer, and reports whether a pack follows.
func (a *answer) negotiate() (pack bool, err error) {
	out := pktline.NewEncoder(&a.head)
	if err := a.depth(out); err != nil || !a.req.more {
		return false, err
	}
	return a.haves(out)
}

// depth says at which commits history ends for the client, if it asked for a depth.
func (a *answer) depth(out *pktline.Encoder) error {
	if a.req.depth == 0 {
		a.ends = a.req.shallows
		a.wanted = a.s.past(a.req.wants, a.ends)
		return nil
	}
	a.ends, a.wanted = map[plumbing.Hash]bool{}, objects.Past{}
	unshallow := map[plumbing.Hash]bool{}
	for id, level := range a.s.within(a.req.wants, a.req.depth) {
		a.wanted[id] = a.s.commits[id]
		end := a.s.ends[id] || level == a.req.depth && len(a.s.parents(id)) > 0
		if a.req.shallows[id] {
			unshallow[id] = !end
		} else if end {
			a.ends[id] = true
		}
	}
	for _, id := range sorted(a.ends) {
		if err := out.EncodeString("shallow " + id.String()); err != nil {
			return err
		}
	}
	for _, id := range sorted(unshallow) {
		if err := out.EncodeString("unshallow " + id.String()); err != nil {
			return err
		}
	}
	return out.Flush()
}

// haves says which of the client's commits are known here.
func (a *answer) haves(out *pktline.Encoder) (pack bool, err error) {
	ack := func(id plumbing.Hash, state string) {
		if err == nil {
			err = out.EncodeString("ACK " + id.String() + state + "\n")
		}
	}
	nak := func() {
		if err == nil {
			err = out.EncodeString("NAK\n")
		}
	}
	enough := a.enough()
	var last plumbing.Hash
	unknown, ready := false, false
	for _, id := range a.req.haves {
		known := a.s.commits[id] != nil
		if known {
			a.common, last = append(a.common, id), id
		} else {
			unknown = true
		}
		switch {
		case known && a.req.detailed:
			ack(id, " common")
		case known && a.req.multiAck:
			ack(id, " continue")
		case known && len(a.common) == 1:
			ack(id, "")
		case !known && a.req.multiAck && enough():
			if a.req.detailed {
				ready = true
				ack(id, " ready")
			} else {
				ack(id, " continue")
			}
		}
	}
	if a.req.done {
		if len(a.common) == 0 {
			nak()
		} else if a.req.multiAck {
			ack(last, "")
		}
		return true, err
	}
	if a.req.detailed && len(a.common) > 0 && !unknown && enough() {
		ready = true
		ack(last, " ready")
	}
	if len(a.common) == 0 || a.req.multiAck {
		nak()
	}
	if ready && a.req.noDone {
		ack(last, "")
		return true, err
	}
	return false, err
}

// enough returns a function that reports whether each want builds upon a commit that both
// sides have, so that no more need be named.
func (a *answer) enough() func() bool {
	var pasts []objects.Past
	met, seen := map[int]bool{}, 0
	return func() bool {
		if len(a.common) == 0 {
			return false
		}
		if pasts == nil {
			for _, w := range a.req.wants {
				pasts = append(pasts, a.s.past([]plumbing.Hash{w}, a.req.shallows))
			}
		}
		for ; seen < len(a.common); seen++ {
			for i, p := range pasts {
				if p[a.common[seen]] != nil {
					met[i] = true
				}
			}
		}
		return len(met) == len(pasts)
	}
}

// parcel is the contents of a pack: commits with their files, without what the client has.
type parcel struct {
	commits []plumbing.Hash
	known   []plumbing.Hash // commits that the client has, next to these
}

// parcel says what the pack holds.
func (a *answer) parcel() parcel {
	has := a.s.past(a.common, a.req.shallows)
	send, known := map[plumbing.Hash]bool{}, map[plumbing.Hash]bool{}
	for id := range a.wanted {
		if has[id] != nil {
			if a.req.depth > 0 && a.req.shallows[id] { // the commits to add are below it
				known[id] = true
			}
			continue
		}
		send[id] = true
		for _, parent := range a.s.commits[id].Parents {
			if has[parent] != nil {
				known[parent] = true
			}
		}
	}
	return parcel{sorted(send), sorted(known)}
}

// key is equal for parcels with equal contents, independent of the client.
func (p parcel) key() string {
	h := sha256.New()
	for _, ids := range [][]plumbing.Hash{p.commits, p.known} {
		for _, id := range ids {
			_, _ = h.Write(id[:])
		}
		_, _ = h.Write(make([]byte, len(plumbing.ZeroHash)))
	}
	return "pack " + string(h.Sum(nil))
}

// write writes the pack. Its size is known before its first byte, and is at most so much.
func (p parcel) write(ctx context.Context, s *Snapshot, most int64, w io.Writer) error {
	has := s.store.Inventory()
	for _, id := range p.known {
		if err := gather(ctx, has, s.commits[id]); err != nil {
			return err
		}
	}
	v := s.store.Inventory()
	v.Skip = func(id plumbing.Hash) bool { return has.IDs[id] }
	for _, id := range p.commits {
		if err := gather(ctx, v, s.commits[id]); err != nil {
			return err
		}
		if v.Bytes > most {
			return bad("the request is for more than %d MiB; use --depth 1, or ask for less at a time", most>>20)
		}
	}
	return s.store.WritePack(w, v.List())
}

func gather(ctx context.Context, v *objects.Inventory, c *objects.Commit) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return v.Add(c.ID, c.Tree)
}
