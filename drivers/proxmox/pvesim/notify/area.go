// Package notify keeps the targets and matchers of notifications. Nobody is notified.
package notify

import (
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/core"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pvesim/sections"
)

// Area is notifications.
func Area() sections.Area {
	return sections.Area{
		Files: notificationFiles(),
		Calls: notificationCalls(),
		Begin: func(w *core.World) { restoreBuiltin(w) },
	}
}
