package main

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

func load(t *testing.T, text string) *model.Site {
	t.Helper()
	site, found := hcl.Load(fstest.MapFS{"site.hcl": {Data: []byte(text)}}, hcl.Options{Kinds: proxmox.Kinds()})
	require.Zero(t, found.Errors(), "%v", found)
	return site
}
