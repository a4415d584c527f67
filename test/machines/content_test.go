package machines_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/guest/converge"
	"github.com/homestak/homestak-gitops/engine/guest/spec"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
	"github.com/homestak/homestak-gitops/test/nspawn"
)

// A file of the site reaches the machine byte for byte, however it is made and as large as it may be.
func TestST02ContentOfAFileOfTheSite(t *testing.T) {
	nspawn.Need(t)
	t.Parallel()
	binary := make([]byte, 1<<20)
	for i := range binary {
		binary[i] = byte(i * i >> 3)
	}
	site, found := hcl.Load(fstest.MapFS{
		"files/logo.bin": {Data: binary}, "files/too-large": {Data: append(bytes.Clone(binary), 0)},
		"site.hcl": {Data: []byte(`site "home" {}
spec "base" {
  config {
    file "/srv/logo.bin" {
      source = "files/logo.bin"
      mode   = "0640"
    }
  }
}
spec "large" {
  config {
    file "/srv/x" {
      source = "files/too-large"
    }
  }
}
`)},
	}, hcl.Options{Kinds: proxmox.Kinds()})
	require.Equal(t, []string{`unreadable file "files/too-large"`}, problems(found))
	require.Contains(t, found[0].Detail, "1048577 bytes are too many: at most 1 MiB are read")
	require.Equal(t, "site.hcl:13:7", found[0].At.String())

	s, found := spec.Resolve(site, &model.Node{Name: "edge", Spec: "base"})
	require.Empty(t, found)
	document, err := json.Marshal(s)
	require.NoError(t, err)
	s, err = spec.Read(document)
	require.NoError(t, err)
	sum := fmt.Sprintf("%x", sha256.Sum256(binary))

	w := begin(t)
	s.Identity = &spec.Identity{}
	w.apply(s)
	require.Equal(t, sum, w.Run0("sha256sum /srv/logo.bin | cut -c1-64"))
	w.unchanged(s)
	w.Run0(`printf '\377\000changed' >/srv/logo.bin`)
	state, err := converge.Observe(context.Background(), way{w}, s)
	require.NoError(t, err)
	shown, err := json.Marshal(state.Changes())
	require.NoError(t, err)
	require.Contains(t, string(shown), `"after":"sha256:`+sum)
	require.NotContains(t, string(shown), `\ufffd`)
	w.apply(s)
	require.Equal(t, sum, w.Run0("sha256sum /srv/logo.bin | cut -c1-64"))
	w.apply(spec.Empty("edge"))
	w.Run0("[ ! -e /srv/logo.bin ]")
}
