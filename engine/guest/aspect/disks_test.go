package aspect_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

// An answer may be anything: it is refused, or gives a value, and never a panic.
func FuzzReadDisks(f *testing.F) {
	f.Add("disk\tsda\t=RElTSz1zZGEK\nmounted\t/srv\t=MzYgMzUgODowIC8gL3NydiBydyAtIGV4dDQgL2Rldi9zZGEgcnc=\n")
	f.Add("fstab\t=L3N3YXBmaWxlIG5vbmUgc3dhcA==\nfile\t=MSAy\nswaps\t=L3N3YXBmaWxlIGEgYg==\n")
	f.Add("xfs\t/srv\t=YnNpemU9\nlacks\t/srv\t=\ndisk\t\t=\n")
	want, err := spec.Read([]byte(`{"version": 1, "node": "edge", "config": {"swap": 64, "mounts": [{"path": "/srv", "disk": "data", "fstype": "xfs"}]}}`))
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, answer string) {
		q := &aspect.Query{Want: want, Record: &guest.Record{}}
		for _, a := range aspect.DiskAspects() {
			r, err := a.Read(q, guest.Answer{Text: answer}, spec.Empty("edge"))
			if err != nil {
				continue
			}
			for _, s := range r.Steps() {
				require.NotEmpty(t, s.Text)
			}
		}
	})
}
