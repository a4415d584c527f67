package guest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
)

func TestWhatWasFoundStays(t *testing.T) {
	first := guest.RecordEntry{Aspect: "files", Item: "/etc/motd", Identity: "path", Found: map[string]string{"mode": "0644"}}
	again := guest.RecordEntry{Aspect: "files", Item: "/etc/motd", Identity: "path", Found: map[string]string{"mode": "0600"}, Put: map[string]string{"restart": "x"}}
	made := guest.RecordEntry{Aspect: "files", Item: "/etc/new", Identity: "path"}
	r := (&guest.Record{}).With([]guest.RecordEntry{first, made})
	r = r.With([]guest.RecordEntry{again, {Aspect: "files", Item: "/etc/new", Identity: "path", Found: map[string]string{"mode": "0644"}}})
	require.Equal(t, map[string]string{"mode": "0644"}, r.Get("files", "/etc/motd").Found)
	require.Equal(t, map[string]string{"restart": "x"}, r.Get("files", "/etc/motd").Put)
	require.Nil(t, r.Get("files", "/etc/new").Found)
	require.Equal(t, []string{"/etc/motd"}, r.Without([]guest.RecordKey{made.Key()}).Items("files"))
}

func TestTextIsTheSameForTheSameThings(t *testing.T) {
	a, b := guest.RecordEntry{Aspect: "a", Item: "x"}, guest.RecordEntry{Aspect: "b", Item: "x"}
	zero := &guest.Record{}
	one := zero.With([]guest.RecordEntry{b, a})
	require.Equal(t, one.Text(), zero.With([]guest.RecordEntry{a}).With([]guest.RecordEntry{b}).Text())
	require.Equal(t, one.Text(), one.With([]guest.RecordEntry{a}).Text())
	require.Empty(t, zero.Text(), "a machine that nothing was put on has no file")
	require.NotEmpty(t, one.Without([]guest.RecordKey{a.Key(), b.Key()}).Text(), "one that something was put on keeps it")
	back, err := guest.ReadRecord(one.Text())
	require.NoError(t, err)
	require.Equal(t, one.Text(), back.Text())
	require.Empty(t, guest.ContentSum(""))
}

func TestADamagedRecordIsRefused(t *testing.T) {
	for text, says := range map[string]string{
		"{": "is damaged", "[]": "is damaged", `{"version": 2}`: "has version 2, this program reads 1", "{}": "has version 0",
	} {
		_, err := guest.ReadRecord(text)
		require.ErrorContains(t, err, says, text)
	}
}
