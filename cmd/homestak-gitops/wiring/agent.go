package wiring

import (
	"io/fs"

	"github.com/homestak/homestak-gitops/drivers/config"
	"github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
)

// Agent makes an agent whose hosts are on the network, and whose guests are entered as own says where the network
// has no ways of its own. It completes the options by all that has to do with drivers.
func (n Network) Agent(o service.Options, own config.Config) (*service.Service, error) {
	var s *service.Service
	var err error
	s, err = service.New(n.join(o, own, func() *service.Service { return s })) // a pass asks for it, and that comes later
	return s, err
}

// join completes the options of an agent by the drivers.
func (n Network) join(o service.Options, own config.Config, made func() *service.Service) service.Options {
	guests := n.Ways(own)
	// Simulated children reach no server outside of their network.
	if o.Config.Serves() != "" && (n.Guests == nil || o.Network.Listen != nil) {
		guests.Children = func() config.Children { return made().Server() }
	}
	access := n.Access(guests)
	o.Kinds, o.Simulated, o.NewKey = access.Kinds(), n.Reaches, ssh.NewKey
	o.Open = func(files fs.FS, d engine.Desired, h *model.Host, sent func(string, int)) (engine.Driver, error) {
		open := access
		open.Files, open.Sent = files, sent
		if server := made().Server(); server != nil {
			open.Parent = server
		}
		return open.Open(d, h)
	}
	return o
}
