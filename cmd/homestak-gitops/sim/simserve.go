package sim

// A simulated Proxmox VE host for other programs: its API, and SSH to the host and its guests.

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/view"
	"github.com/homestak/homestak-gitops/sim"
)

// ServeOptions say what is served, and where.
type ServeOptions struct {
	sim.HostOptions
	Listen string // address of the API; port 0 is a free one
	SSH    string // likewise, of SSH

	// Ready is called once both are served. An error ends them.
	Ready func(Simulator) error
}

// Simulator is the address of a simulator, as the line that sim --json prints.
type Simulator struct {
	API         string `json:"api"`
	Node        string `json:"node"`
	Token       string `json:"token"`
	Fingerprint string `json:"fingerprint"`
	SSH         string `json:"ssh"` // by which guests are reached
	HostKey     string `json:"host_key"`
}

// Serve serves a new host until ctx ends, which is not an error.
func Serve(ctx context.Context, o ServeOptions) error {
	host, err := sim.NewHost(o.HostOptions)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	api, err := new(net.ListenConfig).Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("serve on %s: %w\nchoose another address: --listen 127.0.0.1:0", o.Listen, err)
	}
	ssh, err := new(net.ListenConfig).Listen(ctx, "tcp", o.SSH)
	if err != nil {
		_ = api.Close()
		return fmt.Errorf("serve SSH on %s: %w\nchoose another address: --ssh 127.0.0.1:0", o.SSH, err)
	}
	jump := sim.JumpTo(host)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	all.Go(func() { jump.Serve(ctx, ssh) })
	at := Simulator{
		API: "https://" + view.Reachable(api.Addr()), Node: host.Node(), Token: host.Token(), Fingerprint: host.Fingerprint(),
		SSH: view.Reachable(ssh.Addr()), HostKey: jump.HostKey(),
	}
	if err := o.Ready(at); err != nil {
		_ = api.Close()
		return err
	}
	if err := host.Serve(ctx, api); err != nil {
		return fmt.Errorf("serve on %s: %w", api.Addr(), err)
	}
	return nil
}

// Text is the text for a site that uses the simulator.
func (s Simulator) Text() string {
	ip, port, err := net.SplitHostPort(s.SSH)
	if err != nil {
		ip, port = s.SSH, "22"
	}
	return fmt.Sprintf(`A simulated Proxmox VE host %[2]s listens at %[1]s.

In the site:

  host %[2]q {
    api         = %[1]q
    fingerprint = %[4]q
    ssh {
      address  = %[5]q
      port     = %[6]s
      host_key = %[7]q
      jump     = true
    }
  }

In its secrets.yaml, which git must not track (or in a file for --secrets):

  api_tokens:
    %[2]s: %[3]q
  auth:
    ownership_key: %[8]q # if there is none yet

Ctrl-C ends it.
`, s.API, s.Node, s.Token, s.Fingerprint, ip, port, s.HostKey, model.NewOwnershipKey())
}
