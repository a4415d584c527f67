package session

import (
	"io/fs"
	"os"

	"github.com/homestak/homestak-gitops/drivers"
	"github.com/homestak/homestak-gitops/drivers/local"
	"github.com/homestak/homestak-gitops/drivers/push"
	"github.com/homestak/homestak-gitops/drivers/ssh"
	"github.com/homestak/homestak-gitops/engine"
	"github.com/homestak/homestak-gitops/engine/guest/asroot"
	"github.com/homestak/homestak-gitops/engine/images"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/service"
	"github.com/homestak/homestak-gitops/specserve/daemon"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Agent makes an agent whose hosts are on the network, and whose guests are entered as own says where the network
// has no ways of its own. It completes the options by all that has to do with drivers.
func (n Network) Agent(o service.Options, own push.Config) (*service.Service, error) {
	var s *service.Service
	var err error
	url := ""
	if serves := o.Config.Serves(); serves != "" && n.Server != nil {
		if url, o.File, err = n.Server(serves); err != nil {
			return nil, err
		}
	}
	s, err = service.New(n.join(o, own, url, func() *service.Service { return s })) // a pass asks for it, and that comes later
	return s, err
}

// moved is a server that nodes reach at another address than machines.
type moved struct {
	server
	url string
}

type server = drivers.Parent

// Parent is as drivers.Parent wants it.
func (m moved) Parent(node, spec string) (wire.Parent, error) {
	p, err := m.server.Parent(node, spec)
	p.Server = m.url
	return p, err
}

// join completes the options of an agent by the drivers. Nodes reach its server at url, if that is not "".
func (n Network) join(o service.Options, own push.Config, url string, made func() *service.Service) service.Options {
	guests := n.Ways(own)
	// Simulated children reach no server outside of their network.
	if o.Config.Serves() != "" && (n.Guests == nil || o.Network.Listen != nil) {
		guests.Children = func() push.Children { return made().Server() }
	}
	access := n.Access(guests)
	if n.Reaches == nil {
		o.Machine = local.New()
	}
	o.Kinds, o.Simulated, o.NewKey = access.Kinds(), n.Reaches, ssh.NewKey
	o.Open = func(files fs.FS, sent func(string, int), server *daemon.Server, near *images.Near) func(engine.Desired, *model.Host) (engine.Driver, error) {
		hosts := access
		hosts.Files, hosts.Sent, hosts.Near = files, sent, near
		if of, ok := files.(interface{ Commit() string }); ok && n.Guests == nil && os.Geteuid() != 0 { // root needs none
			hosts.Guests.Helper = &asroot.Client{Socket: asroot.Socket, Commit: of.Commit}
		}
		if server != nil {
			if hosts.Parent = server; url != "" {
				hosts.Parent = moved{server, url}
			}
		}
		return hosts.Open
	}
	return o
}
