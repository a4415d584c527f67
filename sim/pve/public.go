package pve

import (
	"github.com/homestak/homestak-gitops/sim/pve/content"
	"github.com/homestak/homestak-gitops/sim/pve/core"
)

// Names of the parts of a host for importers of this package.
type (
	// Config says what a host is like.
	Config = core.Config
	// System is the kind of a host's disks.
	System = core.System
	// Storage is one storage of a host.
	Storage = core.Storage
	// Death says how a worker process dies in the middle of its task.
	Death = core.Death
	// KeptPromises remembers answers that match the API table.
	KeptPromises = core.KeptPromises
	// Execution is the outcome of a program in a guest.
	Execution = core.Execution
	// Programs is a guest agent's way into a guest.
	Programs = core.Programs
	// Machine is a guest as its system sees itself when it boots.
	Machine = core.Machine
	// Page is a page of the simulated web.
	Page = content.Page
	// Download says what a download from some addresses fetches.
	Download = content.Download
)

// The functions that go with them.
var (
	DefaultStorages = core.DefaultStorages
	ParseStorage    = core.ParseStorage
	Versions        = core.Versions
	ParseDownload   = content.ParseDownload
	Sums            = content.Sums
)
