package ledger

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// sendTo sends what a parent lacks of a chain, as a child does.
func sendTo(t *testing.T, from, parent *Ledger, path ...string) *Ledger {
	t.Helper()
	at, err := parent.Below(path...)
	require.NoError(t, err)
	for {
		docs, err := from.After(must(at.Head()), 2000)
		require.NoError(t, err)
		_, err = at.Keep(must(from.Keys()), docs)
		require.NoError(t, err)
		if len(docs) == 0 || must(at.Head()) == must(from.Head()) {
			return at
		}
	}
}

// A parent has the receipts of its children as they are, with their own keys, and hands them on.
func TestReceiptsGoUp(t *testing.T) {
	child, parent, root := open(t, t.TempDir()), open(t, t.TempDir()), open(t, t.TempDir())
	write(t, parent, took(1, 1))
	write(t, child, many(9, 3)...)
	at := sendTo(t, child, parent, "inner")
	p := intact(t, at)
	require.Equal(t, 9, p.Intact)
	require.Equal(t, must(child.Keys()), p.Keys)
	require.Equal(t, [][]string{{}, {"inner"}}, must(parent.Chains()))
	require.Equal(t, 1, intact(t, parent).Intact, "the own chain is another one")

	_, err := child.Write(attempt(10))
	require.NoError(t, err)
	sendTo(t, child, parent, "inner")
	_, err = child.Write(attempt(11)) // replaces the one before
	require.NoError(t, err)
	at = sendTo(t, child, parent, "inner")
	require.Equal(t, 10, intact(t, at).Intact)
	require.Equal(t, must(child.Head()), must(at.Head()))

	above := sendTo(t, parent.At([]string{"inner"}), root, "middle", "inner")
	require.Equal(t, 10, intact(t, above).Intact)
	require.Equal(t, [][]string{{}, {"middle"}, {"middle", "inner"}}, must(root.Chains()))

	// A child that lost its data folder has another key and chain, which begins there.
	lost := open(t, t.TempDir())
	write(t, lost, took(50, 1), took(51, 1))
	p = intact(t, sendTo(t, lost, parent, "inner"))
	require.Equal(t, 12, p.Intact)
	require.Len(t, p.Keys, 2)
	broken(t, at, Expect{Keys: must(child.Keys())}, "ab50: it is signed with a foreign key")

	// The end that the child lost is known by the copy.
	require.NoError(t, os.Remove(child.file(must(child.Head()).ID)))
	broken(t, child, Expect{Newest: must(above.Head()).ID}, "the end of the chain was cut off")
}

// Over the limit, a parent drops by its own record, and takes that of a child which dropped some before it sent them.
func TestReceiptsGoUpAfterALongTime(t *testing.T) {
	child, err := options{Files: 5}.Open(t.TempDir())
	require.NoError(t, err)
	parent, err := options{Files: 5}.Open(t.TempDir())
	require.NoError(t, err)
	all := many(25, 2, 15)
	write(t, child, all[:4]...)
	at := sendTo(t, child, parent, "inner")
	require.Equal(t, 4, intact(t, at).Intact)
	write(t, child, all[4:]...)
	at = sendTo(t, child, parent, "inner")
	require.Equal(t, must(child.Head()), must(at.Head()))
	intact(t, at)
	write(t, child, took(1, 1), took(2, 1))
	intact(t, sendTo(t, child, parent, "inner"))
}

func TestForgedReceiptsAreNotKept(t *testing.T) {
	child, other := open(t, t.TempDir()), open(t, t.TempDir())
	write(t, child, many(3)...)
	at, err := open(t, t.TempDir()).Below("inner")
	require.NoError(t, err)
	docs := must(child.After(Head{}, 1<<20))
	require.Len(t, docs, 3)
	keys := must(child.Keys())
	exempt, _, err := seal(child.key, Receipt{Version: receiptVersion, ID: id(1) + removal, Key: present(child.key)})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		keys []string
		doc  []byte
	}{
		"of another key":    {must(other.Keys()), docs[0]},
		"edited":            {keys, bytes.Replace(docs[0], []byte("apply"), []byte("agent"), 1)},
		"a path as its ID":  {keys, []byte(`{"version":1,"id":"../../x"}`)},
		"no receipt":        {keys, []byte(`{"version":7}`)},
		"no JSON":           {keys, []byte(`{`)},
		"a record of these": {keys, []byte(`{"version":1,"first_dropped":"a","after":"../x","key":"k"}`)},
		"no key":            {[]string{"ed25519:x"}, docs[0]},
		"no removal":        {keys, exempt},
	} {
		at, err := open(t, t.TempDir()).Below("inner")
		require.NoError(t, err)
		_, err = at.Keep(c.keys, []json.RawMessage{c.doc})
		require.Error(t, err, name)
		require.Zero(t, must(at.Head()), name)
	}
	for _, want := range []bool{true, false} {
		fresh, err := at.Keep(keys, docs)
		require.NoError(t, err)
		require.Equal(t, want, fresh)
	}
	unsigned := []byte(`{"version":1,"id":"20260102T050000.000Z-aa"}`)
	_, err = at.Keep(keys, []json.RawMessage{unsigned})
	require.ErrorContains(t, err, "is not signed")
}

// A child names its chains itself, and must not fill the disk of its parent with them.
func TestAChildHasLimitedRoom(t *testing.T) {
	child, parent := open(t, t.TempDir()), open(t, t.TempDir())
	require.NoError(t, parent.Room("inner"))
	write(t, child, many(2)...)
	at := sendTo(t, child, parent, "inner", "deep")
	require.NoError(t, parent.Room("inner"))
	require.NoError(t, os.Truncate(at.file(must(at.Head()).ID), mostBelow+1)) // sparse
	require.ErrorContains(t, parent.Room("inner"), "files with 1024 MiB of it")
	require.NoError(t, parent.Room("other"))
}
