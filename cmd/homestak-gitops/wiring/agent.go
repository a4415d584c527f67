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
	guests := n.Ways(own)
	// Simulated children reach no server outside of their network.
	if o.Config.Serves() != "" && (n.Guests == nil || o.Network.Listen != nil) {
		guests.Children = func() config.Children { return s.Server() } // it is there before a pass is
	}
	access := n.Access(guests)
	o.Kinds, o.Simulated, o.NewKey = access.Kinds(), n.Reaches, ssh.NewKey
	o.Open = func(files fs.FS, d engine.Desired, h *model.Host, sent func(string, int)) (engine.Driver, error) {
		open := access
		open.Files, open.Sent = files, sent
		if server := s.Server(); server != nil {
			open.Parent = server
		}
		return open.Open(d, h)
	}
	var err error
	s, err = service.New(o)
	return s, err
}
