package plan

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"

	"github.com/homestak/homestak-gitops/engine/model"
)

// fingerprint takes in what a plan is made from, in the order of addresses, and
// names it. Every piece goes in with its length, so that no two inputs write the
// same bytes. Times do not go in, and of a secret only whether it is there and
// whether it differs: the name of a plan is public, and a hash can be guessed.
type fingerprint struct {
	hash hash.Hash
	buf  []byte
}

// flush bounds the buffer; hashing in pieces of this size costs next to nothing.
const flush = 4096

func (f *fingerprint) text(s string) {
	if f.hash == nil {
		f.hash = sha256.New()
	}
	f.buf = append(binary.AppendUvarint(f.buf, uint64(len(s))), s...)
	if len(f.buf) > flush {
		f.hash.Write(f.buf)
		f.buf = f.buf[:0]
	}
}

func (f *fingerprint) texts(l []string) {
	f.number(len(l))
	for _, s := range l {
		f.text(s)
	}
}

func (f *fingerprint) number(n int) { f.buf = binary.AppendVarint(f.buf, int64(n)) }

func (f *fingerprint) address(a model.Address) {
	f.text(a.Kind)
	f.text(a.Name)
}

func (f *fingerprint) needs(l []model.Address) {
	if !slices.IsSortedFunc(l, model.Address.Compare) {
		l = slices.SortedFunc(slices.Values(l), model.Address.Compare)
	}
	f.number(len(l))
	for _, a := range l {
		f.address(a)
	}
}

func (f *fingerprint) value(v any) {
	switch v := v.(type) {
	case nil:
		f.text("nil")
	case string:
		f.text("s")
		f.text(v)
	case int64:
		f.text("i")
		f.number(int(v))
	case bool:
		if v {
			f.text("true")
		} else {
			f.text("false")
		}
	case []string:
		f.text("l")
		f.texts(v)
	default:
		f.text(fmt.Sprintf("%T %v", v, v))
	}
}

// wanted takes in a resource as it shall be.
func (f *fingerprint) wanted(r *model.Resource, attrs []model.Attr) {
	f.text("want")
	f.resource(r)
	f.texts(slices.Concat(r.Missing, r.MissingToCreate))
	f.attrs(r, attrs)
}

// observed takes in a resource as it is, by what of it differs from the wanted one.
func (f *fingerprint) observed(r *model.Resource, changes []Change) {
	f.text("have")
	f.resource(r)
	f.number(len(changes))
	for _, c := range changes {
		f.text(c.Path)
		f.public(c.Before, c.Sensitive)
	}
}

func (f *fingerprint) resource(r *model.Resource) {
	f.address(r.Addr)
	f.text(r.Manifest)
	f.text(r.Node)
	f.needs(r.Needs)
	if g := r.Guest; g != nil {
		f.number(g.VMID)
		f.text(g.Node)
		f.text(g.Digest)
		f.text(g.Lock)
		f.value(g.Running)
	}
}

func (f *fingerprint) attrs(r *model.Resource, attrs []model.Attr) {
	f.number(len(attrs))
	for _, a := range attrs {
		f.text(a.Path)
		f.public(a.Value, a.Secret || sensitive(r, a.Path))
	}
}

func (f *fingerprint) public(v any, secret bool) {
	if secret {
		v = masked(v)
	}
	f.value(v)
}

// sum takes in the rest of the input and gives the name: 12 hex digits.
func (f *fingerprint) sum(in Input) string {
	f.text("limits")
	f.text(in.Manifest)
	f.value(in.Destroy)
	f.needs(in.Targets)
	var ids []int
	for _, g := range in.Have.Unmanaged {
		ids = append(ids, g.VMID) // not the name: PVE reports it up to 10 s late
	}
	slices.Sort(ids)
	f.number(len(ids))
	for _, id := range ids {
		f.number(id)
	}
	var scopes []string
	for _, u := range in.Have.Unknown {
		scopes = append(scopes, u.Scope)
	}
	slices.Sort(scopes)
	f.texts(scopes)
	f.hash.Write(f.buf)
	return hex.EncodeToString(f.hash.Sum(nil))[:12]
}
