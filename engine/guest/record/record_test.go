package record_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest/record"
)

func TestWhatWasFoundStays(t *testing.T) {
	first := record.Entry{Aspect: "files", Item: "/etc/motd", Identity: "path", Found: map[string]string{"mode": "0644"}}
	again := record.Entry{Aspect: "files", Item: "/etc/motd", Identity: "path", Found: map[string]string{"mode": "0600"}, Put: map[string]string{"restart": "x"}}
	made := record.Entry{Aspect: "files", Item: "/etc/new", Identity: "path"}
	r := (&record.Record{}).With([]record.Entry{first, made})
	r = r.With([]record.Entry{again, {Aspect: "files", Item: "/etc/new", Identity: "path", Found: map[string]string{"mode": "0644"}}})
	require.Equal(t, map[string]string{"mode": "0644"}, r.Get("files", "/etc/motd").Found)
	require.Equal(t, map[string]string{"restart": "x"}, r.Get("files", "/etc/motd").Put)
	require.Nil(t, r.Get("files", "/etc/new").Found)
	require.Equal(t, []string{"/etc/motd"}, r.Without([]record.Key{made.Key()}).Items("files"))
}

func TestTextIsTheSameForTheSameThings(t *testing.T) {
	a, b := record.Entry{Aspect: "a", Item: "x"}, record.Entry{Aspect: "b", Item: "x"}
	zero := &record.Record{}
	one := zero.With([]record.Entry{b, a})
	require.Equal(t, one.Text(), zero.With([]record.Entry{a}).With([]record.Entry{b}).Text())
	require.Equal(t, one.Text(), one.With([]record.Entry{a}).Text())
	require.Empty(t, zero.Text(), "a machine that nothing was put on has no file")
	require.NotEmpty(t, one.Without([]record.Key{a.Key(), b.Key()}).Text(), "one that something was put on keeps it")
	back, err := record.Read(one.Text())
	require.NoError(t, err)
	require.Equal(t, one.Text(), back.Text())
	require.Empty(t, record.Sum(""))
}

func TestADamagedRecordIsRefused(t *testing.T) {
	for text, says := range map[string]string{
		"{": "is damaged", "[]": "is damaged", `{"version": 2}`: "has version 2, this program reads 1", "{}": "has version 0",
	} {
		_, err := record.Read(text)
		require.ErrorContains(t, err, says, text)
	}
}
