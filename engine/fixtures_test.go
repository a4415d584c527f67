package engine_test

import "github.com/homestak/homestak-gitops/engine/enginetest"

// The host of these tests, and what stands on it.
type (
	box  = enginetest.Box
	host = enginetest.Host
	lost = enginetest.LostError
)

var (
	addr        = enginetest.Addr
	checkedSite = enginetest.CheckedSite
	ipOf        = enginetest.IPOf
	newInn      = enginetest.NewInn
	pass        = enginetest.Pass
	said        = enginetest.Said
	statuses    = enginetest.Statuses
	site        = enginetest.Site
)
