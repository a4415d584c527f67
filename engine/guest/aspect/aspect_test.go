package aspect_test

import (
	"flag"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/guest"
	"github.com/homestak/homestak-gitops/engine/guest/aspect"
	"github.com/homestak/homestak-gitops/engine/guest/aspect/aspecttest"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
)

var update = flag.Bool("update", false, "write the golden files")

func TestAspects(t *testing.T) {
	aspecttest.Golden(t, slices.Concat(aspect.All(), aspect.DiskAspects()), *update)
}

// An answer may be anything: it is refused, or gives a value, and never a panic.
func FuzzRead(f *testing.F) {
	f.Add("file\t=Zm9v\nunit\tx\t=Zm9v\n")
	f.Add("passwd\t=cm9vdDowOjA6L3Jvb3Q6L2Jpbi9zaA==\n")
	f.Add("row\nvalue\ta\nstat\t\t=\n")
	want, err := spec.Read([]byte(`{"version": 1, "node": "edge", "identity": {"hostname": "edge"}, "access": {"users": [{"name": "ann", "sudo": "none", "ssh_keys": []}]},
		"posture": {"ssh": {"port": "22"}, "fail2ban": {}}, "platform": {"packages": ["htop"], "services": {"x": "enabled"}}, "config": {"timezone": "UTC", "sysctl": {"a.b": "1"}, "files": [{"path": "/f"}]}}`))
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, answer string) {
		q := &aspect.Query{Want: want, Record: &guest.Record{}}
		for _, a := range aspect.All() {
			have := spec.Empty("edge")
			r, err := a.Read(q, guest.Answer{Text: answer}, have)
			if err != nil {
				continue
			}
			for _, s := range r.Steps() {
				require.NotEmpty(t, s.Text)
			}
			require.False(t, reflect.DeepEqual(have, nil))
		}
	})
}

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
