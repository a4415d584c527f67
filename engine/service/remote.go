package service

import (
	"errors"

	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/specserve/client"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Elsewhere is the server of an agent on another machine, as a command line names it.
type Elsewhere struct {
	Server  string   // https://HOST:PORT; "": the agent of this machine is asked
	Pins    []string // of the keys of the server
	KeyFile string   // with the key that opens what is asked
}

// Client asks that agent.
func (e Elsewhere) Client() (*control.Client, error) {
	if len(e.Pins) == 0 || e.KeyFile == "" {
		return nil, errors.New("--server needs the pin of the server and a key\nsay --pin sha256:… and --key-file FILE; status on that machine shows the pins, and its folder server in the data folder has the keys")
	}
	p, err := wire.ParentByHand("operator", e.Server, e.KeyFile, e.Pins)
	if err != nil {
		return nil, err
	}
	return control.Remote(p.Server, client.NewTransport(func() (wire.Parent, error) { return p, nil }, p.Server, nil)), nil
}
