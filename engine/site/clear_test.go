package site_test

import (
	"bytes"
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/hcl/sops/sopstest"
)

func TestInClear(t *testing.T) {
	const plain = "passwords:\n  root: x\n"
	_, recipient, err := sopstest.NewKey()
	require.NoError(t, err)
	encrypted, err := sopstest.Encrypt(plain, sopstest.Options{Recipients: []string{recipient}})
	require.NoError(t, err)
	for want, tree := range map[string]fstest.MapFS{
		"":                       {"site.hcl": {}, "secrets.sops.yaml": {Data: encrypted}, "secrets.yaml/x": {}, "a/secrets.yaml": {Mode: fs.ModeSymlink, Data: []byte("x")}},
		"secrets.yaml":           {"secrets.yaml": {Data: []byte(plain)}},
		"work/secrets.yaml":      {"home/site.hcl": {}, "work/secrets.yaml": {Data: []byte(plain)}},
		"work/secrets.sops.yaml": {"work/secrets.sops.yaml": {Data: []byte(plain)}},
		"mix/secrets.sops.yaml":  {"mix/secrets.sops.yaml": {Data: []byte(plain + "sops: {}\n")}},
		"add/secrets.sops.yaml":  {"add/secrets.sops.yaml": {Data: bytes.Replace(encrypted, []byte("passwords:\n"), []byte("passwords:\n    admin: hunter2\n"), 1)}},
	} {
		found, err := site.InClear(tree)
		require.NoError(t, err)
		require.Equal(t, want, found)
	}
}
