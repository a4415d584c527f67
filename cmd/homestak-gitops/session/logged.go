package session

import (
	"context"
	"time"

	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
)

// logged is a driver that logs its observations of a host.
type logged struct {
	engine.Driver
	host  *model.Host
	notef func(format string, args ...any)
}

// Observe logs its duration and its result.
func (d logged) Observe(ctx context.Context, w *model.Want) (model.Observed, error) {
	d.notef("checking host %s (%s)", d.host.Name, d.host.API)
	began := time.Now()
	have, err := d.Driver.Observe(ctx, w)
	d.notef("checked host %s in %s: %d managed, %d unmanaged, %d unknown",
		d.host.Name, time.Since(began).Round(time.Millisecond), len(have.State), len(have.Unmanaged), len(have.Unknown))
	return have, err
}

// Release releases the driver.
func (d logged) Release() {
	if r, ok := d.Driver.(engine.Releaser); ok {
		r.Release()
	}
}
