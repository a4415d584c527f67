package site_test

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/site"
)

func TestInClear(t *testing.T) {
	const plain, encrypted = "passwords:\n  root: x\n", "passwords:\n  root: ENC[AES256_GCM,data:eA==,iv:eA==,tag:eA==,type:str]\nsops:\n  mac: ENC[AES256_GCM,data:eA==,iv:eA==,tag:eA==,type:str]\n  version: 3.9.0\n"
	for want, tree := range map[string]fstest.MapFS{
		"":                       {"site.hcl": {}, "secrets.sops.yaml": {Data: []byte(encrypted)}, "secrets.yaml/x": {}, "a/secrets.yaml": {Mode: fs.ModeSymlink, Data: []byte("x")}},
		"secrets.yaml":           {"secrets.yaml": {Data: []byte(plain)}},
		"work/secrets.yaml":      {"home/site.hcl": {}, "work/secrets.yaml": {Data: []byte(plain)}},
		"work/secrets.sops.yaml": {"work/secrets.sops.yaml": {Data: []byte(plain)}},
	} {
		found, err := site.InClear(tree)
		require.NoError(t, err)
		require.Equal(t, want, found)
	}
}
